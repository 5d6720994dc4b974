// What a person does with a session in the page: make it, run code, look, answer, stop, fork, close.

import assert from "node:assert/strict";
import { test } from "node:test";

import { codeBox, consolePage, ended, logIn, newContext, openSession, originOf, picture, runCode, turn } from "./harness/browser.mjs";
import { useStage } from "./harness/stage.mjs";
import { eventually } from "./harness/wait.mjs";

let node;
let browser;
let context;
let page;

useStage({
  prepare: async (stage) => {
    ({ node, browser } = stage);
    context = await newContext(browser);
    page = await logIn(node, context);
  },
});

/** A picture of 64 × 48 points, made without a library. */
const PLOT = `
import struct, zlib
def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
rows = b"".join(b"\\0" + b"".join(bytes((4 * x, 5 * y, 128)) for x in range(64)) for y in range(48))
head = struct.pack(">IIBBBBB", 64, 48, 8, 2, 0, 0, 0)
png = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
_ = display(png, mime="image/png")
`;

test("a session is made and runs code", async () => {
  await page.getByRole("button", { name: "New session" }).first().click();
  const dialog = page.getByRole("dialog", { name: "New session" });
  await dialog.getByRole("textbox", { name: "Id" }).fill("first");
  await picture(page, "new-session");
  await dialog.getByRole("button", { name: "Start" }).click();
  await page.getByRole("heading", { name: "first", exact: true }).waitFor();
  await codeBox(page).waitFor();

  const shown = await runCode(page, 1, "print('hello', 6 * 7)");
  await shown.getByLabel("Output", { exact: true }).getByText("hello 42").waitFor();
  await ended(shown, "ok");
  assert.equal(await codeBox(page).inputValue(), "");
});

test("the keyboard runs code and finds the last code again", async () => {
  await openSession(page, await node.session({ id: "keys" }));
  await page.keyboard.press("/");
  await page.keyboard.type("print('typed')");
  await page.keyboard.press("Control+Enter");
  await ended(turn(page, 1), "ok");
  await page.keyboard.press("ArrowUp");
  await eventually("the box has the last code", async () => (await codeBox(page).inputValue()) === "print('typed')");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  await page.getByRole("link", { name: /^idle keys / }).waitFor();
});

test("a plot is shown as a picture", async () => {
  await openSession(page, await node.session({ id: "plot" }));
  const shown = await runCode(page, 1, PLOT);
  const image = shown.getByRole("img", { name: "Display of type image/png" });
  await image.waitFor();
  const size = await eventually("the picture is drawn", () =>
    image.evaluate((drawn) => drawn.complete && drawn.naturalWidth > 0 && [drawn.naturalWidth, drawn.naturalHeight]),
  );
  assert.deepEqual(size, [64, 48]);
  await ended(shown, "ok");
  await picture(page, "plot");
});

