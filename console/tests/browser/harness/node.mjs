// A node that only one test file uses: the real program in directories of its own. Everything that it started ends with
// the test process, also when a test fails or the process is interrupted.

import { execFile, spawn } from "node:child_process";
import { closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, readdirSync, readlinkSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import path from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

import { isGone } from "./wait.mjs";

/** The program to test. `cargo xtask console` sets the variable. */
const PROGRAM = "WINDLASS_CONSOLE_PROGRAM";

/** How long a command may take. */
const COMMAND_WAIT_MS = 20_000;

const open = new Set();

process.on("exit", () => open.forEach((node) => node.endNow()));
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => process.exit(1));

export class TestNode {
  #child;
  #env;

  /** Starts a node and waits until it is ready. */
  static async start() {
    const node = new TestNode();
    await node.restart();
    return node;
  }

  constructor() {
    const program = process.env[PROGRAM];
    if (program === undefined) throw new Error(`${PROGRAM} does not name the program to test: run \`cargo xtask console\``);
    this.program = realpathSync(program);
    // A short path, because the path of a socket has a length limit.
    this.base = mkdtempSync("/tmp/wl-");
    open.add(this);
    this.runtime = path.join(this.base, "r");
    const config = path.join(this.base, "config.toml");
    const environments = path.join(this.base, "environments.json");
    writeFileSync(config, "");
    writeFileSync(environments, '{"version": 1, "environments": []}');
    this.#env = {
      HOME: this.base,
      LANG: "C.UTF-8",
      PATH: "/usr/local/bin:/usr/bin:/bin",
      WINDLASS_RUNTIME_DIR: this.runtime,
      WINDLASS_STATE_DIR: path.join(this.base, "s"),
      WINDLASS_CONFIG: config,
      WINDLASS_ENVIRONMENTS: environments,
      WINDLASS_MCP_CONFIG: "/dev/null",
      WINDLASS_START: "exec",
    };
  }

  /** A directory that sessions may use as their workspace. */
  directory(name) {
    const made = path.join(this.base, name);
    mkdirSync(made);
    return made;
  }

  /** Starts the node again in the same directories. */
  async restart() {
    const log = openSync(path.join(this.base, "node.log"), "a");
    const child = spawn(this.program, ["node"], { env: this.#env, cwd: "/", stdio: ["ignore", "pipe", log] });
    closeSync(log);
    this.#child = child;
    const lines = createInterface({ input: child.stdout });
    const failed = new Promise((_, fail) => {
      child.once("error", fail);
      child.once("exit", (code) => fail(new Error(`the node exited with ${code}: ${this.log()}`)));
    });
    failed.catch(() => undefined);
    const ready = new Promise((done) => lines.once("line", done));
    const line = await Promise.race([ready, failed]);
    if (JSON.parse(line).ready === undefined) throw new Error(`the node refuses to start: ${line}`);
  }

  /** The memory of the node's process that is its own, in bytes. */
  memory() {
    const [, kib] = /^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${this.#child.pid}/status`, "utf8"));
    return Number(kib) * 1024;
  }

  /** Kills the node with SIGKILL and waits until it has exited. Its sessions keep running. */
  async kill() {
    const child = this.#child;
    const gone = new Promise((done) => child.once("exit", done));
    child.kill("SIGKILL");
    await gone;
  }

  /** The standard output of a command of the program. */
  async command(...args) {
    const { stdout } = await promisify(execFile)(this.program, args, { env: this.#env, cwd: this.base, timeout: COMMAND_WAIT_MS });
    return stdout.trim();
  }

  /** An address that logs in once. */
  loginUrl() {
    return this.command("console", "--url-only");
  }

  /** Sends a request at the unix socket, as the node's owner: with JSON, or with bytes. */
  call(method, target, body, bytes) {
    const text = bytes ?? (body === undefined ? "" : JSON.stringify(body));
    const headers = { host: "windlass", "content-type": "application/json", "content-length": Buffer.byteLength(text) };
    const options = { socketPath: path.join(this.runtime, "node.sock"), method, path: target, headers, agent: false };
    return new Promise((done, fail) => {
      const request = http.request(options, (reply) => {
        const parts = [];
        reply.on("data", (part) => parts.push(part));
        reply.on("end", () => {
          const said = Buffer.concat(parts).toString();
          if (reply.statusCode >= 300) fail(new Error(`${method} ${target}: ${reply.statusCode} ${said}`));
          else done(said === "" ? undefined : JSON.parse(said));
        });
      });
      request.on("error", fail);
      request.end(text);
    });
  }

  /** The id of a new session. */
  async session(wanted = {}) {
    const made = await this.call("POST", "/v1/sessions", wanted);
    return made.session.id;
  }

  /** Submits code, and does not wait for its end. */
  async submit(session, code) {
    return this.call("POST", `/v1/sessions/${session}/turns`, { code });
  }

  log() {
    return readFileSync(path.join(this.base, "node.log"), "utf8").slice(-4000);
  }

  /** Ends the sessions and the node, and removes the directories. */
  async end() {
    if (!isGone(this.#child)) await this.command("down").catch(() => undefined);
    this.endNow();
  }

  /** The same without waiting: kills every process that uses the directories. */
  endNow() {
    if (!open.delete(this)) return;
    for (let found = this.#processes(); found.length > 0; found = this.#processes()) {
      const killed = found.filter((pid) => kill(pid));
      if (killed.length === 0) break;
    }
    rmSync(this.base, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
  }

  /** The processes whose environment, arguments, working directory or open files name the directories. */
  #processes() {
    const own = new RegExp(`${this.base}(?:/|$|\\0)`);
    return readdirSync("/proc").filter((name) => {
      if (!/^\d+$/.test(name) || Number(name) === process.pid || !isRunning(name)) return false;
      const at = `/proc/${name}`;
      const texts = [`${at}/environ`, `${at}/cmdline`].map((file) => readable(() => readFileSync(file, "utf8")));
      const descriptors = readable(() => readdirSync(`${at}/fd`).map((number) => `${at}/fd/${number}`)) || [];
      const links = [`${at}/cwd`, ...descriptors].map((link) => readable(() => readlinkSync(link)));
      return [...texts, ...links].some((fact) => own.test(fact));
    });
  }
}

/** A process that has exited and a process of another user have no facts. */
function readable(fact) {
  try {
    return fact();
  } catch {
    return "";
  }
}

function isRunning(pid) {
  const state = /^State:\s+(\w)/m.exec(readable(() => readFileSync(`/proc/${pid}/status`, "utf8")))?.[1];
  return state !== undefined && state !== "Z" && state !== "X";
}

function kill(pid) {
  try {
    process.kill(Number(pid), "SIGKILL");
    return true;
  } catch {
    return false;
  }
}
