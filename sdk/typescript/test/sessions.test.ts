// Sessions and turns, against a real node.

import assert from "node:assert/strict";
import { mkdir, realpath } from "node:fs/promises";
import { join, relative } from "node:path";
import { after, before, describe, test } from "node:test";

import { type Session, TurnFailed, type Windlass, WindlassError } from "../src/index.js";
import { LIMIT, TestNode, until } from "./support.js";

describe("a session", LIMIT, () => {
  let node: TestNode;
  let w: Windlass;

  before(async () => {
    node = await TestNode.prepare();
    w = node.client();
  });
  after(() => node[Symbol.asyncDispose]());

  test("keeps its variables, and tells output, result and outcome apart", async () => {
    await using s = await w.session();
    const first = await s.run("x = 20");
    assert.deepEqual([first.outcome, first.output, first.result], ["ok", "", undefined]);
    const second = await s.run("print('hé'); x + 1");
    assert.deepEqual([second.ok, second.output, second.result], [true, "hé\n21\n", "21"]);
    assert.equal(second.throwIfError(), second);
    assert.ok(second.usage!.wall_ms >= 0);
    assert.deepEqual([first.number, second.number], [1, 2]);
  });

  test("of a node that tells its kinds of worker and its environments", async () => {
    const kinds = (await w.workers()).map((worker) => worker.name);
    assert.ok(kinds.includes("python") && kinds.includes("shell"), kinds.join());
    const environments = await w.environments({ waitMs: 10 });
    assert.ok(Array.isArray(environments));
  });

  test("works in the client's directories when paths are relative", async () => {
    await mkdir(join(node.base, "work"));
    await mkdir(join(node.base, "out"));
    const base = await realpath(node.base);
    const to = (name: string): string => relative(process.cwd(), join(base, name));
    await using s = await w.session({
      workspace: to("work"),
      policy: { writable: [to("out"), "~/windlass-not-there"], hidden: [to("keys")] },
    });
    const view = await s.look();
    assert.equal(view.workspace, join(base, "work"));
    assert.ok(view.policy!.writable.includes(join(base, "out")), view.policy!.writable.join());
    assert.ok(view.policy!.hidden.includes(join(base, "keys")), view.policy!.hidden.join());
    const turn = await s.run(`open(${JSON.stringify(join(base, "out", "file"))}, "w").write("x")`);
    assert.equal(turn.result, "1", turn.output);
  });

  test("tells an error of the code's with its name and traceback", async () => {
    await using s = await w.session();
    const turn = await s.run("print('before'); 1 / 0");
    assert.equal(turn.outcome, "error");
    assert.equal(turn.error?.name, "ZeroDivisionError");
    assert.match(turn.output, /^before\n[\s\S]*ZeroDivisionError: division by zero/);
    assert.throws(() => turn.throwIfError(), (thrown: unknown) => {
      assert.ok(thrown instanceof TurnFailed && thrown instanceof WindlassError);
      assert.deepEqual([thrown.code, thrown.result], ["turn_error", turn]);
      return /division by zero/.test(thrown.message);
    });
  });

  test("gives the exit code, the value and the streams apart", async () => {
    await using s = await w.session();
    const code = "import os, sys\nprint('out')\nprint('err', file=sys.stderr)\n[os.getcwd(), sys.argv]";
    const context = { cwd: "/", args: ["a"] };
    const turn = await s.run(code, { context, stdoutBytesMax: 1000, stderrBytesMax: 1000 });
    assert.deepEqual(turn.value, ["/", ["-c", "a"]]);
    assert.deepEqual([turn.exitCode, turn.stdout, turn.stderr], [0, "out\n", "err\n"]);
    const ended = await s.run("import sys; sys.exit(3)");
    assert.deepEqual([ended.exitCode, ended.value, ended.stdout], [3, undefined, undefined]);
  });

  test("gives displays with their bytes", async () => {
    await using s = await w.session();
    const turn = await s.run(
      "class Page:\n    def _repr_html_(self): return '<b>é</b>'\n    def __repr__(self): return 'page'\nPage()",
    );
    const html = turn.displays.find((display) => display.mime === "text/html");
    assert.equal(html?.text(), "<b>é</b>");
  });

  test("bounds what a reply holds, and has the rest", async () => {
    await using s = await w.session();
    const turn = await s.run("for n in range(100_000): print(n)\n'the end'", { outputBytesMax: 1000 });
    assert.equal(turn.result, "'the end'");
    assert.ok(turn.output.length < 2000 && turn.omittedBytes > 500_000, turn.output);
    const middle = await s.output({ turn: turn.id, from: 100, to: 110 });
    assert.deepEqual([middle.bytes.length, middle.from, middle.next], [10, 100, 110]);
    assert.equal(middle.total, turn.outputBytes);
    const found = await s.searchOutput("77777");
    assert.equal(found.matches[0]?.line, "77777");
  });

  test("gives a long result whole, wherever it was cut on the way", async () => {
    await using s = await w.session();
    await s.run("print('x' * 3_000_000)");
    const turn = await s.run("'é' * 1_000_000", { outputBytesMax: 100 });
    assert.equal(turn.result, `'${"é".repeat(1_000_000)}'`);
    assert.equal((await s.run("1")).result, "1");
  });

  test("runs turns that are asked for at once one after the other, each with its own result", async () => {
    await using s = await w.session();
    const asked = Array.from({ length: 40 }, (_, n) => s.run(`print('p'); ${n}`));
    const results = (await Promise.all(asked)).map((turn) => turn.result);
    assert.deepEqual(results, Array.from({ length: 40 }, (_, n) => String(n)));
  });

  test("answers early when the wait is over, and the turn goes on", async () => {
    await using s = await w.session();
    await s.run("1");
    const code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.005)\n'done'";
    const early = await s.run(code, { waitMs: 20 });
    assert.deepEqual([early.outcome, early.ok, early.state], [undefined, false, "running"]);
    assert.throws(() => early.throwIfError(), { code: "turn_running" });
    await s.files.put("go", "");
    const late = await s.turn(early.id).wait();
    assert.deepEqual([late.outcome, late.result], ["ok", "'done'"]);
  });

  test("ends a turn at its deadline and keeps its state", async () => {
    await using s = await w.session();
    await s.run("kept = 1");
    const turn = await s.run("import time; time.sleep(60)", { deadlineMs: 100 });
    assert.equal(turn.outcome, "timed_out");
    assert.equal((await s.run("kept")).result, "1");
  });

  test("runs a turn that is sent twice once", async () => {
    await using s = await w.session();
    await s.run("count = 0");
    const twice = [s.run("count += 1; count", { id: "mine" }), s.run("count += 1; count", { id: "mine" })];
    for (const turn of await Promise.all(twice)) assert.equal(turn.result, "1");
  });

  test("is found again by its id, by another client, and ended by closing", async () => {
    const s = await w.session({ id: "shared" });
    await s.run("x = 5");
    const other = await node.client().attach("shared");
    assert.equal((await other.run("x")).result, "5");
    assert.ok((await w.sessions()).some((session) => session.id === "shared"));
    await assert.rejects(w.session({ id: "shared" }), { code: "session_exists" });
    await s.close();
    await s.close();
    await assert.rejects(other.run("x"), (error: WindlassError) => {
      assert.equal(error.code, "session_ended");
      assert.ok(error.remedy.length > 0 && !error.retryable);
      return true;
    });
    assert.equal((await other.look()).state, "ended");
  });

  test("starts afresh by a reset", async () => {
    await using s = await w.session();
    await s.run("x = 5");
    await s.reset();
    assert.equal((await s.run("x")).error?.name, "NameError");
  });

  test("may install packages", async () => {
    await using s = await w.session({ allowPackages: true });
    const turn = await s.run("import os, sys; print(sys.executable == os.environ['VIRTUAL_ENV'] + '/bin/python')");
    assert.equal(turn.output, "True\n");
    assert.equal(typeof (await s.look()).policy?.network, "object");
  });

  test("works in its workspace under its policy", async () => {
    await using s = await w.session({ policy: "read-only", env: { COLOUR: "blue" } });
    const turn = await s.run("import os; print(os.environ['COLOUR']); open('f', 'w')");
    assert.match(turn.output, /^blue\n/);
    assert.equal(turn.error?.name, "OSError");
    const view = await s.look();
    assert.equal(view.workspace, s.workspace);
    assert.equal(view.policy?.preset, "read-only");
  });
});

