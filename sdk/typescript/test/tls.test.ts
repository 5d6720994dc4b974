// TLS to a node, without a node: a stub server with the certificates in `tls`, which are valid until 2120. `node.pem` is
// for localhost and 127.0.0.1, `elsewhere.pem` for another name, and `expired.pem` is of 2020. `ca.pem` is the authority
// of all three, `other.pem` another one.

import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer as createPlainServer, type IncomingMessage, type Server } from "node:http";
import { createServer } from "node:https";
import { type AddressInfo, createServer as createTcpServer } from "node:net";
import { describe, test } from "node:test";
import { fileURLToPath } from "node:url";

import { WebSocketServer } from "ws";

import { findAddress } from "../src/address.js";
import { tool, Windlass } from "../src/index.js";
import { StubHost } from "./stub.js";
import { LIMIT } from "./support.js";

const TOKEN = "ab".repeat(32);

/** The tests are compiled into `build/test`. */
function file(name: string): string {
  return fileURLToPath(new URL(`../../test/tls/${name}`, import.meta.url));
}

const CA = file("ca.pem");
const OTHER = file("other.pem");

class TlsStub {
  readonly requests: IncomingMessage[] = [];
  connections = 0;

  private constructor(readonly server: Server) {}

  static async start(certificate = "node.pem"): Promise<TlsStub> {
    const identity = { cert: readFileSync(file(certificate)), key: readFileSync(file("node-key.pem")) };
    const stub: TlsStub = new TlsStub(
      createServer(identity, (request, response) => {
        stub.requests.push(request);
        response.setHeader("windlass-api", "1.0").end(JSON.stringify({ path: request.url }));
      }),
    );
    stub.server.on("connection", () => stub.connections++);
    stub.server.listen(0, "127.0.0.1");
    await once(stub.server, "listening");
    return stub;
  }

