// The tool hosts' protocol, against a stub that sends and cuts at chosen moments.

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { tool } from "../src/index.js";
import { LIMIT, until } from "./support.js";
import { StubNode } from "./stub.js";

const owner = "ada";

describe("a tool host", LIMIT, () => {
  test("answers in frames of a bounded size, those of another call between them", async () => {
    await using node = await StubNode.start();
    await using w = node.client();
    const opening = w.tools({ owner, tools: { repeat: tool({ run: ({ n }) => "x".repeat(Number(n)) }) } });
    const stub = await node.host();
    await opening;
    assert.equal(stub.url, "/v1/tools/host?owner=ada");
    stub.call(1, "repeat", { n: 8_000_000 });
    stub.call(2, "repeat", { n: 1 });
    const second = await stub.answer(2);
    assert.deepEqual(second, { ok: true, value: "x", sizes: [3] });
    const before = stub.frames.length;
    const first = await stub.answer(1);
    assert.ok(first.sizes.length > before, "the short answer overtook the long one");
    assert.equal((first.value as string).length, 8_000_000);
    assert.ok(first.sizes.slice(0, -1).every((size) => size === 196_604));
  });

  test("takes arguments whose frames come mixed, and gives up what is cancelled half way", async () => {
    await using node = await StubNode.start();
    await using w = node.client();
    const aborted: unknown[] = [];
    let begun = 0;
    const opening = w.tools({
      owner,
      tools: {
        echo: tool({ run: (args) => args }),
        wait: tool({
          run: (_, { signal }) =>
            new Promise((resolve) => {
              begun++;
              signal.addEventListener("abort", () => {
                aborted.push((signal.reason as Error).message);
                resolve("too late");
              });
            }),
        }),
      },
    });
    const stub = await node.host();
    await opening;
    const call = (call: number, more: boolean): object => {
      return { kind: "tool_call", session: "s", turn: 1, call, name: "echo", deadline_ms: 9, more };
    };
    stub.say(call(1, true), '{"a":');
    stub.say(call(2, true), '{"b":');
    stub.say(call(3, true), '{"c":');
    stub.say({ kind: "tool_cancel", session: "s", turn: 1, call: 3, reason: "given_up" });
    stub.say(call(1, false), "1}");
    stub.say(call(2, false), "2}");
    assert.deepEqual((await stub.answer(1)).value, { a: 1 });
    assert.deepEqual((await stub.answer(2)).value, { b: 2 });
    stub.call(4, "wait", {});
    await until(() => begun === 1);
    const cancel = (call: number): object => {
      return { kind: "tool_cancel", session: "s", turn: 1, call, reason: "turn_over" };
    };
    stub.say(cancel(4));
    stub.call(5, "wait", {});
    stub.say(cancel(5));
    stub.call(6, "echo", {});
    await stub.answer(6);
    assert.deepEqual(aborted.slice(0, 1), ["the call is over: turn_over"]);
    assert.deepEqual(stub.frames, [], "what nobody waits for is not answered");
  });

  test("that is told other tools twice at once offers the last", async () => {
    await using node = await StubNode.start();
    await using w = node.client();
    const named = (name: string) => ({ [name]: tool({ run: () => name }) });
    const opening = w.tools({ owner, tools: named("a") });
    const stub = await node.host();
    const host = await opening;
    stub.socket.on("message", () => node.declared(stub));
    await Promise.all([host.replace(named("b")), host.replace(named("c"))]);
    assert.deepEqual(host.names, ["c"]);
    const declared = stub.frames.map(({ body }) => JSON.parse(body.toString()) as object);
    assert.deepEqual(declared, [{ tools: [{ name: "b" }] }, { tools: [{ name: "c" }] }]);
  });

  test("says in which call a request is made, and only then", async () => {
    await using node = await StubNode.start();
    await using w = node.client();
    const opening = w.tools({
      owner,
      tools: {
        ask: tool({
          run: async () => {
            await w.status();
            return 1;
          },
        }),
      },
    });
    const stub = await node.host();
    await opening;
    stub.call(7, "ask", {});
    await stub.answer(7);
    await w.status();
    const said = node.requests.map((request) => request.headers["windlass-within"]);
    assert.deepEqual(said, ["s/1/7", undefined]);
  });

  test("comes back when the node does, declares again, and lets go of calls of the old one", async () => {
    await using node = await StubNode.start();
    await using w = node.client();
    let lost = 0;
    const opening = w.tools({
      owner,
      tools: {
        echo: tool({ run: (args) => args }),
        hang: tool({
          run: (_, { signal }) =>
            new Promise((resolve) => {
              signal.addEventListener("abort", () => resolve(++lost));
            }),
        }),
      },
    });
    let stub = await node.host();
    const host = await opening;
    for (let round = 1; round <= 3; round++) {
      stub.call(round, "hang", {});
      stub.call(100 + round, "echo", { round });
      assert.deepEqual((await stub.answer(100 + round)).value, { round });
      await node.die(stub);
      await until(() => lost === round);
      await node.listen();
      stub = await node.host();
    }
    host.close();
    await host.closed;
  });

  test("whose tools are refused says why, and one that is refused later ends", async () => {
    await using node = await StubNode.start();
    await using w = node.client();
    const refuse = node.declared;
    node.declared = (host) => host.say({ kind: "refused", code: "bad_request", message: "no such name" });
    const tools = { x: tool({ run: () => 1 }) };
    await assert.rejects(w.tools({ owner, tools }), { code: "bad_request", message: "no such name" });
    await node.host();
    node.declared = refuse;
    const opening = w.tools({ owner, tools });
    const stub = await node.host();
    const host = await opening;
    node.declared = (host) => host.say({ kind: "refused", code: "overloaded", message: "full" });
    stub.socket.terminate();
    // The host waits after `overloaded`, and gives up after a final refusal.
    await node.host();
    node.declared = (host) => host.say({ kind: "refused", code: "bad_request", message: "never" });
    await assert.rejects(host.closed, { message: "never" });
  });
});
