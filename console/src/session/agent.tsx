// What an agent says, does and asks.

import { useState } from "preact/hooks";

import { words } from "../lib/api.ts";
import { Problem } from "../lib/parts.tsx";
import type { AgentItem } from "./agent-fold.ts";
import type { TurnView } from "./fold.ts";
import { giveInput } from "./input.tsx";

const STEP_MARKS: Record<string, string> = { completed: "✓", in_progress: "▸", pending: "○" };

export function AgentPart({ item, turn, session }: { item: AgentItem; turn: TurnView; session: string }) {
  switch (item.is) {
    case "message":
      return item.reasoning ? (
        <details class="reasoning">
          <summary>Reasoning</summary>
          <p>{item.text}</p>
        </details>
      ) : (
        <p class="message">{item.text}</p>
      );
    case "action":
      return <Action item={item} />;
    case "plan":
      return (
        <ol class="plan" aria-label="Plan">
          {item.steps.map((step, at) => (
            <li key={at} class={step.state}>
              <span aria-hidden="true">{STEP_MARKS[step.state] ?? "○"}</span> {step.text} <span class="sr-only">{step.state.replace("_", " ")}</span>
            </li>
          ))}
        </ol>
      );
    case "permission":
      return <Permission item={item} turn={turn} session={session} />;
    case "notice":
      return <p class="notice plain">{item.text}</p>;
    case "failed":
      return <p class="notice bad"><b>{item.name}</b> {item.text}</p>;
  }
}

function Action({ item }: { item: Extract<AgentItem, { is: "action" }> }) {
  const state = item.phase !== "completed" ? "busy" : item.ok === false ? "bad" : "good";
  const head = (
    <>
      <span class={`state ${state}`}>
        <i class="dot" aria-hidden="true" />
        <span class="sr-only">{state === "busy" ? "running" : state === "bad" ? "failed" : "done"}</span>
      </span>
      <span class="action-kind">{item.action.replaceAll("_", " ")}</span>
      <span class="mono action-title">{item.title}</span>
    </>
  );
  if (!item.detail) return <p class="action">{head}</p>;
  return (
    <details class="action-more">
      <summary class="action">{head}</summary>
      <pre class="out" tabIndex={0}>{item.detail}</pre>
    </details>
  );
}

const PLAIN_OPTIONS = [
  { id: "allow", name: "Allow", kind: "allow_once" },
  { id: "deny", name: "Deny", kind: "reject_once" },
];

function Permission({ item, turn, session }: { item: Extract<AgentItem, { is: "permission" }>; turn: TurnView; session: string }) {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const open = item.decision === undefined && turn.end === undefined;
  const answer = async (option: string) => {
    setBusy(true);
    setProblem("");
    try {
      await giveInput(session, turn.id, { text: `${item.id} ${option}\n` });
    } catch (thrown) {
      setProblem(words(thrown));
    }
    setBusy(false);
  };
  const options = item.options.length > 0 ? item.options : PLAIN_OPTIONS;
  return (
    <div class={`ask${open ? "" : " answered"}`} role="group" aria-label="Permission">
      <p class="ask-title">The agent asks: <span class="mono">{item.title}</span></p>
      {item.decision !== undefined && <p class="muted">{item.decision.allowed ? "Allowed" : "Refused"} by {item.decision.by === "client" ? "a person" : `the ${item.decision.by}`}</p>}
      {open && (
        <div class="row wrap">
          {options.map((option) => (
            <button key={option.id} type="button" disabled={busy} class={option.kind.startsWith("reject") ? "danger" : option.kind === "allow_once" ? "primary" : ""} onClick={() => void answer(option.id)}>
              {option.name || option.id}
            </button>
          ))}
        </div>
      )}
      <Problem text={problem} />
    </div>
  );
}
