// The result of a turn.

import type { Outcome, PolicyRefusal, Receipt, Turn as TurnView, TurnError, TurnState, Usage } from "./api.js";
import { WindlassError } from "./errors.js";

/** Rich output: an image, a table, JSON. */
export class Display {
  constructor(
    readonly mime: string,
    readonly bytes: Uint8Array,
    /** The event that completed it. */
    readonly seq: number,
    readonly id: string | undefined,
  ) {}

  text(): string {
    return new TextDecoder().decode(this.bytes);
  }

  json(): unknown {
    return JSON.parse(this.text());
  }
}

/** A turn that has ended, or that still ran when the wait was over. */
export class TurnResult {
  readonly id: string;
  readonly session: string;
  /** The turn's number in its session. */
  readonly number: number;
  readonly state: TurnState;
  /** How it ended; `undefined` if it has not ended. */
  readonly outcome: Outcome | undefined;
  /**
   * Everything that a REPL would show: printed text, the result, a traceback. Long output is cut in
   * the middle and says so.
   */
  readonly output: string;
  /** Bytes of output in all. */
  readonly outputBytes: number;
  /** Bytes that `output` leaves out; `session.output()` has them. */
  readonly omittedBytes: number;
  /** The value of the last expression, as a REPL shows it. */
  readonly result: string | undefined;
  /** The value of the last expression, if it is small and can be written as JSON. */
  readonly value: unknown;
  /** The exit status of the code, if its worker reports one. */
  readonly exitCode: number | undefined;
  /** The standard output on its own, if the request asked for it. */
  readonly stdout: string | undefined;
  /** The standard error and the traceback on their own, if the request asked for them. */
  readonly stderr: string | undefined;
  readonly error: TurnError | undefined;
  readonly displays: readonly Display[];
  readonly usage: Usage | undefined;
  /** What was kept and what was lost, if something was lost. */
  readonly receipt: Receipt | undefined;
  /** What the session's policy refused, and the option that allows it, if that made the turn fail. */
  readonly refusal: PolicyRefusal | undefined;

  constructor(turn: TurnView, result: string | undefined, displays: readonly Display[]) {
    this.id = turn.id;
    this.session = turn.session;
    this.number = turn.number;
    this.state = turn.state;
    this.outcome = turn.outcome ?? undefined;
    this.output = turn.output.text;
    this.outputBytes = turn.output.bytes;
    this.omittedBytes = turn.output.omitted_bytes ?? 0;
    this.result = result;
    this.value = turn.value;
    this.exitCode = turn.exit_code ?? undefined;
    this.stdout = turn.stdout?.text;
    this.stderr = turn.stderr?.text;
    this.error = turn.error ?? undefined;
    this.displays = displays;
    this.usage = turn.usage ?? undefined;
    this.receipt = turn.receipt ?? undefined;
    this.refusal = turn.refusal ?? undefined;
  }

  get ok(): boolean {
    return this.outcome === "ok";
  }

  /** Returns this result if it is `ok`; otherwise throws `TurnFailed`. */
  throwIfError(): this {
    if (this.ok) return this;
    throw new TurnFailed(this);
  }
}

/** A turn did not end `ok`. */
export class TurnFailed extends WindlassError {
  override readonly name = "TurnFailed";
  readonly result: TurnResult;

  constructor(result: TurnResult) {
    const { error, outcome, id, refusal } = result;
    const what = outcome === undefined ? "has not ended yet" : `ended ${outcome}`;
    const refused = refusal ? ` (the sandbox refused it: ${refusal.message})` : "";
    const why = error ? `: ${error.name}: ${error.message}${refused}` : refused;
    super(
      error?.code ?? (outcome === undefined ? "turn_running" : `turn_${outcome}`),
      `turn ${id} ${what}${why}`,
      outcome === "error" ? "see result.output for the traceback" : "see result.output and result.receipt",
    );
    this.result = result;
  }
}
