// Tools whose arguments are files of the workspace, against a real node.

import assert from "node:assert/strict";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, unlink, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";

import { z } from "zod";

import { hostBudget } from "../src/host-copies.js";
import { type Session, tool, type Tool, type Windlass, workspaceFile } from "../src/index.js";
import { StubNode } from "./stub.js";
import { LIMIT, TestNode, until } from "./support.js";

/** Appends to a file, and answers with what is in it then. */
const append: Tool = tool({
  description: "Appends to a file.",
  input: z.object({ file: z.string().meta(workspaceFile({ writeBack: true })), text: z.string() }),
  run: async ({ file, text }) => {
    await writeFile(file, text, { flag: "a" });
    return readFile(file, "utf8");
  },
});

/** Reads files. */
const read: Tool = tool({
  input: {
    type: "object",
    properties: { files: { type: "array", items: workspaceFile({ description: "what to read" }) } },
    required: ["files"],
  },
  run: ({ files }) => Promise.all((files as string[]).map((file) => readFile(file, "utf8"))),
});

describe("a tool with files", LIMIT, () => {
  let node: TestNode;
  let w: Windlass;
  let copies: string;
  const tmp = process.env["TMPDIR"];

  before(async () => {
    node = await TestNode.prepare();
    w = node.client();
    copies = await mkdtemp(join(node.base, "copies-"));
  });
  after(async () => {
    await node[Symbol.asyncDispose]();
  });

  /** A session that has these tools. Copies are made in a directory of the test. */
  async function sessionWith(tools: Record<string, Tool>, options = {}): Promise<Session> {
    const session = await w.session(options);
    process.env["TMPDIR"] = copies;
    await session.tools(tools);
    return session;
  }
  after(() => {
    if (tmp === undefined) delete process.env["TMPDIR"];
    else process.env["TMPDIR"] = tmp;
  });

  async function check(session: Session, code: string, output: string): Promise<void> {
    const turn = await session.run(code);
    assert.equal(turn.output, output);
    assert.deepEqual(await readdir(copies), []);
  }

  async function checkError(session: Session, call: string, kind: string, words: RegExp) {
    const code = `try: ${call}\nexcept tools.ToolError as e: print(e.type, '|', e)`;
    const { output } = await session.run(code);
    assert.ok(output.startsWith(`${kind} | `), output);
    assert.match(output, words);
    assert.deepEqual(await readdir(copies), []);
  }

  test("gets private copies, and its changes stay out of the workspace", async () => {
    const seen: string[] = [];
    const peek = tool({
      input: z.object({ file: z.string().meta(workspaceFile()) }),
      run: async ({ file }) => {
        seen.push(basename(file), ((await stat(dirname(dirname(file)))).mode & 0o777).toString(8));
        await writeFile(file, "changed");
      },
    });
    await using s = await sessionWith({ peek, read });
    await s.files.put("data/in put.txt", "one");
    await check(s, "tools.peek('./data//in put.txt')\nprint(open('data/in put.txt').read())", "one\n");
    assert.deepEqual(seen, ["in put.txt", "700"]);
    await check(s, "print(tools.read(files=['data/in put.txt', 'data/./in put.txt']))", "['one', 'one']\n");
    const help = (await s.run("help(tools.peek)")).output;
    assert.match(help, /peek\(file: str\)/);
    assert.match(help, /The path of a file in the workspace\./);
  });

  test("that writes back has its changes in the workspace when the call returns", async () => {
    await using s = await sessionWith({ append });
    const loop =
      "import os, pathlib\nopen('log', 'w').write('a')\n" +
      "for n in range(20):\n    result = tools.append(file='log', text='b')\n" +
      "    assert open('log').read() == result, (n, result)\n" +
      "tools.append(pathlib.Path('log').resolve(), 'c')\nprint(open('log').read())";
    await check(s, loop, `a${"b".repeat(20)}c\n`);
    await check(s, "print(tools.append('new/dir/x', 'made'), open('new/dir/x').read())", "made made\n");
  });

  test("overwrites nothing that changed meanwhile, and writes nothing when it fails", async () => {
    const session: { files?: Session["files"] } = {};
    const slow = tool({
      input: z.object({ file: z.string().meta(workspaceFile({ writeBack: true })), how: z.string() }),
      run: async ({ file, how }) => {
        await writeFile(file, "the tool's");
        if (how === "raises") throw new RangeError("half done");
        if (how === "large") return "x".repeat(17 << 20);
        await session.files!.put("shared", "the other's");
        return null;
      },
    });
    await using s = await sessionWith({ slow });
    session.files = s.files;
    await s.files.put("shared", "old");
    await checkError(s, "tools.slow('shared', 'raises')", "RangeError", /half done/);
    await checkError(s, "tools.slow('shared', 'large')", "None", /over the limit/);
    await check(s, "print(open('shared').read())", "old\n");
    await checkError(s, "tools.slow('shared', '')", "FileConflict", /shared/);
    await check(s, "print(open('shared').read())", "the other's\n");
    await s.files.delete("shared");
    await checkError(s, "tools.slow('shared', '')", "FileConflict", /shared/);
    await check(s, "print(open('shared').read())", "the other's\n");
  });

  test("is told of missing, large and foreign files", async () => {
    await using s = await sessionWith({ append, read });
    await checkError(s, "tools.read(['data/none'])", "FileNotFoundError", /"data\/none"/);
    await s.run("for n in range(70): open(f'f{n}', 'w').write('x')");
    await check(s, "print(len(tools.read([f'f{n}' for n in range(64)])))", "64\n");
    await checkError(s, "tools.read([f'f{n}' for n in range(65)])", "FileTooLarge", /more than 64 files/);
    await s.run("open('huge', 'w').truncate((256 << 20) + 1)");
    await checkError(s, "tools.read(['huge'])", "FileTooLarge", /"huge" has more than/);
    await s.run("import os\nos.symlink('/etc', 'away'); os.symlink('/etc/passwd', 'names'); os.mkfifo('pipe')");
    for (const [path, words] of [
      ["../../etc/passwd", /refused/],
      ["/etc/passwd", /not in the workspace/],
      ["away/passwd", /refused/],
      ["names", /symlink/],
      ["pipe", /not a regular file/],
      ["./", /names no file/],
      ["a".repeat(5000), /longer than 4000 bytes/],
    ] as const) {
      await checkError(s, `tools.append('${path}', 'x')`, "PathRefused", words);
    }
    await check(s, "print(tools.append('watch', 'x'), tools.append('watch', 'y'))", "x xy\n");
  });

  test("shares a limit with all other open calls", async () => {
    const { bytesMax } = hostBudget;
    let open = 0;
    let release = (): void => undefined;
    const released = new Promise<void>((resolve) => (release = resolve));
    const hold = tool({
      input: z.object({ file: z.string().meta(workspaceFile({ writeBack: true })) }),
      run: async ({ file }) => {
        open += 1;
        await released;
        // A write-back counts the bytes of the call again, and those of the process not at all.
        await writeFile(file, "y".repeat(100));
      },
    });
    await using s = await sessionWith({ hold, read });
    await using other = await sessionWith({ read });
    await s.run("for n in range(4): open(f'f{n}', 'w').write('x' * 100)");
    await other.files.put("small", "x".repeat(50));
    await other.files.put("large", "x".repeat(51));
    hostBudget.bytesMax = 350;
    try {
      const gather = "await asyncio.gather(*[tools.hold(f'f{n}') for n in range(3)])";
      const turn = await s.submit(`import asyncio\n${gather}\nprint('done')`);
      await until(() => open === 3);
      assert.equal(hostBudget.held, 300);
      const caught = "try: tools.read(['large'])\nexcept tools.ToolError as e: print(e.type, '|', e)";
      const { output } = await other.run(caught);
      assert.match(output, /^FileTooLarge \| the files of all open calls have more than 350 bytes/);
      assert.equal((await other.run("print(len(tools.read(['small'])[0]))")).output, "50\n");
      release();
      assert.equal((await turn.wait()).output, "done\n");
      await check(s, "print(len(tools.read(['f3'])[0]), open('f0').read()[:1])", "100 y\n");
      await check(other, "print(len(tools.read(['large'])[0]))", "51\n");
      await checkError(s, "tools.read(['none'])", "FileNotFoundError", /none/);
      assert.equal(hostBudget.held, 0);
    } finally {
      hostBudget.bytesMax = bytesMax;
      release();
    }
  });

  test("may name them anywhere in its arguments, or is refused", async () => {
    const shape = z.discriminatedUnion("kind", [
      z.object({ kind: z.literal("one"), file: z.string().meta(workspaceFile()) }),
      z.object({ kind: z.literal("all"), file: z.string().meta(workspaceFile()), n: z.number() }),
    ]);
    interface Tree {
      file: string;
      below?: Tree[];
    }
    const contents = async (tree: Tree): Promise<string> =>
      (await readFile(tree.file, "utf8")) + (await Promise.all((tree.below ?? []).map(contents))).join("");
    const tree: Tool = tool({
      input: {
        type: "object",
        properties: { top: { $ref: "#/$defs/tree" }, map: { additionalProperties: workspaceFile() } },
        $defs: {
          tree: {
            type: "object",
            properties: {
              file: workspaceFile(),
              below: { type: "array", items: { $ref: "#/$defs/tree" } },
            },
          },
        },
      },
      run: async ({ top, map }) =>
        (await contents(top as Tree)) + (await readFile((map as { x: string }).x, "utf8")),
    });
    const either: Tool = tool({
      input: z.object({ source: shape }),
      run: ({ source }) => readFile(source.file, "utf8"),
    });
    await using s = await sessionWith({ tree, either });
    await s.run("for name in 'abc': open(name, 'w').write(name)");
    await check(s, "print(tools.either({'kind': 'all', 'file': 'a', 'n': 1}))", "a\n");
    const nested = "{'file': 'a', 'below': [{'file': 'b', 'below': [{'file': 'c'}]}]}";
    await check(s, `print(tools.tree(top=${nested}, map={'x': './a'}))`, "abca\n");
    const elsewhere = { type: "object", properties: {}, patternProperties: { "^x": workspaceFile() } };
    await assert.rejects(s.tools({ odd: tool({ input: elsewhere, run: () => 1 }) }), {
      code: "bad_request",
    });
  });

  test("that removes its copy, or puts a link in its place, changes nothing", async () => {
    const swap = tool({
      input: z.object({
        file: z.string().meta(workspaceFile({ writeBack: true })),
        target: z.string().optional(),
      }),
      run: async ({ file, target }) => {
        await unlink(file);
        if (target !== undefined) await symlink(target, file);
      },
    });
    await using s = await sessionWith({ swap });
    await s.files.put("kept", "whole");
    await check(s, "tools.swap('kept')\nprint(open('kept').read())", "whole\n");
    await checkError(s, "tools.swap('kept', '/etc/passwd')", "PathRefused", /copy/);
    await check(s, "print(open('kept').read())", "whole\n");
  });

  test("that is interrupted writes nothing back, and its copies are removed", async () => {
    let begun = false;
    const slow = tool({
      input: z.object({ file: z.string().meta(workspaceFile({ writeBack: true })) }),
      run: async ({ file }, { signal }) => {
        await writeFile(file, "late");
        begun = true;
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
      },
    });
    await using s = await sessionWith({ slow });
    await s.files.put("kept", "whole");
    const turn = await s.submit("tools.slow('kept')");
    await until(() => begun);
    await turn.interrupt();
    assert.equal((await turn.wait()).outcome, "interrupted");
    await until(async () => (await readdir(copies)).length === 0);
    await check(s, "print(open('kept').read())", "whole\n");
  });

  test("writes nothing that the session's policy does not let the code write", async () => {
    const work = join(node.base, "work");
    await mkdir(join(work, ".git/hooks"), { recursive: true });
    await writeFile(join(work, ".git/HEAD"), "ref: refs/heads/main\n");
    await writeFile(join(work, "given"), "old");
    {
      await using s = await sessionWith({ append, read }, { workspace: work, policy: "read-only" });
      await check(s, "print(tools.read(['given']))", "['old']\n");
      await checkError(s, "tools.append('given', 'x')", "PathRefused", /only read the workspace/);
      await checkError(s, "tools.append('new', 'x')", "PathRefused", /only read the workspace/);
    }
    assert.deepEqual((await readdir(work)).sort(), [".git", "given"]);
    await using s = await sessionWith({ append }, { workspace: work });
    await check(s, "print(tools.append('given', 'er'))", "older\n");
    const written = await s.run("import os; os.symlink('.git', 'door')\nopen('.git/hooks/x', 'w')");
    // A machine that protects no names lets the code write them itself.
    if (written.ok) return;
    for (const path of [".git/hooks/x", "door/hooks/x", "AGENTS.md"]) {
      await checkError(s, `tools.append('${path}', 'x')`, "PathRefused", /refused/);
    }
    assert.deepEqual(await readdir(join(work, ".git/hooks")), []);
    await rm(join(work, "door"));
  });
});

