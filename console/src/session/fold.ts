// A session's transcript from its events. Each event is applied once; views read the result and compare versions.

import type { ControlReport, EventItem, Outcome, TurnError, Usage } from "../../../sdk/typescript/src/api.ts";
import { bytesOfBase64 } from "../lib/text.ts";
import { AGENT_MIME, type AgentItem, type AgentUsage, applyAgentEvent } from "./agent-fold.ts";
import { OutputStore } from "./output-store.ts";
import { ScreenFeed } from "./screen-feed.ts";

export type Display = { type: "display"; id: string | undefined; mime: string; seq: number; body: string | Uint8Array<ArrayBuffer> | undefined; bytes: number };

export type Call = {
  type: "call";
  call: number;
  name: string;
  bytes: number;
  state: "running" | "ok" | "failed" | "cancelled";
  wallMs?: number;
  resultBytes?: number;
  code?: string | undefined;
};

export type Item =
  | { type: "output"; store: OutputStore }
  | { type: "result" | "traceback"; store: OutputStore }
  | Display
  | Call
  | { type: "agent"; item: AgentItem }
  | Notice;

export interface Notice {
  type: "notice";
  tone: "plain" | "bad";
  text: string;
  atMs: number;
  key: number;
}

export type TurnPhase = "waiting" | "running" | "awaiting_input" | "interrupting" | "ended";

export interface TurnView {
  type: "turn";
  number: number;
  id: string;
  code: string;
  acceptedAtMs: number;
  startedAtMs: number;
  phase: TurnPhase;
  wait: { prompt: string; secret: boolean; seq: number } | undefined;
  items: Item[];
  agent: AgentItem[];
  agentUsage: AgentUsage | undefined;
  outputBytes: number;
  /** Where the turn's output begins in the session's. */
  outputFrom: number;
  end: { outcome: Outcome; error: TurnError | undefined; usage: Usage | undefined; exitCode: number | undefined; refusal: string | undefined; lost: string[] } | undefined;
  version: number;
}

export type Entry = TurnView | Notice;

export interface EgressSeen {
  host: string;
  port: number;
  allowed: boolean;
  reason: string;
  atMs: number;
}

/** Decisions that are kept. */
const EGRESS_MAX = 500;

export class Transcript {
  readonly entries: Entry[] = [];
  readonly turns = new Map<number, TurnView>();
  controls: ControlReport[] | undefined;
  isolation: string | undefined;
  egress: EgressSeen[] = [];
  /** What a terminal shows of this. */
  readonly screen = new ScreenFeed();
  /** Everything up to this event has been applied. */
  after = 0;
  ended: { reason: string; message: string } | undefined;
  version = 0;
  /** Changes with events after which the session itself looks different. */
  sessionVersion = 0;
  readonly #decoders = new Map<string, TextDecoder>();
  /** Parts of displays that are not complete, by turn. */
  readonly #parts = new Map<number, { text: string[]; bytes: number; binary: boolean }>();
  readonly #displays = new Map<string, Display>();
  readonly #offsets = new Map<number, number>();
  #first = 1;
  #outputBytes = 0;

