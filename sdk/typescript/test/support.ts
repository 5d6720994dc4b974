// A separate node for a test: the real program in its own directories with short paths. Everything
// it started is ended.

import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

import { Windlass, type WindlassOptions } from "../src/index.js";

/** How long a test waits for an expected event. */
export const WAIT_MS = 30_000;

/** Ends a test that hangs. */
export const LIMIT = { timeout: 90_000 };

export class TestNode {
  readonly #clients: Windlass[] = [];

  private constructor(
    readonly base: string,
    readonly env: Record<string, string | undefined>,
  ) {}

  static async prepare(): Promise<TestNode> {
    const bin = process.env["WINDLASS_BIN"];
    if (!bin) throw new Error("WINDLASS_BIN names the program to test with");
    const base = await mkdtemp(join(tmpdir(), "wl-ts-"));
    const env = {
      ...process.env,
      WINDLASS_BIN: bin,
      WINDLASS_RUNTIME_DIR: join(base, "r"),
      WINDLASS_STATE_DIR: join(base, "s"),
      WINDLASS_URL: undefined,
      WINDLASS_TOKEN: undefined,
      WINDLASS_CA: undefined,
    };
    return new TestNode(base, env);
  }

  /** A new client, which starts the node if none runs. */
  client(options: WindlassOptions = {}): Windlass {
    const client = new Windlass({ env: this.env, ...options });
    this.#clients.push(client);
    return client;
  }

  /** Runs the CLI against this node. */
  cli(...args: string[]): string {
    const ran = spawnSync(this.env["WINDLASS_BIN"]!, args, { env: this.env, encoding: "utf8" });
    if (ran.status !== 0) throw new Error(`windlass ${args.join(" ")}: ${ran.stderr}`);
    return ran.stdout;
  }

  /** Kills the node as a crash would, and waits until it is gone. Keepers continue. */
  async kill9(): Promise<void> {
    const probe = new Windlass({ env: this.env, start: false });
    const { pid } = await probe.status();
    probe.close();
    this.#own(pid);
    process.kill(pid, "SIGKILL");
    await until(() => isGone(pid));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const probe = new Windlass({ env: this.env, start: false, retryForMs: 0 });
    try {
      const { pid } = await probe.status();
      await probe.stopNode("end");
      await until(() => isGone(pid));
    } catch {
      // No node runs.
    }
    probe.close();
    for (const client of this.#clients) client.close();
    for (const pid of await this.#left()) process.kill(pid, "SIGKILL");
    await rm(this.base, { recursive: true, force: true, maxRetries: 5 });
  }

  /** Refuses to touch a process outside of this test's directories. */
  #own(pid: number): void {
    const environment = readFileSync(`/proc/${pid}/environ`, "utf8");
    if (!environment.includes(this.base)) throw new Error(`${pid} is not this test's node`);
  }

  /** Nodes and keepers of these directories that still run. */
  async #left(): Promise<number[]> {
    const left: number[] = [];
    for (const name of await readdir("/proc")) {
      if (!/^\d+$/.test(name)) continue;
      const about = await Promise.all([
        readFile(`/proc/${name}/environ`, "utf8").catch(() => ""),
        readFile(`/proc/${name}/comm`, "utf8").catch(() => ""),
      ]);
      if (about[0].includes(`${this.base}/r`) && about[1].startsWith("windlass")) {
        left.push(Number(name));
      }
    }
    return left;
  }
}

/** Waits until `holds` is true, and fails after a time limit. */
export async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  const end = Date.now() + WAIT_MS;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error("what was waited for did not happen");
    await pause(5);
  }
}

function isGone(pid: number): boolean {
  try {
    return /^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return true;
  }
}
