// Requests to the node. Sends a request, sends it again where that is safe, starts an absent node,
// and turns every failure into a WindlassError. Knows no endpoint.

import { setMaxListeners } from "node:events";
import {
  Agent,
  type ClientRequest,
  type IncomingMessage,
  request as httpRequest,
  type RequestOptions,
} from "node:http";
import { Agent as TlsAgent, request as httpsRequest } from "node:https";
import { setTimeout as pause } from "node:timers/promises";

import { type Address, checkOwn, describe, type Environment } from "./address.js";
import type { ApiError } from "./api.js";
import {
  asError,
  badAnswer,
  clientClosed,
  connectionLost,
  hasCode,
  unreachable,
  WindlassError,
} from "./errors.js";
import { startNode } from "./start.js";
import { type NodeTls, tlsFailure } from "./tls.js";
import { within, WITHIN_HEADER } from "./within.js";

/** The API version of this client. A node with the same major version is compatible. */
export const API = "1.0";

/** The header that carries the API version in both directions. */
export const API_HEADER = "windlass-api";

/** The name of this package as a client. The node shows it with the sessions that the package creates. */
const CLIENT = "windlass-typescript";
const CLIENT_HEADER = "windlass-client";

/** How long a request is retried after its connection failed. */
export const RETRY_FOR_MS_DEFAULT = 10_000;

/** How long an answer may take, on top of the wait that the request itself allows. */
const ANSWER_WAIT_MS = 30_000;

/** Number of idle connections that are kept. */
const IDLE_CONNECTIONS_MAX = 16;

/** The largest answer that is read whole. */
const ANSWER_BYTES_MAX = 64 * 1024 * 1024;

/** Largest body that is sent without `expect: 100-continue`. */
const UNASKED_BYTES_MAX = 1024 * 1024;

/** The first and the longest pause between two attempts. */
const PAUSE_FIRST_MS = 5;
const PAUSE_MS_MAX = 200;

/** An attempt that lasted longer than this had reached a node: its failure starts a new outage. */
const OUTAGE_OVER_MS = 1000;

export interface Call {
  method: "GET" | "POST" | "PUT" | "DELETE";
  /** The path below `/v1`, with its query. */
  path: string;
  json?: unknown;
  body?: Uint8Array | AsyncIterable<Uint8Array> | undefined;
  headers?: Record<string, string | undefined>;
  /**
   * Whether the node carries the request out once however often it arrives. Otherwise it is
   * repeated only if it never left.
   */
  repeat: "freely" | "if_not_sent";
  /** How much longer the node may take to answer. */
  waitMs?: number | undefined;
  /** Whether to start an absent node for this request. */
  start?: boolean;
  signal?: AbortSignal | undefined;
  /** Called before the request is sent again: the node may have carried it out already. */
  onRepeat?: () => void;
}

export interface Answer {
  status: number;
  headers: IncomingMessage["headers"];
  body: Buffer;
}

type Again = "safe" | "if_repeatable" | "never";

/** A failed attempt: the error for the caller, and whether the node may have acted. */
class Failure {
  constructor(
    readonly error: Error,
    readonly again: Again,
  ) {}
}

export interface DoorOptions {
  address: Address;
  /** The program that starts a node; undefined: never start one. */
  program: string | undefined;
  env: Environment;
  retryForMs: number;
  /** Gets a line for each begin and end of a host tool call, if the client is verbose. */
  showCall?: ((line: string) => void) | undefined;
}

export class Door {
  readonly address: Address;
  readonly #options: DoorOptions;
  readonly #agent: Agent;
  readonly #closing = new AbortController();
  #starting: Promise<void> | undefined;