describe("input", LIMIT, () => {
  let node: TestNode;
  let s: Session;

  before(async () => {
    node = await TestNode.prepare();
    s = await node.client().session();
  });
  after(() => node[Symbol.asyncDispose]());

  test("is asked for with the prompt and answered", async () => {
    const asked: unknown[] = [];
    const answers = ["Ada", "x\n"];
    const turn = await s.run("a = input('name? '); import getpass; b = getpass.getpass('key? '); (a, b)", {
      onInput: ({ prompt, secret }) => {
        asked.push([prompt, secret]);
        return answers.shift();
      },
    });
    assert.deepEqual(asked, [
      ["name? ", false],
      ["key? ", true],
    ]);
    assert.equal(turn.result, "('Ada', 'x')");
  });

  test("is at its end where nobody answers", async () => {
    assert.equal((await s.run("input('? ')")).error?.name, "EOFError");
  });

  test("can be given through a turn's handle", async () => {
    const turn = await s.submit("input('? ') * 2");
    for await (const event of turn.events()) {
      if (event.kind === "stdin_wait") await turn.input("ab\n");
    }
    assert.equal((await turn.wait()).result, "'abab'");
  });

  test("that nobody gives is no hindrance to an interrupt", async () => {
    const stop = new AbortController();
    const turn = await s.run("input('? ')", {
      signal: stop.signal,
      onInput: () => {
        stop.abort();
        return new Promise<string>(() => undefined);
      },
    });
    assert.equal(turn.outcome, "interrupted");
  });
});

