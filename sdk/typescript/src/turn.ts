// One turn: submitted with a chosen id, so that sending it again runs it once; waited for,
// answered, interrupted, followed.

import { randomBytes } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";

import type {
  EventItem,
  Session as SessionView,
  StdinWait,
  SubmitTurn,
  Turn as TurnView,
  TurnContext,
  TurnInput,
} from "./api.js";
import type { Call, Door } from "./door.js";
import { hasCode } from "./errors.js";
import { bytesOf, eventsAfter, follow, type SessionEvent } from "./events.js";
import { path } from "./paths.js";
import { Display, TurnResult } from "./result.js";

/** How long one request waits for a turn. A longer wait takes several requests. */
const POLL_WAIT_MS = 30_000;

/** Random bytes in a generated id: 2^96 values, so two ids do not collide. */
const ID_BYTES = 12;

/** Events per request when searching for a turn's end. */
const END_EVENTS_MAX = 200;

/** Displays fetched at once. */
const DISPLAYS_AT_ONCE = 8;

/** How long an interrupt is retried for a turn that the node does not know yet. */
const INTERRUPT_REPEATED_MS = 10_000;

/** The input that the code asks for. */
export interface InputRequest extends StdinWait {
  turn: string;
}

/** Answers the code's `input()`; `undefined` or `null` ends its input. */
export type OnInput = (
  asked: InputRequest,
) => string | null | undefined | Promise<string | null | undefined>;

export interface WaitOptions {
  /** Answers `input()`. Without it the code finds the end of its input. */
  onInput?: OnInput | undefined;
  /** Interrupts the turn when the signal aborts; the outcome is then `interrupted`. */
  signal?: AbortSignal | undefined;
  /** How long to wait for the end. The turn continues afterwards. Default: no limit. */
  waitMs?: number | undefined;
  /** The most output bytes in the result. */
  outputBytesMax?: number | undefined;
  /** Asks for the standard output on its own, within so many bytes. */
  stdoutBytesMax?: number | undefined;
  /** Asks for the standard error and the traceback on their own, within so many bytes. */
  stderrBytesMax?: number | undefined;
}

/** The byte budgets of a reply. */
type Budgets = Pick<WaitOptions, "outputBytesMax" | "stdoutBytesMax" | "stderrBytesMax">;

export interface RunOptions extends WaitOptions {
  /** How long the turn may run. Default: no limit. */
  deadlineMs?: number | undefined;
  /** The turn's arguments, directory, variables and file name. Only some workers take them. */
  context?: TurnContext | undefined;
  /** The turn's id. Sending the same id again runs the turn once. Default: a new id. */
  id?: string | undefined;
}

export type StreamOptions = Omit<RunOptions, "waitMs" | keyof Budgets>;

/** The position in a session's events, shared by the session and its turns. */
export interface EventPosition {
  /** Events up to this one come before any turn that is submitted later. */
  seen: number;
}

export function freshId(prefix: string): string {
  return prefix + randomBytes(ID_BYTES).toString("hex");
}

/** Submits a turn. With `waitMs` the answer may already hold the end. */
export function submitTurn(
  door: Door,
  session: string,
  code: string,
  options: RunOptions,
  waitMs: number,
): Promise<TurnView> {
  const submit: SubmitTurn = {
    id: options.id ?? freshId("t"),
    code,
    wait_ms: waitMs,
    ...(options.deadlineMs === undefined ? {} : { deadline_ms: options.deadlineMs }),
    ...(options.context === undefined ? {} : { context: options.context }),
    ...budgetsOf(options),
  };
  return door.json<TurnView>({
    method: "POST",
    path: path(["sessions", session, "turns"]),
    json: submit,
    repeat: "freely",
    waitMs,
  });
}

/** The budgets by their names in requests. */
function budgetsOf(budgets: Budgets): Record<string, number> {
  const { outputBytesMax, stdoutBytesMax, stderrBytesMax } = budgets;
  return {
    ...(outputBytesMax === undefined ? {} : { output_bytes_max: outputBytesMax }),
    ...(stdoutBytesMax === undefined ? {} : { stdout_bytes_max: stdoutBytesMax }),
    ...(stderrBytesMax === undefined ? {} : { stderr_bytes_max: stderrBytesMax }),
  };
}

/** How long the first request of a wait lets the node wait. */
export function firstWait(waitMs: number | undefined): number {
  return Math.min(waitMs ?? POLL_WAIT_MS, POLL_WAIT_MS);
}

