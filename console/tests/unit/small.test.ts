// Routes, server-sent events, metrics, findings, failures, the order and the figures of sessions.

import assert from "node:assert/strict";
import { test } from "node:test";

import type { SessionRow, SessionState } from "../../../sdk/typescript/src/api.ts";
import { ApiProblem, words } from "../../src/lib/problem.ts";
import { parseRoute, type Route, routeText } from "../../src/lib/route.ts";
import { age, bytes, duration } from "../../src/lib/text.ts";
import { type Facts, findings } from "../../src/node/findings.ts";
import { parseMetrics, quantile, sum } from "../../src/node/metrics.ts";
import type { McpServer } from "../../src/node/servers.ts";
import { SseReader } from "../../src/session/sse.ts";
import { type Arranging, arranged, counts, type SortKey } from "../../src/sessions/order.ts";
import { percentText, ProcessorUse } from "../../src/sessions/processor.ts";

test("a route is its address", () => {
  const routes: Route[] = [{ page: "sessions" }, { page: "node" }, { page: "session", id: "a@b", tab: "transcript" }, { page: "session", id: "x", tab: "files" }];
  for (const route of routes) assert.deepEqual(parseRoute(routeText(route)), route);
  assert.deepEqual(parseRoute("#/s/%E0%A4%A/what"), { page: "session", id: "%E0%A4%A", tab: "transcript" });
  assert.deepEqual(parseRoute("#login"), { page: "sessions" });
});

test("server-sent events come whole, however the bytes are cut", () => {
  const whole = new TextEncoder().encode(': hello\n\nid: 1\ndata: {"é":1}\n\nid: 2\ndata: b\n\n');
  for (let at = 1; at < whole.length; at += 1) {
    const reader = new SseReader();
    assert.deepEqual([...reader.feed(whole.subarray(0, at)), ...reader.feed(whole.subarray(at))], ['{"é":1}', "b"]);
  }
});

test("metrics are read with their labels", () => {
  const samples = parseMetrics('# HELP a b\na{x="1",y="q\\"t"} 2\na{x="2"} 3\nh_bucket{le="0.1"} 1\nh_bucket{le="1"} 9\nh_bucket{le="+Inf"} 10\n');
  assert.equal(sum(samples, "a"), 5);
  assert.equal(sum(samples, "a", { x: "2" }), 3);
  assert.equal(samples[0]?.labels.y, 'q"t');
  assert.equal(quantile(samples, "h", 0.5), 1);
  assert.equal(quantile(samples, "h", 1), Infinity);
  assert.equal(quantile(samples, "none", 0.5), undefined);
});

const NO_PERCENT = () => undefined;

test("sessions that wait for input come first", () => {
  const session = (id: string, state: SessionState, created_at_ms = 0): SessionRow => ({ id, state, created_at_ms, kind: "python", workspace: "/w", turns: 0, output_bytes: 0 });
  const all = [session("old", "idle", 1), session("new", "idle", 2), session("asks", "awaiting_input"), session("runs", "busy"), session("gone", "ended")];
  const ids = (wanted: Partial<Arranging>) => arranged(all, { group: undefined, search: "", sort: "state", percent: NO_PERCENT, ...wanted }).map(({ id }) => id);
  assert.deepEqual(ids({}), ["asks", "runs", "new", "old", "gone"]);
  assert.deepEqual(ids({ group: "idle", search: "PYTHON ol" }), ["old"]);
  assert.deepEqual(counts(all), { input: 1, running: 1, idle: 2, trouble: 0, ended: 1 });
});

test("sessions are sorted by what they use, and unknown figures come last", () => {
  const session = (id: string, state: SessionState, memory_bytes?: number): SessionRow => ({ id, state, turns: 0, output_bytes: 0, ...(memory_bytes === undefined ? {} : { memory_bytes }) });
  const all = [session("small", "busy", 1), session("none", "idle"), session("large", "idle", 9), session("asks", "awaiting_input", 2)];
  const ids = (sort: SortKey) => arranged(all, { group: undefined, search: "", sort, percent: ({ id }) => ({ small: 90, none: 0 })[id] }).map(({ id }) => id);
  assert.deepEqual(ids("memory"), ["asks", "large", "small", "none"]);
  assert.deepEqual(ids("processor"), ["asks", "small", "none", "large"]);
});

test("the use of processors is that between two readings", () => {
  const use = new ProcessorUse();
  const row = (cpu_ms: number | undefined, measured_at_ms: number): SessionRow => ({ id: "a", state: "busy", turns: 0, output_bytes: 0, ...(cpu_ms === undefined ? {} : { cpu_ms, measured_at_ms }) });
  const found = (rows: SessionRow[]) => {
    use.take(rows);
    return use.percent(row(0, 0));
  };
  assert.equal(found([row(100, 10_000)]), undefined);
  assert.equal(found([row(1100, 12_000)]), 50);
  // The node has not read again: the figure stays.
  assert.equal(found([row(1100, 12_000)]), 50);
  assert.equal(found([row(5100, 14_000)]), 200);
  // Another session has the id, the clock was set back, nothing counts, the session is gone.
  assert.equal(found([row(7, 16_000)]), undefined);
  assert.equal(found([row(9, 15_000)]), undefined);
  assert.equal(found([row(undefined, 0)]), undefined);
  assert.equal(found([]), undefined);
  assert.deepEqual([undefined, 0, 0.4, 99.6, 250].map(percentText), ["", "0%", "<1%", "100%", "250%"]);
});

test("a remedy that is for programs is not shown to people", () => {
  const problem = (code: string, remedy: string) => words(new ApiProblem(400, code, 'the workspace "/x" is no directory', remedy));
  assert.equal(problem("bad_request", "correct the request; GET /v1/openapi.json describes it"), 'the workspace "/x" is no directory. Correct it, then try again.');
  assert.equal(problem("not_found", "GET /v1/openapi.json lists what there is"), 'the workspace "/x" is no directory');
  assert.equal(problem("disk_full", "free space"), 'the workspace "/x" is no directory. free space');
});

test("findings name what is wrong with the node", () => {
  const status = (storage: object) => ({ storage: { index: "file", log_lines_dropped: 0, free_bytes: 1e12, ...storage } }) as Facts["status"];
  const server = (state: McpServer["state"]): McpServer => ({ name: "files", sessions: "all", state, reason: "no such program", tools: 0, calls: 0, open_calls: 0, restarts: 0 });
  const tones = (facts: Facts) => findings(facts).map(({ tone }) => tone);
  assert.deepEqual(tones({}), []);
  assert.deepEqual(tones({ status: status({}), servers: { config: "/c", servers: [server("running"), server("starting")] } }), []);
  assert.deepEqual(tones({ status: status({ index: "memory", free_bytes: 1000, log_lines_dropped: 2 }) }), ["wait", "bad", "wait"]);
  assert.deepEqual(tones({ servers: { config: "/c", error: "no JSON", servers: [server("failed"), server("waiting")] } }), ["bad", "bad", "wait"]);
  const samples = parseMetrics("windlass_journal_append_failures_total 3\n");
  assert.match(findings({ samples })[0]?.what ?? "", /3 times/);
});

test("figures are short", () => {
  assert.deepEqual([bytes(0), bytes(1536), bytes(200 * 1024)], ["0 B", "1.5 KiB", "200 KiB"]);
  assert.deepEqual([duration(3), duration(1234), duration(90_000), duration(7_500_000)], ["3 ms", "1.23 s", "1m 30s", "2h 5m"]);
  assert.deepEqual([age(5000), age(90_000), age(90_000_000)], ["5s", "1m", "1d"]);
});