  /** Applies an event, unless it was applied before. */
  apply(event: EventItem): void {
    if (event.seq <= this.after) return;
    this.after = event.seq;
    this.version += 1;
    const turn = typeof event.turn === "number" ? this.turns.get(event.turn) : undefined;
    if (turn !== undefined) turn.version += 1;
    if (event.kind !== "output" && event.kind !== "display") this.sessionVersion += 1;
    if (!this.#applyToTurn(event, turn)) this.#applyToSession(event, turn);
  }

  /** The first turn that has not ended. */
  get current(): TurnView | undefined {
    while (this.turns.get(this.#first)?.end !== undefined) this.#first += 1;
    return this.turns.get(this.#first);
  }

  /** The turn whose output has this byte of the session's output. */
  turnAt(offset: number): number | undefined {
    const turns = [...this.turns.values()];
    return turns.findLast((turn) => turn.outputBytes > 0 && turn.outputFrom <= offset)?.number;
  }

  #applyToTurn(event: EventItem, turn: TurnView | undefined): boolean {
    switch (event.kind) {
      case "turn_accepted":
        this.#accepted(event, turn);
        return true;
      case "output":
        this.#output(event, turn);
        return true;
      case "display":
        this.#display(event, turn);
        return true;
      case "stdin_wait":
        if (turn) {
          turn.phase = "awaiting_input";
          turn.wait = { prompt: event.prompt, secret: event.secret, seq: event.seq };
        }
        return true;
      case "input_taken":
        if (turn) this.#resume(turn);
        return true;
      case "interrupt_asked":
        if (turn && !turn.end) {
          turn.phase = "interrupting";
          turn.wait = undefined;
          if (event.cause === "deadline") this.#note(turn, "bad", "The deadline of the turn has passed.", event);
        }
        return true;
      case "turn_ended":
        if (turn) this.#turnEnded(event, turn);
        return true;
      case "tool_call":
      case "tool_cancel":
      case "tool_ended":
        if (turn) applyCall(turn, event);
        return true;
      default:
        return false;
    }
  }

  #applyToSession(event: EventItem, turn: TurnView | undefined): void {
    switch (event.kind) {
      case "confined":
        this.controls = event.controls;
        this.isolation = event.isolation;
        break;
      case "worker_ready":
        this.#starts(event.at_ms);
        if (event.restarts > 0) this.#note(undefined, "plain", `A fresh worker is ready: ${event.worker}. Its variables are new.`, event);
        break;
      case "worker_ended":
        this.#note(turn, event.replaced ? "plain" : "bad", event.replaced ? "The worker was replaced." : `The worker ended: ${event.cause}`, event);
        break;
      case "limit_reached":
        this.#note(turn, "bad", event.message, event);
        break;
      case "output_dropped":
        this.#note(turn, "bad", `${event.bytes} bytes of output were not kept (${event.reason.replace("_", " ")}).`, event);
        if (turn) for (const item of turn.items) if ("store" in item) item.store.keepAll();
        break;
      case "messages_dropped":
        this.#note(turn, "plain", `${event.count} messages of the worker were dropped: ${event.reason}`, event);
        break;
      case "protocol_broken":
        this.#note(turn, "bad", event.message, event);
        break;
      case "egress":
        this.egress = [{ host: event.host, port: event.port, allowed: event.allowed, reason: event.reason ?? "", atMs: event.at_ms }, ...this.egress].slice(0, EGRESS_MAX);
        if (!event.allowed) this.#note(turn, "bad", `Connection to ${event.host}:${event.port} refused${event.reason ? `: ${event.reason}` : ""}`, event);
        break;
      case "session_ended":
        this.ended = { reason: event.reason, message: event.message ?? "" };
        this.#note(undefined, "plain", `The session ended: ${event.reason.replaceAll("_", " ")}${event.message ? `, ${event.message}` : ""}`, event);
        break;
      default:
        break;
    }
  }

  #accepted(event: Extract<EventItem, { kind: "turn_accepted" }>, known: TurnView | undefined): void {
    const text = event.text ?? "";
    if (known !== undefined) {
      // The code came in several parts.
      known.code += text;
      return;
    }
    const number = event.turn ?? 0;
    const turn: TurnView = {
      type: "turn",
      number,
      id: event.id,
      code: text,
      acceptedAtMs: event.at_ms,
      startedAtMs: event.at_ms,
      phase: "waiting",
      wait: undefined,
      items: [],
      agent: [],
      agentUsage: undefined,
      outputBytes: 0,
      outputFrom: 0,
      end: undefined,
      version: 0,
    };
    if (this.turns.size === 0) this.#first = number;
    this.turns.set(number, turn);
    this.entries.push(turn);
    this.#starts(event.at_ms);
  }

  /** The first turn that has not ended runs: nothing says so by itself. */
  #starts(atMs: number): void {
    const turn = this.current;
    if (turn?.phase !== "waiting") return;
    turn.phase = "running";
    turn.startedAtMs = atMs;
    turn.version += 1;
    this.screen.push({ is: "command", turn: turn.id, code: turn.code });
  }

