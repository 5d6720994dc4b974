// Many sessions, long output, and the time from a printed line to its pixels. Each test prints its figures; the limits
// are those of a machine that does nothing else, except where a comment says more. A time must hold in one of several
// tries, because a machine of CI does other things at times.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ended, logIn, newContext, openSession, originOf, picture, runCode, turn } from "./harness/browser.mjs";
import { useStage } from "./harness/stage.mjs";
import { eventually, quantile } from "./harness/wait.mjs";

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

const TRIES = 3;

/** Measures until a result is good. Returns the last result. */
async function bestOf(measure, isGood) {
  let result;
  for (let tried = 0; tried < TRIES; tried += 1) {
    result = await measure(tried);
    if (isGood(result)) break;
  }
  return result;
}

const SESSIONS = 5000;
const FIRST_PAINT_MS = 1000;

/** A person who scrolls fast. */
const SCROLL_PX = 20_000;
const SCROLL_S = 2;

/** What a row of a session with short names may have. The page reads all rows again and again. */
const ROW_BYTES_MAX = 400;

/** A gross limit: a screen has a frame each 17 ms, and a machine of CI is busy with other things too. */
const FRAME_P95_MS = 100;

/** The times between the frames that the browser draws meanwhile, according to its own trace. */
async function tracedFrames(act) {
  await browser.startTracing(page, { categories: ["disabled-by-default-devtools.timeline.frame", "devtools.timeline.frame"] });
  await act();
  const { traceEvents } = JSON.parse((await browser.stopTracing()).toString());
  const drawn = traceEvents.filter(({ name }) => name === "DrawFrame").map(({ ts }) => ts / 1000);
  drawn.sort((left, right) => left - right);
  return drawn.slice(1).map((at, before) => at - drawn[before]);
}

/** Answers in place of the node with 5,000 rows made from a real one: so many live sessions are too much for CI. */
async function manySessions(model) {
  const states = ["idle", "busy", "awaiting_input", "idle", "idle"];
  const all = Array.from({ length: SESSIONS }, (_, at) => ({
    ...model,
    id: `session-${String(at).padStart(4, "0")}`,
    state: states[at % states.length],
    created_at_ms: model.created_at_ms - at * 1000,
  }));
  await page.route(/\/v1\/overview\?/, (route) => {
    const query = new URL(route.request().url()).searchParams;
    const from = Number(query.get("cursor") ?? 0);
    const to = from + Number(query.get("limit") ?? SESSIONS);
    return route.fulfill({ json: { sessions: all.slice(from, to), ...(to < SESSIONS ? { cursor: String(to) } : {}) } });
  });
}

