// One connection of a tool host: a WebSocket with one frame in each binary message. Declares tools,
// takes calls, and answers many at once. Never connects again.

import WebSocket, { type ClientOptions } from "ws";

import { checkOwn, describe } from "./address.js";
import type { ApiError } from "./api.js";
import { API, type Door, versionMismatch } from "./door.js";
import { connectionLost, unreachable, WindlassError } from "./errors.js";
import { decodeFrame, encodeMessage, FRAME_BYTES_MAX, MESSAGE_BYTES_MAX } from "./frame.js";
import { withCopies } from "./file-arguments.js";
import { HostCopies } from "./host-copies.js";
import type { Offer } from "./offer.js";
import { path } from "./paths.js";
import { tlsFailure } from "./tls.js";
import { ArgumentsRefused, checkArguments, type Tool, type ToolCall } from "./tool.js";
import { ShownCall } from "./verbose.js";
import { within } from "./within.js";

/** How long the node may take to answer a handshake or a declaration. */
const ANSWER_WAIT_MS = 30_000;

/** Unsent bytes beyond which the next answer waits. */
const UNSENT_BYTES_MAX = 1024 * 1024;

/** Longest message of a tool's error in characters. In any encoding it fits one frame. */
const ERROR_LETTERS_MAX = 16 * 1024;

/** The sessions that may call the tools. */
export type Audience = { readonly session: string } | { readonly owner: string };

type ToHost =
  | { kind: "welcome"; api: string; node: string }
  | { kind: "tools_accepted"; count: number }
  | { kind: "refused"; code: string; message: string }
  | (CallName & { kind: "tool_call"; name: string; deadline_ms: number; more?: boolean })
  | (CallName & { kind: "tool_cancel"; reason: string });

interface CallName {
  session: string;
  turn: number;
  call: number;
}

/** A call whose arguments are arriving, or that is being answered. */
interface Open {
  arguments: Buffer[];
  bytes: number;
  stop: AbortController;
}

/** One connection. */
export class Link {
  /** Resolves with the WebSocket's close code when the connection has ended. */
  readonly ended: Promise<number>;
  #offer: Offer | undefined;
  readonly #calls = new Map<string, Open>();
  /** The pending wait: for the welcome, then for the answer to a declaration. */
  #awaited: { resolve: () => void; reject: (error: Error) => void } | undefined;

  private constructor(
    private readonly socket: WebSocket,
    address: string,
    private readonly door: Door,
  ) {
    this.ended = new Promise((resolve) => {
      socket.once("close", (code) => {
        for (const open of this.#calls.values()) open.stop.abort(new Error("the node is gone"));
        this.#calls.clear();
        this.#awaited?.reject(connectionLost("the connection was closed"));
        resolve(code);
      });
    });
    socket.on("message", (data: Buffer, binary) => this.#take(data, binary));
    socket.on("error", (fault: NodeJS.ErrnoException) => {
      const absent = fault.syscall === "connect";
      const lost = absent ? unreachable(address, fault) : connectionLost(fault.message);
      this.#awaited?.reject(tlsFailure(fault, address, door.tls) ?? lost);
    });
    socket.once("unexpected-response", (request, response) => {
      const pieces: Buffer[] = [];
      response.on("data", (piece: Buffer) => pieces.push(piece));
      response.once("close", () => {
        this.#awaited?.reject(refusalOf(response.statusCode, Buffer.concat(pieces)));
        request.destroy();
      });
    });
  }

  /** Connects and waits for the node's welcome. */
  static async open(door: Door, audience: Audience): Promise<Link> {
    const { address } = door;
    const place = path(["tools", "host"], { ...audience });
    const options: ClientOptions = {
      headers: door.headers(),
      perMessageDeflate: false,
      maxPayload: 2 * FRAME_BYTES_MAX,
      handshakeTimeout: ANSWER_WAIT_MS,
      ...door.tls?.options,
    };
    if (address.kind === "socket") checkOwn(address.dirs.runtime);
    const url =
      address.kind === "socket"
        ? `ws+unix:${address.path}:${place}`
        : `${door.tls === undefined ? "ws" : "wss"}://${address.authority}${place}`;
    const link = new Link(new WebSocket(url, options), describe(address), door);
    try {
      await link.#answered("send its welcome");
    } catch (thrown) {
      link.socket.terminate();
      throw thrown;
    }
    return link;
  }

  close(): void {
    this.socket.close();
  }

  /** Declares the tools and waits until the node accepts them. */
  async declare(offer: Offer): Promise<void> {
    const before = this.#offer;
    // Calls of the new tools may arrive before the node's confirmation.
    this.#offer = offer;
    try {
      const accepted = this.#answered("accept the tools");
      await Promise.all([accepted, this.#send({ kind: "tools" }, offer.declaration)]);
    } catch (thrown) {
      this.#offer = before;
      throw thrown;
    }
  }

  /** Waits for the node's next confirmation. */
  async #answered(what: string): Promise<void> {
    let late: NodeJS.Timeout | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        this.#awaited = { resolve, reject };
        late = setTimeout(() => {
          reject(connectionLost(`the node did not ${what} within ${ANSWER_WAIT_MS} ms`));
        }, ANSWER_WAIT_MS);
      });
    } finally {
      clearTimeout(late);
      this.#awaited = undefined;
    }
  }