/** A submitted turn. */
export class Turn {
  constructor(
    private readonly door: Door,
    readonly session: string,
    readonly id: string,
    private readonly position: EventPosition,
    /** The turn's events come after this one. */
    private readonly after: number,
    private readonly number?: number,
  ) {}

  /** The current state of the turn. */
  look(query: Budgets & { waitMs?: number } = {}): Promise<TurnView> {
    const { waitMs } = query;
    return this.door.json<TurnView>({
      method: "GET",
      path: this.#path([], { wait_ms: waitMs, ...budgetsOf(query) }),
      repeat: "freely",
      waitMs,
    });
  }

  /** Waits for the end of the turn, and answers its input requests. */
  async wait(options: WaitOptions = {}): Promise<TurnResult> {
    return this.settle(undefined, options);
  }

  /** Stops the turn; the session's state stays. Does nothing if the turn has ended already. */
  async interrupt(): Promise<void> {
    try {
      await this.#post("interrupt", undefined, "freely");
    } catch (thrown) {
      if (!hasCode(thrown, "turn_not_running")) throw thrown;
    }
  }

  /** Sends input to the turn; `null` is the end of input. */
  async input(text: string | Uint8Array | null): Promise<void> {
    const input: TurnInput =
      text === null
        ? { eof: true }
        : typeof text === "string"
          ? { text }
          : { base64: Buffer.from(text).toString("base64") };
    await this.#post("input", input, "if_not_sent");
  }

  /** The bytes of a display, by the number of its last event. */
  async display(seq: number): Promise<Uint8Array> {
    const place = path(["sessions", this.session, "displays", String(seq)]);
    return (await this.door.call({ method: "GET", path: place, repeat: "freely" })).body;
  }

  /**
   * The turn's events as they happen, each once, to its end. Leaving the loop does not stop the
   * turn.
   */
  async *events(
    options: Pick<WaitOptions, "onInput" | "signal"> = {},
  ): AsyncGenerator<SessionEvent, void, undefined> {
    const interrupting = this.interruptOn(options.signal);
    try {
      const number = this.number ?? (await this.look()).number;
      for await (const event of follow(this.door, this.session, this.after)) {
        const ended = event.kind === "session_ended";
        if (event.turn !== number && !ended) continue;
        yield event;
        if (event.kind === "stdin_wait" && options.onInput) {
          const { prompt, secret } = event;
          await this.#answer(options.onInput, { prompt, secret }, options.signal);
        }
        if (event.kind === "turn_ended") this.position.seen = Math.max(this.position.seen, event.seq);
        if (event.kind === "turn_ended" || ended) return;
      }
    } finally {
      interrupting.stop();
    }
  }

  /**
   * Waits for the end, starting from the given state. If `turn` is given, the caller handles
   * interrupts.
   */
  async settle(turn: TurnView | undefined, options: WaitOptions): Promise<TurnResult> {
    const until = options.waitMs === undefined ? Infinity : Date.now() + options.waitMs;
    const interrupting = turn === undefined ? this.interruptOn(options.signal) : undefined;
    const { outputBytesMax, stdoutBytesMax, stderrBytesMax } = options;
    const budgets = { outputBytesMax, stdoutBytesMax, stderrBytesMax };
    try {
      turn ??= await this.look({ waitMs: firstWait(options.waitMs), ...budgets });
      while (turn.state !== "ended") {
        if (turn.state === "awaiting_input" && turn.stdin_wait) {
          await this.#answer(options.onInput, turn.stdin_wait, options.signal);
        }
        const left = until - Date.now();
        if (left <= 0) break;
        const waitMs = Math.ceil(Math.min(left, POLL_WAIT_MS));
        turn = await this.look({ waitMs, ...budgets });
      }
      return await this.#result(turn);
    } finally {
      interrupting?.stop();
    }
  }

  /** Interrupts the turn when `signal` aborts, until stopped. */
  interruptOn(signal: AbortSignal | undefined): { stop(): void } {
    const over = new AbortController();
    const act = (): void => {
      // A failed interrupt shows up in the wait for the turn.
      void this.#interruptOnceKnown(over.signal).catch(() => undefined);
    };
    if (signal?.aborted) act();
    signal?.addEventListener("abort", act, { once: true });
    return {
      stop: () => {
        signal?.removeEventListener("abort", act);
        over.abort();
      },
    };
  }