test("a call that ends while its files are sent back has its upload cut", LIMIT, async () => {
  await using node = await StubNode.start();
  await using w = node.client();
  const bytes = 16 * 1024 * 1024;
  let signal: AbortSignal | undefined;
  const change = tool({
    input: z.object({ file: z.string().meta(workspaceFile({ writeBack: true })) }),
    run: async ({ file }, call) => {
      signal = call.signal;
      await writeFile(file, Buffer.alloc(bytes));
    },
  });
  const uploaded = new Promise<{ length: number; whole: boolean }>((resolve) => {
    node.answer = (request, response) => {
      if (request.method !== "POST") return void response.end("old");
      let length = 0;
      request.on("data", (piece: Buffer) => {
        const first = length === 0;
        length += piece.length;
        if (!first) return;
        // The client can send little until the node reads on, and the call is over then.
        request.pause();
        host.say({ kind: "tool_cancel", session: "s", turn: 1, call: 1, reason: "interrupted" });
        void until(() => signal?.aborted === true).then(() => request.resume());
      });
      request.on("error", () => undefined);
      request.once("end", () => response.end("{}"));
      request.once("close", () => resolve({ length, whole: request.complete }));
    };
  });
  await w.tools({ owner: "me", tools: { change } });
  const host = await node.host();
  host.call(1, "change", { file: "a" });
  const { length, whole } = await uploaded;
  assert.equal(whole, false);
  assert.ok(length < bytes, `${length} bytes were sent`);
});
