// A stub node for rare behaviour: it cuts connections at a chosen moment and sends frames in a
// chosen order. It speaks the tool hosts' protocol and answers every request.

import { once } from "node:events";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { WebSocket, WebSocketServer } from "ws";

import { Windlass } from "../src/index.js";
import { decodeFrame, encodeFrame, type Frame } from "../src/frame.js";

export interface Header {
  kind: string;
  call?: number;
  ok?: boolean;
  more?: boolean;
}

/** One connected host. */
export class StubHost {
  readonly frames: Frame<Header>[] = [];
  #told: () => void = () => undefined;

  constructor(
    readonly socket: WebSocket,
    readonly url: string,
  ) {
    socket.on("message", (data: Buffer) => {
      this.frames.push(decodeFrame<Header>(Buffer.from(data)));
      this.#told();
    });
  }

  say(header: object, body = ""): void {
    this.socket.send(encodeFrame(header, Buffer.from(body)));
  }

  call(call: number, name: string, args: unknown): void {
    this.say({ kind: "tool_call", session: "s", turn: 1, call, name, deadline_ms: 1000 }, JSON.stringify(args));
  }

  /** Removes and returns the first matching frame. */
  async frame(fits: (header: Header) => boolean): Promise<Frame<Header>> {
    for (;;) {
      const at = this.frames.findIndex((frame) => fits(frame.header));
      if (at >= 0) return this.frames.splice(at, 1)[0]!;
      await new Promise<void>((resolve) => (this.#told = resolve));
    }
  }

  /** The whole answer to a call, with the sizes of its frames. */
  async answer(call: number): Promise<{ ok: boolean; value: unknown; sizes: number[] }> {
    const pieces: Buffer[] = [];
    for (;;) {
      const { header, body } = await this.frame((header) => header.call === call);
      pieces.push(body);
      if (header.more) continue;
      const value: unknown = JSON.parse(Buffer.concat(pieces).toString());
      return { ok: header.ok!, value, sizes: pieces.map((piece) => piece.length) };
    }
  }
}

export class StubNode {
  readonly requests: IncomingMessage[] = [];
  readonly #waiting: ((host: StubHost) => void)[] = [];
  readonly #hosts: StubHost[] = [];
  /** Answers a declaration. */
  declared: (host: StubHost) => void = (host) => host.say({ kind: "tools_accepted", count: 1 });

  /** Answers a request. */
  answer: (request: IncomingMessage, response: ServerResponse) => void = (_, response) => response.end("{}");

  private constructor(
    readonly base: string,
    private server: Server,
  ) {}

  static async start(): Promise<StubNode> {
    const base = await mkdtemp(join(tmpdir(), "wl-st-"));
    await mkdir(join(base, "r"), { mode: 0o700 });
    const node = new StubNode(base, createServer());
    await node.listen();
    return node;
  }

  client(): Windlass {
    const env = { WINDLASS_RUNTIME_DIR: join(this.base, "r"), WINDLASS_STATE_DIR: join(this.base, "s") };
    return new Windlass({ env, start: false });
  }

  async listen(): Promise<void> {
    this.server = createServer((request, response) => {
      this.requests.push(request);
      this.answer(request, response.setHeader("windlass-api", "1.0"));
    });
    const sockets = new WebSocketServer({ server: this.server });
    sockets.on("connection", (socket, request) => {
      const host = new StubHost(socket, request.url ?? "");
      host.say({ kind: "welcome", api: "1.0", node: "stub" });
      void host.frame((header) => header.kind === "tools" && !header.more).then(() => {
        this.declared(host);
        const waiting = this.#waiting.shift();
        if (waiting) waiting(host);
        else this.#hosts.push(host);
      });
    });
    this.server.listen(join(this.base, "r/node.sock"));
    await once(this.server, "listening");
  }

  /** The next host that declared its tools. */
  host(): Promise<StubHost> {
    const there = this.#hosts.shift();
    if (there) return Promise.resolve(there);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Ends as a killed node would. */
  async die(host: StubHost): Promise<void> {
    host.socket.terminate();
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, "close");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.server.closeAllConnections();
    this.server.close();
    await rm(this.base, { recursive: true, force: true });
  }
}