  constructor(options: DoorOptions) {
    // Every open request listens to this signal.
    setMaxListeners(0, this.#closing.signal);
    this.#options = options;
    this.address = options.address;
    const pool = { keepAlive: true, maxFreeSockets: IDLE_CONNECTIONS_MAX };
    this.#agent = this.tls === undefined ? new Agent(pool) : new TlsAgent({ ...pool, ...this.tls.options });
  }

  /** How the node is reached in TLS; undefined: without TLS. */
  get tls(): NodeTls | undefined {
    return this.address.kind === "tcp" ? this.address.tls : undefined;
  }

  /** Aborts when the client is closed. */
  get closed(): AbortSignal {
    return this.#closing.signal;
  }

  get showCall(): ((line: string) => void) | undefined {
    return this.#options.showCall;
  }

  get retryForMs(): number {
    return this.#options.retryForMs;
  }

  close(): void {
    this.#closing.abort(clientClosed());
    this.#agent.destroy();
  }

  /** Sends a request and parses the answer as JSON. */
  async json<T>(call: Call): Promise<T> {
    return parse<T>(call, (await this.call(call)).body);
  }

  /** Sends a request and reads the whole answer. */
  call(call: Call): Promise<Answer> {
    return this.#patiently(call, async () => {
      const deadline = AbortSignal.timeout(ANSWER_WAIT_MS + (call.waitMs ?? 0));
      const response = await this.#head(call, deadline);
      const body = await collect(response, deadline).catch((fault: unknown) => {
        throw deadline.aborted ? late(call) : new Failure(asCut(fault), "if_repeatable");
      });
      const { headers, statusCode = 0 } = response;
      return { status: statusCode, headers, body };
    });
  }

  /** Sends a request and returns the answer's body as a stream. */
  stream(call: Call): Promise<IncomingMessage> {
    return this.#patiently(call, () =>
      this.#head(call, AbortSignal.timeout(ANSWER_WAIT_MS + (call.waitMs ?? 0))),
    );
  }

  /** The headers of every request: version, host and authorization. */
  headers(): Record<string, string> {
    const headers: Record<string, string> = { [API_HEADER]: API, [CLIENT_HEADER]: CLIENT };
    if (this.address.kind === "tcp") {
      headers["host"] = this.address.authority;
      headers["authorization"] = `Bearer ${this.address.token}`;
    } else {
      headers["host"] = "windlass";
    }
    const call = within.getStore();
    if (call !== undefined) headers[WITHIN_HEADER] = call;
    return headers;
  }

  /** Starts the node. Concurrent callers share one start. */
  start(): Promise<void> {
    const { address } = this;
    const { program, env } = this.#options;
    if (address.kind !== "socket" || program === undefined) return Promise.resolve();
    this.#starting ??= startNode(program, address.dirs, env).finally(() => {
      this.#starting = undefined;
    });
    return this.#starting;
  }

  get startable(): boolean {
    return this.address.kind === "socket" && this.#options.program !== undefined;
  }

  async #patiently<T>(call: Call, attempt: () => Promise<T>): Promise<T> {
    let failingSince: number | undefined;
    let wait = PAUSE_FIRST_MS;
    for (;;) {
      if (this.closed.aborted) throw clientClosed();
      call.signal?.throwIfAborted();
      const began = Date.now();
      try {
        return await attempt();
      } catch (thrown) {
        if (this.closed.aborted) throw clientClosed();
        call.signal?.throwIfAborted();
        if (!(thrown instanceof Failure)) throw thrown;
        if (Date.now() - began > OUTAGE_OVER_MS) {
          failingSince = undefined;
          wait = PAUSE_FIRST_MS;
        }
        const mayRepeat =
          thrown.again === "safe" || (thrown.again === "if_repeatable" && call.repeat === "freely");
        failingSince ??= Date.now();
        if (!mayRepeat || Date.now() - failingSince + wait > this.retryForMs) throw thrown.error;
        await pause(wait);
        call.onRepeat?.();
        wait = Math.min(wait * 2, PAUSE_MS_MAX);
      }
    }
  }

  /**
   * Sends the request and reads the head of the answer. A status other than success is an error.
   */
  async #head(call: Call, deadline: AbortSignal): Promise<IncomingMessage> {
    let response;
    try {
      response = await this.#send(call, deadline);
    } catch (thrown) {
      if (!(thrown instanceof Absent)) throw thrown;
      if (call.start === false || !this.startable) {
        throw new Failure(unreachable(describe(this.address), thrown.cause), "safe");
      }
      await this.start();
      response = await this.#send(call, deadline).catch((again: unknown) => {
        if (!(again instanceof Absent)) throw again;
        throw new Failure(unreachable(describe(this.address), again.cause), "safe");
      });
    }
    const said = response.headers[API_HEADER];
    if (typeof said !== "string" || said.split(".")[0] !== API.split(".")[0]) {
      response.destroy();
      throw versionMismatch(said);
    }
    const { statusCode = 0 } = response;
    if (statusCode >= 200 && statusCode < 300) return response;
    const body = await collect(response, deadline).catch((fault: unknown) => {
      throw new Failure(asCut(fault), "if_repeatable");
    });
    const error = refusal(call, statusCode, body);
    // A node that is stopping did nothing with the request, and its successor may start soon.
    throw new Failure(error, hasCode(error, "shutting_down") ? "safe" : "never");
  }

  #send(call: Call, deadline: AbortSignal): Promise<IncomingMessage> {
    if (this.address.kind === "socket") checkOwn(this.address.dirs.runtime);
    const headers: RequestOptions["headers"] = this.headers();
    for (const [name, value] of Object.entries(call.headers ?? {})) {
      if (value !== undefined) headers[name] = value;
    }
    const content = call.json === undefined ? call.body : Buffer.from(JSON.stringify(call.json));
    if (call.json !== undefined) headers["content-type"] = "application/json";
    if (content instanceof Uint8Array) headers["content-length"] = content.byteLength;
    // A long body waits until the node accepts it, so that a refusal comes before the body.
    const short = content instanceof Uint8Array && content.byteLength <= UNASKED_BYTES_MAX;
    const long = content !== undefined && !short;
    if (long) headers["expect"] = "100-continue";
    const { address } = this;
    const where =
      address.kind === "socket"
        ? { socketPath: address.path }
        : { host: address.host, port: address.port };
    return new Promise((resolve, reject) => {
      const { method, path } = call;
      const send = this.tls === undefined ? httpRequest : httpsRequest;
      const request = send({ ...where, method, path, headers, agent: this.#agent });
      const stop = (): void => void request.destroy();
      const signals = [deadline, this.closed, ...(call.signal ? [call.signal] : [])];
      for (const signal of signals) signal.addEventListener("abort", stop);
      const settle = (): void => {
        // The deadline covers the head. The reader of the body has its own.
        deadline.removeEventListener("abort", stop);
      };
      request.once("close", () => {
        for (const signal of signals) signal.removeEventListener("abort", stop);
      });
      request.once("response", (response) => {
        settle();
        // A reader of the body gets this error; without a reader it can be ignored.
        response.on("error", () => undefined);
        resolve(response);
      });
      let begun = false;
      request.on("error", (fault: NodeJS.ErrnoException) => {
        settle();
        if (deadline.aborted) reject(late(call));
        // A partly read stream cannot be sent again.
        else if (begun) reject(new Failure(asCut(fault), "never"));
        else reject(ofFault(fault, describe(address), this.tls));
      });
      if (!long) {
        request.end(content);
        return;
      }
      request.flushHeaders();
      request.once("continue", () => {
        if (content instanceof Uint8Array) {
          request.end(content);
          return;
        }
        begun = true;
        pour(content, request).catch((thrown: unknown) => {
          // The content failed, not the connection.
          reject(asError(thrown));
          request.destroy();
        });
      });
    });
  }
}

