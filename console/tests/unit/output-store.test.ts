// Output by lines: in memory, and left to the node.

import assert from "node:assert/strict";
import { test } from "node:test";

import { OutputStore } from "../../src/session/output-store.ts";

function textOf(store: OutputStore, line: number): string | undefined {
  return store.row(line)?.pieces.map((piece) => piece.text).join("");
}

test("lines are put together from any pieces", () => {
  const store = new OutputStore("stdout", 0);
  let from = 0;
  for (const piece of ["a", "b\nc", "\n", "\nlast", " one"]) {
    store.append(piece, piece.length, "stdout", from);
    from += piece.length;
  }
  assert.equal(store.lineCount, 4);
  assert.deepEqual([0, 1, 2, 3].map((line) => textOf(store, line)), ["ab", "c", "", "last one"]);
});

test("each line knows its stream", () => {
  const store = new OutputStore("stdout", 0);
  store.append("out\n", 4, "stdout", 0);
  store.append("err\nerr\n", 8, "stderr", 4);
  store.append("out\n", 4, "stdout", 12);
  assert.deepEqual([0, 1, 2, 3].map((line) => store.row(line)?.stream), ["stdout", "stderr", "stderr", "stdout"]);
});

test("a colour goes on over chunks", () => {
  const store = new OutputStore("stdout", 0);
  const begin = "\x1b[31mred\n";
  store.append(begin, begin.length, "stdout", 0);
  const more = "x\n".repeat(50_000);
  store.append(more, more.length, "stdout", begin.length);
  store.append("end\n", 4, "stdout", begin.length + more.length);
  assert.deepEqual(store.row(store.lineCount - 1)?.pieces[0]?.look, { fg: 1 });
});

test("a million lines leave the middle to the node, and get it back by its bytes", async () => {
  const store = new OutputStore("stdout", 0);
  const all: string[] = [];
  let from = 0;
  for (let batch = 0; batch < 1000; batch += 1) {
    const lines = Array.from({ length: 1000 }, (_, at) => `line ${batch * 1000 + at} é\n`).join("");
    const size = Buffer.byteLength(lines);
    store.append(lines, size, "stdout", from);
    from += size;
    all.push(lines);
  }
  const bytes = Buffer.from(all.join(""));
  assert.equal(store.lineCount, 1_000_000);
  assert.equal(textOf(store, 0), "line 0 é");
  assert.equal(textOf(store, 999_999), "line 999999 é");
  assert.equal(textOf(store, 300_000), undefined);
  let asked = 0;
  await new Promise<void>((came) => {
    const read = async (begin: number, end: number) => {
      asked += end - begin;
      return bytes.subarray(begin, end).toString();
    };
    store.load(300_000, 300_040, read, came);
  });
  assert.equal(textOf(store, 300_000), "line 300000 é");
  assert.ok(asked < 256 * 1024, `${asked} bytes`);
});
