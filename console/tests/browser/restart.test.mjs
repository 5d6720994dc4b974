// A node that is killed and started again under an open page.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ended, logIn, newContext, openSession, picture, runCode } from "./harness/browser.mjs";
import { allLines } from "./harness/lines.mjs";
import { useStage } from "./harness/stage.mjs";

let node;
let browser;

useStage({
  prepare: (stage) => {
    ({ node, browser } = stage);
  },
});

const LINES = 400;

/** Prints for about four seconds. */
const CODE = `import time
for line in range(${LINES}):
    print(f"line-{line}", flush=True)
    time.sleep(0.01)`;

test("the transcript goes on without a doubled or a lost line", async () => {
  const page = await logIn(node, await newContext(browser));
  await openSession(page, await node.session({ id: "survivor" }));
  const shown = await runCode(page, 1, CODE);
  await shown.getByText("line-0", { exact: true }).waitFor();
  for (const stop of [1, 2]) {
    await node.kill();
    await page.getByText("Connection lost").waitFor();
    // The header does not say "live" beside it.
    await page.getByRole("status").getByText("disconnected", { exact: true }).waitFor();
    if (stop === 1) await picture(page, "disconnected");
    await node.restart();
    await page.getByRole("status").getByText("live", { exact: true }).waitFor();
  }
  await ended(shown, "ok");
  const expected = Array.from({ length: LINES }, (_, line) => `line-${line}`);
  assert.deepEqual(await allLines(page, shown), expected);

  // The same after a reload, which reads everything from the node.
  await page.reload();
  await ended(shown, "ok");
  assert.deepEqual(await allLines(page, shown), expected);
  await ended(await runCode(page, 2, "print(line)"), "ok");
});
