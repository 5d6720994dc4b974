// Requests to the node, with the login of the page.

import type { ApiError } from "../../../sdk/typescript/src/api.ts";
import { ENDED, endLogin, loginState } from "./login.ts";
import { ApiProblem } from "./problem.ts";
import { Store } from "./store.ts";

export { ApiProblem, words } from "./problem.ts";

/** Whether the node answered the last request, and no stream of it has broken since. */
export const reachable = new Store(true);

export interface Request {
  method?: "GET" | "POST" | "PUT" | "DELETE";
  query?: Record<string, string | number | boolean | undefined>;
  json?: unknown;
  body?: BodyInit;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** A path whose parts are escaped. */
export function path(...parts: string[]): string {
  return `/v1/${parts.map(encodeURIComponent).join("/")}`;
}

/** The reply to a request that succeeded. */
export async function request(place: string, asked: Request = {}): Promise<Response> {
  const state = loginState.value;
  if (state.is !== "in") throw new ApiProblem(401, "unauthorized", ENDED, "");
  const headers: Record<string, string> = { "X-Windlass-Console": state.login.key, "Windlass-Client": "console", ...asked.headers };
  let body = asked.body;
  if (asked.json !== undefined) {
    headers["content-type"] = "application/json";
    body = JSON.stringify(asked.json);
  }
  let reply: Response;
  try {
    reply = await fetch(place + queryText(asked.query), {
      method: asked.method ?? "GET",
      credentials: "same-origin",
      cache: "no-store",
      headers,
      ...(body === undefined ? {} : { body }),
      ...(asked.signal === undefined ? {} : { signal: asked.signal }),
    });
  } catch (thrown) {
    if (asked.signal?.aborted === true) throw thrown;
    reachable.value = false;
    throw new ApiProblem(0, "unreachable", "The node does not answer.", "The page tries again by itself.");
  }
  reachable.value = true;
  if (reply.ok) return reply;
  throw await problemOf(reply);
}

async function problemOf(reply: Response): Promise<ApiProblem> {
  const error = (await reply.json().catch(() => ({}))) as Partial<ApiError>;
  if (reply.status === 401) endLogin(ENDED);
  const message = error.message ?? `The node answered ${reply.status}.`;
  return new ApiProblem(reply.status, error.code ?? "internal", message, error.remedy ?? "");
}

export async function call<T>(place: string, asked: Request = {}): Promise<T> {
  const reply = await request(place, asked);
  return (await reply.json()) as T;
}

function queryText(query: Request["query"]): string {
  if (query === undefined) return "";
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined) asked.set(name, String(value));
  }
  const text = asked.toString();
  return text === "" ? "" : `?${text}`;
}
