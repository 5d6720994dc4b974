// Checks `windlass mcp` with the client of the official TypeScript SDK, in its newest or its older version,
// and prints one JSON object per check.
//
// Arguments: the program, the MCP revision to negotiate, the directory of the SDK's package.

import { createRequire } from "node:module";

const [program, revision, directory] = process.argv.slice(-3);
const require = createRequire(`${directory}/package.json`);

const TOOLS = ["continue", "interrupt", "read_output", "reset", "run", "sessions"];

// How long one call may take.
const CALLED_WITHIN_MS = 30_000;

// How long the turn after a cancelled turn may take. The cancelled turn itself would take far longer.
const STOPPED_WITHIN_MS = 10_000;

const PICTURE = String.raw`
import struct, zlib
def chunk(kind, body):
    return struct.pack('>I', len(body)) + kind + body + struct.pack('>I', zlib.crc32(kind + body))
class Picture:
    def _repr_png_(self):
        head = chunk(b'IHDR', struct.pack('>IIBBBBB', 40, 30, 8, 2, 0, 0, 0))
        body = chunk(b'IDAT', zlib.compress((b'\0' + b'\xff\0\0' * 40) * 30))
        return b'\x89PNG\r\n\x1a\n' + head + body + chunk(b'IEND', b'')
Picture()
`;
const SLOW = "import time\nfor n in range(8):\n    print('step', n, flush=True)\n    time.sleep(0.5)\n";
const ENDLESS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n";
const LONG = "for n in range(40000): print('line', n)\n";

/** The client, and a function that calls a tool. The two SDK versions take options in different places. */
async function connect() {
  const older = revision < "2026";
  const { Client } = require(
    older ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client",
  );
  const { StdioClientTransport } = require(
    older ? "@modelcontextprotocol/sdk/client/stdio.js" : "@modelcontextprotocol/client/stdio",
  );
  const options = older ? {} : { versionNegotiation: { mode: "auto" } };
  const client = new Client({ name: "windlass-sdk-test", version: "1" }, options);
  // By default the SDK passes only a few variables, without those of the node's directories.
  const env = { ...process.env };
  const transport = new StdioClientTransport({ command: program, args: ["mcp"], env });
  // The older client does not expose the negotiated revision, but passes it to its transport.
  let agreed;
  transport.setProtocolVersion = (version) => (agreed = version);
  await client.connect(transport);
  const negotiated = () => client.getNegotiatedProtocolVersion?.() ?? agreed;
  const call = (name, args, more = {}) => {
    const params = { name, arguments: args };
    const options = { timeout: CALLED_WITHIN_MS, ...more };
    return older ? client.callTool(params, undefined, options) : client.callTool(params, options);
  };
  return { client, call, negotiated };
}

function need(condition, ...seen) {
  if (!condition) throw new Error(seen.map((one) => JSON.stringify(one)).join(" ").slice(0, 1000));
}

const textOf = (result) =>
  result.content.filter((part) => part.type === "text").map((part) => part.text).join("\n");

const { client, call, negotiated } = await connect();
const run = (code, options) => call("run", { code }, options);

// The checks depend on each other and run in this order.
const checks = {
  "the revision is negotiated": async () => need(negotiated() === revision, negotiated()),

  "the tools are listed": async () => {
    const { tools } = await client.listTools();
    const names = tools.map((tool) => tool.name).sort();
    need(JSON.stringify(names) === JSON.stringify(TOOLS), names);
    need(tools.every((tool) => tool.description && tool.annotations), tools);
    need(tools.find((tool) => tool.name === "run").outputSchema?.type === "object", tools);
  },

  "code runs": async () => {
    const result = await run("x = 41; print('set', x)");
    need(textOf(result).includes("set 41") && !result.isError, result);
  },

  // The SDK validates each result against the listed schema and throws if it does not match.
  "structured content matches the output schema": async () => {
    const { structuredContent } = await run("x + 1");
    need(structuredContent?.state === "done", structuredContent);
  },

  "a variable is kept": async () => {
    const result = await run("x + 1");
    need(textOf(result).includes("42"), result);
  },

  "a picture is image content": async () => {
    const result = await run(PICTURE);
    const images = result.content.filter((part) => part.type === "image");
    need(images.length === 1 && images[0].mimeType === "image/png", result);
    const data = Buffer.from(images[0].data, "base64");
    need(data.readUInt32BE(16) === 40 && data.readUInt32BE(20) === 30, data.length);
  },

  "an exception is a tool error": async () => {
    const result = await run("1/0");
    need(result.isError === true && textOf(result).includes("ZeroDivisionError"), result);
  },

  "a long turn reports progress": async () => {
    let told = 0;
    const result = await run(SLOW, { onprogress: () => (told += 1) });
    need(told > 0, "no progress");
    need(textOf(result).includes("step 7"), result);
  },

  "a cancelled call stops its turn": async () => {
    const controller = new AbortController();
    const onprogress = () => controller.abort("the check has seen progress");
    const timeout = STOPPED_WITHIN_MS;
    const ended = await run(ENDLESS, { onprogress, signal: controller.signal, timeout }).then(
      () => "answered",
      () => "cancelled",
    );
    need(controller.signal.aborted && ended === "cancelled", ended);
    const result = await run("print('kept', x)", { timeout });
    need(result.structuredContent?.state === "done", result);
    need(textOf(result).includes("kept 41"), result);
  },

  "the full output is a resource": async () => {
    const result = await run(LONG);
    need(result.structuredContent?.omitted_bytes > 0, result.structuredContent);
    const links = result.content.filter((part) => part.type === "resource_link");
    need(links.length === 1, result.content.map((part) => part.type));
    const { contents } = await client.readResource({ uri: links[0].uri });
    const whole = contents.map((part) => part.text ?? "").join("");
    need(whole.includes("line 20000\n"), whole.length);
  },

  "the session is listed": async () => {
    const { session } = (await run("None")).structuredContent;
    const listed = await call("sessions", {});
    need(JSON.stringify(listed.structuredContent).includes(session), session, listed);
  },
};

for (const [check, body] of Object.entries(checks)) {
  const began = performance.now();
  let words;
  try {
    await body();
  } catch (error) {
    words = `${error}`;
  }
  const seconds = (performance.now() - began) / 1000;
  console.log(JSON.stringify({ check, passed: !words, words: words ?? "", seconds }));
}
await client.close();
