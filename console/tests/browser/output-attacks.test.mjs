// What a session prints, displays or names cannot run script in the page, read its cookie or call the API
// (docs/contract.md, line 110).

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";

import { ended, logIn, newContext, openSession, originOf, picture, runCode, turn } from "./harness/browser.mjs";
import { useStage } from "./harness/stage.mjs";
import { eventually } from "./harness/wait.mjs";
import { MARK, payload, settle, Watch } from "./harness/watch.mjs";

let node;
let browser;
let site;
let script;

useStage({
  withSite: true,
  prepare: (stage) => {
    ({ node, browser, site } = stage);
    script = payload(site);
  },
});

/** Markup that runs the script wherever it is taken as markup. */
function markups() {
  return [
    `<script>${script}</script>`,
    `<img src="x:" onerror="${script}">`,
    `<svg onload="${script}"></svg>`,
    `<details open ontoggle="${script}">x</details>`,
    `<iframe srcdoc="<script>${script}</script>"></iframe>`,
  ];
}

/** A page of the console with a session of its own, watched from its login on. */
async function scene(id, wanted = {}) {
  const context = await newContext(browser);
  const page = await logIn(node, context);
  const watch = new Watch(context, site);
  await openSession(page, await node.session({ id, ...wanted }));
  return { context, page, watch, address: page.url() };
}

/** A text of JSON is one of Python too. */
const python = (text) => JSON.stringify(text);

test("the attacks work in a page that does not defend itself", async () => {
  for (const [at, markup] of markups().entries()) {
    const context = await browser.newContext();
    const page = await context.newPage();
    site.asked.length = 0;
    await page.goto(site.page(`control-${at}`, markup));
    await eventually(markup, () => page.evaluate((name) => name in self, MARK));
    await eventually(markup, () => site.leaks().some((asked) => asked.startsWith("/leak?cookie=")));
    await context.close();
  }
});

test("printed markup is text", async () => {
  const { context, page, watch, address } = await scene("printed");
  const printed = [...markups(), `<a href="javascript:${script}">click me</a>`];
  const shown = await runCode(page, 1, `${printed.map((text) => `print(${python(text)})`).join("\n")}\nimport sys\nfor part in ("<scr", "ipt>1</scr", "ipt>\\n"): sys.stdout.write(part); sys.stdout.flush()`);
  await ended(shown, "ok");
  const output = shown.getByLabel("Output", { exact: true });
  await output.getByText("<script>1</script>").waitFor();
  const text = await output.innerText();
  for (const line of printed) assert.ok(text.includes(line), line);
  await settle(page);
  await watch.nothing("printed", [address]);
  await picture(page, "attack-printed");

  // The result of a turn, its code and its error are shown in other places.
  const result = await runCode(page, 2, `class Sly:\n    def __repr__(self): return ${python(markups()[1])}\nSly()`);
  await ended(result, "ok");
  const wrong = await runCode(page, 3, `# ${markups()[0]}\nraise type(${python(markups()[1])}, (Exception,), {})(${python(markups()[2])})`);
  await ended(wrong, "error");
  await settle(page);
  await watch.nothing("result and error", [address]);
  await context.close();
});

test("no escape sequence makes a link or a title", async () => {
  const { context, page, watch, address } = await scene("escapes");
  const link = (url, text) => `\x1b]8;;${url}\x1b\\${text}\x1b]8;;\x1b\\`;
  const lines = [
    link(`javascript:${script}`, "first link"),
    link(`data:text/html,<script>${script}</script>`, "second link"),
    `\x1b]0;${markups()[1]}\x07title`,
    `\x1b[31m${markups()[1]}\x1b[0m`,
    `\x1b]52;c;${Buffer.from("stolen").toString("base64")}\x07clipboard`,
    `\x1b]8;;javascript:${script}`,
  ];
  const shown = await runCode(page, 1, lines.map((line) => `print(${python(line)})`).join("\n"));
  await ended(shown, "ok");
  for (const text of ["first link", "second link"]) await shown.getByLabel("Output", { exact: true }).getByText(text).first().click();
  const targets = await page.evaluate(() => [...document.querySelectorAll("[href], [src], [action]")].map((one) => one.href || one.src || one.action));
  const foreign = targets.filter((target) => typeof target === "string" && !target.startsWith(originOf(page)));
  assert.deepEqual(foreign, []);
  assert.equal(await page.title(), "escapes · Windlass");
  await settle(page);
  await watch.nothing("escape sequences", [address]);
  await context.close();
});