  url(host = "127.0.0.1", scheme = "https"): string {
    return `${scheme}://${host}:${(this.server.address() as AddressInfo).port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.server.closeAllConnections();
    this.server.close();
  }
}

/** The failure of a first request, and of a tool host. Both must be the same. */
async function refused(url: string, ca: string | undefined): Promise<Error & { code: string; remedy: string }> {
  const named = ca === undefined ? {} : { ca };
  const w = new Windlass({ url, token: TOKEN, env: {}, retryForMs: 0, ...named });
  try {
    const [request, host] = await Promise.allSettled([
      w.status(),
      w.tools({ owner: "me", tools: { twice: TWICE } }),
    ]);
    assert.equal(request.status, "rejected");
    assert.equal(host.status, "rejected");
    const error = request.reason as Error & { code: string; remedy: string };
    const ofHost = host.reason as Error & { code: string };
    assert.deepEqual([ofHost.code, ofHost.message], [error.code, error.message]);
    return error;
  } finally {
    w.close();
  }
}

const TWICE = tool({
  description: "Repeats.",
  input: { type: "object", properties: { text: { type: "string" } } },
  run: (args) => (args as { text: string }).text.repeat(2),
});

describe("a node at an https URL", LIMIT, () => {
  test("is used if its authority is known, and its connections are kept", async () => {
    for (const host of ["127.0.0.1", "localhost"]) {
      await using stub = await TlsStub.start();
      const w = new Windlass({ url: stub.url(host), token: TOKEN, ca: CA, env: {} });
      for (let n = 0; n < 3; n++) await w.status();
      assert.equal(stub.connections, 1);
      assert.deepEqual(stub.requests.map((request) => request.headers.authorization), Array(3).fill(`Bearer ${TOKEN}`));
      w.close();
    }
  });

  test("is verified by the file that the environment names", async () => {
    await using stub = await TlsStub.start();
    const env = { WINDLASS_URL: stub.url(), WINDLASS_TOKEN: TOKEN };
    const right = new Windlass({ env: { ...env, WINDLASS_CA: CA } });
    await right.status();
    const wrong = new Windlass({ env: { ...env, WINDLASS_CA: OTHER } });
    await assert.rejects(wrong.status(), { code: "bad_certificate" });
    // An option is more specific than the environment.
    const option = new Windlass({ env: { ...env, WINDLASS_CA: OTHER }, ca: CA });
    await option.status();
    for (const w of [right, wrong, option]) w.close();
  });

  test("is refused if nobody that is trusted signed its certificate", async () => {
    await using stub = await TlsStub.start();
    const error = await refused(stub.url(), OTHER);
    assert.equal(error.code, "bad_certificate");
    assert.ok(error.message.includes(`${OTHER} (WINDLASS_CA) names`), error.message);
    const unnamed = await refused(stub.url(), undefined);
    assert.match(unnamed.message, /Node\.js trusts/);
    assert.match(unnamed.remedy, /set WINDLASS_CA/);
    assert.equal(stub.requests.length, 0);
  });

  test("is verified whatever the environment of the process says", async () => {
    await using stub = await TlsStub.start();
    process.env["NODE_TLS_REJECT_UNAUTHORIZED"] = "0";
    try {
      assert.equal((await refused(stub.url(), OTHER)).code, "bad_certificate");
    } finally {
      delete process.env["NODE_TLS_REJECT_UNAUTHORIZED"];
    }
  });

  test("is refused with the reason if its certificate does not fit", async () => {
    for (const [certificate, said] of [
      ["elsewhere.pem", "is for another name"],
      ["expired.pem", "has expired"],
    ] as const) {
      for (const host of ["127.0.0.1", "localhost"]) {
        await using stub = await TlsStub.start(certificate);
        const error = await refused(stub.url(host), CA);
        assert.equal(error.code, "bad_certificate");
        assert.ok(error.message.includes(said), error.message);
        assert.equal(stub.requests.length, 0);
      }
    }
  });

  test("serves tool hosts", async () => {
    await using stub = await TlsStub.start();
    const sockets = new WebSocketServer({ server: stub.server });
    const connected = new Promise<StubHost>((resolve) => {
      sockets.on("connection", (socket, request) => {
        const host = new StubHost(socket, request.url ?? "");
        host.say({ kind: "welcome", api: "1.0", node: "stub" });
        void host.frame((header) => header.kind === "tools" && !header.more).then(() => {
          host.say({ kind: "tools_accepted", count: 1 });
          resolve(host);
        });
      });
    });
    const w = new Windlass({ url: stub.url(), token: TOKEN, ca: CA, env: {} });
    await w.tools({ owner: "me", tools: { twice: TWICE } });
    const host = await connected;
    const text = "ab".repeat(100_000);
    for (let call = 0; call < 5; call++) host.call(call, "twice", { text });
    for (let call = 0; call < 5; call++) {
      const { ok, value } = await host.answer(call);
      assert.ok(ok);
      assert.equal(value, text.repeat(2));
    }
    w.close();
    sockets.close();
  });
});

test("the wrong scheme is told with the right URL", LIMIT, async () => {
  // A node refuses what is not TLS with an alert, and ends the connection.
  const secure = createTcpServer((socket) => {
    socket.on("error", () => undefined);
    socket.once("data", () => socket.end(Buffer.from([0x15, 3, 3, 0, 2, 2, 50])));
  });
  const plain = createPlainServer();
  for (const [server, scheme, right] of [
    [secure, "http", "https"],
    [plain, "https", "http"],
  ] as const) {
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    const error = await refused(`${scheme}://127.0.0.1:${port}`, CA);
    assert.equal(error.code, "wrong_scheme", String(error));
    assert.ok(error.remedy.includes(`${right}://127.0.0.1:${port}`), error.remedy);
    server.close();
  }
});

test("a file without authorities is refused, and read only for https", () => {
  const token = TOKEN;
  for (const ca of ["/nowhere/ca.pem", file("node-key.pem"), fileURLToPath(import.meta.url)]) {
    assert.throws(
      () => findAddress({ url: "https://127.0.0.1:1", token, ca }, {}),
      (error: Error & { code: string }) => error.code === "bad_ca" && error.message.includes(ca),
    );
    const found = findAddress({ url: "http://127.0.0.1:1", token, ca }, {});
    assert.ok(found.kind === "tcp" && found.tls === undefined);
  }
});
