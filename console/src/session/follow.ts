// Follows a session: each event once and in order, over any number of connections and restarts of the node.

import type { EventItem, Events } from "../../../sdk/typescript/src/api.ts";
import { ApiProblem, call, path, reachable, request } from "../lib/api.ts";
import { SseReader } from "./sse.ts";

export type Link = "connecting" | "live" | "reconnecting" | "ended" | "missing";

export interface Listener {
  /** The number of the last event that was applied. */
  after(): number;
  apply(event: EventItem): void;
  link(state: Link): void;
}

const BACKOFF_FIRST_MS = 200;
const BACKOFF_MAX_MS = 5000;

/** A stream that is silent for so long is opened again: a network can lose a connection and tell nobody. */
const SILENCE_MAX_MS = 300_000;

export async function follow(session: string, listener: Listener, signal: AbortSignal): Promise<void> {
  let backoff = BACKOFF_FIRST_MS;
  listener.link("connecting");
  while (!signal.aborted) {
    const before = listener.after();
    try {
      await stream(session, listener, signal);
      // The node closed the stream: it stops, or the session has ended. A page of events tells which.
      if (await ended(session, listener, signal)) {
        listener.link("ended");
        return;
      }
    } catch (thrown) {
      if (signal.aborted) return;
      if (thrown instanceof ApiProblem && thrown.status === 404) {
        listener.link("missing");
        return;
      }
      if (thrown instanceof ApiProblem && thrown.status === 401) return;
    }
    if (signal.aborted) return;
    listener.link("reconnecting");
    backoff = listener.after() > before ? BACKOFF_FIRST_MS : Math.min(backoff * 2, BACKOFF_MAX_MS);
    await pause(backoff * (0.7 + Math.random() * 0.6), signal);
  }
}

async function stream(session: string, listener: Listener, signal: AbortSignal): Promise<void> {
  const abort = new AbortController();
  const stop = () => abort.abort();
  signal.addEventListener("abort", stop);
  let timer: ReturnType<typeof setTimeout> | undefined;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(stop, SILENCE_MAX_MS);
  };
  try {
    heard();
    const reply = await request(path("sessions", session, "events"), {
      headers: { accept: "text/event-stream", "last-event-id": String(listener.after()) },
      signal: abort.signal,
    });
    listener.link("live");
    const reader = reply.body?.getReader();
    if (reader === undefined) return;
    const sse = new SseReader();
    for (;;) {
      const next = await reader.read().catch((thrown: unknown) => {
        // The connection broke. The next request that is answered sets it again.
        if (!abort.signal.aborted) reachable.value = false;
        throw thrown;
      });
      if (next.done) return;
      heard();
      for (const data of sse.feed(next.value)) listener.apply(JSON.parse(data) as EventItem);
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
    abort.abort();
  }
}

async function ended(session: string, listener: Listener, signal: AbortSignal): Promise<boolean> {
  for (;;) {
    const query = { after: listener.after() };
    const page = await call<Events>(path("sessions", session, "events"), { query, signal });
    for (const event of page.events) listener.apply(event);
    if (page.ended || page.events.length === 0) return page.ended;
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      done();
    });
  });
}
