// Pages of other sites cannot call the node, read its answers or frame the console, also when they are at another port of
// the same host or have a name that resolves to it. Each attack runs beside a page that is logged in, in the same browser.

import assert from "node:assert/strict";
import { test } from "node:test";

import { consolePage, isOfPage, logIn, newContext, originOf, picture } from "./harness/browser.mjs";
import { useStage } from "./harness/stage.mjs";
import { eventually } from "./harness/wait.mjs";

let node;
let browser;
let site;

useStage({
  browserArgs: ["--host-resolver-rules=MAP evil.example 127.0.0.1"],
  withSite: true,
  prepare: async (stage) => {
    ({ node, browser, site } = stage);
    await node.session({ id: "victim" });
  },
});

/** A page that is logged in, and the answers of its origin to requests of all other pages of its browser. */
async function loggedIn() {
  const context = await newContext(browser);
  const page = await logIn(node, context);
  const port = new URL(page.url()).port;
  const answers = [];
  context.on("response", (reply) => {
    const url = new URL(reply.url());
    if (!isOfPage(page, reply) && url.port === port) answers.push({ path: url.pathname, status: reply.status(), method: reply.request().method() });
  });
  return { context, page, port, answers };
}

/** Runs in the page of the other site: tries every way to send a request, and tells what it could read. */
async function attack(target) {
  const read = [];
  const note = (what) => (value) => read.push(`${what}: ${String(value).slice(0, 80)}`);
  const asked = (what, path, options) =>
    fetch(target + path, { credentials: "include", ...options })
      .then((reply) => (reply.type === "opaque" ? undefined : reply.text().then(note(what))))
      .catch(() => undefined);
  const json = JSON.stringify({ id: "forged" });
  const tried = [
    asked("read", "/v1/sessions"),
    asked("read blindly", "/v1/sessions", { mode: "no-cors" }),
    asked("with a key", "/v1/sessions", { headers: { "X-Windlass-Console": "0".repeat(64) } }),
    asked("make", "/v1/sessions", { method: "POST", body: json }),
    asked("make blindly", "/v1/sessions", { method: "POST", mode: "no-cors", body: json }),
    asked("make with JSON", "/v1/sessions", { method: "POST", body: json, headers: { "content-type": "application/json" } }),
    asked("run blindly", "/v1/sessions/victim/turns", { method: "POST", mode: "no-cors", body: JSON.stringify({ code: "1" }) }),
    asked("close", "/v1/sessions/victim", { method: "DELETE" }),
    asked("log in", "/v1/console/session", { method: "POST", mode: "no-cors", body: JSON.stringify({ code: "0" }) }),
    asked("log out", "/v1/console/session", { method: "DELETE" }),
    asked("ask for a login", "/v1/console/logins", { method: "POST", mode: "no-cors" }),
    asked("page", "/console/"),
  ];
  const event = (element, what) =>
    new Promise((done) => {
      element.addEventListener("error", done);
      for (const good of ["load", "open", "message"]) element.addEventListener(good, () => done(note(what)(good)));
      setTimeout(done, 2000);
    });
  const element = (name, facts, what) => {
    const made = Object.assign(document.createElement(name), facts);
    tried.push(event(made, what));
    document.body.append(made);
  };
  element("img", { src: `${target}/v1/sessions` }, "img");
  element("script", { src: `${target}/v1/sessions` }, "script");
  element("link", { rel: "stylesheet", href: `${target}/v1/sessions` }, "style");
  tried.push(event(new EventSource(`${target}/v1/sessions/victim/events`, { withCredentials: true }), "events"));
  tried.push(event(new WebSocket(`${target.replace("http", "ws")}/v1/tools`), "socket"));
  const form = Object.assign(document.createElement("form"), { action: `${target}/v1/sessions`, method: "post", enctype: "text/plain", target: "sink" });
  const field = Object.assign(document.createElement("input"), { name: '{"id":"forged","x":"', value: '"}' });
  const sink = Object.assign(document.createElement("iframe"), { name: "sink" });
  form.append(field);
  document.body.append(sink, form);
  const answered = new Promise((done) => {
    sink.addEventListener("load", done);
    setTimeout(done, 2000);
  });
  form.submit();
  await Promise.all([...tried, answered]);
  return read;
}