test("5,000 sessions are shown within a second, and scroll smoothly", async (t) => {
  await node.session({ id: "model" });
  const { sessions } = await node.call("GET", "/v1/overview");
  const rowBytes = JSON.stringify(sessions[0]).length;
  assert.ok(rowBytes < ROW_BYTES_MAX, `a row has ${rowBytes} bytes`);
  await manySessions(sessions[0]);
  await page.addInitScript(() => {
    const look = () => {
      if (document.querySelector("[role=listitem]") === null) return requestAnimationFrame(look);
      return requestAnimationFrame((now) => (globalThis.firstPaint = now));
    };
    requestAnimationFrame(look);
  });
  const load = async () => {
    await page.reload();
    return eventually("rows are shown", () => page.evaluate(() => globalThis.firstPaint));
  };
  const firstPaint = await bestOf(load, (time) => time < FIRST_PAINT_MS);
  await page.getByRole("list", { name: "5,000 sessions" }).waitFor();
  await picture(page, "5000-sessions");
  assert.ok((await page.getByRole("listitem").count()) < 100);

  const list = page.getByRole("list", { name: "5,000 sessions" });
  const devtools = await context.newCDPSession(page);
  const scroll = async () => {
    await list.evaluate((box) => (box.scrollTop = 0));
    const { x, y, width, height } = await list.boundingBox();
    const gesture = { x: x + width / 2, y: y + height / 2, yDistance: -SCROLL_PX, speed: SCROLL_PX / SCROLL_S, gestureSourceType: "mouse" };
    return tracedFrames(() => devtools.send("Input.synthesizeScrollGesture", gesture));
  };
  const frames = await bestOf(scroll, (times) => quantile(times, 0.95) < FRAME_P95_MS);
  const p95 = quantile(frames, 0.95);
  const a_second = 1000 / (frames.reduce((sum, time) => sum + time, 0) / frames.length);
  t.diagnostic(`first rows after ${firstPaint.toFixed(0)} ms; ${frames.length} frames, ${a_second.toFixed(0)} a second: p50 ${quantile(frames, 0.5).toFixed(1)} ms, p95 ${p95.toFixed(1)} ms, longest ${Math.max(...frames).toFixed(0)} ms`);
  assert.ok((await list.evaluate((box) => box.scrollTop)) > 10_000, "the list has scrolled");
  assert.ok(firstPaint < FIRST_PAINT_MS, `the first rows came after ${firstPaint} ms`);
  assert.ok(p95 < FRAME_P95_MS, `p95 of a frame is ${p95} ms`);

  await page.getByRole("searchbox", { name: "Search sessions" }).fill("session-4321");
  await page.getByRole("list", { name: "1 session" }).getByText("session-4321", { exact: true }).waitFor();
  await page.unroute(/\/v1\/overview\?/);
});

const LINES = 1_000_000;
const LINES_WAIT_MS = 60_000;
const NODES_MAX = 3000;
const HEAP_MAX_MB = 200;

