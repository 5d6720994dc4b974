// Agents in sessions: codex, claude, opencode, gemini, or any that speaks ACP. A run is one prompt, and yields the
// events of its turn.

import { TextDecoder } from "node:util";

import type { AgentRequest } from "./api.js";
import { bytesOf, type SessionEvent } from "./events.js";
import type { Session } from "./session.js";
import type { Turn } from "./turn.js";

/** The type of a display that is an agent's event. */
export const AGENT_MIME = "application/vnd.windlass.agent+json";

export type ActionKind =
  | "command"
  | "file_change"
  | "tool"
  | "web_search"
  | "sub_agent"
  | "turn"
  | "note"
  | "warning"
  | "unknown";

/** An answer to a permission. */
export interface PermissionOption {
  id: string;
  name: string;
  kind: "allow_once" | "allow_always" | "reject_once" | "reject_always";
}

/** The agent asks whether it may do something. */
export interface AgentPermission {
  type: "permission";
  id: string;
  title: string;
  options: PermissionOption[];
  action?: string;
}

/** What an agent did. */
export type AgentEventBody =
  | { type: "started"; engine: string; resume: string }
  | { type: "message"; text: string; chunk?: boolean; phase?: string }
  | { type: "reasoning"; text: string; chunk?: boolean }
  | {
      type: "action";
      id: string;
      action: ActionKind;
      title: string;
      phase: "started" | "updated" | "completed";
      ok?: boolean;
      detail?: string;
    }
  | { type: "plan"; steps: { text: string; state: "pending" | "in_progress" | "completed" }[] }
  | AgentPermission
  | {
      type: "decision";
      id: string;
      option?: string;
      allowed: boolean;
      by: "client" | "policy" | "deadline" | "interrupt" | "engine";
    }
  | {
      type: "usage";
      input_tokens: number;
      output_tokens: number;
      cached_tokens?: number;
      reasoning_tokens?: number;
      cost_usd?: number;
    }
  | { type: "notice"; text: string; id?: string }
  | {
      type: "completed";
      engine: string;
      resume?: string;
      ok: boolean;
      answer: string;
      error?: { name: string; message: string };
      stop_reason?: string;
    };

/** One event of an agent's turn, with its position in the session and the agent's own message. */
export type AgentEvent = AgentEventBody & { seq: number; synthetic?: boolean; raw?: unknown };

export interface AgentRunOptions {
  /** How long the turn may run. Default: no limit. */
  deadlineMs?: number | undefined;
  /** Answers a permission: `true`, `false`, or a word or an option's id. Without it others may answer. */
  onPermission?:
    | ((asked: AgentPermission) => boolean | string | Promise<boolean | string>)
    | undefined;
  /** Interrupts the turn when the signal aborts. */
  signal?: AbortSignal | undefined;
}

/** Settings of an agent, besides those of its session. */
export interface AgentSettings {
  /** The conversation to go on with. */
  resume?: string | undefined;
  model?: string | undefined;
  permissions?: AgentRequest["permissions"];
  permissionDeadlineMs?: number | undefined;
  stallMs?: number | undefined;
  /** Work in a copy of the workspace; `"all"` also copies environments, packages and caches. */
  branch?: boolean | "all" | undefined;
  /** More arguments for the agent's program. */
  arguments?: string[] | undefined;
}

/** The worker of an agent: `codex` is `agent:codex`, `acp:COMMAND` is itself. */
export function workerOf(engine: string): string {
  return engine.startsWith("acp:") ? engine : `agent:${engine}`;
}

/** The settings as the node takes them. */
export function agentRequest(settings: AgentSettings): AgentRequest {
  const { resume, model, permissions, permissionDeadlineMs, stallMs } = settings;
  return {
    ...(resume === undefined ? {} : { resume }),
    ...(model === undefined ? {} : { model }),
    ...(permissions === undefined ? {} : { permissions }),
    ...(permissionDeadlineMs === undefined ? {} : { permission_deadline_ms: permissionDeadlineMs }),
    ...(stallMs === undefined ? {} : { stall_ms: stallMs }),
    ...(settings.arguments === undefined ? {} : { arguments: settings.arguments }),
  };
}

/** An agent. Its session is created by the first run. */
export class Agent {
  #session: Promise<Session> | undefined;
  /** The token of the conversation, once it is known. */
  resume: string | undefined;

  /** Use {@link Windlass.agent}. */
  constructor(
    private readonly create: () => Promise<Session>,
    resume: string | undefined,
  ) {
    this.resume = resume;
  }

  /** The agent's session. */
  session(): Promise<Session> {
    this.#session ??= this.create();
    return this.#session;
  }

  /** Gives the agent a prompt and yields the events of its turn. The last one is `completed`. */
  async *run(
    prompt: string,
    options: AgentRunOptions = {},
  ): AsyncGenerator<AgentEvent, void, undefined> {
    const session = await this.session();
    const turn = await session.submit(prompt, { deadlineMs: options.deadlineMs });
    const asked = new Map<string, AgentPermission>();
    for await (const event of turn.events({ signal: options.signal })) {
      if (event.kind === "stdin_wait") await answer(event.prompt, asked, turn, options);
      const made = await agentEvent(event, turn);
      if (made === undefined) continue;
      if (made.type === "permission") asked.set(made.id, made);
      if ("resume" in made && made.resume !== undefined) this.resume = made.resume;
      yield made;
    }
  }

  /** Ends the session with everything that the agent started. The conversation can be resumed. */
  async close(): Promise<void> {
    const session = this.#session;
    this.#session = undefined;
    await (await session)?.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

async function answer(
  prompt: string,
  asked: Map<string, AgentPermission>,
  turn: Turn,
  options: AgentRunOptions,
): Promise<void> {
  const id = /\[(p\d+)\]/.exec(prompt)?.[1];
  const permission = id === undefined ? undefined : asked.get(id);
  if (permission === undefined || options.onPermission === undefined) return;
  const choice = await options.onPermission(permission);
  const word = typeof choice === "string" ? choice : choice ? "allow" : "deny";
  await turn.input(`${permission.id} ${word}\n`);
}

/** The agent's event in a display, if the event is one. */
async function agentEvent(event: SessionEvent, turn: Turn): Promise<AgentEvent | undefined> {
  if (event.kind !== "display" || event.mime !== AGENT_MIME || event.more) return undefined;
  const body = parsed(bytesOf(event)) ?? parsed(await turn.display(event.seq));
  return body === undefined ? undefined : { ...body, seq: event.seq };
}

/** The body, unless it is left out or the last of several parts. */
function parsed(bytes: Uint8Array): AgentEventBody | undefined {
  try {
    return JSON.parse(new TextDecoder().decode(bytes)) as AgentEventBody;
  } catch {
    return undefined;
  }
}