test("code gets its input from the page", async () => {
  await openSession(page, await node.session({ id: "input" }));
  const shown = await runCode(page, 1, "name = input('Your name? ')\nprint('hello', name)");
  const field = shown.getByRole("textbox", { name: "Your name?" });
  await field.waitFor();
  assert.equal(await field.getAttribute("type"), "text");
  await shown.getByText("waiting for input").waitFor();
  await picture(page, "input");
  // The list has the session first and the title counts it.
  const other = await consolePage(context);
  await other.goto(page.url().replace(/#.*/, "#/"));
  await other.getByRole("listitem").first().getByText("input", { exact: true }).first().waitFor();
  await eventually("the title counts it", async () => (await other.title()).startsWith("(1) "));
  await other.close();
  await field.fill("Ada");
  await field.press("Enter");
  await shown.getByLabel("Output", { exact: true }).getByText("hello Ada").waitFor();
  await ended(shown, "ok");
});

test("a secret is typed unseen and is not in the transcript", async () => {
  await openSession(page, await node.session({ id: "secret" }));
  const shown = await runCode(page, 1, "import getpass\nprint(len(getpass.getpass('Token: ')))");
  // A password field has no role.
  const field = shown.getByLabel("Token:");
  await field.waitFor();
  assert.equal(await field.getAttribute("type"), "password");
  await field.fill("swordfish");
  await shown.getByRole("button", { name: "Send" }).click();
  await shown.getByLabel("Output", { exact: true }).getByText("9").waitFor();
  await ended(shown, "ok");
  assert.equal((await page.content()).includes("swordfish"), false);
});

test("an endless loop is interrupted", async () => {
  await openSession(page, await node.session({ id: "loop" }));
  const shown = await runCode(page, 1, "while True: pass");
  await shown.getByText("running", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Interrupt" }).click();
  await ended(shown, "interrupted");
  const next = await runCode(page, 2, "print('still here')");
  await ended(next, "ok");
});

test("an error is shown with its traceback", async () => {
  await openSession(page, await node.session({ id: "wrong" }));
  const shown = await runCode(page, 1, "def half(value):\n    return 1 / value\nhalf(0)");
  await shown.getByLabel("Traceback").getByText("ZeroDivisionError").waitFor();
  await ended(shown, "error");
  await picture(page, "error");
});

test("a fork has the variables and goes its own way", async () => {
  await openSession(page, await node.session({ id: "origin" }));
  await ended(await runCode(page, 1, "x = 20"), "ok");
  await page.getByRole("button", { name: "Fork" }).click();
  await eventually("the page shows the fork", () => !page.url().endsWith("/s/origin"));
  const fork = decodeURIComponent(page.url().split("/s/")[1]);
  await page.getByRole("heading", { name: fork, exact: true }).waitFor();
  await page.getByText("fork of origin").waitFor();
  await codeBox(page).fill("x += 1; print('x is', x)");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.getByRole("region", { name: "Transcript" }).getByText("x is 21").waitFor();
  await openSession(page, "origin");
  await ended(await runCode(page, 2, "print('x is', x)"), "ok");
  await turn(page, 2).getByText("x is 20").waitFor();
});

test("the list tells what sessions use, and sorts them by it", async () => {
  await node.session({ id: "uses" });
  await page.goto(`${originOf(page)}/console/#/`);
  const list = page.getByRole("list", { name: /sessions?$/ });
  await list.getByText("uses", { exact: true }).waitFor();
  const { sessions } = await node.call("GET", "/v1/overview");
  await page.getByRole("combobox", { name: "Order" }).selectOption("Sort by memory");
  // The page shows no figure that the cgroups of the machine do not count.
  for (const [figure, shown] of [
    ["memory_bytes", /MiB|GiB/],
    ["cpu_ms", /%$/],
  ]) {
    if (sessions.some((session) => session[figure] !== undefined)) await list.getByText(shown).first().waitFor();
  }
  await picture(page, "sorted-by-memory");
  await page.getByRole("combobox", { name: "Order" }).selectOption("Sort by state");
});

test("a wrong workspace is refused in words for people", async () => {
  await page.goto(`${originOf(page)}/console/#/`);
  await page.getByRole("button", { name: "New session" }).first().click();
  const dialog = page.getByRole("dialog", { name: "New session" });
  await dialog.getByRole("textbox", { name: "Workspace" }).fill("/there/is/no/such/directory");
  await dialog.getByRole("button", { name: "Start" }).click();
  const problem = dialog.getByRole("alert");
  await problem.getByText("/there/is/no/such/directory").waitFor();
  assert.doesNotMatch(await problem.textContent(), /openapi/);
  await dialog.getByRole("button", { name: "Cancel" }).click();
});

test("the page of the node has its MCP servers and its findings", async () => {
  await page.goto(`${originOf(page)}/console/#/node`);
  for (const name of ["MCP servers", "Findings"]) await page.getByRole("heading", { name }).waitFor();
  await page.goto(`${originOf(page)}/console/#/`);
});

test("a session is closed after a question", async () => {
  await openSession(page, await node.session({ id: "over" }));
  await page.getByRole("button", { name: "Close", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "Close over?" });
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Close", exact: true }).click();
  await dialog.getByRole("button", { name: "Close the session" }).click();
  await page.getByRole("heading", { name: "over", exact: true }).locator("..").getByText("ended", { exact: true }).waitFor();
  assert.equal(await codeBox(page).count(), 0);
});
