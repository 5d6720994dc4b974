// Which sessions are shown, and in which order: those that wait for a person come first.

import type { SessionRow, SessionState } from "../../../sdk/typescript/src/api.ts";

/** A group of states that people tell apart. */
export type Group = "input" | "running" | "idle" | "trouble" | "ended";

export const GROUPS: Group[] = ["input", "running", "idle", "trouble", "ended"];

const GROUP_OF: Record<SessionState, Group> = {
  awaiting_input: "input",
  starting: "running",
  busy: "running",
  interrupting: "running",
  restarting: "running",
  idle: "idle",
  unreachable: "trouble",
  lost: "trouble",
  ended: "ended",
};

export function groupOf(session: SessionRow): Group {
  return GROUP_OF[session.state] ?? "trouble";
}

export function counts(sessions: SessionRow[]): Record<Group, number> {
  const result = { input: 0, running: 0, idle: 0, trouble: 0, ended: 0 };
  for (const session of sessions) result[groupOf(session)] += 1;
  return result;
}

/** Whether a session has every word of the search somewhere. */
export function matches(session: SessionRow, words: string[]): boolean {
  if (words.length === 0) return true;
  const text = [session.id, session.kind, session.client, session.workspace, session.owner, session.node, session.environment, session.parent]
    .filter((part) => typeof part === "string")
    .join("\n")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

export function searchWords(search: string): string[] {
  return search.toLowerCase().split(/\s+/).filter((word) => word !== "");
}

/** What the sessions are sorted by. */
export type SortKey = "state" | "memory" | "processor";

export const SORT_KEYS: SortKey[] = ["state", "memory", "processor"];

export interface Arranging {
  group: Group | undefined;
  search: string;
  sort: SortKey;
  /** Percent of a processor that a session uses, if it is known. */
  percent: (session: SessionRow) => number | undefined;
}

/** The sessions to show: of a group, with the words, in order. Those that wait for input come first in every order. */
export function arranged(sessions: SessionRow[], { group, search, sort, percent }: Arranging): SessionRow[] {
  const words = searchWords(search);
  const shown = sessions.filter((session) => (group === undefined || groupOf(session) === group) && matches(session, words));
  if (sort === "state") return shown.sort(byUrgency);
  const figure = (session: SessionRow) => (sort === "memory" ? session.memory_bytes : percent(session)) ?? -1;
  const asks = (session: SessionRow) => (groupOf(session) === "input" ? 1 : 0);
  return shown.sort((left, right) => asks(right) - asks(left) || figure(right) - figure(left) || byUrgency(left, right));
}

const RANK: Record<Group, number> = { input: 0, running: 1, idle: 2, trouble: 3, ended: 4 };

function byUrgency(left: SessionRow, right: SessionRow): number {
  const groups = RANK[groupOf(left)] - RANK[groupOf(right)];
  if (groups !== 0) return groups;
  return (right.created_at_ms ?? 0) - (left.created_at_ms ?? 0) || (left.id < right.id ? -1 : 1);
}