async function nothingHappened(page) {
  const { sessions } = await node.call("GET", "/v1/sessions");
  assert.deepEqual(sessions.map((session) => [session.id, session.turns]), [["victim", 0]]);
  // The page is still logged in.
  await page.reload();
  await page.getByRole("listitem").getByText("victim", { exact: true }).waitFor();
}

test("a page of another site reads and changes nothing", async () => {
  const { context, page, port, answers } = await loggedIn();
  for (const [from, to] of [
    ["127.0.0.1", "127.0.0.1"],
    ["127.0.0.1", "localhost"],
    ["localhost", "127.0.0.1"],
    ["evil.example", "127.0.0.1"],
  ]) {
    answers.length = 0;
    const foreign = await context.newPage();
    await foreign.goto(site.page("foreign", "<body></body>", from));
    const what = `${from} to ${to}`;
    assert.deepEqual(await foreign.evaluate(attack, `http://${to}:${port}`), [], what);
    assert.ok(answers.length > 0, `${what}: the node was asked`);
    assert.deepEqual(answers.filter(({ status }) => status < 400), [], what);
    await foreign.close();
  }
  await nothingHappened(page);
  await context.close();
});

test("another site cannot frame the console", async () => {
  const { context, page, port, answers } = await loggedIn();
  for (const host of ["127.0.0.1", "localhost"]) {
    const foreign = await context.newPage();
    await foreign.goto(site.page("frame", `<iframe width="900" height="600" src="http://${host}:${port}/console/"></iframe>`));
    await eventually("the frame is refused", () => answers.some(({ path, status }) => path === "/console/" && status === 403));
    assert.equal(await foreign.frameLocator("iframe").getByText("Windlass").count(), 0);
    await picture(foreign, `framed-${host}`);
    await foreign.close();
    answers.length = 0;
  }
  await nothingHappened(page);
  await context.close();
});

test("another site can open the console in a window, and not touch it", async () => {
  const { context, page } = await loggedIn();
  const foreign = await context.newPage();
  await foreign.goto(site.page("opener", "<button>Open</button>"));
  const opening = context.waitForEvent("page");
  await foreign.evaluate((url) => (globalThis.opened = open(url)), `${originOf(page)}/console/#/`);
  const opened = await opening;
  await opened.waitForLoadState();
  assert.equal(opened.url(), `${originOf(page)}/console/#/`);
  const reached = await foreign.evaluate(() => {
    try {
      return { closed: opened.closed, title: opened.document.title };
    } catch {
      return { closed: opened.closed };
    }
  });
  assert.deepEqual(reached, { closed: true });
  assert.equal(await opened.evaluate(() => opener), null);
  await context.close();
});

test("a name that resolves to this machine is refused", async () => {
  const { context, page, port } = await loggedIn();
  const rebound = await context.newPage();
  const reply = await rebound.goto(`http://evil.example:${port}/console/`);
  assert.equal(reply.status(), 403);
  assert.equal(JSON.parse(await reply.text()).code, "foreign_site");
  const ask = (path, method) => rebound.evaluate(async ({ path, method }) => (await fetch(path, { method })).status, { path, method });
  assert.equal(await ask("/v1/sessions", "GET"), 403);
  assert.equal(await ask("/v1/console/logins", "POST"), 403);
  assert.equal(await ask("/v1/console/session", "POST"), 403);
  await nothingHappened(page);
  await context.close();
});

test("a login is good at one name of the host only", async () => {
  const { context, page, port } = await loggedIn();
  const other = await consolePage(context);
  await other.goto(`http://localhost:${port}/console/`);
  await other.getByRole("button", { name: "Log in" }).waitFor();
  const [cookie] = await context.cookies();
  const key = await page.evaluate(() => JSON.parse(sessionStorage.getItem("windlass.key")).key);
  await context.addCookies([{ ...cookie, domain: "localhost" }]);
  const status = await other.evaluate(async (key) => (await fetch("/v1/sessions", { headers: { "X-Windlass-Console": key } })).status, key);
  assert.equal(status, 401);
  await context.close();
});
