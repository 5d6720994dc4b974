// What a twin does not have: told once, on the twin's page.

import { useState } from "preact/hooks";

import type { ForkedSession } from "../../../sdk/typescript/src/api.ts";

const notes = new Map<string, string[]>();

const NAMED_MAX = 8;

/** Keeps what is to be told of a fork. */
export function noteFork(made: ForkedSession): void {
  const lines: string[] = [];
  const missing = made.not_carried.map((item) => (item.name === "" ? item.what : `${item.what} ${item.name}`));
  if (missing.length > 0) lines.push(`Not carried, or shared with the original: ${named(missing)}`);
  const left = (made.left_out ?? []).map((directory) => (directory.linked ? `${directory.path} (linked)` : directory.path));
  if (left.length > 0) lines.push(`Directories that were not copied: ${named(left, made.left_out_more)}`);
  const reach = (made.can_reach ?? []).map((one) => `${one.what} ${one.name}`);
  if (reach.length > 0) lines.push(`Can still reach the twin: ${named(reach)}`);
  if (lines.length > 0) notes.set(made.session.id, lines);
}

function named(items: string[], more = 0): string {
  const hidden = Math.max(0, items.length - NAMED_MAX) + more;
  return `${items.slice(0, NAMED_MAX).join(", ")}${hidden > 0 ? ` and ${hidden} more` : ""}`;
}

export function ForkNote({ id }: { id: string }) {
  const [lines, setLines] = useState(notes.get(id));
  if (lines === undefined) return null;
  const close = () => {
    notes.delete(id);
    setLines(undefined);
  };
  return (
    <div class="fork-note" role="status">
      <div>{lines.map((line) => <p key={line}>{line}</p>)}</div>
      <button type="button" class="ghost" onClick={close}>Dismiss</button>
    </div>
  );
}
