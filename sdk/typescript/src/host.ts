// A tool host: offers this program's tools to a session or to an owner's sessions. Keeps a
// connection: connects and declares the tools again after a restart of the node.

import { setTimeout as pause } from "node:timers/promises";

import type { Door } from "./door.js";
import { asError, clientClosed, hasCode } from "./errors.js";
import { type Audience, Link } from "./link.js";
import { Offer, type Tools } from "./offer.js";

/** The WebSocket close code for a host whose session has ended. */
const SESSION_OVER = 1000;

/**
 * The first and the longest pause before connecting again. A host waits for a node as long as it is
 * open; it does not start one.
 */
const PAUSE_FIRST_MS = 5;
const PAUSE_MS_MAX = 500;

/** A connected host. */
export interface ToolHost {
  /** The names of its tools. */
  readonly names: readonly string[];
  /**
   * Resolves when the host was closed or its session has ended; rejects when the node refuses it.
   */
  readonly closed: Promise<void>;
  /** Offers these tools instead. */
  replace(tools: Tools): Promise<void>;
  /** Ends the connection. Open calls fail in the code. */
  close(): void;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Connects, declares `tools` and returns when the node offers them. */
export async function openHost(door: Door, audience: Audience, tools: Tools): Promise<ToolHost> {
  const host = new Host(door, audience, await Offer.of(tools));
  await host.open();
  return host;
}

class Host implements ToolHost {
  readonly closed: Promise<void>;
  #offer: Offer;
  #link: Link | undefined;
  #replaced: Promise<void> = Promise.resolve();
  readonly #over = new AbortController();
  #settle!: { resolve: () => void; reject: (error: Error) => void };

  constructor(
    private readonly door: Door,
    private readonly audience: Audience,
    offer: Offer,
  ) {
    this.#offer = offer;
    this.closed = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    // A caller that ignores this promise must not get an unhandled rejection.
    this.closed.catch(() => undefined);
    const stop = (): void => this.close();
    door.closed.addEventListener("abort", stop, { once: true });
    this.#over.signal.addEventListener("abort", () => {
      door.closed.removeEventListener("abort", stop);
    });
  }

  get names(): readonly string[] {
    return [...this.#offer.tools.keys()];
  }

  async open(): Promise<void> {
    try {
      this.#link = await this.#connectFirst();
    } catch (thrown) {
      this.#over.abort();
      throw thrown;
    }
    void this.#stay();
  }

  replace(tools: Tools): Promise<void> {
    // One after the other, so that the last call wins.
    this.#replaced = this.#replaced
      .catch(() => undefined)
      .then(async () => {
        const offer = await Offer.of(tools);
        await this.#link?.declare(offer);
        // The next connection uses it too, if there is none now.
        this.#offer = offer;
      });
    return this.#replaced;
  }

  close(): void {
    if (this.#over.signal.aborted) return;
    this.#over.abort();
    this.#link?.close();
    this.#settle.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return this.closed;
  }

  async #connectFirst(): Promise<Link> {
    const until = Date.now() + this.door.retryForMs;
    let wait = PAUSE_FIRST_MS;
    for (let first = true; ; first = false) {
      try {
        return await this.#connect();
      } catch (thrown) {
        if (!isOutage(thrown) || Date.now() + wait > until) throw thrown;
        if (first && this.door.startable && hasCode(thrown, "unreachable")) await this.door.start();
        else await pause(wait);
        wait = Math.min(wait * 2, PAUSE_MS_MAX);
      }
    }
  }

  /** Keeps a connection until the host is closed or the node refuses it. */
  async #stay(): Promise<void> {
    let wait = PAUSE_FIRST_MS;
    while (!this.#over.signal.aborted) {
      try {
        if (this.#link === undefined) this.#link = await this.#connect();
        wait = PAUSE_FIRST_MS;
        const code = await this.#link.ended;
        this.#link = undefined;
        if (code === SESSION_OVER) this.close();
      } catch (thrown) {
        this.#link = undefined;
        if (this.#over.signal.aborted) return;
        // The close code was missed because the node was gone at that moment.
        if (hasCode(thrown, "session_ended", "session_not_found")) return this.close();
        if (!isOutage(thrown)) {
          this.#over.abort();
          this.#settle.reject(asError(thrown));
          return;
        }
        await pause(wait, undefined, { signal: this.#over.signal }).catch(() => undefined);
        wait = Math.min(wait * 2, PAUSE_MS_MAX);
      }
    }
  }

  async #connect(): Promise<Link> {
    if (this.#over.signal.aborted || this.door.closed.aborted) throw clientClosed();
    const link = await Link.open(this.door, this.audience);
    try {
      // Declare again if `replace` changed the tools meanwhile.
      for (let declared; declared !== this.#offer; ) {
        declared = this.#offer;
        await link.declare(declared);
      }
    } catch (thrown) {
      link.close();
      throw thrown;
    }
    if (this.#over.signal.aborted) link.close();
    return link;
  }
}

/** Whether a later attempt to connect may succeed. */
function isOutage(thrown: unknown): boolean {
  return hasCode(thrown, "unreachable", "connection_lost", "shutting_down", "overloaded", "timeout");
}
