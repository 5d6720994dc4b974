// Keys of the page. A page registers what its keys do; keys that are typed into a field are left alone.

import { useLayoutEffect, useRef } from "preact/hooks";

export type Keys = Record<string, (event: KeyboardEvent) => void>;

const layers: { current: Keys }[] = [];

function typing(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

export function startKeys(): void {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]") !== null) return;
    if (typing(event.target)) {
      if (event.key === "Escape") (event.target as HTMLElement).blur();
      return;
    }
    if (event.key === "Enter" && event.target instanceof HTMLElement && /^(A|BUTTON|SUMMARY)$/.test(event.target.tagName)) return;
    // No two parts of one page have the same key.
    for (const keys of layers.toReversed()) {
      const act = keys.current[event.key];
      if (act === undefined) continue;
      event.preventDefault();
      act(event);
      return;
    }
  });
}

/** The keys work while the component is shown. */
export function useKeys(keys: Keys): void {
  const layer = useRef(keys);
  layer.current = keys;
  useLayoutEffect(() => {
    layers.push(layer);
    return () => {
      layers.splice(layers.indexOf(layer), 1);
    };
  }, []);
}