describe("an interrupt", LIMIT, () => {
  let node: TestNode;
  let s: Session;

  before(async () => {
    node = await TestNode.prepare();
    s = await node.client().session();
  });
  after(() => node[Symbol.asyncDispose]());

  test("by a signal stops the turn and keeps the state", async () => {
    await s.run("kept = 7");
    const stop = new AbortController();
    const running = s.run("import time\nprint('in', flush=True)\ntime.sleep(60)", { signal: stop.signal });
    await until(async () => (await s.output({ tail: 10 })).bytes.toString().includes("in"));
    stop.abort();
    assert.equal((await running).outcome, "interrupted");
    assert.equal((await s.run("kept")).result, "7");
  });

  test("that comes at once does not get lost on the way", async () => {
    const stop = new AbortController();
    const running = s.run("import time; time.sleep(60)", { signal: stop.signal });
    stop.abort();
    assert.equal((await running).outcome, "interrupted");
    await assert.rejects(s.run("1", { signal: AbortSignal.abort() }), { name: "AbortError" });
  });

  test("of the session stops whatever runs", async () => {
    const turn = await s.submit("import time; time.sleep(60)");
    await until(async () => (await turn.look()).state === "running");
    await s.interrupt();
    assert.equal((await turn.wait()).outcome, "interrupted");
    await s.interrupt();
    await turn.interrupt();
  });
});

describe("a client", LIMIT, () => {
  test("says what to do where there is no program to start", async () => {
    await using node = await TestNode.prepare();
    await assert.rejects(node.client({ bin: "/nowhere/windlass" }).session(), (error: WindlassError) => {
      assert.equal(error.code, "start_failed");
      assert.match(error.remedy, /WINDLASS_BIN/);
      return true;
    });
  });

  test("that may start no node says that there is none", async () => {
    await using node = await TestNode.prepare();
    const w = node.client({ start: false, retryForMs: 50 });
    await assert.rejects(w.status(), { code: "unreachable", retryable: true });
  });

  test("among many that come at once starts one node", async () => {
    await using node = await TestNode.prepare();
    const all = await Promise.all(Array.from({ length: 8 }, () => node.client().status()));
    assert.equal(new Set(all.map((status) => status.pid)).size, 1);
  });

  test("reaches a node over TCP with its token, and not without", async () => {
    await using node = await TestNode.prepare();
    node.cli("up", "--listen", "127.0.0.1:0");
    const { listen } = await node.client().status();
    const url = `http://${listen}`;
    await using s = await node.client({ url }).session();
    assert.equal((await s.run("2 + 2")).result, "4");
    const token = "00".repeat(32);
    await assert.rejects(node.client({ url, token }).sessions(), { code: "unauthorized" });
  });

  test("that is closed does nothing any more", async () => {
    await using node = await TestNode.prepare();
    const w = node.client();
    await w.status();
    w.close();
    await assert.rejects(w.status(), { code: "client_closed" });
  });
});
