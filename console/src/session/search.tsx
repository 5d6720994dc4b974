// Finds a text in all of the session's output, also in what the page has left to the node.

import { useLayoutEffect, useRef, useState } from "preact/hooks";

import type { SearchResult } from "../../../sdk/typescript/src/api.ts";
import { call, path, words } from "../lib/api.ts";
import { Problem } from "../lib/parts.tsx";
import { plural } from "../lib/text.ts";
import { PLAIN, renderLine } from "./ansi.ts";
import type { Transcript } from "./fold.ts";

export interface SearchProps {
  id: string;
  transcript: Transcript;
  go: (turn: number) => void;
  close: () => void;
}

export function Search({ id, transcript, go, close }: SearchProps) {
  const [query, setQuery] = useState("");
  const [found, setFound] = useState<{ query: string; result: SearchResult }>();
  const [problem, setProblem] = useState("");
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => field.current?.focus(), []);
  const search = async (event: Event) => {
    event.preventDefault();
    if (query === "") return;
    try {
      setFound({ query, result: await call<SearchResult>(path("sessions", id, "output", "search"), { query: { query, limit: 200 } }) });
      setProblem("");
    } catch (thrown) {
      setProblem(words(thrown));
    }
  };
  const matches = found?.result.matches ?? [];
  return (
    <section class="find" aria-label="Find in the output">
      <form class="row" onSubmit={search}>
        <input
          ref={field}
          type="search"
          placeholder="Find in the output"
          aria-label="Find in the output"
          spellcheck={false}
          value={query}
          onInput={(event) => setQuery(event.currentTarget.value)}
          onKeyDown={(event) => { if (event.key === "Escape") { event.stopPropagation(); close(); } }}
        />
        <button type="submit">Find</button>
        <button type="button" class="ghost" onClick={close}>Close</button>
      </form>
      <Problem text={problem} />
      {found !== undefined && <p class="muted" role="status">{found.result.more ? "The first " : ""}{plural(matches.length, "line")}</p>}
      {matches.length > 0 && (
        <ul>
          {matches.map((match) => {
            const turn = transcript.turnAt(match.offset);
            return (
              <li key={match.offset}>
                <button type="button" onClick={() => turn !== undefined && go(turn)}>
                  <span class="num muted">{turn}</span>
                  <Marked line={match.line} query={found?.query ?? ""} />
                </button>
              </li>
            );
          })}
        </ul>
      )}
    </section>
  );
}

/** A line without colours, with the first match in view. */
function Marked({ line, query }: { line: string; query: string }) {
  const text = renderLine(line.replaceAll("\n", " "), PLAIN).pieces.map((piece) => piece.text).join("");
  const at = text.indexOf(query);
  if (at < 0) return <span class="mono">{text}</span>;
  return (
    <span class="mono">
      {at > 60 ? `…${text.slice(at - 40, at)}` : text.slice(0, at)}
      <mark>{query}</mark>
      {text.slice(at + query.length)}
    </span>
  );
}