/** Documents of which each tries another way out of its frame. */
function documents(origin) {
  const leak = `http://127.0.0.1:${site.port}/leak`;
  return {
    ...Object.fromEntries(markups().map((markup, at) => [`markup ${at}`, markup])),
    "refresh": `<meta http-equiv="refresh" content="0; url=${leak}">`,
    "refresh to script": `<meta http-equiv="refresh" content="0; url=javascript:${script}">`,
    "refresh to the API": `<meta http-equiv="refresh" content="0; url=${origin}/v1/sessions">`,
    "form": `<form action="${leak}" method="post"><button>Press</button></form>`,
    "form to the API": `<form action="${origin}/v1/sessions" method="post" enctype="text/plain"><button>Press</button><input name='{"id":"forged","x":"' value='"}'></form>`,
    "form over the page": `<form action="${leak}" target="_top"><button>Press</button></form>`,
    "link over the page": `<a target="_top" href="${leak}">Press</a>`,
    "link to a window": `<a target="_blank" href="${leak}" ping="${leak}">Press</a>`,
    "link in the frame": `<a href="${leak}">Press</a>`,
    "link to script": `<a target="_top" href="javascript:${script}">Press</a>`,
    "frame of the API": `<iframe src="${origin}/v1/sessions"></iframe><iframe src="/v1/sessions"></iframe>`,
    "frame of the console": `<iframe src="${origin}/console/"></iframe>`,
    "frame of script": `<iframe src="javascript:parent.parent.${MARK}=1"></iframe>`,
    "object": `<object data="${leak}"></object><embed src="${leak}">`,
    "picture": `<img src="${leak}"><img srcset="${leak} 2x"><video src="${leak}" autoplay></video>`,
    "style": `<style>@import url("${leak}"); body { background: url("${leak}") }</style><link rel="stylesheet" href="${leak}"><p style="background:url(${leak})">x</p>`,
    "hints": `<link rel="prefetch" href="${leak}"><link rel="preload" as="script" href="${leak}"><link rel="modulepreload" href="${leak}"><link rel="manifest" href="${leak}"><link rel="icon" href="${leak}">`,
    "base": `<base href="http://127.0.0.1:${site.port}/"><img src="leak"><script src="leak"></script>`,
    "script file of the console": `<script type="module" src="${origin}/console/assets/index.js"></script>`,
    "out of the attribute": `"><script>${script}</script><iframe srcdoc="`,
    "out of the document": `</iframe></body></html><script>${script}</script>`,
  };
}

test("an HTML display stays in its frame", async () => {
  const { context, page, watch, address } = await scene("html");
  const all = Object.entries(documents(originOf(page)));
  for (const [at, [name, document]] of all.entries()) {
    const shown = await runCode(page, at + 1, `_ = display(${python(document)}, mime="text/html")`);
    await ended(shown, "ok");
    const frame = shown.getByTitle("HTML display");
    await frame.waitFor();
    assert.equal(await frame.getAttribute("sandbox"), "", name);
    if (document.includes("Press")) {
      // A frame without script cannot be asked where its elements are. This one is first.
      await frame.click({ position: { x: 20, y: 18 } });
      // The frame may have a process of its own, so the page learns later that the frame has the focus.
      const title = () => page.evaluate(() => document.activeElement.title);
      await eventually(`the click reaches the frame: ${name}`, async () => (await title()) === "HTML display");
    }
  }
  await settle(page);
  await picture(page, "attack-html");
  await watch.nothing("HTML displays", [address]);
  const sessions = await node.call("GET", "/v1/sessions");
  assert.equal(sessions.sessions.some((session) => session.id === "forged"), false);

  // The source is text.
  await turn(page, 1).getByRole("button", { name: "Show source" }).click();
  await turn(page, 1).getByText(script.slice(0, 40)).last().waitFor();
  await settle(page);
  await watch.nothing("source of an HTML display", [address]);
  await context.close();
});

