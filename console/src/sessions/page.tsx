// The sessions of the node: a live list.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import type { SessionRow } from "../../../sdk/typescript/src/api.ts";
import { announce } from "../lib/announce.tsx";
import { words } from "../lib/api.ts";
import { inFleet } from "../lib/fleet.ts";
import { useKeys } from "../lib/keys.ts";
import { Empty, Problem, State } from "../lib/parts.tsx";
import { usePolling } from "../lib/poll.ts";
import { goTo, routeText } from "../lib/route.ts";
import { age, bytes, count, plural } from "../lib/text.ts";
import { Virtual } from "../lib/virtual.tsx";
import { readSessions } from "./list.ts";
import { NewSession } from "./new.tsx";
import { arranged, counts, type Group, GROUPS, SORT_KEYS, type SortKey } from "./order.ts";
import { percentText, ProcessorUse } from "./processor.ts";

const GROUP_WORDS: Record<Group, string> = { input: "Waiting for input", running: "Running", idle: "Idle", trouble: "Trouble", ended: "Ended" };

const SORT_WORDS: Record<SortKey, string> = { state: "Sort by state", memory: "Sort by memory", processor: "Sort by processor" };

const EVERY_MS = 2000;
const ROW_PX = 36;
const NARROW_ROW_PX = 60;

/** What the page had when it was left: it comes back as it was. */
const kept: { sessions: SessionRow[] | undefined; group: Group | undefined; search: string; sort: SortKey; ended: boolean; chosen: string | undefined } = {
  sessions: undefined,
  group: undefined,
  search: "",
  sort: "state",
  ended: false,
  chosen: undefined,
};

/** What the sessions use, from one reading of the overview to the next. */
const processors = new ProcessorUse();

