// Files of a workspace, against a real node.

import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Readable } from "node:stream";
import { after, before, describe, test } from "node:test";

import { type Session, type Watched, type Windlass, WindlassError } from "../src/index.js";
import { LIMIT, TestNode } from "./support.js";

describe("a workspace's files", LIMIT, () => {
  let node: TestNode;
  let w: Windlass;
  let s: Session;

  before(async () => {
    node = await TestNode.prepare();
    w = node.client();
    s = await w.session();
  });
  after(() => node[Symbol.asyncDispose]());

  test("are put, seen by the code, got and deleted", async () => {
    const put = await s.files.put("data/näme 1?.txt", "hé\n");
    assert.deepEqual([put.path, put.bytes], ["data/näme 1?.txt", 4]);
    const turn = await s.run("open('data/näme 1?.txt').read()");
    assert.equal(turn.result, "'hé\\n'");
    await s.run("open('out.bin', 'wb').write(bytes(range(256)))");
    const got = await s.files.get("out.bin");
    assert.deepEqual([...(await got.bytes())], Array.from({ length: 256 }, (_, n) => n));
    assert.equal(got.length, 256);
    assert.ok(got.etag);
    const part = await s.files.get("out.bin", { from: 65, to: 68 });
    assert.equal(await part.text(), "ABC");
    await s.files.delete("out.bin");
    await assert.rejects(s.files.get("out.bin"), WindlassError);
  });

  test("are streamed both ways", async () => {
    const piece = Buffer.alloc(100_000, 7);
    const pieces = (async function* () {
      for (let n = 0; n < 300; n++) yield piece;
    })();
    const put = await s.files.put("large", pieces);
    assert.equal(put.bytes, 30_000_000);
    let bytes = 0;
    for await (const part of await s.files.get("large")) bytes += part.length;
    assert.equal(bytes, 30_000_000);
    const local = join(node.base, "local");
    await writeFile(local, "from a file");
    await s.files.put("copied", { file: local });
    await s.files.put("read", Readable.from(["from ", "a stream"]));
    assert.equal(await (await s.files.get("copied")).text(), "from a file");
    assert.equal(await (await s.files.get("read")).text(), "from a stream");
    await s.files.put("memory", Buffer.alloc(3_000_000, 1));
    assert.equal((await (await s.files.get("memory")).bytes()).length, 3_000_000);
  });

  test("are listed, also below", async () => {
    await using own = await w.session();
    await own.files.put("a/b/c", "1");
    await own.files.put("watch", "2");
    const top = await own.files.list();
    assert.deepEqual(top.map((entry) => [entry.path, entry.kind]), [
      ["a", "directory"],
      ["watch", "file"],
    ]);
    const all = await own.files.list("", { recursive: true });
    assert.deepEqual(all.map((entry) => entry.path), ["a", "a/b", "a/b/c", "watch"]);
    assert.deepEqual((await own.files.list("a/b")).map((entry) => [entry.path, entry.bytes]), [["a/b/c", 1]]);
    assert.equal(await (await own.files.get("watch")).text(), "2");
    const first = await own.files.listPage("", { recursive: true, limit: 1 });
    assert.deepEqual([first.entries.length, first.more], [1, true]);
  });

  test("are not overwritten where a condition does not hold", async () => {
    const { etag } = await s.files.put("shared", "one");
    await assert.rejects(s.files.put("shared", "x", { ifNoneMatch: "*" }), { code: "file_conflict" });
    const second = await s.files.put("shared", "two", { ifMatch: etag });
    await assert.rejects(s.files.put("shared", "three", { ifMatch: etag }), { code: "file_conflict" });
    await assert.rejects(
      s.files.put("shared", Readable.from([Buffer.alloc(5_000_000)]), { ifMatch: etag }),
      { code: "file_conflict" },
    );
    await assert.rejects(s.files.delete("shared", { ifMatch: etag }), { code: "file_conflict" });
    assert.equal(await (await s.files.get("shared")).text(), "two");
    await s.files.delete("shared", { ifMatch: second.etag });
  });

  test("are written back all or none", async () => {
    const { etag } = await s.files.put("kept", "old");
    const stale = await s.files.put("stale", "old");
    const changes = (last: string): Parameters<typeof s.files.writeBack>[0] => [
      { put: "kept", content: "new", ifMatch: etag },
      { put: "made/large", content: Readable.from([Buffer.alloc(500_000, 65), "end"]) },
      { put: "made/empty", content: "", ifNoneMatch: "*" },
      { delete: "stale", ifMatch: last },
    ];
    await assert.rejects(s.files.writeBack(changes('"wrong"')), (error: WindlassError) => {
      assert.equal(error.code, "file_conflict");
      return error.message.includes("stale");
    });
    assert.equal(await (await s.files.get("kept")).text(), "old");
    const done = await s.files.writeBack(changes(stale.etag));
    assert.deepEqual(done.written.map((file) => file.bytes), [3, 500_003, 0]);
    assert.equal(await (await s.files.get("kept")).text(), "new");
    assert.equal((await readFile(join(s.workspace, "made/large"))).length, 500_003);
    assert.equal((await readFile(join(s.workspace, "made/empty"))).length, 0);
    await assert.rejects(s.files.get("stale"), WindlassError);
  });

  test("are watched", async () => {
    await s.files.put("watched/first", "1");
    const stop = new AbortController();
    const seen: Watched[] = [];
    const watching = s.files.watch("watched", { signal: stop.signal });
    const first = watching.next();
    // The first change may happen before the watch is set up: repeat it until it is reported.
    let heard = false;
    void first.then(() => (heard = true));
    for (let n = 0; !heard; n++) await s.run(`open('watched/made${n}', 'w').close()`);
    seen.push((await first).value!);
    await s.run("import os; os.remove('watched/first')");
    for await (const event of watching) {
      seen.push(event);
      if (event.kind === "removed") break;
    }
    assert.equal(seen[0]!.kind, "made");
    assert.match(seen[0]!.path, /^watched\/made/);
    assert.equal(seen.at(-1)!.path, "watched/first");
    stop.abort();
  });

  test("do not lead out of the workspace", async () => {
    await s.run("import os; os.symlink('/etc/passwd', 'out')");
    await assert.rejects(s.files.get("out"), WindlassError);
    await assert.rejects(s.files.put("../escaped", "x"), WindlassError);
  });
});
