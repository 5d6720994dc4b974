// What a terminal shows, and what it sends.

import assert from "node:assert/strict";
import { test } from "node:test";

import { commandText, OutputText, RECENT_CHARS_MAX, ScreenFeed, type ScreenPart, size } from "../../src/session/screen-feed.ts";
import { TYPED_CHARS_MAX, Typist } from "../../src/session/typist.ts";

const LS: ScreenPart = { is: "command", turn: "t1", code: "ls" };

test("a terminal that is opened late has the last part, and then everything", () => {
  const feed = new ScreenFeed();
  const before = 40_000;
  for (let at = 0; at < before; at += 1) feed.push({ is: "output", text: `line ${at}\n` });
  const seen: ScreenPart[] = [];
  const close = feed.read((part) => seen.push(part));
  const recent = seen.slice(1).reduce((sum, part) => sum + size(part), 0);
  assert.ok(recent <= RECENT_CHARS_MAX && recent > RECENT_CHARS_MAX / 2, `${recent}`);
  assert.deepEqual(seen.at(-1), { is: "output", text: `line ${before - 1}\n` });
  feed.push(LS);
  assert.deepEqual(seen.at(-1), LS);
  close();
  feed.push({ is: "end" });
  assert.deepEqual(seen.at(-1), LS);
});

test("one part that is longer than all that is kept is kept", () => {
  const feed = new ScreenFeed();
  const text = "x".repeat(3 * RECENT_CHARS_MAX);
  feed.push({ is: "output", text: "first" });
  feed.push({ is: "output", text });
  const seen: ScreenPart[] = [];
  feed.read((part) => seen.push(part));
  assert.deepEqual(seen, [{ is: "resume", turn: undefined, whole: false }, { is: "output", text }]);
});

test("a command moves no cursor and sets no colour", () => {
  for (const [code, shown] of [
    ["ls", "ls"],
    ["a\nb\n", "a\r\n> b"],
    ["\ta\x1b[2Jb\x07\x9b1m", "    a\u{fffd}[2Jb\u{fffd}\u{fffd}1m"],
  ] as const) {
    assert.equal(commandText(code), `\x1b[0;1m$ ${shown}\x1b[0m\r\n`);
  }
});

/** Types and asks as the rows say, and compares what was sent. */
function check(acts: [string, string | number][], expected: string[]): void {
  const sent: string[] = [];
  const typist = new Typist(async (turn, text) => sent.push(`${turn}:${text}`));
  for (const [turn, act] of acts) {
    if (typeof act === "number") typist.asked(turn, act);
    else typist.type(turn, act);
  }
  assert.deepEqual(sent, expected);
}

test("keys are sent when the program asks, once for each question", () => {
  check([["t1", "a"]], []);
  check([["t1", "a"], ["t1", "b"], ["t1", 5]], ["t1:ab"]);
  check([["t1", 5], ["t1", "a"], ["t1", "b"]], ["t1:a"]);
  check([["t1", 5], ["t1", "a"], ["t1", 5], ["t1", "b"], ["t1", 9], ["t1", "c"]], ["t1:a", "t1:b"]);
});

test("keys for a turn that has ended never reach the next one", () => {
  check([["t1", "rm -rf *\n"], ["t2", "y"], ["t2", 7]], ["t2:y"]);
  check([["t1", "rm -rf *\n"], ["t2", 7]], []);
  check([["t1", 5], ["t2", "y"]], []);
});

test("keys that nobody reads are bounded", () => {
  const typist = new Typist(() => assert.fail("nothing asks"));
  assert.equal(typist.type("t1", "b".repeat(TYPED_CHARS_MAX)), true);
  assert.equal(typist.type("t1", "c"), false);
});

test("keys that were not taken are sent again with the next ones", async () => {
  const sent: string[] = [];
  const typist = new Typist(async (_, text) => {
    sent.push(text);
    if (sent.length === 1) throw new Error("the node does not answer");
  });
  typist.asked("t1", 5);
  typist.type("t1", "a");
  await new Promise((done) => setImmediate(done));
  typist.type("t1", "b");
  assert.deepEqual(sent, ["a", "ab"]);
});

test("a terminal that is opened late knows that a program has the whole screen", () => {
  const begin = (parts: ScreenPart[]): ScreenPart | undefined => {
    const feed = new ScreenFeed();
    for (const part of parts) feed.push(part);
    // Long enough that all of these are forgotten.
    for (let at = 0; at < 3; at += 1) feed.push({ is: "output", text: "x".repeat(RECENT_CHARS_MAX) });
    const seen: ScreenPart[] = [];
    feed.read((part) => seen.push(part));
    return seen[0];
  };
  const enters: ScreenPart = { is: "output", text: "a\x1b[?1049hb" };
  const leaves: ScreenPart = { is: "output", text: "a\x1b[?1049l" };
  for (const [parts, turn, whole] of [
    [[LS, enters], "t1", true],
    [[enters], undefined, true],
    [[LS, enters, leaves], "t1", false],
    [[LS, enters, { is: "end" }], undefined, false],
    [[enters, LS], "t1", false],
  ] as const) {
    assert.deepEqual(begin([...parts]), { is: "resume", turn, whole });
  }
});

test("a character has few marks, however they are written", () => {
  const mark = "\u0301";
  for (const [pieces, expected] of [
    [[`e${mark.repeat(1000)}x`], `e${mark.repeat(8)}x`],
    [[`e${mark.repeat(5)}`, mark.repeat(5), `${mark.repeat(5)}x${mark}`], `e${mark.repeat(8)}x${mark}`],
    [[`e${"\u200b".repeat(6)}\ufeff\x7f\x9c${"\u1160".repeat(6)}x`], `e${"\u200b".repeat(6)}${"\u1160".repeat(2)}x`],
    [["plain", "", mark, "x"], `plain${mark}x`],
  ] as const) {
    const output = new OutputText();
    assert.equal(pieces.map((piece) => output.next(piece)).join(""), expected);
  }
});