function useNarrow(): boolean {
  const query = useMemo(() => matchMedia("(max-width: 760px)"), []);
  const [narrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const changed = () => setNarrow(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, [query]);
  return narrow;
}

export function SessionsPage() {
  const [sessions, setSessions] = useState(kept.sessions);
  const [group, setGroup] = useState(kept.group);
  const [search, setSearch] = useState(kept.search);
  const [sort, setSort] = useState(kept.sort);
  const [ended, setEnded] = useState(kept.ended);
  const [chosen, setChosen] = useState(kept.chosen);
  const [problem, setProblem] = useState("");
  const [making, setMaking] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  const narrow = useNarrow();
  Object.assign(kept, { sessions, group, search, sort, ended, chosen });

  usePolling(EVERY_MS, async (signal) => {
    try {
      const fleet = await inFleet();
      const first = kept.sessions === undefined;
      const all = await readSessions({ ended, fleet }, signal, (some) => first && setSessions(some));
      processors.take(all);
      setSessions(all);
      setProblem("");
    } catch (thrown) {
      if (!signal.aborted) setProblem(words(thrown));
    }
  }, [ended]);

  const total = useMemo(() => counts(sessions ?? []), [sessions]);
  const shown = useMemo(() => {
    return arranged(sessions ?? [], { group, search, sort, percent: (session) => processors.percent(session) });
  }, [sessions, group, search, sort]);
  const at = shown.findIndex((session) => session.id === chosen);
  const move = (steps: number) => {
    // Keys can come faster than the page is drawn.
    const from = shown.findIndex((session) => session.id === kept.chosen);
    const next = shown[Math.max(0, Math.min(shown.length - 1, from + steps))];
    if (next === undefined) return;
    kept.chosen = next.id;
    setChosen(next.id);
    announce(`${next.id}, ${next.state.replaceAll("_", " ")}`);
  };
  const open = (id: string | undefined) => id !== undefined && goTo({ page: "session", id, tab: "transcript" });
  useKeys({
    "/": () => field.current?.focus(),
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: () => open(kept.chosen),
    c: () => setMaking(true),
    Escape: () => setSearch(""),
  });
  useEffect(() => {
    document.title = `${total.input > 0 ? `(${total.input}) ` : ""}Sessions · Windlass`;
    if (total.input > 0) announce(`${plural(total.input, "session")} waiting for input`);
  }, [total.input]);

  const columns = shown.some((session) => typeof session.node === "string") ? "with-node" : "";
  return (
    <div class="sessions">
      <h1 class="sr-only">Sessions</h1>
      <div class="bar">
        <div class="chips" role="group" aria-label="Filter by state">
          <Chip on={group === undefined} label="All" value={sessions?.length ?? 0} act={() => setGroup(undefined)} />
          {GROUPS.filter((one) => one !== "ended" || ended).map((one) => (
            <Chip key={one} on={group === one} label={GROUP_WORDS[one]} value={total[one]} tone={one} act={() => setGroup(group === one ? undefined : one)} />
          ))}
          <label class="check">
            <input type="checkbox" checked={ended} onChange={(event) => { setEnded(event.currentTarget.checked); if (group === "ended") setGroup(undefined); }} />
            Show ended
          </label>
        </div>
        <select aria-label="Order" value={sort} onChange={(event) => setSort(event.currentTarget.value as SortKey)}>
          {SORT_KEYS.map((key) => <option key={key} value={key}>{SORT_WORDS[key]}</option>)}
        </select>
        <input
          ref={field}
          type="search"
          class="search"
          placeholder="Search  /"
          aria-label="Search sessions"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
          onKeyDown={(event) => { if (event.key === "Enter") open(shown[0]?.id); }}
        />
        <button type="button" class="primary" onClick={() => setMaking(true)} title="New session (c)">New session</button>
      </div>
      <Problem text={problem} />
      <div class={`session-head ${columns}`} aria-hidden="true">
        <span>State</span><span>Session</span><span>Kind</span><span>Workspace</span>
        {columns !== "" && <span>Node</span>}
        <span class="client">Client</span>
        <span class="num">Memory</span><span class="num">CPU</span>
        <span class="num turns">Turns</span><span class="num output">Output</span><span class="num">Age</span>
      </div>
      {sessions !== undefined && shown.length === 0 ? (
        <Nothing all={sessions.length === 0} make={() => setMaking(true)} />
      ) : (
        <Virtual
          class={`session-rows ${columns}`}
          role="list"
          label={plural(shown.length, "session")}
          count={shown.length}
          rowHeight={narrow ? NARROW_ROW_PX : ROW_PX}
          reveal={at}
          row={(index) => {
            const session = shown[index];
            return (
              session && (
                <div key={session.id} role="listitem" aria-posinset={index + 1} aria-setsize={shown.length}>
                  <Row session={session} chosen={session.id === chosen} withNode={columns !== ""} />
                </div>
              )
            );
          }}
        />
      )}
      {making && <NewSession close={() => setMaking(false)} />}
    </div>
  );
}

function Chip(props: { on: boolean; label: string; value: number; tone?: Group; act: () => void }) {
  const tone = props.value > 0 ? (props.tone ?? "") : "";
  return (
    <button type="button" class={`chip ${tone}`} aria-pressed={props.on} onClick={props.act}>
      {props.label} <b>{count(props.value)}</b>
    </button>
  );
}

function Nothing({ all, make }: { all: boolean; make: () => void }) {
  return (
    <Empty>
      <p>{all ? "No session is live." : "No session matches."}</p>
      {all && <button type="button" class="primary" onClick={make}>New session</button>}
    </Empty>
  );
}

function Row({ session, chosen, withNode }: { session: SessionRow; chosen: boolean; withNode: boolean }) {
  const { id, kind = "", workspace = "", client, owner, parent, turn, waiting = 0 } = session;
  const percent = processors.percent(session);
  const about = [id, turn == null ? kind : `${kind} turn ${turn}`, workspace, client && `client ${client}`, owner && `owner ${owner}`];
  return (
    <a
      class={`session-row${chosen ? " chosen" : ""}`}
      href={routeText({ page: "session", id, tab: "transcript" })}
      aria-current={chosen ? "true" : undefined}
      title={about.filter((line) => line != null && line !== "").join("\n")}
    >
      <State of={session.state} short />
      <span class="session-id">
        {id}
        {parent && <small>child of {parent}</small>}
        {session.forked_from && <small>fork of {session.forked_from}</small>}
        {owner && <small>{owner}</small>}
      </span>
      <span class="kind">{kind}</span>
      <span class="workspace"><bdi>{workspace}</bdi></span>
      {withNode && <span class="kind node">{session.node}</span>}
      <span class="kind client">{client}</span>
      <span class="num memory">{session.memory_bytes == null ? "" : bytes(session.memory_bytes)}</span>
      <span class="num processor">{percentText(percent)}</span>
      <span class="num turns">{count(session.turns)}{waiting > 0 && <small> +{waiting}</small>}</span>
      <span class="num output">{bytes(session.output_bytes)}</span>
      <span class="num age">{session.created_at_ms === undefined ? "" : age(Date.now() - session.created_at_ms)}</span>
    </a>
  );
}
