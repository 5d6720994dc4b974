// What needs no node: frames, server-sent events, addresses.

import assert from "node:assert/strict";
import { resolve } from "node:path";
import { test } from "node:test";

import { chooseDirs, findAddress } from "../src/address.js";
import { decodeFrame, encodeFrame, encodeMessage } from "../src/frame.js";
import { absolutePolicy, absoluteProgram } from "../src/relative.js";
import { SseParser } from "../src/sse.js";

test("events come out whole however they are cut", () => {
  const check = (text: string, expected: string[]): void => {
    for (const size of [1, 2, 3, 7, text.length]) {
      const parser = new SseParser();
      const found: string[] = [];
      const bytes = Buffer.from(text);
      for (let at = 0; at < bytes.length; at += size) {
        found.push(...parser.feed(bytes.subarray(at, at + size)));
      }
      assert.deepEqual(found, expected, `in pieces of ${size}`);
    }
  };
  check('id: 1\ndata: {"a":1}\n\nid: 2\ndata: b\n\n', ['{"a":1}', "b"]);
  check(": keep alive\n\ndata: é\r\n\r\n", ["é"]);
  check("data: two\ndata:lines\n\n", ["two\nlines"]);
  check("data: unfinished\n", []);
});

test("a message is one frame, or many with more, and none is over the limit", () => {
  for (const [bytes, frames] of [
    [0, 1],
    [196_604, 1],
    [196_605, 2],
    [950_000, 5],
  ] as const) {
    const body = Buffer.alloc(bytes, 7);
    const sent = [...encodeMessage({ kind: "x" }, body)];
    assert.equal(sent.length, frames);
    const got = sent.map((frame) => decodeFrame<{ kind: string; more?: boolean }>(frame));
    assert.deepEqual(
      got.map(({ header }) => header.more ?? false),
      sent.map((_, at) => at < frames - 1),
    );
    assert.ok(Buffer.concat(got.map((frame) => frame.body)).equals(body));
  }
});

test("what is no frame is refused", () => {
  const good = encodeFrame({ kind: "x" }, Buffer.from("body"));
  for (const bad of [good.subarray(0, 6), good.subarray(0, -1), Buffer.concat([good, good])]) {
    assert.throws(() => decodeFrame(bad));
  }
});

test("the environment chooses the directories most specific first", () => {
  const check = (env: Record<string, string>, runtime: string, state: string): void => {
    assert.deepEqual(chooseDirs({}, env, 4_000_007), { runtime, state });
  };
  check({ HOME: "/h" }, "/tmp/windlass-4000007", "/h/.local/state/windlass");
  check({ HOME: "/h", XDG_RUNTIME_DIR: "/x", XDG_STATE_HOME: "/y" }, "/x/windlass", "/y/windlass");
  check({ XDG_RUNTIME_DIR: "/x", WINDLASS_RUNTIME_DIR: "/r", WINDLASS_STATE_DIR: "/w" }, "/r", "/w");
  check({ HOME: "/h", XDG_RUNTIME_DIR: "" }, "/tmp/windlass-4000007", "/h/.local/state/windlass");
  assert.throws(() => chooseDirs({}, {}, 7), { code: "bad_directory" });
});

test("an address is host and port and nothing that could be a secret", () => {
  const token = "ab".repeat(32);
  for (const [url, authority] of [
    ["http://127.0.0.1:8040", "127.0.0.1:8040"],
    ["http://[::1]:8040/", "[::1]:8040"],
    ["http://windlass", "windlass:80"],
    ["https://127.0.0.1:8040", "127.0.0.1:8040"],
    ["https://node.example/", "node.example:443"],
  ]) {
    const found = findAddress({ url, token }, {});
    assert.ok(found.kind === "tcp");
    assert.equal(found.authority, authority);
    assert.equal(found.tls !== undefined, url?.startsWith("https"));
  }
  const userinfo = `http://localhost:${"secret"}@127.0.0.1:8040`;
  for (const url of [userinfo, "http://127.0.0.1:1/v1", "https://127.0.0.1/?a", "wss://a", "127.0.0.1:1", ""]) {
    assert.throws(() => findAddress({ url, token }, {}), (error: Error & { code: string }) => {
      return error.code === "bad_url" && !error.message.includes("secret");
    });
  }
  assert.throws(() => findAddress({ url: "http://windlass", token: "short" }, {}), {
    code: "bad_token",
  });
});

test("relative paths are made absolute, and names that the node looks up stay", () => {
  for (const [named, expected] of [
    ["python3", "python3"],
    ["/usr/bin/python3", "/usr/bin/python3"],
    ["venv/bin/python", resolve("venv/bin/python")],
    ["./python3", resolve("python3")],
  ] as const) {
    assert.equal(absoluteProgram(named), expected, named);
  }
  const policy = absolutePolicy({ writable: ["out", "~/x", "/y"], shown: [".git"], preset: "open" });
  assert.deepEqual(policy, {
    writable: [resolve("out"), "~/x", "/y"],
    shown: [".git"],
    preset: "open",
  });
});
