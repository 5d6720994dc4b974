// The login with the address that `windlass console` prints.

import assert from "node:assert/strict";
import { test } from "node:test";

import { consolePage, logIn, newContext, originOf, picture } from "./harness/browser.mjs";
import { useStage } from "./harness/stage.mjs";

let node;
let browser;

useStage({
  prepare: (stage) => {
    ({ node, browser } = stage);
  },
});

test("the code leaves the address and works once", async () => {
  const url = await node.loginUrl();
  const context = await newContext(browser);
  const page = await consolePage(context);
  await page.goto(url);
  await page.getByText("No session is live.").waitFor();
  assert.equal(new URL(page.url()).hash, "#/");
  await picture(page, "empty");

  // The same address in another browser.
  const other = await newContext(browser);
  const late = await consolePage(other);
  await late.goto(url);
  await late.getByRole("alert").getByText("was used before").waitFor();
  assert.equal(new URL(late.url()).hash.includes("login"), false);
  assert.deepEqual(await other.cookies(), []);
  await picture(late, "used-code");
  await Promise.all([context.close(), other.close()]);
});

test("a reload keeps the login, and logging out ends it in all pages", async () => {
  const context = await newContext(browser);
  const page = await logIn(node, context);
  await page.reload();
  await page.getByRole("status").getByText("live", { exact: true }).waitFor();
  const second = await consolePage(context);
  await second.goto(`${originOf(page)}/console/`);
  await second.getByRole("button", { name: "Log out" }).click();
  for (const shown of [page, second]) await shown.getByText("You have logged out.").waitFor();
  assert.deepEqual(await context.cookies(), []);
  await context.close();
});

test("the cookie is out of reach of scripts and of no use without the key", async () => {
  const context = await newContext(browser);
  const page = await logIn(node, context);
  const [cookie, ...others] = await context.cookies();
  assert.deepEqual(others, []);
  assert.deepEqual([cookie.name, cookie.httpOnly, cookie.sameSite, cookie.path], ["windlass_console", true, "Strict", "/"]);
  assert.equal(await page.evaluate(() => document.cookie), "");
  const ask = (headers) =>
    page.evaluate(async (headers) => (await fetch("/v1/sessions", { headers })).status, headers);
  assert.equal(await ask({}), 401);
  assert.equal(await ask({ "X-Windlass-Console": "0".repeat(64) }), 401);
  const key = await page.evaluate(() => JSON.parse(sessionStorage.getItem("windlass.key")).key);
  assert.equal(await ask({ "X-Windlass-Console": key }), 200);
  await context.close();
});