test("a million lines stay usable", { timeout: LINES_WAIT_MS * 2 }, async (t) => {
  await openSession(page, await node.session({ id: "million", output_quota_bytes: 64 * 1024 * 1024 }));
  const begun = performance.now();
  const shown = await runCode(page, 1, `import sys\nfor part in range(0, ${LINES}, 1000):\n    sys.stdout.write("".join(f"row {line}\\n" for line in range(part, part + 1000)))`);
  // The page answers while the lines come.
  await page.evaluate(() => {
    globalThis.longest = 0;
    let before = performance.now();
    const step = (now) => {
      globalThis.longest = Math.max(globalThis.longest, now - before);
      before = now;
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  });
  await ended(shown, "ok", LINES_WAIT_MS);
  await shown.getByText(`row ${LINES - 1}`, { exact: true }).waitFor({ timeout: LINES_WAIT_MS });
  const took = performance.now() - begun;
  const longest = await page.evaluate(() => globalThis.longest);

  await shown.getByRole("button", { name: /Show the rest/ }).click();
  const log = shown.getByRole("log", { name: "Output" });
  await log.focus();
  for (const [key, line] of [["Home", 0], ["End", LINES - 1], ["PageUp", LINES - 70], ["Home", 0]]) {
    await page.keyboard.press(key);
    // The number of the line is in front of it.
    await log.getByText(new RegExp(`^${line + 1}row ${line}\\s*$`)).waitFor();
  }
  await log.evaluate((box) => (box.scrollTop = box.scrollHeight / 2));
  await eventually("the middle is read", () => log.evaluate((box) => /row (49|50)\d{4}\n/.test(box.textContent)));
  await picture(page, "million-lines");

  const devtools = await context.newCDPSession(page);
  await devtools.send("HeapProfiler.collectGarbage");
  const { usedSize } = await devtools.send("Runtime.getHeapUsage");
  const nodes = await page.evaluate(() => document.querySelectorAll("*").length);
  t.diagnostic(`all lines after ${(took / 1000).toFixed(1)} s, longest frame ${longest.toFixed(0)} ms, ${nodes} elements, heap ${(usedSize / 1e6).toFixed(0)} MB`);
  assert.ok(nodes < NODES_MAX, `${nodes} elements`);
  assert.ok(usedSize / 1e6 < HEAP_MAX_MB, `${usedSize} bytes`);
});

const PRINTS = 100;
const LATENCY_P95_MS = 100;

test("a printed line is seen at once", async (t) => {
  await openSession(page, await node.session({ id: "quick" }));
  await page.evaluate(() => {
    globalThis.seen = new Map();
    const found = () => {
      const text = document.querySelector("[role=region][aria-label=Transcript]").textContent;
      const fresh = [...text.matchAll(/stamp (\d+) (\d+\.\d+) end/g)].filter(([, number]) => !globalThis.seen.has(number));
      for (const [, number] of fresh) globalThis.seen.set(number, undefined);
      // What a frame's callbacks have left is painted before the next task.
      const painted = () => {
        const now = performance.timeOrigin + performance.now();
        for (const [, number, at] of fresh) globalThis.seen.set(number, now - Number(at));
      };
      if (fresh.length > 0) requestAnimationFrame(() => setTimeout(painted));
    };
    new MutationObserver(found).observe(document.body, { subtree: true, childList: true, characterData: true });
  });
  const print = async (tried) => {
    const from = tried * PRINTS;
    const code = `import time\nfor number in range(${from}, ${from + PRINTS}):\n    print("stamp", number, time.time() * 1000, "end", flush=True)\n    time.sleep(0.03)`;
    const shown = await runCode(page, tried + 1, code);
    await ended(shown, "ok");
    const timesSeen = async () => {
      const seen = await page.evaluate(() => [...globalThis.seen]);
      return seen.filter(([number, time]) => Number(number) >= from && time != null).map(([, time]) => time);
    };
    await eventually("all lines are seen", async () => (await timesSeen()).length === PRINTS, 3000).catch(() => undefined);
    const found = await timesSeen();
    // A line that was left out before it was drawn counts as never seen.
    return [...found, ...Array(PRINTS - found.length).fill(Infinity)];
  };
  const times = await bestOf(print, (found) => quantile(found, 0.95) <= LATENCY_P95_MS);
  const p95 = quantile(times, 0.95);
  t.diagnostic(`from print to pixels: p50 ${quantile(times, 0.5).toFixed(0)} ms, p95 ${p95.toFixed(0)} ms, longest ${Math.max(...times).toFixed(0)} ms`);
  assert.ok(p95 <= LATENCY_P95_MS, `p95 is ${p95} ms`);
});

const CONTEXTS = 5;
/** A browser has six connections for one host and one profile, and a page needs one for its events. */
const PAGES_OF_CONTEXT = 4;
const NODE_MEMORY_MAX_MB = 20;

test("twenty open pages take little memory of the node", { timeout: 240_000 }, async (t) => {
  const session = await node.session({ id: "watched" });
  const print = "for number in range(20_000): print('a line of the output, and its number', number)";
  const done = async (code) => {
    const { id } = await node.submit(session, code);
    await eventually("the turn has ended", async () => (await node.call("GET", `/v1/sessions/${session}/turns/${id}`)).state === "ended");
  };
  await done(print);
  const before = node.memory();
  const contexts = await Promise.all(Array.from({ length: CONTEXTS }, () => newContext(browser)));
  const pages = [];
  for (const one of contexts) {
    const first = await logIn(node, one);
    pages.push(first);
    while (pages.length % PAGES_OF_CONTEXT !== 0) pages.push(await one.newPage());
  }
  for (const one of pages) await one.goto(`${originOf(pages[0])}/console/#/s/${session}`);
  // The pages show what is there, and what comes while they are open.
  for (const one of pages) await ended(turn(one, 1), "ok");
  await done(print);
  for (const one of pages) await ended(turn(one, 2), "ok");
  const more = (node.memory() - before) / 1e6;
  t.diagnostic(`${pages.length} pages: ${more.toFixed(1)} MB more`);
  assert.ok(more <= NODE_MEMORY_MAX_MB, `${more} MB`);
  for (const one of contexts) await one.close();
});