/** No process listens at the address. */
class Absent {
  constructor(readonly cause: Error) {}
}

function ofFault(
  fault: NodeJS.ErrnoException,
  address: string,
  tls: NodeTls | undefined,
): Absent | Failure {
  const refused = tlsFailure(fault, address, tls);
  if (refused !== undefined) return new Failure(refused, "never");
  if (fault.syscall === "connect") {
    if (fault.code === "ENOENT" || fault.code === "ECONNREFUSED") return new Absent(fault);
    return new Failure(unreachable(address, fault), "safe");
  }
  // The connection ended before the first byte was written.
  if (fault.code === "EPIPE" && fault.syscall === "write") {
    return new Failure(connectionLost(fault.message), "safe");
  }
  return new Failure(connectionLost(fault.message), "if_repeatable");
}

/** Writes a body and respects backpressure. */
async function pour(source: AsyncIterable<Uint8Array>, request: ClientRequest): Promise<void> {
  for await (const piece of source) {
    if (request.destroyed) return;
    if (request.write(piece)) continue;
    await new Promise<void>((resolve) => {
      const go = (): void => {
        request.off("drain", go).off("close", go);
        resolve();
      };
      request.on("drain", go).on("close", go);
    });
  }
  request.end();
}

async function collect(response: IncomingMessage, deadline: AbortSignal): Promise<Buffer> {
  const stop = (): void => void response.destroy(new Error("the answer took too long"));
  deadline.addEventListener("abort", stop);
  try {
    const pieces: Buffer[] = [];
    let bytes = 0;
    for await (const piece of response as AsyncIterable<Buffer>) {
      bytes += piece.length;
      if (bytes > ANSWER_BYTES_MAX) throw new Error(`the answer is longer than ${ANSWER_BYTES_MAX} bytes`);
      pieces.push(piece);
    }
    return pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces);
  } finally {
    deadline.removeEventListener("abort", stop);
  }
}

function refusal(call: Call, status: number, body: Buffer): WindlassError {
  try {
    const error = JSON.parse(body.toString()) as Partial<ApiError>;
    if (typeof error.code === "string" && typeof error.message === "string") {
      return WindlassError.fromApi({ remedy: "", retryable: false, ...error } as ApiError);
    }
  } catch {
    // Reported below.
  }
  return badAnswer(nameOf(call), `status ${status} without a JSON error body`);
}

function parse<T>(call: Call, body: Buffer): T {
  try {
    return JSON.parse(body.toString()) as T;
  } catch (thrown) {
    throw badAnswer(nameOf(call), asError(thrown).message);
  }
}

function late(call: Call): WindlassError {
  const after = ANSWER_WAIT_MS + (call.waitMs ?? 0);
  const message = `the node did not answer ${nameOf(call)} within ${after} ms`;
  return new WindlassError("timeout", message, "see whether the node is healthy with: windlass status", {
    retryable: true,
  });
}

export function versionMismatch(said: unknown): WindlassError {
  const node = typeof said === "string" ? said : "an unnamed version";
  return new WindlassError(
    "version_mismatch",
    `this client speaks API ${API}, the node speaks ${node}`,
    "install the same release on both sides, then restart the node with: " +
      "windlass down --keep-sessions && windlass up",
  );
}

function asCut(fault: unknown): WindlassError {
  return connectionLost(asError(fault).message);
}

/** For messages: without the query, which may hold search text. */
function nameOf(call: Call): string {
  return `${call.method} ${call.path.split("?")[0]}`;
}
