// A session: a live interpreter with its state, workspace and policy, driven by turns.

import type {
  CanReach,
  EgressLog,
  ForkedSession,
  ForkSession,
  LeftOutDirectory,
  NotCarried,
  SearchResult,
  Session as SessionView,
} from "./api.js";
import type { Door } from "./door.js";
import { hasCode } from "./errors.js";
import { follow, type SessionEvent } from "./events.js";
import { Files } from "./files.js";
import { openHost, type ToolHost } from "./host.js";
import type { Tools } from "./offer.js";
import { path } from "./paths.js";
import type { TurnResult } from "./result.js";
import {
  firstWait,
  freshId,
  type EventPosition,
  type RunOptions,
  type StreamOptions,
  submitTurn,
  Turn,
} from "./turn.js";

/** How long a fork may take: a large workspace is copied first. */
const FORK_WAIT_MS = 120_000;

/** A range of raw output. */
export interface OutputRange {
  bytes: Uint8Array;
  /** Where the range begins. */
  from: number;
  /** Where to continue reading. */
  next: number;
  /** Bytes of output in all. */
  total: number;
  /** Bytes that the node did not keep. */
  dropped: number;
}

export interface OutputOptions {
  turn?: string | undefined;
  from?: number | undefined;
  to?: number | undefined;
  tail?: number | undefined;
}

export class Session {
  readonly id: string;
  /** The directory that the code works in, on the node's machine. */
  readonly workspace: string;
  /** Files in and out of the workspace. */
  readonly files: Files;
  readonly #door: Door;
  readonly #position: EventPosition;
  readonly #hosts = new Set<ToolHost>();

  /** Use {@link Windlass.session} or {@link Windlass.attach}. */
  constructor(door: Door, view: SessionView) {
    this.#door = door;
    this.id = view.id;
    this.workspace = view.workspace;
    this.files = new Files(door, view.id);
    this.#position = { seen: view.seq };
  }

