// One session.

import { useEffect, useState } from "preact/hooks";

import type { ForkedSession, Session } from "../../../sdk/typescript/src/api.ts";
import { call, path, words } from "../lib/api.ts";
import { useKeys } from "../lib/keys.ts";
import { Dialog, Empty, Problem, State } from "../lib/parts.tsx";
import { goTo, routeText, type SessionTab } from "../lib/route.ts";
import { age, bytes, plural } from "../lib/text.ts";
import { FilesTab } from "./files.tsx";
import { noteFork } from "./fork-note.tsx";
import type { Link } from "./follow.ts";
import { type LiveSession, useLiveSession } from "./live.ts";
import { PolicyTab } from "./policy.tsx";
import { TerminalTab } from "./terminal.tsx";
import { TranscriptTab } from "./transcript.tsx";
import { UsageTab } from "./usage.tsx";

const TABS: [SessionTab, string][] = [
  ["transcript", "Transcript"],
  ["terminal", "Terminal"],
  ["files", "Files"],
  ["policy", "Policy"],
  ["usage", "Usage"],
];

const LINK_WORDS: Record<Link, string> = {
  connecting: "connecting",
  live: "",
  reconnecting: "Connection lost, trying again",
  ended: "",
  missing: "",
};

export function SessionPage({ id, tab }: { id: string; tab: SessionTab }) {
  const live = useLiveSession(id);
  const { session } = live;
  useKeys({ Escape: () => goTo({ page: "sessions" }) });
  const asks = live.state === "awaiting_input";
  useEffect(() => {
    document.title = `${asks ? "(input) " : ""}${id} · Windlass`;
  }, [asks, id]);
  if (live.link === "missing" && live.transcript.after === 0) {
    return (
      <Empty>
        <p>There is no session <code>{id}</code>. It may have been removed.</p>
        <a href="#/">All sessions</a>
      </Empty>
    );
  }
  return (
    <div class="session">
      <header class="session-top">
        <div class="session-line">
          <a class="back" href="#/" aria-label="All sessions">←</a>
          <h1 class="mono">{id}</h1>
          <State of={live.state} />
          {LINK_WORDS[live.link] !== "" && <span class="link-word" role="status">{LINK_WORDS[live.link]}</span>}
          <Actions id={id} live={live} />
        </div>
        {session !== undefined && <Facts session={session} live={live} />}
        <nav class="tabs" aria-label="Parts of the session">
          {TABS.filter(([one]) => one !== "terminal" || session?.terminal != null).map(([one, word]) => (
            <a key={one} href={routeText({ page: "session", id, tab: one })} aria-current={one === tab ? "page" : undefined}>{word}</a>
          ))}
        </nav>
      </header>
      {tab === "transcript" && <TranscriptTab id={id} live={live} />}
      {tab === "terminal" && <TerminalTab id={id} live={live} />}
      {tab === "files" && <FilesTab id={id} />}
      {tab === "policy" && <PolicyTab id={id} live={live} />}
      {tab === "usage" && <UsageTab live={live} />}
    </div>
  );
}

function Facts({ session, live }: { session: Session; live: LiveSession }) {
  const isolation = live.transcript.isolation ?? session.confinement?.isolation;
  return (
    <p class="facts">
      <span>{session.worker || session.kind}</span>
      <span class="fact-path" title={session.workspace}>{session.workspace}</span>
      <span>{plural(session.turns, "turn")}</span>
      <span>{bytes(session.output_bytes)}</span>
      <span>{age(Date.now() - session.created_at_ms)} old</span>
      {isolation !== undefined && <span class={isolation === "none" ? "bad-word" : ""}>isolation {isolation}</span>}
      {session.parent && <span>child of <a href={routeText({ page: "session", id: session.parent, tab: "transcript" })}>{session.parent}</a></span>}
      {session.forked_from && <span>fork of <a href={routeText({ page: "session", id: session.forked_from, tab: "transcript" })}>{session.forked_from}</a></span>}
      {session.owner && <span>owner {session.owner}</span>}
      {session.node && <span>node {session.node}</span>}
    </p>
  );
}

type Asked = "close" | "reset" | undefined;

function Actions({ id, live }: { id: string; live: LiveSession }) {
  const [asked, setAsked] = useState<Asked>();
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState("");
  const current = live.transcript.current;
  const running = current !== undefined;
  const over = live.state === "ended" || live.state === "lost";
  const can = live.session?.capabilities;

  const act = async (name: string, doing: () => Promise<unknown>) => {
    setBusy(name);
    setProblem("");
    try {
      await doing();
    } catch (thrown) {
      setProblem(words(thrown));
    }
    setBusy("");
    setAsked(undefined);
    live.refresh();
  };
  const interrupt = () =>
    act("interrupt", async () => {
      // By its id: another turn may run by the time that the node reads this.
      if (current !== undefined) await call(path("sessions", id, "turns", current.id, "interrupt"), { method: "POST" });
    });
  const fork = () =>
    act("fork", async () => {
      const made = await call<ForkedSession>(path("sessions", id, "fork"), { method: "POST", json: {} });
      noteFork(made);
      goTo({ page: "session", id: made.session.id, tab: "transcript" });
    });
  const reset = () => act("reset", () => call(path("sessions", id, "reset"), { method: "POST" }));
  const close = () => act("close", () => call(path("sessions", id), { method: "DELETE" }));
  useKeys({ i: () => { if (running) void interrupt(); } });

  if (over) return null;
  return (
    <div class="actions">
      <button type="button" onClick={interrupt} disabled={!running || busy !== ""} title="Interrupt the running turn (i)">Interrupt</button>
      <button type="button" onClick={fork} disabled={running || busy !== "" || (can != null && !can.includes("fork"))} title="A twin with all variables and a copy of the workspace">{busy === "fork" ? "Forking…" : "Fork"}</button>
      <button type="button" onClick={() => setAsked("reset")} disabled={busy !== ""} title="A fresh worker">Restart</button>
      <button type="button" class="danger" onClick={() => setAsked("close")} disabled={busy !== ""}>Close</button>
      {problem !== "" && <div class="actions-problem"><Problem text={problem} /></div>}
      {asked !== undefined && (
        <Dialog title={asked === "close" ? `Close ${id}?` : `Restart the worker of ${id}?`} close={() => setAsked(undefined)}>
          <p>
            {asked === "close"
              ? "The session ends, with every process it started. Its transcript stays for as long as the node keeps it."
              : "The running turn and all variables are lost. The workspace and the transcript stay."}
          </p>
          <div class="row end">
            <button type="button" onClick={() => setAsked(undefined)}>Cancel</button>
            <button type="button" class="primary danger" onClick={asked === "close" ? close : reset} disabled={busy !== ""}>{asked === "close" ? "Close the session" : "Restart"}</button>
          </div>
        </Dialog>
      )}
    </div>
  );
}
