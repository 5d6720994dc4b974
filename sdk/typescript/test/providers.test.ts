// File providers, without a node: the tools that a session's code calls.

import assert from "node:assert/strict";
import { mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { DirectoryFiles } from "../src/directory-files.js";
import { MemoryFiles } from "../src/memory-files.js";
import type { Tool } from "../src/tool.js";
import { checkWorker, type FileProvider, providerEnvironment, providerTools } from "../src/providers.js";

type Call = (name: string, args: Record<string, unknown>) => Promise<unknown>;

function caller(files: FileProvider): Call {
  const tools = providerTools({ files }) as Record<string, Tool>;
  return async (name, args) => {
    try {
      const value = await tools[`files.${name}`]?.run(args as never, undefined as never);
      return name === "list" ? (value as { entries: { name: string }[] }).entries.map((entry) => entry.name) : value;
    } catch (thrown) {
      return (thrown as Error).message;
    }
  };
}

const base64 = (content: string): string => Buffer.from(content).toString("base64");

async function withDirectory(act: (directory: string) => Promise<void>): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), "windlass-files-"));
  try {
    await act(directory);
  } finally {
    await rm(directory, { recursive: true });
  }
}

async function checkProvider(files: FileProvider): Promise<void> {
  const call = caller(files);
  const steps: [string, Record<string, unknown>, unknown][] = [
    ["write", { path: "a/b", offset: 0, data: base64("hi"), create: true }, "ENOENT: a/b"],
    ["mkdir", { path: "a" }, null],
    ["mkdir", { path: "a" }, "EEXIST: a"],
    ["write", { path: "a/b", offset: 0, data: base64("hi"), create: true }, null],
    ["write", { path: "a/b", offset: 4, data: base64("ho") }, null],
    ["read", { path: "a/b", offset: 1, length: 100 }, { data: base64("i\0\0ho") }],
    ["write", { path: "a/b", offset: 1, data: "", truncate: true }, null],
    ["read", { path: "a/b", offset: 0, length: 100 }, { data: base64("h") }],
    ["read", { path: "a", offset: 0, length: 1 }, "EISDIR: a"],
    ["list", { path: "" }, ["a"]],
    ["remove", { path: "a", directory: true }, "ENOTEMPTY: a"],
    ["rename", { path: "a", to: "z" }, null],
    ["list", { path: "z" }, ["b"]],
    ["stat", { path: "a" }, "ENOENT: a"],
    ["stat", { path: "z/b/c" }, "ENOTDIR: z/b/c"],
    ["stat", { path: "../x" }, "EACCES: ../x"],
    ["stat", { path: "/etc" }, "EACCES: /etc"],
    ["remove", { path: "z/b" }, null],
    ["remove", { path: "z", directory: true }, null],
    ["list", { path: "" }, []],
  ];
  for (const [name, args, expected] of steps) {
    assert.deepEqual(await call(name, args), expected, `${name} ${JSON.stringify(args)}`);
  }
}

test("files in memory behave like files", () => checkProvider(new MemoryFiles()));

test("files of a directory behave like files", () => withDirectory((path) => checkProvider(new DirectoryFiles(path))));

test("no path leaves the directory", () =>
  withDirectory(async (directory) => {
    await symlink("/etc", join(directory, "out"));
    await symlink("/etc/passwd", join(directory, "link"));
    await writeFile(join(directory, "plain"), "x");
    const call = caller(new DirectoryFiles(directory));
    assert.deepEqual(await call("list", { path: "" }), ["plain"]);
    assert.equal(await call("stat", { path: "out/passwd" }), "ENOTDIR: out/passwd");
    assert.equal(await call("stat", { path: "link" }), "EACCES: link");
    assert.equal(await call("read", { path: "link", offset: 0, length: 9 }), "EACCES: link");
    assert.equal(await call("write", { path: "link", offset: 0, data: "", create: true }), "EACCES: link");
    assert.equal(await call("list", { path: "out" }), "ENOTDIR: out");
    const readOnly = caller(new DirectoryFiles(directory, { readOnly: true }));
    assert.equal(await readOnly("remove", { path: "plain" }), "EROFS: plain");
  }));

test("memory has a limit", async () => {
  const call = caller(new MemoryFiles({ a: "12" }, { bytesMax: 4 }));
  assert.equal(await call("write", { path: "a", offset: 0, data: base64("12345") }), "ENOSPC: a");
  assert.equal(await call("write", { path: "a", offset: 0, data: base64("1234") }), null);
});

test("only the Pyodide worker takes providers", () => {
  const providers = { files: new MemoryFiles() };
  assert.throws(() => checkWorker(providers, "python"), /needs worker/);
  checkWorker(providers, "pyodide");
  checkWorker({}, undefined);
  assert.deepEqual(providerEnvironment(providers, { A: "1" }), { A: "1", WINDLASS_FILES: "host" });
  assert.equal(providerEnvironment({}, undefined), undefined);
});

test("requests, lookups and programs carry bytes", async () => {
  const tools = providerTools({
    http: ({ method, body }) => ({ status: 200, headers: [["x", method]], body: body ?? Buffer.from("none") }),
    lookup: (name) => [`addr of ${name}`],
    run: ({ args, input }) => ({ returncode: 3, stdout: input, stderr: Buffer.from(String(args)) }),
  }) as Record<string, Tool>;
  const run = (name: string, args: object): unknown => tools[name]?.run(args as never, undefined as never);
  assert.deepEqual(await run("host.http", { method: "GET", url: "u", headers: [], body: null }), {
    status: 200,
    headers: [["x", "GET"]],
    body: base64("none"),
  });
  assert.deepEqual(await run("host.lookup", { name: "n" }), { addresses: ["addr of n"] });
  assert.deepEqual(await run("host.run", { args: ["ls"], input: base64("in") }), {
    returncode: 3,
    stdout: base64("in"),
    stderr: base64("ls"),
  });
});