  /** Runs code as a turn and waits until it ends. */
  async run(code: string, options: RunOptions = {}): Promise<TurnResult> {
    options.signal?.throwIfAborted();
    const id = options.id ?? freshId("t");
    const turn = new Turn(this.#door, this.id, id, this.#position, this.#position.seen);
    const interrupting = turn.interruptOn(options.signal);
    const began = Date.now();
    try {
      const wait = firstWait(options.waitMs);
      const view = await submitTurn(this.#door, this.id, code, { ...options, id }, wait);
      const { waitMs } = options;
      const left = waitMs === undefined ? undefined : Math.max(0, waitMs - (Date.now() - began));
      return await turn.settle(view, { ...options, waitMs: left });
    } finally {
      interrupting.stop();
    }
  }

  /**
   * Runs code as a turn and yields its events as they happen, each once, also over a restart of the
   * node. Leaving the loop does not stop the turn.
   */
  async *stream(
    code: string,
    options: StreamOptions = {},
  ): AsyncGenerator<SessionEvent, void, undefined> {
    options.signal?.throwIfAborted();
    const turn = await this.submit(code, options);
    yield* turn.events(options);
  }

  /** Submits a turn and returns at once. */
  async submit(
    code: string,
    options: Pick<RunOptions, "id" | "deadlineMs" | "context"> = {},
  ): Promise<Turn> {
    const { seq } = await this.look();
    const { id, deadlineMs, context } = options;
    const wanted = { id, deadlineMs, context };
    const { number, id: known } = await submitTurn(this.#door, this.id, code, wanted, 0);
    return new Turn(this.#door, this.id, known, this.#position, seq, number);
  }

  /** An earlier turn, by its id. */
  turn(id: string): Turn {
    return new Turn(this.#door, this.id, id, this.#position, 0);
  }

  /** The session's events after `after`, by default from the first, until the session ends. */
  events(
    options: { after?: number; signal?: AbortSignal } = {},
  ): AsyncGenerator<SessionEvent, void, undefined> {
    return follow(this.#door, this.id, options.after ?? 0, options.signal);
  }

  /** Offers functions to the session's code, as `tools.NAME(...)`. */
  async tools(tools: Tools): Promise<ToolHost> {
    const host = await openHost(this.#door, { session: this.id }, tools);
    this.#hosts.add(host);
    void host.closed.finally(() => this.#hosts.delete(host)).catch(() => undefined);
    return host;
  }

  /** Stops the running turn, if there is one. Variables stay. */
  async interrupt(): Promise<void> {
    try {
      await this.#post("interrupt");
    } catch (thrown) {
      if (!hasCode(thrown, "turn_not_running")) throw thrown;
    }
  }

  /**
   * Forks this session, which must be idle. Returns the twin, a session with the same variables in
   * a copy of the workspace; what it does not have (threads, sockets, ...); the threads and
   * processes from before the fork that could still reach it; and the directories that its
   * workspace lacks.
   */
  async fork(
    options: ForkSession = {},
  ): Promise<{
    session: Session;
    notCarried: NotCarried[];
    canReach: CanReach[];
    leftOut: LeftOutDirectory[];
  }> {
    const forked = await this.#door.json<ForkedSession>({
      method: "POST",
      path: path(["sessions", this.id, "fork"]),
      json: options,
      repeat: "if_not_sent",
      waitMs: FORK_WAIT_MS,
    });
    const session = new Session(this.#door, forked.session);
    return {
      session,
      notCarried: forked.not_carried,
      canReach: forked.can_reach ?? [],
      leftOut: forked.left_out ?? [],
    };
  }

  /** Starts a new worker, without the variables. */
  async reset(): Promise<void> {
    await this.#post("reset");
  }

  /** The current state of the session. */
  look(): Promise<SessionView> {
    const place = path(["sessions", this.id]);
    return this.#door.json<SessionView>({ method: "GET", path: place, repeat: "freely" });
  }

  /** Raw output bytes: a range or the tail, of the session or of one turn. */
  async output(options: OutputOptions = {}): Promise<OutputRange> {
    const { turn, from, to, tail } = options;
    const place = path(["sessions", this.id, "output"], { turn, from, to, tail });
    const answer = await this.#door.call({ method: "GET", path: place, repeat: "freely" });
    const number = (name: string): number => Number(answer.headers[`windlass-output-${name}`]);
    const start = number("from");
    const next = number("next");
    return {
      bytes: answer.body,
      from: start,
      next: Number.isNaN(next) ? start + answer.body.length : next,
      total: number("total"),
      dropped: number("dropped"),
    };
  }

  /** Lines of the output that hold a text. */
  searchOutput(
    query: string,
    options: { turn?: string; limit?: number } = {},
  ): Promise<SearchResult> {
    const place = path(["sessions", this.id, "output", "search"], { query, ...options });
    return this.#door.json<SearchResult>({ method: "GET", path: place, repeat: "freely" });
  }

  /** The hosts that the code tried to reach. */
  egress(): Promise<EgressLog> {
    const place = path(["sessions", this.id, "egress"]);
    return this.#door.json<EgressLog>({ method: "GET", path: place, repeat: "freely" });
  }

  /** Ends the session and everything it started. Does nothing if the session has ended already. */
  async close(options: { graceMs?: number } = {}): Promise<void> {
    for (const host of this.#hosts) host.close();
    try {
      await this.#door.call({
        method: "DELETE",
        path: path(["sessions", this.id], { grace_ms: options.graceMs }),
        repeat: "freely",
        waitMs: options.graceMs,
        // Do not start an absent node for this: its keepers end the session.
        start: false,
      });
    } catch (thrown) {
      if (!hasCode(thrown, "session_ended", "session_not_found", "unreachable")) throw thrown;
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #post(what: string): Promise<unknown> {
    const place = path(["sessions", this.id, what]);
    return this.#door.json({ method: "POST", path: place, repeat: "if_not_sent" });
  }
}
