// The node is killed in the middle: nothing is lost, doubled or run twice.

import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, test } from "node:test";

import { LIMIT, TestNode } from "./support.js";

/** Makes the gates of `GATED`: pipes, at which the code waits for a writer. */
const GATES = "import os; [os.mkfifo(f'go{part}') for part in range(2)]";

/** Prints lines, waits at a gate, prints more, waits at another, prints the rest. */
const GATED = `
for part in range(3):
    for n in range(500): print('line', part, n)
    print('gate', part)
    if part < 2: open(f'go{part}').read()
'the end'
`;

const PRINTED = [0, 1, 2]
  .map((part) => {
    const lines = Array.from({ length: 500 }, (_, n) => `line ${part} ${n}\n`);
    return `${lines.join("")}gate ${part}\n`;
  })
  .join("");

describe("a node that is killed", LIMIT, () => {
  test("in the middle of a stream costs no event and doubles none", async () => {
    await using node = await TestNode.prepare();
    const s = await node.client().session();
    await s.run(GATES);
    let printed = "";
    let kills = 0;
    const seqs: number[] = [];
    const kinds: string[] = [];
    for await (const event of s.stream(GATED)) {
      seqs.push(event.seq);
      kinds.push(event.kind);
      if (event.kind === "output" && event.stream === "stdout") printed += event.text;
      // Later events can only come from another node.
      if (kills < 2 && printed.includes(`gate ${kills}\n`)) {
        await node.kill9();
        await writeFile(join(s.workspace, `go${kills}`), "");
        kills++;
      }
    }
    assert.equal(kills, 2);
    assert.equal(printed, PRINTED);
    assert.deepEqual(seqs, [...new Set(seqs)].sort((a, b) => a - b));
    assert.equal(kinds[0], "turn_accepted");
    assert.equal(kinds.at(-1), "turn_ended");
    assert.equal((await s.run("1 + 1")).result, "2");
  });

  test("while a turn is waited for runs it once and tells its end", async () => {
    await using node = await TestNode.prepare();
    const s = await node.client().session();
    await s.run(`count = 0\n${GATES}`);
    const running = s.run(`count += 1\n${GATED.replace("'the end'", "count")}`);
    await node.kill9();
    for (const gate of ["go0", "go1"]) await writeFile(join(s.workspace, gate), "");
    const turn = await running;
    assert.deepEqual([turn.outcome, turn.result], ["ok", "1"]);
    assert.equal(turn.outputBytes, PRINTED.length + 2);
  });

  test("again and again, among many sessions, makes each once", async () => {
    await using node = await TestNode.prepare();
    const w = node.client();
    await w.status();
    const made = Promise.all(Array.from({ length: 6 }, () => w.session()));
    await node.kill9();
    const sessions = await made;
    const results = await Promise.all(sessions.map((s) => s.run("40 + 2")));
    assert.deepEqual(results.map((turn) => turn.result), Array(6).fill("42"));
    assert.equal((await w.sessions()).length, 6);
  });
});
