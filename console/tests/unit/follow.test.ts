// The connection to a session's events.

import assert from "node:assert/strict";
import { test } from "node:test";

// The page's login, as the browser has it. The channel to other pages would keep this process alive.
const stored = { getItem: () => '{"key":"k"}', setItem: () => undefined, removeItem: () => undefined };
Object.assign(globalThis, { BroadcastChannel: undefined, sessionStorage: stored });

const { follow } = await import("../../src/session/follow.ts");
const { call, reachable } = await import("../../src/lib/api.ts");

test("a stream that breaks tells at once that the node does not answer", async () => {
  const replies = [
    // The stream begins, then its connection breaks.
    () => new Response(new ReadableStream({ start: (stream) => stream.error(new TypeError("network error")) })),
    () => Response.json({}),
  ];
  globalThis.fetch = () => Promise.resolve(replies.shift()?.() ?? new Response(null, { status: 500 }));
  const stop = new AbortController();
  const links: string[] = [];
  const seen: boolean[] = [];
  await follow("s", {
    after: () => 0,
    apply: () => undefined,
    link: (state) => {
      links.push(state);
      seen.push(reachable.value);
      if (state === "reconnecting") stop.abort();
    },
  }, stop.signal);
  assert.deepEqual(links, ["connecting", "live", "reconnecting"]);
  assert.deepEqual(seen, [true, true, false]);
  await call("/v1/version");
  assert.equal(reachable.value, true);
});