  #take(data: Buffer, binary: boolean): void {
    let frame;
    try {
      if (!binary) throw new Error("a message is text");
      frame = decodeFrame<ToHost>(data);
    } catch {
      // No later message can be trusted; the host connects again.
      this.socket.terminate();
      return;
    }
    const { header, body } = frame;
    switch (header.kind) {
      case "welcome":
        if (header.api.split(".")[0] === API.split(".")[0]) this.#awaited?.resolve();
        else this.#awaited?.reject(versionMismatch(header.api));
        return;
      case "tools_accepted":
        this.#awaited?.resolve();
        return;
      case "refused":
        this.#awaited?.reject(
          new WindlassError(header.code, header.message, "correct what the message names"),
        );
        return;
      case "tool_call":
        this.#takeCall(header, body);
        return;
      case "tool_cancel": {
        const open = this.#calls.get(keyOf(header));
        this.#calls.delete(keyOf(header));
        open?.stop.abort(new DOMException(`the call is over: ${header.reason}`, "AbortError"));
        return;
      }
      default:
      // A message of a newer node.
    }
  }

  #takeCall(header: Extract<ToHost, { kind: "tool_call" }>, body: Buffer): void {
    const key = keyOf(header);
    const open = this.#calls.get(key) ?? { arguments: [], bytes: 0, stop: new AbortController() };
    this.#calls.set(key, open);
    open.bytes += body.length;
    if (open.bytes <= MESSAGE_BYTES_MAX) open.arguments.push(body);
    if (header.more) return;
    const { session, turn, call, name, deadline_ms: deadlineMs } = header;
    const { signal } = open.stop;
    const about: ToolCall = { session, turn, call, name, deadlineMs, signal };
    void within.run(key, () => this.#answer(about, open, key));
  }

  /** Runs the tool, and answers unless the call was cancelled. */
  async #answer(call: ToolCall, open: Open, key: string): Promise<void> {
    let ok = true;
    let body: Buffer;
    const { showCall } = this.door;
    const shown = showCall && new ShownCall(call, showCall);
    shown?.began(open.arguments);
    try {
      body = await this.#run(call, open);
    } catch (thrown) {
      ok = false;
      body = failureBody(thrown);
    }
    shown?.ended(ok, body);
    const { session, turn, call: number } = call;
    try {
      await this.#send({ kind: "tool_result", session, turn, call: number, ok }, body, call.signal);
    } catch {
      // The connection has ended, and the call with it.
    } finally {
      if (this.#calls.get(key) === open) this.#calls.delete(key);
    }
  }

  async #run(call: ToolCall, open: Open): Promise<Buffer> {
    const tool = this.#offer?.tools.get(call.name);
    const schema = this.#offer?.withFiles.get(call.name);
    if (tool === undefined) throw new ToolFault("tool_not_found", `there is no tool ${call.name}`);
    if (open.bytes > MESSAGE_BYTES_MAX) throw tooLarge("arguments", open.bytes);
    const args: unknown = JSON.parse(Buffer.concat(open.arguments).toString() || "{}");
    open.arguments = [];
    if (schema === undefined) return answerOf(tool, args, call);
    const copies = new HostCopies(this.door, call);
    try {
      const copy = copies.copy.bind(copies);
      const answer = await answerOf(tool, await withCopies(schema, args, copy), call);
      await copies.writeBack();
      return answer;
    } finally {
      await copies.close();
    }
  }

  /** Sends a message frame by frame, so that frames of other calls come in between. */
  async #send(header: object, body: Buffer, given?: AbortSignal): Promise<void> {
    for (const frame of encodeMessage(header, body)) {
      if (given?.aborted) return;
      await new Promise<void>((resolve, reject) => {
        this.socket.send(frame, { binary: true }, (fault) => {
          if (fault) reject(connectionLost(fault.message));
          else resolve();
        });
        if (this.socket.bufferedAmount < UNSENT_BYTES_MAX) resolve();
      });
    }
  }
}

/** The tool's answer in JSON. */
async function answerOf(tool: Tool, args: unknown, call: ToolCall): Promise<Buffer> {
  const checked = await checkArguments(tool.input, args);
  // Do not start a tool for a cancelled call.
  call.signal.throwIfAborted();
  const value: unknown = await tool.run(checked as never, call);
  const answer = Buffer.from(JSON.stringify(value) ?? "null");
  if (answer.length > MESSAGE_BYTES_MAX) throw tooLarge("an answer", answer.length);
  return answer;
}

/** A failure outside of the tool's function. */
class ToolFault extends Error {
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

function tooLarge(what: string, bytes: number): ToolFault {
  return new ToolFault(
    "message_too_large",
    `${what} of ${bytes} bytes is over the limit of ${MESSAGE_BYTES_MAX}`,
  );
}

interface ToolFailure {
  message: string;
  type?: string;
  code?: string;
}

/** The error that the code sees, in one frame. */
function failureBody(thrown: unknown): Buffer {
  const failure = failureOf(thrown);
  if (failure.message.length > ERROR_LETTERS_MAX) {
    failure.message = `${failure.message.slice(0, ERROR_LETTERS_MAX)}...`;
  }
  return Buffer.from(JSON.stringify(failure));
}

function failureOf(thrown: unknown): ToolFailure {
  if (thrown instanceof ToolFault) return { message: thrown.message, code: thrown.code };
  if (thrown instanceof ArgumentsRefused) {
    return { message: thrown.message, type: thrown.name, code: "bad_request" };
  }
  if (!(thrown instanceof Error)) return { message: String(thrown), type: typeof thrown };
  const own = thrown.name === "Error" ? thrown.constructor.name : thrown.name;
  return { message: thrown.message, type: own || "Error" };
}

function keyOf({ session, turn, call }: CallName): string {
  return `${session}/${turn}/${call}`;
}

function refusalOf(status: number | undefined, body: Buffer): WindlassError {
  try {
    return WindlassError.fromApi(JSON.parse(body.toString()) as ApiError);
  } catch {
    return new WindlassError(
      "bad_answer",
      `the node refused the tool host with status ${status}`,
      "check that the node has the same release with: windlass status",
    );
  }
}