  /** Retries while the node does not know the turn: the interrupt may overtake the turn. */
  async #interruptOnceKnown(over: AbortSignal): Promise<void> {
    const began = Date.now();
    for (let wait = 1; !over.aborted; wait = Math.min(wait * 2, 100)) {
      try {
        return await this.interrupt();
      } catch (thrown) {
        const known = !hasCode(thrown, "turn_not_found");
        if (known || Date.now() - began > INTERRUPT_REPEATED_MS) throw thrown;
      }
      await pause(wait);
    }
  }

  /** Gets the answer and sends it. A turn that was stopped meanwhile needs no answer. */
  async #answer(
    onInput: OnInput | undefined,
    asked: StdinWait,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const stopped = aborted(signal);
    try {
      const answering = signal?.aborted ? undefined : onInput?.({ ...asked, turn: this.id });
      const answer = await Promise.race([stopped.promise, answering]);
      // After this request the turn no longer waits for input.
      if (typeof answer === "symbol") return await this.interrupt();
      if (answer === undefined || answer === null) await this.input(null);
      else await this.input(answer.endsWith("\n") ? answer : `${answer}\n`);
    } catch (thrown) {
      if (!hasCode(thrown, "turn_not_running")) throw thrown;
    } finally {
      stopped.forget();
    }
  }

  async #result(turn: TurnView): Promise<TurnResult> {
    const shows = turn.outcome === "ok" && turn.output.bytes > 0;
    const result = shows ? await this.#lastValue(turn.number) : undefined;
    const displays: Display[] = [];
    const refs = turn.displays ?? [];
    for (let at = 0; at < refs.length; at += DISPLAYS_AT_ONCE) {
      const some = refs.slice(at, at + DISPLAYS_AT_ONCE).map(async (ref) => {
        return new Display(ref.mime, await this.display(ref.seq), ref.seq, ref.id ?? undefined);
      });
      displays.push(...(await Promise.all(some)));
    }
    return new TurnResult(turn, result, displays);
  }

  /** The result's text, which is among the turn's last events. */
  async #lastValue(number: number): Promise<string | undefined> {
    const found = new LastValue(number);
    const after = await this.#read(found, this.after, 1);
    if (found.ended) return found.text();
    // The output is long: read the newest events first, and all events only if those are too new.
    const place = path(["sessions", this.session]);
    const session = await this.door.json<SessionView>({ method: "GET", path: place, repeat: "freely" });
    const newest = session.seq - END_EVENTS_MAX;
    if (newest > after) {
      const late = new LastValue(number);
      await this.#read(late, newest, Infinity);
      if (late.ended && late.whole) return late.text();
    }
    await this.#read(found, after, Infinity);
    return found.text();
  }

  /** Passes up to `pages` pages of events to `found`; returns where to continue reading. */
  async #read(found: LastValue, after: number, pages: number): Promise<number> {
    for (let page = 0; page < pages && !found.ended; page++) {
      const { events, ...next } = await eventsAfter(this.door, this.session, after, END_EVENTS_MAX);
      for (const event of events) found.take(event);
      after = next.after;
      if (events.length === 0 || next.ended) break;
    }
    if (found.ended) this.position.seen = Math.max(this.position.seen, found.ended);
    return after;
  }

  #post(what: string, json: unknown, repeat: Call["repeat"]): Promise<unknown> {
    return this.door.json({ method: "POST", path: this.#path([what]), json, repeat });
  }

  #path(more: string[], query: Record<string, number | undefined> = {}): string {
    return path(["sessions", this.session, "turns", this.id, ...more], query);
  }
}

/** Finds the value of a turn's last expression among events. */
class LastValue {
  readonly #pieces: Uint8Array[] = [];
  /** True when no part of the value is before the first event that was seen. */
  whole = false;
  /** The event that ended the turn. */
  ended: number | undefined;

  constructor(readonly number: number) {}

  take(event: EventItem): void {
    if (event.turn !== this.number || this.ended) return;
    if (event.kind === "turn_ended") this.ended = event.seq;
    else if (event.kind === "output" && event.stream === "result") this.#pieces.push(bytesOf(event));
    else this.whole = true;
  }

  text(): string | undefined {
    if (this.#pieces.length === 0) return undefined;
    return Buffer.concat(this.#pieces).toString().replace(/\n$/, "");
  }
}

const STOPPED = Symbol("stopped");

function aborted(signal: AbortSignal | undefined): {
  promise: Promise<typeof STOPPED>;
  forget(): void;
} {
  let act = (): void => undefined;
  const promise = new Promise<typeof STOPPED>((resolve) => {
    act = () => resolve(STOPPED);
    if (signal?.aborted) act();
    signal?.addEventListener("abort", act, { once: true });
  });
  return { promise, forget: () => signal?.removeEventListener("abort", act) };
}
