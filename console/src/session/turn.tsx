// One turn: its code, what came of it, and what it cost.

import { Component } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";

import { call, path, words } from "../lib/api.ts";
import { Copy } from "../lib/copy.tsx";
import { State } from "../lib/parts.tsx";
import { age, bytes, clock, count, duration, plural } from "../lib/text.ts";
import { AgentPart } from "./agent.tsx";
import { DisplayPart } from "./display.tsx";
import type { Call, Item, TurnView } from "./fold.ts";
import { highlight } from "./highlight.ts";
import { InputBox } from "./input.tsx";
import { OutputPart } from "./output.tsx";

export interface TurnProps {
  turn: TurnView;
  version: number;
  kind: string;
  session: string;
}

/** Items of one turn that are elements. */
const ITEMS_SHOWN = 200;

/** Lines of code that are shown at first. */
const CODE_LINES = 24;

/** Draws again only when the turn itself has changed. */
export class Turn extends Component<TurnProps> {
  override shouldComponentUpdate(next: TurnProps): boolean {
    return next.turn !== this.props.turn || next.version !== this.props.version || next.kind !== this.props.kind;
  }

  override render({ turn, kind, session }: TurnProps) {
    const isAgent = kind.startsWith("agent") || kind.startsWith("acp") || turn.agent.length > 0;
    return (
      <article class={`turn ${turn.phase}`} id={`turn-${turn.number}`} tabIndex={-1} aria-label={`Turn ${turn.number}`}>
        <div class="turn-head">
          <span class="turn-number" title={`Turn ${turn.id}`}>{turn.number}</span>
          <State of={turn.end?.outcome ?? turn.phase} />
          <time>{clock(turn.acceptedAtMs)}</time>
          <Cost turn={turn} />
          {turn.phase === "waiting" && <TakeBack session={session} turn={turn.id} />}
        </div>
        {isAgent ? <p class="prompt">{turn.code}</p> : <Code code={turn.code} kind={kind} />}
        <Items turn={turn} session={session} isAgent={isAgent} />
        {turn.wait !== undefined && !asksPermission(turn) && <InputBox key={turn.wait.seq} session={session} turn={turn.id} wait={turn.wait} />}
        <Failure turn={turn} />
      </article>
    );
  }
}

/** A turn that waits behind another one need not run. */
function TakeBack({ session, turn }: { session: string; turn: string }) {
  const [problem, setProblem] = useState("");
  const act = () => call(path("sessions", session, "turns", turn, "interrupt"), { method: "POST" }).catch((thrown: unknown) => setProblem(words(thrown)));
  return (
    <span class="cost">
      {problem}
      <button type="button" class="link" onClick={() => void act()}>Take back</button>
    </span>
  );
}

/** A permission is answered by its own buttons. */
function asksPermission(turn: TurnView): boolean {
  return turn.agent.some((item) => item.is === "permission" && item.decision === undefined);
}

function Items({ turn, session, isAgent }: { turn: TurnView; session: string; isAgent: boolean }) {
  const [limit, setLimit] = useState(ITEMS_SHOWN);
  const from = Math.max(0, turn.items.length - limit);
  const hasMessage = isAgent && turn.agent.some((item) => item.is === "message" && !item.reasoning);
  return (
    <div class="items">
      {from > 0 && <button type="button" class="link" onClick={() => setLimit(limit * 4)}>Show {count(from)} earlier parts</button>}
      {turn.items.slice(from).map((item, at) => <ItemPart key={from + at} item={item} turn={turn} session={session} hasMessage={hasMessage} />)}
    </div>
  );
}

