// Agents, against a real node. A scripted agent stands for the real ones.

import assert from "node:assert/strict";
import { copyFile, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";

import type { AgentEvent, Windlass } from "../src/index.js";
import { LIMIT, TestNode } from "./support.js";

/** The agent that the node's own tests use. */
const ENGINE = "crates/windlass/tests/contract_agents/engine.py";

const COMMAND = "acp:python3 engine.py";

async function all(events: AsyncIterable<AgentEvent>): Promise<AgentEvent[]> {
  const seen: AgentEvent[] = [];
  for await (const event of events) seen.push(event);
  return seen;
}

describe("an agent", LIMIT, () => {
  let node: TestNode;
  let w: Windlass;
  let workspace: string;

  before(async () => {
    node = await TestNode.prepare();
    w = node.client();
    workspace = await mkdtemp(join(tmpdir(), "wl-agent-"));
    let root = fileURLToPath(new URL(".", import.meta.url));
    const copied = async () => copyFile(join(root, ENGINE), join(workspace, "engine.py"));
    // The compiled tests are somewhere below the repository.
    for (;;) {
      try {
        await copied();
        return;
      } catch (thrown) {
        const above = join(root, "..");
        if (above === root) throw thrown;
        root = above;
      }
    }
  });
  after(async () => {
    await node[Symbol.asyncDispose]();
    await rm(workspace, { recursive: true, force: true });
  });

  test("yields typed events, and its conversation goes on in another session", async () => {
    const first = w.agent(COMMAND, { workspace });
    const seen = await all(first.run("say hello there"));
    assert.equal(seen[0]?.type, "started");
    const end = seen.at(-1);
    assert.ok(end?.type === "completed" && end.ok);
    assert.equal(end.answer.trim(), "hello there");
    const usage = seen.find((event) => event.type === "usage");
    assert.ok(usage?.type === "usage" && usage.input_tokens === 7);
    await first.close();
    await using second = w.agent(COMMAND, { workspace, resume: first.resume });
    const failed = (await all(second.run("fail no luck"))).at(-1);
    assert.ok(failed?.type === "completed" && !failed.ok);
    assert.deepEqual([failed.error?.name, failed.resume], ["EngineFailed", first.resume]);
  });

  test("asks for permission and gets an answer", async () => {
    for (const [choice, option] of [[true, "once"], [false, "no"], ["ever", "ever"]] as const) {
      await using agent = w.agent(COMMAND, { workspace, permissions: "ask" });
      const titles: string[] = [];
      const onPermission = (asked: { title: string }) => {
        titles.push(asked.title);
        return choice;
      };
      const seen = await all(agent.run("ask rm", { onPermission }));
      assert.deepEqual(titles, ["rm"]);
      const decided = seen.filter((event) => event.type === "decision");
      assert.deepEqual(decided.map((event) => [event.option, event.by]), [[option, "client"]]);
    }
  });
});