test("an SVG display is only a picture, also in a window of its own", async () => {
  const { context, page, watch, address } = await scene("svg");
  const leak = `http://127.0.0.1:${site.port}/leak`;
  const drawing =
    `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="80" height="40" onload="${script}">` +
    `<script>${script.replaceAll("&", "&amp;").replaceAll("<", "&lt;")}</script>` +
    `<image href="${leak}" width="9" height="9"/><use xlink:href="${leak}#x"/>` +
    `<foreignObject width="80" height="40"><iframe xmlns="http://www.w3.org/1999/xhtml" src="${originOf(page)}/v1/sessions"/></foreignObject>` +
    `<rect width="80" height="40" fill="teal"/></svg>`;
  const shown = await runCode(page, 1, `_ = display(${python(drawing)}, mime="image/svg+xml")`);
  await ended(shown, "ok");
  const image = shown.getByRole("img", { name: "Display of type image/svg+xml" });
  await eventually("the drawing is shown", () => image.evaluate((drawn) => drawn.naturalWidth === 80));
  await settle(page);
  await watch.nothing("SVG display", [address]);

  // A person opens the picture by its address. Its scripts must not have the origin of the console.
  const opened = await context.newPage();
  await opened.goto(await image.evaluate((drawn) => drawn.src)).catch(() => undefined);
  await settle(opened);
  assert.equal(await opened.evaluate(() => self.origin), "null");
  assert.deepEqual(site.leaks(), []);
  await context.close();
});

test("a display of an odd type is text", async () => {
  const { context, page, watch, address } = await scene("types");
  const types = ["text/plain", "application/xhtml+xml", "text/xml", "text/javascript", "application/json", "text/html+x", "x/<img src=x:>"];
  for (const [at, type] of types.entries()) {
    const shown = await runCode(page, at + 1, `_ = display(${python(markups()[0] + markups()[1])}, mime=${python(type)})`);
    // Some types are refused by the worker.
    await shown.getByText("ok", { exact: true }).or(shown.getByText("error", { exact: true })).waitFor();
  }
  await settle(page);
  await watch.nothing("displays of odd types", [address]);
  await context.close();
});

test("names of workspaces, files and sessions are text", async () => {
  // A name of a file has no slash.
  const name = `<img src=x: onerror=top.${MARK}=1>`;
  const workspace = node.directory(name);
  writeFileSync(path.join(workspace, `${name}.txt`), markups().join("\n"));
  writeFileSync(path.join(workspace, "page.html"), markups().join("\n"));
  writeFileSync(path.join(workspace, "drawing.svg"), `<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" onload="${script}"/>`);
  const { context, page, watch, address } = await scene("names", { workspace });
  await page.getByText(workspace, { exact: true }).waitFor();
  await page.goto(`${address}/files`);
  for (const file of [`${name}.txt`, "page.html", "drawing.svg"]) {
    await page.getByRole("button", { name: file }).click();
    await page.getByRole("region", { name: file }).waitFor();
    await settle(page);
  }
  await watch.nothing("names of files", [`${address}/files`]);

  await page.goto(`${originOf(page)}/console/#/`);
  await page.getByRole("list").getByText(workspace).waitFor();
  await page.goto(`${originOf(page)}/console/#/s/${encodeURIComponent(name)}`);
  await page.getByText(`There is no session ${name}`).or(page.getByRole("heading", { name })).first().waitFor();
  await settle(page);
  await watch.nothing("the address", [page.url()]);

  // The node's error message repeats what was asked for.
  await page.goto(`${originOf(page)}/console/#/`);
  await page.getByRole("button", { name: "New session" }).first().click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("textbox", { name: "Workspace" }).fill(`/nowhere/${markups()[1]}`);
  await dialog.getByRole("button", { name: "Start" }).click();
  await dialog.getByRole("alert").waitFor();
  await settle(page);
  await picture(page, "attack-names");
  await watch.nothing("an error message", [page.url()]);
  await context.close();
});
