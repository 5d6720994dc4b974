// Tells screen readers what happens, politely and not too often.

import { Store, useStore } from "./store.ts";

const PAUSE_MS = 2500;

const spoken = new Store("");
let next: string | undefined;
let timer: ReturnType<typeof setTimeout> | undefined;

/** Of texts that come faster than they can be read, the last is told. */
export function announce(text: string): void {
  if (timer !== undefined) {
    next = text;
    return;
  }
  spoken.value = text;
  timer = setTimeout(() => {
    timer = undefined;
    const waiting = next;
    next = undefined;
    if (waiting !== undefined) announce(waiting);
  }, PAUSE_MS);
}

export function Announcer() {
  return (
    <div class="sr-only" role="status" aria-live="polite">
      {useStore(spoken)}
    </div>
  );
}
