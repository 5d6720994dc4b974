// The terminal of a shell session: commands, keys, signals, programs that use the whole screen, and output that attacks.

import assert from "node:assert/strict";
import { test } from "node:test";

import { logIn, newContext, originOf, picture } from "./harness/browser.mjs";
import { useStage } from "./harness/stage.mjs";
import { eventually } from "./harness/wait.mjs";
import { payload, settle, Watch } from "./harness/watch.mjs";

const TERMINAL = { columns: 100, rows: 24 };

let node;
let browser;
let site;

useStage({
  withSite: true,
  prepare: (stage) => {
    ({ node, browser, site } = stage);
  },
});

/** A page with the terminal of a new session, watched for attacks and for style that the policy refuses. */
async function terminal(id) {
  const context = await newContext(browser);
  const page = await logIn(node, context);
  const watch = new Watch(context, site);
  const refused = [];
  page.on("console", (message) => {
    if (/Content Security Policy/i.test(message.text())) refused.push(message.text());
  });
  await node.session({ id, worker: "shell", terminal: TERMINAL });
  await page.goto(`${originOf(page)}/console/#/s/${id}/terminal`);
  await page.getByRole("textbox", { name: "Command" }).waitFor();
  await screenText(page);
  return { context, page, watch, refused };
}

/** The lines of the screen without the empty ones. */
async function screenText(page) {
  const rows = page.getByRole("group", { name: "Terminal" }).locator(".xterm-rows > div");
  await rows.first().waitFor();
  const lines = await rows.evaluateAll((all) => all.map((row) => row.textContent.replaceAll("\u00a0", " ").trimEnd()));
  return lines.filter((line) => line !== "");
}

/** Waits for a line of the screen. */
async function shows(page, wanted) {
  let lines;
  try {
    await eventually("the line is there", async () => (lines = await screenText(page)).includes(wanted));
  } catch (cause) {
    throw new Error(`the screen does not show "${wanted}" but:\n${lines?.join("\n")}`, { cause });
  }
}

/** The command, when nothing runs, and the answer to what runs. */
async function type(page, name, text) {
  const line = page.getByRole("textbox", { name, exact: true });
  await line.waitFor();
  await line.fill(text);
  await line.press("Enter");
}

const run = (page, code) => type(page, "Command", code);
const give = (page, text) => type(page, "Input for the program", text);

/** Whether the keys go to an element of this name. */
function hasKeys(page, name) {
  return eventually(`the keys go to: ${name}`, () => page.evaluate((wanted) => document.activeElement?.getAttribute("aria-label") === wanted, name));
}

test("commands, colours and answers work, and the policy refuses no style", async () => {
  const { page, context, refused } = await terminal("work");
  await run(page, "test -t 1 && printf '\\033[31mred\\033[0m \\033[38;2;10;200;30mgreen\\033[0m %s\\n' $((6 * 7))");
  await shows(page, "red green 42");
  const colours = await eventually("the colours are drawn", async () => {
    const spans = page.locator(".xterm-rows span");
    const found = await spans.evaluateAll((all) => Object.fromEntries(all.map((one) => [one.textContent.trim(), getComputedStyle(one).color])));
    return found.red !== undefined && found.green !== undefined && found;
  });
  assert.notEqual(colours.red, colours.green);

  await run(page, 'read -r name; echo "hello $name"; read -rs word; echo "${#word} letters"; read -rn 1 key; echo; echo "key $key"');
  await give(page, "ada");
  await shows(page, "hello ada");
  const line = page.getByLabel("Input for the program", { exact: true });
  await eventually("the secret is hidden", async () => (await line.getAttribute("type")) === "password");
  await line.fill("swordfish");
  await line.press("Enter");
  await shows(page, "9 letters");
  assert.equal((await screenText(page)).join("\n").includes("swordfish"), false);
  await give(page, "x");
  await shows(page, "key x");
  await picture(page, "terminal");

  await hasKeys(page, "Command");
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("ArrowUp");
  assert.match(await page.getByRole("textbox", { name: "Command" }).inputValue(), /^test -t 1/);
  assert.deepEqual(refused, []);
  await context.close();
});

test("Ctrl-C ends what runs, whether it reads or not, and Ctrl-D ends its input", async () => {
  const { page, context } = await terminal("signals");
  for (const [at, code] of ["sleep 1000", "cat"].entries()) {
    await run(page, `echo begun ${at}; ${code}`);
    await shows(page, `begun ${at}`);
    await hasKeys(page, "Input for the program");
    await page.keyboard.press("Control+c");
    await hasKeys(page, "Command");
  }
  await run(page, "cat; echo over");
  await give(page, "one");
  await hasKeys(page, "Input for the program");
  await page.keyboard.press("Control+d");
  await shows(page, "over");
  await run(page, "echo begun again; sleep 1000");
  await shows(page, "begun again");
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByRole("textbox", { name: "Command" }).waitFor();
  await context.close();
});

/** Questions to a terminal, whose answers would be typed into the program that runs. */
const QUESTIONS = ["\x1b[c", "\x1b[>c", "\x1b[=c", "\x1b[5n", "\x1b[6n", "\x1b[?6n", "\x1b[?1$p", "\x1b[4$p", "\x1b[>q", "\x1b[18t", "\x1bP$qm\x1b\\", "\x1b]4;1;?\x07", "\x1b]10;?\x07", "\x1b]11;?\x07", "\x1b[?1004h"];

