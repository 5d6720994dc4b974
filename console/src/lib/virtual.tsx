// A list of rows of one height, of which only the visible ones are elements.

import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

/** Browsers lose precision in taller elements. In such a list a pixel of the scroll bar is several of the rows. */
const HEIGHT_MAX = 8_000_000;

/** Rows beyond the visible ones, so that scrolling shows no gap. */
const OVERSCAN = 12;

export interface VirtualProps {
  count: number;
  rowHeight: number;
  row: (index: number) => ComponentChildren;
  /** Is told which rows can be seen. */
  seen?: (first: number, last: number) => void;
  /** This row is scrolled into view when it changes. */
  reveal?: number | undefined;
  /** Stays at the end when rows are added, as long as the end is in view. */
  stick?: boolean;
  class?: string;
  label?: string;
  role?: "list" | "log" | "grid" | "listbox";
  boxRef?: RefObject<HTMLDivElement>;
}

export function Virtual(props: VirtualProps) {
  const { count, rowHeight } = props;
  const own = useRef<HTMLDivElement>(null);
  const box = props.boxRef ?? own;
  const [view, setView] = useState({ top: 0, height: 800 });
  const atEnd = useRef(true);
  const total = count * rowHeight;
  const height = Math.min(total, HEIGHT_MAX);
  const real = Math.max(1, height - view.height);
  const scale = total > HEIGHT_MAX ? (total - view.height) / real : 1;
  const offset = view.top * scale;
  const first = Math.max(0, Math.floor(offset / rowHeight) - OVERSCAN);
  const last = Math.min(count - 1, Math.ceil((offset + view.height) / rowHeight) + OVERSCAN);

  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight });
    const scrolled = () => {
      atEnd.current = element.scrollTop + element.clientHeight >= element.scrollHeight - rowHeight;
      measure();
    };
    element.addEventListener("scroll", scrolled, { passive: true });
    const sizes = new ResizeObserver(measure);
    sizes.observe(element);
    return () => {
      element.removeEventListener("scroll", scrolled);
      sizes.disconnect();
    };
  }, [rowHeight]);

  useLayoutEffect(() => {
    const element = box.current;
    if (props.stick && element !== null && atEnd.current) element.scrollTop = element.scrollHeight;
  }, [count, props.stick]);

  useEffect(() => {
    const element = box.current;
    if (element === null || props.reveal === undefined || props.reveal < 0) return;
    const top = (props.reveal * rowHeight) / scale;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = top + rowHeight - element.clientHeight;
  }, [props.reveal]);

  useEffect(() => props.seen?.(first, last), [first, last, props.seen]);

  const rows: ComponentChildren[] = [];
  for (let index = first; index <= last; index += 1) rows.push(props.row(index));
  // Where the rows begin: at their own offset, moved by what the scale has skipped.
  const top = first * rowHeight - offset + view.top;
  return (
    <div ref={box} class={`virtual ${props.class ?? ""}`} role={props.role} aria-label={props.label} tabIndex={0}>
      <div class="virtual-all" role="presentation" style={{ height: `${height}px` }}>
        <div class="virtual-rows" role="presentation" style={{ transform: `translateY(${top}px)` }}>
          {rows}
        </div>
      </div>
    </div>
  );
}
