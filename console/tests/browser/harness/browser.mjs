// Chromium, and pages that have logged in. Tests find elements by role and name, as people and screen readers do.

import { mkdirSync, readFileSync } from "node:fs";
import path from "node:path";

import { chromium } from "playwright-core";

import { PATIENCE_MS } from "./wait.mjs";

/** The browser. `cargo xtask console` finds one. */
const CHROMIUM = "WINDLASS_TEST_CHROMIUM";

/** A directory for pictures of the page. */
const SCREENSHOTS = "WINDLASS_TEST_SCREENSHOTS";

/** A directory with built files, which the pages get in place of the files in the program. */
const DIST = "WINDLASS_TEST_CONSOLE_DIST";

const CONTENT_TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml" };

export async function openBrowser(args = []) {
  const isRoot = process.getuid() === 0;
  return chromium.launch({
    executablePath: process.env[CHROMIUM] ?? "/usr/bin/chromium",
    headless: true,
    chromiumSandbox: !isRoot,
    args: ["--disable-dev-shm-usage", ...args],
  });
}

/** A context is like a browser profile: it shares no cookie with another context. */
export async function newContext(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  return context;
}

/** A page for the console. */
export async function consolePage(context) {
  const page = await context.newPage();
  const dist = process.env[DIST];
  if (dist !== undefined) await page.route(/^http:\/\/[^/]+\/console(\/|$)/, (route) => serve(route, dist));
  return page;
}

/** Answers with the node's own headers, so that the Content-Security-Policy is the real one. */
async function serve(route, dist) {
  const asked = new URL(route.request().url()).pathname.replace(/^\/console\/?/, "");
  const name = asked === "" ? "index.html" : asked;
  const reply = await route.fetch();
  // The program has other assets than the directory.
  const isRefused = reply.status() !== 200 && reply.status() !== 404;
  if (isRefused) return route.fulfill({ response: reply });
  const headers = { ...reply.headers(), "content-type": CONTENT_TYPES[path.extname(name)] };
  for (const name of ["content-length", "connection", "cache-control"]) delete headers[name];
  return route.fulfill({ status: 200, headers, body: readFileSync(path.join(dist, name)) });
}

/** A page of the console with a login of its own. */
export async function logIn(node, context) {
  const page = await consolePage(context);
  await page.goto(await node.loginUrl());
  await page.getByRole("button", { name: "New session" }).first().waitFor();
  return page;
}

/** Whether an answer is for the document of a page, or for one of its own requests, and not for a frame. */
export function isOfPage(page, reply) {
  try {
    return reply.frame() === page.mainFrame();
  } catch {
    // The frame is still being made.
    return false;
  }
}

/** The address of the console that a page shows, without a path. */
export function originOf(page) {
  return new URL(page.url()).origin;
}

/** Shows a session and waits until code can be run in it. */
export async function openSession(page, session) {
  await page.goto(`${originOf(page)}/console/#/s/${session}`);
  await page.getByRole("heading", { name: session, exact: true }).waitFor();
  await codeBox(page).waitFor();
}

export function codeBox(page) {
  return page.getByRole("textbox", { name: "Code to run" });
}

/** Runs code from the page. The turns of a session have the numbers 1, 2, 3... */
export async function runCode(page, number, code) {
  await codeBox(page).fill(code);
  await page.getByRole("button", { name: "Run", exact: true }).click();
  const shown = turn(page, number);
  await shown.waitFor();
  return shown;
}

export function turn(page, number) {
  return page.getByRole("article", { name: `Turn ${number}`, exact: true });
}

/** Waits until a turn has ended in a way: `ok`, `error`, `interrupted`. */
export async function ended(shown, word, patience = PATIENCE_MS) {
  // The head of the turn. Calls in the turn have states of their own.
  await shown.locator("> :first-child").getByText(word, { exact: true }).waitFor({ timeout: patience });
}

/** Keeps a picture of the page if somebody wants to look at it. */
export async function picture(page, name) {
  const directory = process.env[SCREENSHOTS];
  if (directory === undefined) return;
  mkdirSync(directory, { recursive: true });
  await page.screenshot({ path: path.join(directory, `${name}.png`) });
}
