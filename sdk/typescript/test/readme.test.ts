// Every example of the README runs as it stands and prints what it says.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { LIMIT, TestNode } from "./support.js";

/** The package's directory: examples below it import it by its own name. */
const PACKAGE = fileURLToPath(new URL("../..", import.meta.url));

const run = promisify(execFile);

describe("the README", LIMIT, async () => {
  const text = await readFile(join(PACKAGE, "README.md"), "utf8");
  const examples = [...text.matchAll(/```js\n([\s\S]*?)```\n\n```text\n([\s\S]*?)```/g)];
  let node: TestNode;
  before(async () => {
    node = await TestNode.prepare();
    await mkdir(join(PACKAGE, "build/readme"), { recursive: true });
  });
  after(() => node[Symbol.asyncDispose]());

  test("has an output for each example", () => {
    assert.equal(examples.length, text.match(/^```js$/gm)?.length);
  });

  for (const [at, [, code, output]] of examples.entries()) {
    test(`example ${at + 1} prints what it says`, async () => {
      const file = join(PACKAGE, `build/readme/example${at + 1}.mjs`);
      await writeFile(file, code!);
      const ran = await run(process.execPath, [file], { env: node.env, timeout: LIMIT.timeout });
      assert.equal(ran.stdout.trimEnd(), output!.trimEnd());
      assert.equal(ran.stderr, "");
    });
  }
});
