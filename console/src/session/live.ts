// One session that a page shows: its transcript, kept up to date, and the session itself.

import { useEffect, useMemo, useReducer, useState } from "preact/hooks";

import type { Session } from "../../../sdk/typescript/src/api.ts";
import { announce } from "../lib/announce.tsx";
import { ApiProblem, call, path } from "../lib/api.ts";
import { oncePerFrame } from "../lib/store.ts";
import { Transcript } from "./fold.ts";
import { follow, type Link } from "./follow.ts";

/** The session is read again so long after an event that changed it. */
const REFRESH_MS = 150;

/** A page that nobody sees gives its connection back: a browser has few of them for one host. */
const HIDDEN_MS = 15_000;

export interface LiveSession {
  transcript: Transcript;
  session: Session | undefined;
  link: Link;
  /** What to show as the session's state: the transcript knows it first. */
  state: string;
  refresh: () => void;
}

export function useLiveSession(id: string): LiveSession {
  const transcript = useMemo(() => new Transcript(), [id]);
  const [session, setSession] = useState<Session>();
  const [link, setLink] = useState<Link>("connecting");
  const [, redraw] = useReducer((version: number) => version + 1, 0);
  const [asked, refresh] = useReducer((version: number) => version + 1, 0);

  useEffect(() => {
    const drawn = oncePerFrame(() => {
      tell(transcript, told);
      redraw(undefined);
    });
    const told = { turns: -1, waits: 0 };
    let abort: AbortController | undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const start = () => {
      if (abort !== undefined) return;
      abort = new AbortController();
      const listener = { after: () => transcript.after, apply: (event: Parameters<Transcript["apply"]>[0]) => { transcript.apply(event); drawn(); }, link: setLink };
      void follow(id, listener, abort.signal);
    };
    const stop = () => {
      abort?.abort();
      abort = undefined;
    };
    const seen = () => {
      clearTimeout(timer);
      if (document.hidden) timer = setTimeout(stop, HIDDEN_MS);
      else start();
    };
    document.addEventListener("visibilitychange", seen);
    start();
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
      stop();
    };
  }, [id, transcript]);

  const changes = transcript.sessionVersion;
  useEffect(() => {
    const abort = new AbortController();
    const read = () => {
      call<Session>(path("sessions", id), { signal: abort.signal }).then(setSession, (thrown) => {
        if (thrown instanceof ApiProblem && thrown.status === 404) setLink("missing");
      });
    };
    const timer = setTimeout(read, session === undefined ? 0 : REFRESH_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [id, changes, asked, link]);

  return { transcript, session, link, state: stateOf(transcript, session), refresh: () => refresh(undefined) };
}

function stateOf(transcript: Transcript, session: Session | undefined): string {
  if (transcript.ended !== undefined) return "ended";
  const turn = transcript.current;
  if (session === undefined || ["starting", "restarting", "unreachable", "lost", "ended"].includes(session.state)) return session?.state ?? "starting";
  if (turn === undefined) return session.state === "idle" || session.seq > transcript.after ? session.state : "idle";
  return turn.phase === "waiting" || turn.phase === "running" ? "busy" : turn.phase;
}

/** Tells screen readers of turns that end and of questions. */
function tell(transcript: Transcript, told: { turns: number; waits: number }): void {
  const turn = transcript.current;
  const ended = [...transcript.turns.values()].findLast((one) => one.end !== undefined);
  if (turn?.wait !== undefined && turn.wait.seq !== told.waits) {
    told.waits = turn.wait.seq;
    announce(`Turn ${turn.number} asks for input: ${turn.wait.prompt}`);
  } else if (ended !== undefined && ended.number !== told.turns) {
    // What had ended before the page was opened is not news.
    if (told.turns >= 0) announce(`Turn ${ended.number} ended: ${ended.end?.outcome.replace("_", " ")}. ${lastLine(ended)}`);
    told.turns = ended.number;
  } else if (told.turns < 0) told.turns = ended?.number ?? 0;
}

function lastLine(turn: { items: { type: string; store?: { lineCount: number; row(line: number): { pieces: { text: string }[] } | undefined } }[] }): string {
  const store = turn.items.findLast((item) => item.store !== undefined)?.store;
  const row = store?.row(store.lineCount - 1);
  return (row?.pieces ?? []).map((piece) => piece.text).join("").slice(0, 200);
}
