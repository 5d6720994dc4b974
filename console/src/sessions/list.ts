// Reads the overview of sessions, page by page.

import type { SessionOverview, SessionRow } from "../../../sdk/typescript/src/api.ts";
import { call } from "../lib/api.ts";

/** As many as the node puts into one page. Reading a page takes less than a frame: a row has about 300 bytes. */
const PAGE = 500;

/** Pages of one reading; more sessions are not shown. */
const PAGES_MAX = 40;

export interface Wanted {
  ended: boolean;
  fleet: boolean;
}

/** Reads the sessions. `some` gets what is there after each page, so that the first page can be shown at once. */
export async function readSessions(wanted: Wanted, signal: AbortSignal, some: (sessions: SessionRow[]) => void): Promise<SessionRow[]> {
  const sessions: SessionRow[] = [];
  let cursor: string | undefined;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const query = { limit: PAGE, cursor, all: wanted.ended || undefined, fleet: wanted.fleet || undefined };
    const list = await call<SessionOverview>("/v1/overview", { query, signal });
    sessions.push(...list.sessions);
    cursor = list.cursor ?? undefined;
    if (cursor === undefined) break;
    some([...sessions]);
  }
  return sessions;
}
