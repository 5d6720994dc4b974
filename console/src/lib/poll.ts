// Asks again and again while the page is visible: not faster than needed, and slower the longer the answers take.

import { useEffect, useRef } from "preact/hooks";

/** The share of the time that asking may take: one part of this many. */
const BUSY_PART = 6;

export interface Polling {
  /** Asks now instead of at the next time. */
  now: () => void;
}

export function usePolling(everyMs: number, ask: (signal: AbortSignal) => Promise<void>, again: unknown[]): Polling {
  const now = useRef<() => void>(() => undefined);
  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let asking = false;
    let once_more = false;
    const run = async () => {
      clearTimeout(timer);
      if (abort.signal.aborted || document.hidden) return;
      if (asking) {
        once_more = true;
        return;
      }
      asking = true;
      const begun = performance.now();
      await ask(abort.signal).catch(() => undefined);
      asking = false;
      const took = performance.now() - begun;
      if (abort.signal.aborted) return;
      timer = setTimeout(run, once_more ? 0 : Math.max(everyMs, took * BUSY_PART));
      once_more = false;
    };
    const shown = () => void run();
    now.current = shown;
    document.addEventListener("visibilitychange", shown);
    void run();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, again);
  return { now: () => now.current() };
}
