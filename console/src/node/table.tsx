// Tables of the node's page.

import type { ComponentChildren } from "preact";

import { Problem } from "../lib/parts.tsx";

export function Table({ title, heads, rows, note }: { title: string; heads: string[]; rows: { key: string; cells: ComponentChildren[] }[]; note?: string | null | undefined }) {
  return (
    <section>
      <h2>{title}</h2>
      {note && <Problem text={note} />}
      {rows.length === 0 ? (
        <p class="muted">None.</p>
      ) : (
        <div class="table-box" tabIndex={0} role="region" aria-label={title}>
          <table>
            <thead><tr>{heads.map((head) => <th key={head} scope="col">{head}</th>)}</tr></thead>
            <tbody>{rows.map((row) => <tr key={row.key}>{row.cells.map((cell, at) => <td key={at}>{cell}</td>)}</tr>)}</tbody>
          </table>
        </div>
      )}
    </section>
  );
}

export function word(tone: string, text: string) {
  return <span class={`state ${tone}`}><i class="dot" aria-hidden="true" />{text}</span>;
}
