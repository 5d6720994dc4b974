// What an agent did in a turn, from its events: messages, actions, plans, questions.

export const AGENT_MIME = "application/vnd.windlass.agent+json";

export interface PermissionOption {
  id: string;
  name: string;
  kind: string;
}

export type AgentItem =
  | { is: "message"; text: string; whole: boolean; reasoning: boolean }
  | { is: "action"; id: string; action: string; title: string; phase: string; ok?: boolean | undefined; detail?: string | undefined }
  | { is: "plan"; steps: { text: string; state: string }[] }
  | { is: "permission"; id: string; title: string; options: PermissionOption[]; decision?: { allowed: boolean; by: string } }
  | { is: "notice"; text: string }
  | { is: "failed"; name: string; text: string };

export interface AgentUsage {
  input_tokens: number;
  output_tokens: number;
  cached_tokens?: number;
  cost_usd?: number;
}

/** What an agent's event changes. */
export interface AgentTurn {
  items: { type: "agent"; item: AgentItem }[];
  usage?: AgentUsage | undefined;
}

type Body = Record<string, unknown>;

const text = (value: unknown): string => (typeof value === "string" ? value : "");

/** Applies one event. The fields come from the session, which can send anything. */
export function applyAgentEvent(turn: { agent: AgentItem[]; agentUsage?: AgentUsage | undefined }, body: Body, add: (item: AgentItem) => void): void {
  switch (body.type) {
    case "message":
    case "reasoning":
      applyMessage(turn.agent, body, add);
      break;
    case "action":
      applyAction(turn.agent, body, add);
      break;
    case "plan": {
      const steps = list(body.steps).map((step) => ({ text: text(step.text), state: text(step.state) }));
      const known = turn.agent.find((item) => item.is === "plan");
      if (known?.is === "plan") known.steps = steps;
      else add({ is: "plan", steps });
      break;
    }
    case "permission": {
      const options = list(body.options).map((option) => ({ id: text(option.id), name: text(option.name), kind: text(option.kind) }));
      add({ is: "permission", id: text(body.id), title: text(body.title), options });
      break;
    }
    case "decision": {
      const asked = turn.agent.find((item) => item.is === "permission" && item.id === body.id);
      if (asked?.is === "permission") asked.decision = { allowed: body.allowed === true, by: text(body.by) };
      break;
    }
    case "usage":
      turn.agentUsage = body as unknown as AgentUsage;
      break;
    case "notice":
      add({ is: "notice", text: text(body.text) });
      break;
    case "completed": {
      const error = body.error as Body | undefined;
      if (error) add({ is: "failed", name: text(error.name), text: text(error.message) });
      break;
    }
    default:
      break;
  }
}

function list(value: unknown): Body[] {
  return Array.isArray(value) ? value.filter((item): item is Body => typeof item === "object" && item !== null) : [];
}

/** Chunks come before the whole, if the engine sends the whole. */
function applyMessage(items: AgentItem[], body: Body, add: (item: AgentItem) => void): void {
  const reasoning = body.type === "reasoning";
  const chunk = body.chunk === true;
  const last = items.at(-1);
  if (last?.is === "message" && !last.whole && last.reasoning === reasoning) {
    last.text = chunk ? last.text + text(body.text) : text(body.text);
    last.whole = !chunk;
  } else add({ is: "message", text: text(body.text), whole: !chunk, reasoning });
}

/** Later events of an id replace earlier ones. */
function applyAction(items: AgentItem[], body: Body, add: (item: AgentItem) => void): void {
  const item = {
    is: "action" as const,
    id: text(body.id),
    action: text(body.action),
    title: text(body.title),
    phase: text(body.phase),
    ok: typeof body.ok === "boolean" ? body.ok : undefined,
    detail: typeof body.detail === "string" ? body.detail : undefined,
  };
  const known = items.find((other) => other.is === "action" && other.id === item.id);
  if (known?.is === "action") Object.assign(known, { ...item, title: item.title || known.title, detail: item.detail ?? known.detail });
  else add(item);
}
