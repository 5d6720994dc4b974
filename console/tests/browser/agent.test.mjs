// A session of an agent: its messages and actions, and the permission that a person gives. The agent is the scripted one
// of the tests of agents.

import assert from "node:assert/strict";
import { copyFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";

import { ended, logIn, newContext, originOf, picture, turn } from "./harness/browser.mjs";
import { useStage } from "./harness/stage.mjs";
import { payload, settle, Watch } from "./harness/watch.mjs";

const ENGINE = path.join(import.meta.dirname, "../../../crates/windlass/tests/contract_agents/engine.py");

let node;
let browser;
let site;

useStage({
  withSite: true,
  prepare: (stage) => {
    ({ node, browser, site } = stage);
  },
});

async function openAgent(id, context) {
  const workspace = node.directory(`workspace-${id}`);
  copyFileSync(ENGINE, path.join(workspace, "engine.py"));
  const page = await logIn(node, context);
  await node.session({ id, worker: "acp:python3 engine.py", workspace, agent: { permissions: "ask" } });
  await page.goto(`${originOf(page)}/console/#/s/${id}`);
  return page;
}

async function prompt(page, number, text) {
  await page.getByRole("textbox", { name: "Prompt for the agent" }).fill(text);
  await page.getByRole("button", { name: "Send", exact: true }).last().click();
  const shown = turn(page, number);
  await shown.waitFor();
  return shown;
}

test("a person answers the permission that an agent asks for", async () => {
  const context = await newContext(browser);
  const page = await openAgent("asking", context);
  for (const [number, button, answer] of [[1, "Once", "once"], [2, "No", "no"]]) {
    const shown = await prompt(page, number, `ask remove file ${number}`);
    const group = shown.getByRole("group", { name: "Permission" });
    await group.getByText(`remove file ${number}`).waitFor();
    if (number === 1) await picture(page, "permission");
    await group.getByRole("button", { name: button, exact: true }).click();
    await shown.getByText(`"optionId": "${answer}"`).first().waitFor();
    await ended(shown, "ok");
    assert.equal(await group.getByRole("button").count(), 0);
  }
  await context.close();
});

test("what an agent says and names is text", async () => {
  const context = await newContext(browser);
  const page = await openAgent("sly", context);
  const watch = new Watch(context, site);
  const address = page.url();
  const script = payload(site);
  const markup = `<img src="x:" onerror="${script}"> [link](javascript:${script}) <script>${script}</script>`;
  const said = await prompt(page, 1, `say ${markup}`);
  await ended(said, "ok");
  const asked = await prompt(page, 2, `ask ${markup}`);
  const group = asked.getByRole("group", { name: "Permission" });
  await group.getByText("<img src=").waitFor();
  await settle(page);
  await watch.nothing("permission", [address]);
  await group.getByRole("button", { name: "Once", exact: true }).click();
  await ended(asked, "ok");
  const failed = await prompt(page, 3, `fail ${markup}`);
  await ended(failed, "error");
  await settle(page);
  await watch.nothing("an agent's words", [address]);
  const links = await page.getByRole("region", { name: "Transcript" }).getByRole("link").count();
  assert.equal(links, 0);
  await picture(page, "attack-agent");
  await context.close();
});
