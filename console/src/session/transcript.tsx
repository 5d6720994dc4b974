// The transcript as it happens: turn by turn, at its end unless the person has scrolled away.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { Empty } from "../lib/parts.tsx";
import { useKeys } from "../lib/keys.ts";
import { clock, count } from "../lib/text.ts";
import { Compose } from "./compose.tsx";
import { ForkNote } from "./fork-note.tsx";
import type { LiveSession } from "./live.ts";
import { Search } from "./search.tsx";
import { Turn } from "./turn.tsx";

/** Entries that are elements; earlier ones come when they are asked for. */
const SHOWN_FIRST = 60;
const SHOWN_STEP = 200;

/** Frames in which a turn is scrolled to. */
const GOAL_ROUNDS = 4;

/** So near to the end counts as the end. */
const END_PX = 24;

export function TranscriptTab({ id, live }: { id: string; live: LiveSession }) {
  const { transcript } = live;
  const { entries } = transcript;
  const [limit, setLimit] = useState(SHOWN_FIRST);
  const [away, setAway] = useState(false);
  const [finding, setFinding] = useState(false);
  const [goal, setGoal] = useState<number>();
  const scroller = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const kind = live.session?.kind ?? "";

  const toEnd = () => {
    const box = scroller.current;
    if (box === null) return;
    atEnd.current = true;
    box.scrollTop = box.scrollHeight;
    setAway(false);
  };
  useLayoutEffect(() => {
    const box = scroller.current;
    if (box !== null && atEnd.current) box.scrollTop = box.scrollHeight;
  });
  useEffect(() => {
    const [box, content] = [scroller.current, inner.current];
    if (box === null || content === null) return;
    // Images and frames grow after they were drawn.
    const grown = new ResizeObserver(() => {
      if (atEnd.current) box.scrollTop = box.scrollHeight;
    });
    grown.observe(content);
    grown.observe(box);
    return () => grown.disconnect();
  }, []);
  const scrolled = () => {
    const box = scroller.current;
    if (box === null) return;
    if (goal !== undefined) return;
    atEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < END_PX;
    setAway(!atEnd.current);
  };
  const step = (by: number) => {
    const box = scroller.current;
    if (box === null) return;
    const turns = [...box.querySelectorAll<HTMLElement>(".turn")];
    const top = box.getBoundingClientRect().top;
    const at = turns.findIndex((turn) => turn.getBoundingClientRect().bottom > top + 24);
    const next = turns[at + by];
    if (next === undefined) return by > 0 ? toEnd() : undefined;
    setGoal(Number(next.id.replace("turn-", "")));
    return undefined;
  };
  useKeys({ j: () => step(1), k: () => step(-1), G: toEnd, f: () => setFinding(true) });
  useLayoutEffect(() => {
    if (goal === undefined) return;
    const turn = document.getElementById(`turn-${goal}`);
    turn?.focus({ preventScroll: true });
    // Turns that come into view get their real height, which moves the goal.
    let rounds = GOAL_ROUNDS;
    const approach = () => {
      atEnd.current = false;
      turn?.scrollIntoView({ block: "start" });
      rounds -= 1;
      if (rounds > 0) requestAnimationFrame(approach);
      else setGoal(undefined);
    };
    approach();
  }, [goal]);
  const go = (number: number) => {
    atEnd.current = false;
    // The turn may be before the first one that is an element.
    const at = entries.findIndex((entry) => entry.type === "turn" && entry.number === number);
    setLimit(Math.max(limit, entries.length - at + 10));
    setGoal(number);
  };
  const from = Math.max(0, entries.length - limit);
  return (
    <div class="transcript">
      {finding ? (
        <Search id={id} transcript={transcript} go={go} close={() => setFinding(false)} />
      ) : (
        <button type="button" class="ghost find-open" onClick={() => setFinding(true)} title="Find in the output (f)">Find</button>
      )}
      <ForkNote id={id} />
      <div class="scroll" ref={scroller} onScroll={scrolled} tabIndex={-1} role="region" aria-label="Transcript">
        <div class="scroll-in" ref={inner}>
          {from > 0 && (
            <button type="button" class="earlier" onClick={() => { atEnd.current = false; setLimit(limit + SHOWN_STEP); }}>
              Show earlier turns ({count(from)})
            </button>
          )}
          {entries.slice(from).map((entry) =>
            entry.type === "turn" ? (
              <Turn key={`t${entry.number}`} turn={entry} version={entry.version} kind={kind} session={id} />
            ) : (
              <p key={`n${entry.key}`} class={`notice ${entry.tone}`}>
                <time>{clock(entry.atMs)}</time>
                {entry.text}
              </p>
            ),
          )}
          {entries.length === 0 && live.link !== "connecting" && <Empty><p>Nothing has run yet.</p></Empty>}
        </div>
      </div>
      {away && <button type="button" class="to-end" onClick={toEnd}>↓ Latest</button>}
      {live.state !== "ended" && live.state !== "lost" && <Compose id={id} kind={kind} transcript={transcript} sent={toEnd} />}
    </div>
  );
}