function ItemPart({ item, turn, session, hasMessage }: { item: Item; turn: TurnView; session: string; hasMessage: boolean }) {
  switch (item.type) {
    case "output":
    case "result":
    case "traceback":
      // An agent's answer is its output as well.
      if (hasMessage && item.type !== "traceback") return null;
      return <OutputPart store={item.store} look={item.type} session={session} turn={turn.id} live={turn.end === undefined} />;
    case "display":
      return <DisplayPart display={item} session={session} version={item.seq} />;
    case "call":
      return <CallPart call={item} />;
    case "agent":
      return <AgentPart item={item.item} turn={turn} session={session} />;
    case "notice":
      return <p class={`notice ${item.tone}`}>{item.text}</p>;
  }
}

function Code({ code, kind }: { code: string; kind: string }) {
  const [all, setAll] = useState(false);
  const lines = useMemo(() => code.replace(/\n+$/, "").split("\n"), [code]);
  const cut = !all && lines.length > CODE_LINES + 4;
  const shown = cut ? lines.slice(0, CODE_LINES).join("\n") : lines.join("\n");
  const tokens = useMemo(() => highlight(shown, kind), [shown, kind]);
  return (
    <div class="code">
      <Copy text={() => code} label="Copy the code" />
      <pre tabIndex={0} aria-label="Code">
        {tokens.map((token, at) => (token.kind === "plain" ? token.text : <span key={at} class={`tok-${token.kind}`}>{token.text}</span>))}
      </pre>
      {cut && <button type="button" class="link" onClick={() => setAll(true)}>Show {plural(lines.length - CODE_LINES, "more line")}</button>}
    </div>
  );
}

const CALL_STATES = { running: "running", ok: "ok", failed: "error", cancelled: "interrupted" } as const;

function CallPart({ call }: { call: Call }) {
  return (
    <p class="call">
      <span class="call-mark" aria-hidden="true">ƒ</span>
      <span class="mono">{call.name}</span>
      <State of={CALL_STATES[call.state]} />
      <span class="muted">
        {bytes(call.bytes)} in{call.resultBytes !== undefined && `, ${bytes(call.resultBytes)} out`}
        {call.wallMs !== undefined && `, ${duration(call.wallMs)}`}
        {call.code && `, ${call.code.replaceAll("_", " ")}`}
      </span>
    </p>
  );
}

function Cost({ turn }: { turn: TurnView }) {
  const usage = turn.end?.usage;
  if (usage === undefined) return turn.end === undefined && turn.phase !== "waiting" ? <Elapsed from={turn.startedAtMs} /> : null;
  const tokens = turn.agentUsage;
  return (
    <span class="cost">
      <span title="Wall time">{duration(usage.wall_ms)}</span>
      <span class="wide" title="Processor time">{duration(usage.cpu_ms)} cpu</span>
      <span class="wide" title="Peak memory of the worker so far">{bytes(usage.peak_rss_bytes)}</span>
      {usage.output_bytes > 0 && <span class="wide" title="Output">{bytes(usage.output_bytes)} out</span>}
      {tokens !== undefined && <span title="Tokens">{count(tokens.input_tokens)} → {count(tokens.output_tokens)} tokens</span>}
      {tokens?.cost_usd !== undefined && <span>${tokens.cost_usd.toFixed(4)}</span>}
      {turn.end?.exitCode !== undefined && turn.end.exitCode !== 0 && <span>exit {turn.end.exitCode}</span>}
    </span>
  );
}

function Elapsed({ from }: { from: number }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((value) => value + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return <span class="cost">{age(Date.now() - from)}</span>;
}

function Failure({ turn }: { turn: TurnView }) {
  const end = turn.end;
  if (end === undefined) return null;
  const hasTraceback = turn.items.some((item) => item.type === "traceback");
  const error = end.error !== undefined && (!hasTraceback || end.error.code != null) ? end.error : undefined;
  if (error === undefined && end.refusal === undefined && end.lost.length === 0) return null;
  return (
    <div class="failure" role="note">
      {error !== undefined && <p><b>{error.name}</b> {error.message}</p>}
      {end.refusal !== undefined && <p>{end.refusal}</p>}
      {end.lost.length > 0 && <p>Lost: {end.lost.join(", ")}</p>}
    </div>
  );
}
