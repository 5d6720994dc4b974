// Output that moves the cursor between lines.

import assert from "node:assert/strict";
import { test } from "node:test";

import { OutputStore } from "../../src/session/output-store.ts";

/** What is shown of a text, whatever the pieces are in which it comes. */
function check(text: string, expected: string[]): void {
  for (const size of [text.length, 7, 3, 1]) {
    const store = new OutputStore("stdout", 0);
    for (let at = 0; at < text.length; at += size) {
      const piece = text.slice(at, at + size);
      store.append(piece, piece.length, "stdout", at);
    }
    const lines = Array.from({ length: store.lineCount }, (_, line) => store.row(line)?.pieces.map((piece) => piece.text).join("").trimEnd());
    assert.deepEqual(lines, expected, `in pieces of ${size}`);
  }
}

test("a progress display over two lines is shown once", () => {
  const frame = (step: number) => `one ${step} %\ntwo ${step * 2} %\n`;
  check(`begin\n${frame(1)}\x1b[2A${frame(2)}\x1b[2A${frame(30)}end\n`, ["begin", "one 30 %", "two 60 %", "end"]);
});

test("lines are erased before they are written anew", () => {
  check("long line one\nlong line two\n\x1b[1A\x1b[2K\x1b[1A\x1b[2K\rnew one\nnew two\n", ["new one", "new two"]);
  check("a\nb\nc\n\x1b[3A\x1b[Jx\n", ["x"]);
  check("a\nb\n\x1b[2Fx\n\x1b[1Ey\n", ["x", "b", "y"]);
});

test("a screen that is written from its top is shown as it was last", () => {
  check("before\n\x1b[H\x1b[2Jtop 1\nload 3\n\x1b[H\x1b[2Jtop 2\nload 4\n", ["top 2", "load 4"]);
  check("\x1b[2J\x1b[Ha\x1b[3;5Hb", ["a", "", "    b"]);
});

test("lines that the cursor cannot reach any more stay", () => {
  const store = new OutputStore("stdout", 0);
  const begin = "\x1b[1A";
  store.append(begin, begin.length, "stdout", 0);
  for (let line = 0; line < 10_000; line += 1) store.append(`line ${line}\n`, 8, "stdout", 0);
  assert.equal(store.lineCount, 10_000);
  const text = (line: number) => store.row(line)?.pieces.map((piece) => piece.text).join("");
  assert.deepEqual([text(0), text(5000), text(9999)], ["line 0", "line 5000", "line 9999"]);
});
