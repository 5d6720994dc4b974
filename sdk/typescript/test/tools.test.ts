// Host tools, against a real node.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { z } from "zod";

import { tool, type Windlass, WindlassError } from "../src/index.js";
import { LIMIT, TestNode, until } from "./support.js";

describe("a tool", LIMIT, () => {
  let node: TestNode;
  let w: Windlass;

  before(async () => {
    node = await TestNode.prepare();
    w = node.client();
  });
  after(() => node[Symbol.asyncDispose]());

  test("is called by the code, with arguments as its schema says", async () => {
    await using s = await w.session();
    const calls: unknown[] = [];
    await s.tools({
      search: tool({
        description: "Find pages.\n\nBest first.",
        input: z.object({ query: z.string(), limit: z.number().int().default(2) }),
        run: (args, call) => {
          const limit: number = args.limit;
          calls.push([args, call.name, call.session === s.id, call.deadlineMs > 0]);
          return Array.from({ length: limit }, (_, n) => `${args.query} ${n}`);
        },
      }),
      files: {
        read: tool({
          input: { type: "object", properties: { path: { type: "string" } }, required: ["path"] },
          run: ({ path }) => `content of ${String(path)}`,
        }),
      },
      nothing: tool({ run: () => undefined }),
    });
    const turn = await s.run(
      "(tools.search(query='é'), tools.files.read(path='a'), tools.nothing(), tools.search('b', limit=1))",
    );
    assert.equal(turn.output, "(['é 0', 'é 1'], 'content of a', None, ['b 0'])\n");
    assert.deepEqual(calls, [
      [{ query: "é", limit: 2 }, "search", true, true],
      [{ query: "b", limit: 1 }, "search", true, true],
    ]);
    const help = await s.run("import inspect; print(inspect.signature(tools.search)); tools.search.__doc__");
    assert.match(help.output, /query.*limit/);
    assert.match(help.result!, /Find pages/);
  });

  test("is shown by a verbose client with arguments, result and error", async () => {
    const lines: string[] = [];
    const verbose = node.client({ verbose: (line) => lines.push(line) });
    await using s = await verbose.session();
    await s.tools({
      price: tool({
        run: ({ article }: { article?: string }) => {
          if (article !== "tea") throw new RangeError(`no ${article}\nat all`);
          return 4.25;
        },
      }),
    });
    await s.run("tools.price(article='tea')\ntools.price(article='g' * 1000)");
    const [first, second, third, fourth] = lines;
    assert.equal(lines.length, 4, lines.join("\n"));
    assert.ok(first!.startsWith(`windlass: [${s.id} 1.`), first);
    assert.ok(first!.endsWith(` -> price({"article":"tea"})`), first);
    assert.match(second!, / <- price: 4\.25 \(\d+ ms\)$/);
    assert.ok(third!.length < 500 && third!.includes("ggg...)"), third);
    assert.match(fourth!, / !! price: RangeError: no g+\.\.\. \(\d+ ms\)$/);
  });

  test("that throws raises in the code with its message and its class, and leaves the session whole", async () => {
    await using s = await w.session();
    class Missing extends Error {}
    await s.tools({
      find: tool({
        run: () => {
          throw new Missing("there is no such page");
        },
      }),
      strict: tool({ input: z.object({ n: z.number() }), run: ({ n }) => n }),
      odd: tool({ run: () => 10n }),
      long: tool({
        run: () => {
          throw new Error("é".repeat(1_000_000));
        },
      }),
    });
    const code = (call: string): string =>
      `try:\n    ${call}\nexcept tools.ToolError as e:\n    print(e.type, e.code, '|', e)`;
    assert.equal((await s.run(code("tools.find()"))).output, "Missing tool_failed | there is no such page\n");
    assert.match((await s.run(code("tools.strict(n='x')"))).output, /bad_request \| n: /);
    const long = (await s.run(code("tools.long()"))).output;
    assert.ok(long.startsWith("Error tool_failed | éé"), long.slice(0, 100));
    assert.match((await s.run(code("tools.odd()"))).output, /^TypeError tool_failed \| .*BigInt/);
    assert.equal((await s.run("1")).result, "1");
  });

  test("answers many calls at once", async () => {
    await using s = await w.session();
    let open = 0;
    let most = 0;
    let release: () => void = () => undefined;
    const gate = new Promise<void>((resolve) => (release = resolve));
    await s.tools({
      echo: tool({
        run: async ({ n }) => {
          most = Math.max(most, ++open);
          if (open === 38) release();
          await gate;
          return n;
        },
      }),
    });
    const turn = await s.run(
      "import asyncio\nasync def all(): return sum(await asyncio.gather(*(tools.echo(n=n) for n in range(38))))\nawait all()",
    );
    assert.deepEqual([turn.result, most], [String((37 * 38) / 2), 38]);
  });

  test("takes and gives messages of any size", async () => {
    await using s = await w.session();
    await s.tools({ double: tool({ run: ({ text }) => String(text) + String(text) }) });
    for (const length of [1, 98_000, 98_302, 98_303, 950_000, 3_000_000]) {
      const turn = await s.run(
        `text = 'é' * ${length}; tools.double(text=text) == text * 2`,
      );
      assert.equal(turn.result, "True", `${length}: ${turn.output}`);
    }
    const turn = await s.run("tools.double(text='x' * 9_000_000)");
    assert.match(turn.output, /over the limit/);
  });

  test("is told when nobody waits for its answer any more", async () => {
    await using s = await w.session();
    const reasons: string[] = [];
    const stop = new AbortController();
    await s.tools({
      slow: tool({
        run: (_, { signal }) =>
          new Promise((_resolve, reject) => {
            signal.addEventListener("abort", () => {
              reasons.push((signal.reason as Error).message);
              reject(signal.reason as Error);
            });
            stop.abort();
          }),
      }),
    });
    const turn = await s.run("tools.slow()", { signal: stop.signal });
    assert.equal(turn.outcome, "interrupted");
    await until(() => reasons.length === 1);
    // The messages of the node and of the code may come in either order.
    assert.match(reasons[0]!, /interrupted|given_up/);
    // The tool has begun by then, also on a slow machine.
    const late = await s.run("tools(deadline=1).slow()");
    assert.match(late.output, /ToolDeadlinePassed/);
    await until(() => reasons.length === 2);
    assert.match(reasons[1]!, /deadline|given_up/);
  });

  test("may run code in other sessions, and in its own is refused at once", async () => {
    await using s = await w.session();
    await using other = await w.session();
    await s.tools({
      there: tool({ run: async () => (await other.run("6 * 7")).result }),
      here: tool({ run: async () => (await s.run("6 * 7")).result }),
    });
    assert.equal((await s.run("tools.there()")).result, "'42'");
    const turn = await s.run("tools.here()");
    assert.equal(turn.outcome, "error");
    assert.match(turn.error!.message, /deadlock|wait/i);
  });

  test("of an owner's host serves the owner's sessions, present and future", async () => {
    await using before = await w.session({ owner: "ada" });
    await using host = await w.tools({ owner: "ada", tools: { who: tool({ run: () => "ada" }) } });
    await using later = await w.session({ owner: "ada" });
    await using strange = await w.session();
    assert.deepEqual(host.names, ["who"]);
    for (const session of [before, later]) {
      assert.equal((await session.run("tools.who()")).result, "'ada'");
    }
    assert.match((await strange.run("tools.who()")).output, /ToolNotFound/);
    await host.replace({ where: tool({ run: () => "here" }) });
    assert.equal((await later.run("tools.where()")).result, "'here'");
    assert.match((await later.run("tools.who()")).output, /ToolNotFound/);
  });

  test("whose host goes fails in the code at once", async () => {
    await using s = await w.session();
    const host = await s.tools({ gone: tool({ run: () => new Promise(() => host.close()) }) });
    assert.match((await s.run("tools.gone()")).output, /ToolHostGone/);
    await host.closed;
  });

  test("of a session that ends ends with it", async () => {
    const s = await w.session();
    const host = await s.tools({ x: tool({ run: () => 1 }) });
    await (await node.client().attach(s.id)).close();
    await host.closed;
  });

  test("with a name that cannot be, or for a session that is not there, is refused", async () => {
    await using s = await w.session();
    const bad = { "a-b": tool({ run: () => 1 }) };
    await assert.rejects(s.tools(bad), { code: "bad_request" });
    const own = { "windlass.list": tool({ run: () => 1 }) };
    await assert.rejects(s.tools(own), WindlassError);
    await s.close();
    await assert.rejects(s.tools({ x: tool({ run: () => 1 }) }), { code: "session_ended" });
  });

  test("is offered again after a restart of the node", async () => {
    await using s = await w.session();
    let calls = 0;
    await s.tools({ count: tool({ run: () => ++calls }) });
    assert.equal((await s.run("tools.count()")).result, "1");
    await node.kill9();
    await w.status();
    await until(async () => (await s.run("tools.count()")).ok);
    assert.equal(calls, 2);
  });
});
