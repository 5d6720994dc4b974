// Follows a session's events: each event once, in order, over any number of connections and nodes.

import type { IncomingMessage } from "node:http";
import { TextDecoder } from "node:util";

import type { EventItem, Events } from "./api.js";
import type { Door } from "./door.js";
import { asError, badAnswer, connectionLost, hasCode } from "./errors.js";
import { path } from "./paths.js";
import { SseParser } from "./sse.js";

/** Number of streams in a row that may end at once without a new event before that is an error. */
const EMPTY_STREAMS_MAX = 20;

/** A stream that lasted longer than this does not count as empty, even without an event. */
const LONG_STREAM_MS = 1000;

type Of<Kind extends EventItem["kind"]> = Extract<EventItem, { kind: Kind }>;

/**
 * Output with decoded text. A character that is split between two events comes with the second one.
 */
export type OutputEvent = Of<"output"> & { text: string; data: Uint8Array };

/** One numbered event of a session; `kind` is its type. */
export type SessionEvent = Exclude<EventItem, { kind: "output" }> | OutputEvent;

/** The events after `after` until the session has ended or `signal` aborts. */
export async function* follow(
  door: Door,
  session: string,
  after: number,
  signal?: AbortSignal,
): AsyncGenerator<SessionEvent, void, undefined> {
  const decoders = new Decoders();
  let emptyStreams = 0;
  for (;;) {
    const opened = Date.now();
    let cause = "the node closed the stream";
    let news = false;
    const streaming = await open(door, session, after, signal);
    try {
      for await (const item of itemsOf(streaming, session)) {
        if (item.seq <= after) continue;
        after = item.seq;
        news = true;
        yield decoders.decode(item);
        if (item.kind === "session_ended") return;
      }
      // The node closed the stream: it is stopping, or the session has ended. A page of events
      // tells which.
      const page = await eventsAfter(door, session, after, undefined, signal);
      for (const item of page.events) {
        after = item.seq;
        news = true;
        yield decoders.decode(item);
      }
      if (page.ended) return;
    } catch (thrown) {
      signal?.throwIfAborted();
      if (!(thrown instanceof Cut)) throw thrown;
      cause = thrown.message;
    } finally {
      streaming.destroy();
    }
    emptyStreams = news || Date.now() - opened > LONG_STREAM_MS ? 0 : emptyStreams + 1;
    if (emptyStreams > EMPTY_STREAMS_MAX) throw connectionLost(cause);
  }
}

/** One page of events. */
export function eventsAfter(
  door: Door,
  session: string,
  after: number,
  limit?: number,
  signal?: AbortSignal,
): Promise<Events> {
  const place = path(["sessions", session, "events"], { after, limit });
  return door.json<Events>({ method: "GET", path: place, repeat: "freely", signal });
}

/** An event's raw bytes, if it has any. */
export function bytesOf(item: EventItem): Uint8Array {
  if (typeof item.base64 === "string") return Buffer.from(item.base64, "base64");
  return Buffer.from(item.text ?? "");
}

/** The stream was cut. Another stream brings the rest. */
class Cut extends Error {}

function open(
  door: Door,
  session: string,
  after: number,
  signal: AbortSignal | undefined,
): Promise<IncomingMessage> {
  return door.stream({
    method: "GET",
    path: path(["sessions", session, "events"]),
    headers: { accept: "text/event-stream", "last-event-id": String(after) },
    repeat: "freely",
    signal,
  });
}

async function* itemsOf(
  streaming: IncomingMessage,
  session: string,
): AsyncGenerator<EventItem, void, undefined> {
  for await (const data of dataOf(streaming)) {
    let item: EventItem;
    try {
      item = JSON.parse(data) as EventItem;
    } catch (thrown) {
      throw badAnswer(`the events of session ${session}`, asError(thrown).message);
    }
    yield item;
  }
}

/** The data of a stream's events. A stream without a proper end was cut. */
export async function* dataOf(
  streaming: IncomingMessage,
): AsyncGenerator<string, void, undefined> {
  const parser = new SseParser();
  const pieces = (streaming as AsyncIterable<Buffer>)[Symbol.asyncIterator]();
  for (;;) {
    let next;
    try {
      next = await pieces.next();
    } catch (thrown) {
      throw new Cut(asError(thrown).message);
    }
    if (next.done === true) return;
    yield* parser.feed(next.value);
  }
}

export function isCut(thrown: unknown): boolean {
  return thrown instanceof Cut || hasCode(thrown, "connection_lost");
}

/** Decodes bytes that may end within a character, for each stream of each turn. */
class Decoders {
  readonly #decoders = new Map<string, TextDecoder>();

  decode(item: EventItem): SessionEvent {
    if (item.kind === "turn_ended") this.#decoders.clear();
    if (item.kind !== "output") return item;
    const data = bytesOf(item);
    const key = `${item.turn}/${item.stream}`;
    const waiting = this.#decoders.get(key);
    if (waiting === undefined && typeof item.text === "string") {
      return { ...item, text: item.text, data };
    }
    const decoder = waiting ?? new TextDecoder();
    this.#decoders.set(key, decoder);
    return { ...item, text: decoder.decode(data, { stream: true }), data };
  }
}
