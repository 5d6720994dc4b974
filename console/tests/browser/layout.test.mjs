// The page on a narrow screen, in the dark and in the light.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ended, logIn, newContext, openSession, picture, runCode } from "./harness/browser.mjs";
import { useStage } from "./harness/stage.mjs";

let node;
let browser;

useStage({
  prepare: async (stage) => {
    ({ node, browser } = stage);
    await node.session({ id: "narrow", workspace: node.directory("a-directory-with-a-long-name-".repeat(4)) });
  },
});

const WIDE_CODE = "print('wide ' * 100)\nprint('x' * 1000)\n1 / 0";

test("at a width of 360 pixels nothing scrolls sideways", async () => {
  const context = await newContext(browser, { viewport: { width: 360, height: 640 } });
  const page = await logIn(node, context);
  await fits(page, "sessions");
  await openSession(page, "narrow");
  await ended(await runCode(page, 1, WIDE_CODE), "error");
  await fits(page, "transcript");
  for (const tab of ["Files", "Policy", "Usage"]) {
    await page.getByRole("navigation", { name: "Parts of the session" }).getByRole("link", { name: tab }).click();
    await page.getByRole("link", { name: tab }).and(page.locator("[aria-current=page]")).waitFor();
    await fits(page, tab);
  }
  await page.getByRole("link", { name: "Node", exact: true }).click();
  await fits(page, "node");
  await page.getByRole("link", { name: "Sessions", exact: true }).click();
  await page.getByRole("button", { name: "New session" }).first().click();
  await page.getByRole("dialog").waitFor();
  await fits(page, "dialog");
  await context.close();
});

async function fits(page, name) {
  await picture(page, `narrow-${name.toLowerCase()}`);
  const [content, width] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  assert.ok(content <= width, `${name} is ${content} pixels wide`);
  assert.equal(width, 360);
}

/** The brightness of the page's ground: 0 is black. */
function ground(page) {
  return page.evaluate(() => {
    const canvas = document.createElement("canvas").getContext("2d");
    canvas.fillStyle = getComputedStyle(document.body).backgroundColor;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
    return (red + green + blue) / (3 * 255);
  });
}

test("the page is dark or light as the system says, or as the person chooses", async () => {
  for (const [colorScheme, isDark] of [["dark", true], ["light", false]]) {
    const context = await newContext(browser, { colorScheme });
    const page = await logIn(node, context);
    assert.equal((await ground(page)) < 0.5, isDark, colorScheme);
    await openSession(page, "narrow");
    await picture(page, `session-${colorScheme}`);
    const shown = ["Light", "Dark"];
    for (const chosen of shown) {
      await page.getByRole("button", { name: /^Theme: / }).click();
      await page.getByRole("button", { name: `Theme: ${chosen}. Switch` }).waitFor();
      assert.equal((await ground(page)) < 0.5, chosen === "Dark", chosen);
    }
    await page.reload();
    await page.getByRole("button", { name: "Theme: Dark. Switch" }).waitFor();
    assert.ok((await ground(page)) < 0.5);
    await context.close();
  }
});

test("the page asks no other host for anything", async () => {
  const context = await newContext(browser);
  const hosts = new Set();
  context.on("request", (request) => hosts.add(new URL(request.url()).host));
  const page = await logIn(node, context);
  await openSession(page, "narrow");
  await page.getByRole("link", { name: "Node", exact: true }).click();
  await page.getByRole("heading").first().waitFor();
  assert.deepEqual([...hosts], [new URL(page.url()).host]);
  await context.close();
});
