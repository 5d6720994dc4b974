// Output of a turn: all of a short one; head and end of a long one, and the rest on demand in a box of its own.

import { useCallback, useEffect, useReducer, useRef, useState } from "preact/hooks";

import { path, request } from "../lib/api.ts";
import { Copy } from "../lib/copy.tsx";
import { count } from "../lib/text.ts";
import { Virtual } from "../lib/virtual.tsx";
import type { Look, Piece } from "./ansi.ts";
import type { OutputStore, Row } from "./output-store.ts";

const WHOLE_LINES = 60;
const HEAD_LINES = 15;
const TAIL_LINES = 30;
const LINE_PX = 19;

export interface OutputProps {
  store: OutputStore;
  look: "output" | "result" | "traceback";
  session: string;
  turn: string;
  live: boolean;
}

export function OutputPart({ store, look, session, turn, live }: OutputProps) {
  const [all, setAll] = useState(false);
  const lines = store.lineCount;
  if (all && lines > WHOLE_LINES) return <AllLines store={store} look={look} session={session} turn={turn} live={live} close={() => setAll(false)} />;
  if (lines <= WHOLE_LINES) return <pre class={`out ${look}`} tabIndex={0} aria-label={LABELS[look]}>{rows(store, 0, lines)}</pre>;
  return (
    <div class={`out-long ${look}`}>
      <pre class={`out ${look}`} tabIndex={0} aria-label={`${LABELS[look]}, begin`}>{rows(store, 0, HEAD_LINES)}</pre>
      <button type="button" class="gap" onClick={() => setAll(true)}>
        {count(lines - HEAD_LINES - TAIL_LINES)} lines not shown · <b>Show the rest</b>
      </button>
      <pre class={`out ${look}`} tabIndex={0} aria-label={`${LABELS[look]}, end`}>{rows(store, lines - TAIL_LINES, lines)}</pre>
    </div>
  );
}

const LABELS = { output: "Output", result: "Result", traceback: "Traceback" };

function rows(store: OutputStore, from: number, to: number) {
  const shown = [];
  for (let line = from; line < to; line += 1) shown.push(<Line key={line} row={store.row(line)} />);
  return shown;
}

function AllLines({ store, look, session, turn, live, close }: OutputProps & { close: () => void }) {
  const [, redraw] = useReducer((version: number) => version + 1, 0);
  const read = useCallback(
    async (from: number, to: number) => {
      const reply = await request(path("sessions", session, "output"), { query: { turn, from, to } });
      return reply.text();
    },
    [session, turn],
  );
  const shown = useRef<[number, number]>([0, 0]);
  const load = () => store.load(...shown.current, read, () => redraw(undefined));
  const seen = useCallback(
    (first: number, last: number) => {
      shown.current = [first, last];
      load();
    },
    [store, read],
  );
  // What is in view now is asked for when an earlier range has come.
  useEffect(load);
  return (
    <div class={`out-all ${look}`}>
      <div class="out-bar">
        <span>{count(store.lineCount)} lines</span>
        <Copy text={() => store.text()} label="Copy the output" />
        <button type="button" class="link" onClick={close}>Show less</button>
      </div>
      <Virtual class="lines" role="log" label={LABELS[look]} count={store.lineCount} rowHeight={LINE_PX} seen={seen} stick={live} row={(index) => <Line key={index} row={store.row(index)} number={index + 1} />} />
    </div>
  );
}

function Line({ row, number }: { row: Row | undefined; number?: number }) {
  return (
    <div class={`ln${row?.stream === "stderr" ? " err" : ""}`}>
      {number !== undefined && <i class="ln-number" aria-hidden="true">{number}</i>}
      {row === undefined ? "…" : row.pieces.map((piece, at) => <Text key={at} piece={piece} />)}
      {"\n"}
    </div>
  );
}

function Text({ piece }: { piece: Piece }) {
  const { look } = piece;
  if (Object.keys(look).length === 0) return <>{piece.text}</>;
  return <span class={classOf(look)} style={colours(look)}>{piece.text}</span>;
}

function classOf(look: Look): string {
  const names = [];
  if (typeof look.fg === "number") names.push(`${look.inverse ? "b" : "f"}${look.fg}`);
  if (typeof look.bg === "number") names.push(`${look.inverse ? "f" : "b"}${look.bg}`);
  for (const name of ["bold", "dim", "italic", "underline", "strike"] as const) if (look[name]) names.push(name);
  if (look.inverse && look.fg === undefined && look.bg === undefined) names.push("inverse");
  return names.join(" ");
}

/** Colours beyond the palette, set as properties: the page's policy allows no styles in markup. */
function colours(look: Look): Record<string, string> | undefined {
  const style: Record<string, string> = {};
  // On the page's own ground a colour is made as light or dark as reading needs.
  if (typeof look.fg === "string" && look.bg === undefined && !look.inverse) style.color = `oklch(from ${look.fg} clamp(var(--l-min), l, var(--l-max)) c h)`;
  else if (typeof look.fg === "string") style[look.inverse ? "backgroundColor" : "color"] = look.fg;
  if (typeof look.bg === "string") style[look.inverse ? "color" : "backgroundColor"] = look.bg;
  return Object.keys(style).length === 0 ? undefined : style;
}
