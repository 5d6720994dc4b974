// The transcript from events.

import assert from "node:assert/strict";
import { test } from "node:test";

import type { EventItem } from "../../../sdk/typescript/src/api.ts";
import { AGENT_MIME } from "../../src/session/agent-fold.ts";
import { Transcript } from "../../src/session/fold.ts";
import type { OutputStore } from "../../src/session/output-store.ts";

type Fields = { kind: string; turn?: number } & Record<string, unknown>;

function fold(events: Fields[]): Transcript {
  const transcript = new Transcript();
  events.forEach((event, at) => {
    const text = typeof event.text === "string" ? event.text : undefined;
    const bytes = text === undefined ? {} : { bytes: Buffer.byteLength(text) };
    transcript.apply({ seq: at + 1, at_ms: 1000 + at, ...bytes, ...event } as unknown as EventItem);
  });
  return transcript;
}

function line(store: OutputStore, at: number): string {
  return (store.row(at)?.pieces ?? []).map((piece) => piece.text).join("");
}

/** A turn in short: its phase and its items. */
function check(events: Fields[], expected: string): void {
  const shown = [...fold(events).turns.values()].map((turn) => {
    const items = turn.items.map((item) => {
      if ("store" in item) return `${item.type}(${line(item.store, 0)})`;
      if (item.type === "call") return `call(${item.name} ${item.state})`;
      if (item.type === "display") return `display(${item.mime})`;
      if (item.type === "notice") return `notice(${item.text})`;
      return `agent(${item.item.is}${"text" in item.item ? ` ${item.item.text}` : ""})`;
    });
    return [turn.end?.outcome ?? turn.phase, ...items].join(" ");
  });
  assert.equal(shown.join("; "), expected);
}

const accepted = (turn: number, text = "1"): Fields => ({ kind: "turn_accepted", turn, id: String(turn), text });
const output = (turn: number, text: string, stream = "stdout"): Fields => ({ kind: "output", turn, stream, text });
const ended = (turn: number, outcome = "ok"): Fields => ({ kind: "turn_ended", turn, outcome });
const agent = (turn: number, body: object): Fields => ({ kind: "display", turn, mime: AGENT_MIME, text: JSON.stringify(body) });

test("one turn runs, the others wait", () => {
  check([accepted(1), accepted(2)], "running; waiting");
  check([accepted(1), accepted(2), ended(1)], "ok; running");
  check([accepted(1), accepted(2), ended(2, "interrupted"), ended(1, "error")], "error; interrupted");
});

test("output, result and traceback are told apart", () => {
  check([accepted(1), output(1, "a\n"), output(1, "b\n", "stderr"), output(1, "2\n", "result"), output(1, "Oops\n", "traceback")], "running output(a) result(2) traceback(Oops)");
});

test("an event counts once", () => {
  const transcript = fold([accepted(1), output(1, "a\n")]);
  transcript.apply({ seq: 2, at_ms: 1, kind: "output", turn: 1, stream: "stdout", text: "a\n", bytes: 2 });
  assert.equal(transcript.turns.get(1)?.outputBytes, 2);
});

test("a turn waits for input until something takes it", () => {
  const asks: Fields = { kind: "stdin_wait", turn: 1, prompt: "name? ", secret: false };
  check([accepted(1), asks], "awaiting_input");
  check([accepted(1), asks, { kind: "input_taken", turn: 1, bytes: 4 }], "running");
  check([accepted(1), asks, { kind: "interrupt_asked", turn: 1, cause: "client" }], "interrupting");
});

test("a character that is split between events comes whole", () => {
  const [head, tail] = [Buffer.from("é").subarray(0, 1), Buffer.from("é\n").subarray(1)];
  const piece = (bytes: Buffer): Fields => ({ kind: "output", turn: 1, stream: "stdout", base64: bytes.toString("base64"), bytes: bytes.length });
  check([accepted(1), piece(head), piece(tail)], "running output(é)");
});

test("a tool call has a state of its own", () => {
  const call: Fields = { kind: "tool_call", turn: 1, call: 1, name: "lookup", bytes: 3 };
  check([accepted(1), call], "running call(lookup running)");
  check([accepted(1), call, { kind: "tool_ended", turn: 1, call: 1, ok: true, bytes: 1, wall_ms: 2 }], "running call(lookup ok)");
  check([accepted(1), call, ended(1, "interrupted")], "interrupted call(lookup cancelled)");
});

test("a display is whole with its last part, and can be replaced", () => {
  const display = (text: string, more: boolean, update = false): Fields => ({ kind: "display", turn: 1, mime: "text/plain", id: "d", text, more, update });
  check([accepted(1), display("a", true)], "running");
  check([accepted(1), display("a", true), display("b", false), display("c", false, true)], "running display(text/plain)");
});

test("parts of an agent's message become one, and the whole replaces them", () => {
  const message = (text: string, chunk: boolean) => agent(1, { type: "message", text, chunk });
  check([accepted(1), message("Hel", true), message("lo", true)], "running agent(message Hello)");
  check([accepted(1), message("Hel", true), message("Hello!", false), message("Next", true)], "running agent(message Hello!) agent(message Next)");
});

test("an agent's permission is open until its decision", () => {
  const asks = agent(1, { type: "permission", id: "p1", title: "run ls", options: [{ id: "allow", name: "Allow", kind: "allow_once" }] });
  const open = fold([accepted(1), asks]).turns.get(1)?.agent[0];
  assert.ok(open?.is === "permission" && open.decision === undefined);
  const decided = fold([accepted(1), asks, agent(1, { type: "decision", id: "p1", allowed: true, by: "client" })]).turns.get(1)?.agent[0];
  assert.deepEqual(decided?.is === "permission" && decided.decision, { allowed: true, by: "client" });
});

test("an agent that sends nonsense breaks nothing", () => {
  const nonsense = [null, 7, [], {}, { type: "permission" }, { type: "plan", steps: 3 }, { type: "message" }, { type: "action" }];
  const transcript = fold([accepted(1), ...nonsense.map((body) => agent(1, body as object)), { kind: "display", turn: 1, mime: AGENT_MIME, text: "{" }]);
  assert.equal(transcript.turns.size, 1);
});

test("what happens to the session is told between the turns", () => {
  const transcript = fold([{ kind: "session_ended", reason: "wall_time", message: null }]);
  assert.equal(transcript.ended?.reason, "wall_time");
  assert.equal(transcript.entries[0]?.type === "notice" && transcript.entries[0].text, "The session ended: wall time");
});
