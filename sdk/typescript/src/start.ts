// Starts the node, at most one per runtime directory, with `windlass up`. That program takes the
// start lock that all clients share (JavaScript cannot), and starts the node in a separate process
// session. Returns when the node is ready.

import { spawn } from "node:child_process";

import type { Dirs, Environment } from "./address.js";
import { asError, WindlassError } from "./errors.js";

/** How long the start may take: another client's start, then this one. */
const START_WAIT_MS = 90_000;

/** Most bytes of the program's output that are kept. */
const SAID_BYTES_MAX = 16 * 1024;

export async function startNode(program: string, dirs: Dirs, env: Environment): Promise<void> {
  const child = spawn(program, ["up"], {
    // A Ctrl-C at the terminal must not end the start halfway.
    detached: true,
    cwd: "/",
    stdio: ["ignore", "ignore", "pipe"],
    env: {
      ...env,
      WINDLASS_RUNTIME_DIR: dirs.runtime,
      WINDLASS_STATE_DIR: dirs.state,
      WINDLASS_URL: undefined,
      // The client's secret. The node has its token in a file.
      WINDLASS_TOKEN: undefined,
    },
  });
  let said = "";
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    said = (said + text).slice(-SAID_BYTES_MAX);
  });
  const timer = setTimeout(() => child.kill("SIGKILL"), START_WAIT_MS);
  try {
    const status = await new Promise<string>((resolve, reject) => {
      child.once("error", reject);
      child.once("close", (code, signal) => resolve(signal ?? String(code)));
    });
    if (status !== "0") throw failed(said, status);
  } catch (thrown) {
    if (thrown instanceof WindlassError) throw thrown;
    throw new WindlassError(
      "start_failed",
      `cannot run ${program}: ${asError(thrown).message}`,
      "install windlass, or set WINDLASS_BIN to its path",
      { cause: thrown },
    );
  } finally {
    clearTimeout(timer);
  }
}

/** Parses the CLI's error output: `error:`, `code:` and `help:`. */
function failed(said: string, status: string): WindlassError {
  const message = /^error: ([\s\S]*?)(?=\ncode: |\nhelp: |\s*$(?![\s\S]))/m.exec(said)?.[1];
  const code = /^code: (\S+)$/m.exec(said)?.[1];
  const help = /^help: (.*)$/m.exec(said)?.[1];
  return new WindlassError(
    code ?? "start_failed",
    `the node did not start: ${message ?? (said.trim() || `windlass up ended with ${status}`)}`,
    help ?? "run the node in the foreground to see its messages: windlass node --foreground",
  );
}
