// A value that components watch. Changes are told once per animation frame at most, however many there are.

import { useEffect, useState } from "preact/hooks";

export class Store<T> {
  #value: T;
  readonly #watchers = new Set<() => void>();

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set value(value: T) {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const watcher of [...this.#watchers]) watcher();
  }

  watch(watcher: () => void): () => void {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

/** The value of a store; the component renders again when it changes. */
export function useStore<T>(store: Store<T>): T {
  const [, setVersion] = useState(0);
  const shown = store.value;
  useEffect(() => {
    const again = () => setVersion((version) => version + 1);
    // The value can have changed since it was drawn: a page in the background draws late.
    if (!Object.is(store.value, shown)) again();
    return store.watch(again);
  }, [store]);
  return shown;
}

/** Joins calls until the next animation frame into one call. */
export function oncePerFrame(act: () => void): () => void {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    const run = () => {
      if (!waiting) return;
      waiting = false;
      act();
    };
    requestAnimationFrame(run);
    // A page in the background has no frames.
    if (document.hidden) setTimeout(run, 250);
  };
}