/** Shows a screen of its own, and then each key that it gets, until `q`. */
const WHOLE = `printf '\\033[?1049h\\033[2J\\033[5;10Hin the middle'
while IFS= read -rsn 1 key; do
  [ "$key" = q ] && break
  printf '\\033[7;1Hkey %s ' "$key"
done
printf '\\033[?1049l'`;

test("a program that uses the whole screen gets the keys, and leaves the screen as it was", async () => {
  const { page, context } = await terminal("whole");
  await run(page, "echo before");
  await shows(page, "before");
  await node.submit("whole", WHOLE);
  await shows(page, "         in the middle");
  assert.equal((await screenText(page)).includes("before"), false);
  await hasKeys(page, "Keys for the program");
  for (const key of ["a", "B", "7"]) {
    await page.keyboard.press(key);
    await shows(page, `key ${key}`);
  }
  await page.keyboard.press("Shift+Escape");
  await eventually("the terminal has no keys", () => page.evaluate(() => document.activeElement?.textContent === "Stop"));
  await page.locator(".xterm-screen").click();
  await page.keyboard.press("q");
  await shows(page, "before");
  await hasKeys(page, "Command");
  // One that is interrupted leaves it too.
  await node.submit("whole", WHOLE.replace("break", "sleep 1000"));
  await shows(page, "         in the middle");
  await page.getByRole("button", { name: "Stop" }).click();
  await shows(page, "before");
  await context.close();
});

test("what a session prints makes no link and no title, runs nothing and answers to nobody", async () => {
  const { page, context, watch, refused } = await terminal("hostile");
  const address = page.url();
  const script = payload(site);
  const markup = `<img src="x:" onerror="${script}"><style>*{display:none}</style><script>${script}</script>`;
  const parts = [
    markup,
    `\x1b]0;${markup}\x07\x1b]2;taken\x07`,
    `\x1b]8;;javascript:${script}\x07a link\x1b]8;;\x07`,
    `\x1b]52;c;${Buffer.from(script).toString("base64")}\x07`,
    ...QUESTIONS,
    `\x1b[?1049h${QUESTIONS.join("")}`,
    // Each would take minutes or all memory, or end the terminal.
    ..."@ABCDEFILMPSTXZb".split("").map((final) => `x\x1b[2147483647${final}`),
    "\x1bc\x1b[999;999H\x1b[1J\x1b[999;999H\x1b[?1J",
    "\x1b[20l\x1b[20h\x1b[?12h\x1b[?12l".repeat(1000),
    `\x1b[4h${"x\x1b[100b".repeat(1000)}\x1b[4l`,
    `x${"\u200b".repeat(20_000)}\x1b[100b`,
    "\x1b[24S\x1b[24T".repeat(500),
    `e${"\u0301".repeat(100_000)}`,
    `\x1b]4${";0;#fff".repeat(20_000)}\x07`,
    "\x1b[?1049l\x1b[?1000h\x1b[?1004h\x1b[?2004h\x1b[?25l\x1b[8m\x1b(0\x1b]11;#ffffff\x07\x1b[20l\x1b[1;3r\x1b[24;1H",
  ];
  await node.call("PUT", "/v1/sessions/hostile/files/hostile.txt", undefined, Buffer.from(parts.join("\r\n")));
  await run(page, "cat hostile.txt; read -rs word");
  // The program that asks now gets nothing but what a person types.
  const line = page.getByLabel("Input for the program", { exact: true });
  await eventually("the program asks", async () => (await line.getAttribute("type")) === "password");
  await give(page, "typed by a person");
  await page.getByRole("textbox", { name: "Command" }).waitFor();
  await run(page, 'echo "$word"');
  await shows(page, "typed by a person");
  await run(page, "for n in $(seq 9); do echo; done; echo visible");
  await shows(page, "visible");
  assert.equal(await page.locator(".xterm a, .xterm img, .xterm script, .xterm iframe").count(), 0);
  assert.match(await page.title(), /hostile · Windlass$/);
  await settle(page);
  await watch.nothing("terminal", [address]);
  assert.deepEqual(refused, []);
  // No answer of the terminal became a command.
  const { turns } = await node.call("GET", "/v1/sessions/hostile");
  assert.equal(turns, 3);
  // A page that is opened later draws all of it again.
  await page.reload();
  await shows(page, "visible");
  await context.close();
});

test("a flood leaves the page usable, and its end is seen", async () => {
  const { page, context } = await terminal("flood");
  await run(page, "seq 300000");
  await shows(page, "300000");
  await page.getByRole("textbox", { name: "Command" }).waitFor();
  await run(page, "echo after");
  await shows(page, "after");
  await context.close();
});

test("a terminal that is opened again has the past, and a session without one has no tab", async () => {
  const { page, context } = await terminal("again");
  await run(page, "echo remembered");
  await shows(page, "remembered");
  await page.getByRole("link", { name: "Transcript" }).click();
  await page.getByRole("article", { name: "Turn 1" }).getByText("remembered", { exact: true }).waitFor();
  await page.getByRole("link", { name: "Terminal" }).click();
  await shows(page, "remembered");
  await page.reload();
  await shows(page, "remembered");
  await node.session({ id: "plain", worker: "shell" });
  await page.goto(`${originOf(page)}/console/#/s/plain`);
  await page.getByRole("textbox", { name: "Code to run" }).waitFor();
  assert.equal(await page.getByRole("link", { name: "Terminal" }).count(), 0);
  await context.close();
});