  #resume(turn: TurnView): void {
    turn.wait = undefined;
    if (turn.phase === "awaiting_input") turn.phase = "running";
  }

  #output(event: Extract<EventItem, { kind: "output" }>, turn: TurnView | undefined): void {
    const text = this.#decoded(event);
    this.screen.push({ is: "output", text });
    const count = event.bytes ?? 0;
    const total = this.#outputBytes;
    this.#outputBytes += count;
    if (turn === undefined) {
      this.#note(undefined, "plain", text, event);
      return;
    }
    const from = this.#offsets.get(turn.number) ?? 0;
    this.#offsets.set(turn.number, from + count);
    if (turn.outputBytes === 0) turn.outputFrom = total;
    turn.outputBytes += count;
    const type = event.stream === "result" || event.stream === "traceback" ? event.stream : "output";
    const last = turn.items.at(-1);
    if (last?.type === type) {
      last.store.append(text, count, event.stream, from);
      return;
    }
    const store = new OutputStore(event.stream, from);
    store.append(text, count, event.stream, from);
    turn.items.push({ type, store });
  }

  /** A character that is split between two events comes with the second one. */
  #decoded(event: EventItem & { stream: string }): string {
    const key = `${event.turn ?? 0}/${event.stream}`;
    const waiting = this.#decoders.get(key);
    if (waiting === undefined && typeof event.base64 !== "string") return event.text ?? "";
    const decoder = waiting ?? new TextDecoder();
    this.#decoders.set(key, decoder);
    const bytes = typeof event.base64 === "string" ? bytesOfBase64(event.base64) : new TextEncoder().encode(event.text ?? "");
    return decoder.decode(bytes, { stream: true });
  }

  #display(event: Extract<EventItem, { kind: "display" }>, turn: TurnView | undefined): void {
    if (turn === undefined) return;
    const parts = this.#parts.get(turn.number) ?? { text: [], bytes: 0, binary: false };
    parts.bytes += event.bytes ?? 0;
    if (typeof event.text === "string") parts.text.push(event.text);
    else if ((event.bytes ?? 0) > 0) parts.binary = true;
    if (event.more === true) {
      this.#parts.set(turn.number, parts);
      return;
    }
    this.#parts.delete(turn.number);
    let body: Display["body"] = parts.binary ? undefined : parts.text.join("");
    if (typeof event.base64 === "string" && parts.bytes === event.bytes) body = bytesOfBase64(event.base64);
    if (event.mime === AGENT_MIME && typeof body === "string") {
      this.#agentEvent(turn, body);
      return;
    }
    const id = event.id ?? undefined;
    const known = id === undefined ? undefined : this.#displays.get(id);
    if (known !== undefined && event.update === true) {
      Object.assign(known, { mime: event.mime, seq: event.seq, body, bytes: parts.bytes });
      // It may be a display of an earlier turn.
      for (const other of this.turns.values()) if (other.items.includes(known)) other.version += 1;
      return;
    }
    const display: Display = { type: "display", id, mime: event.mime, seq: event.seq, body, bytes: parts.bytes };
    if (id !== undefined) this.#displays.set(id, display);
    turn.items.push(display);
  }

  #agentEvent(turn: TurnView, body: string): void {
    let parsed: unknown;
    try {
      parsed = JSON.parse(body);
    } catch {
      return;
    }
    if (typeof parsed !== "object" || parsed === null) return;
    applyAgentEvent(turn, parsed as Record<string, unknown>, (item) => {
      turn.agent.push(item);
      turn.items.push({ type: "agent", item });
    });
  }

  #turnEnded(event: Extract<EventItem, { kind: "turn_ended" }>, turn: TurnView): void {
    turn.phase = "ended";
    turn.wait = undefined;
    this.screen.push({ is: "end" });
    turn.end = {
      outcome: event.outcome,
      error: event.error ?? undefined,
      usage: event.usage,
      exitCode: event.exit_code ?? undefined,
      refusal: event.refusal?.message,
      lost: event.receipt?.lost ?? [],
    };
    for (const item of turn.items) {
      if (item.type === "call" && item.state === "running") item.state = "cancelled";
      if ("store" in item) item.store.settle();
    }
    this.#decoders.clear();
    this.#starts(event.at_ms);
  }

  #note(turn: TurnView | undefined, tone: Notice["tone"], text: string, event: EventItem): void {
    const notice: Notice = { type: "notice", tone, text, atMs: event.at_ms, key: event.seq };
    if (turn !== undefined && !turn.end) turn.items.push(notice);
    else this.entries.push(notice);
  }
}

type CallEvent = Extract<EventItem, { kind: "tool_call" | "tool_cancel" | "tool_ended" }>;

function applyCall(turn: TurnView, event: CallEvent): void {
  const known = turn.items.findLast((item): item is Call => item.type === "call" && item.call === event.call);
  if (event.kind === "tool_call") {
    const size = event.bytes ?? 0;
    if (known !== undefined && (event.offset ?? 0) > 0) known.bytes += size;
    else turn.items.push({ type: "call", call: event.call, name: event.name, bytes: size, state: "running" });
  } else if (known !== undefined && event.kind === "tool_cancel") known.state = "cancelled";
  else if (known !== undefined && event.kind === "tool_ended") {
    known.state = event.ok ? "ok" : "failed";
    known.wallMs = event.wall_ms;
    known.resultBytes = event.bytes;
    known.code = event.code ?? undefined;
  }
}
