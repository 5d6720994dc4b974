#!/usr/bin/env node
// Runs the program `windlass` of the package for this platform, for `npx windlass`.

import { spawn } from "node:child_process";
import { constants } from "node:os";

import { findProgram, isInstalled } from "../dist/program.js";

const program = findProgram();
if (!isInstalled(program)) {
  console.error(
    `windlass: there is no program for ${process.platform}-${process.arch} in this installation.\n` +
      "Windlass runs on Linux on x86-64. If npm left out optional dependencies, install again without --omit=optional.",
  );
  process.exit(1);
}
const args = process.argv.slice(2);
if (typeof process.execve === "function") {
  process.execve(program, [program, ...args], process.env);
}
// An older Node.js cannot replace itself. The terminal's signals reach the program too; others are passed on.
const child = spawn(program, args, { stdio: "inherit" });
process.on("SIGINT", () => {});
for (const signal of ["SIGTERM", "SIGHUP"]) {
  process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
  console.error(`windlass: cannot run ${program}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  process.exit(code ?? 128 + (constants.signals[signal] ?? 0));
});
