// The login of this page: a key in the page's session storage, and a cookie that script cannot read. A request
// needs both.

import { Store } from "./store.ts";

const KEY = "windlass.key";

export interface Login {
  key: string;
  scope?: string;
  tenant?: string | null;
}

export type LoginState =
  | { is: "out"; message?: string }
  | { is: "entering" }
  | { is: "in"; login: Login };

function stored(): LoginState {
  try {
    const text = sessionStorage.getItem(KEY);
    if (text !== null) return { is: "in", login: JSON.parse(text) as Login };
  } catch {
    // Unreadable: as if there were none.
  }
  return { is: "out" };
}

export const loginState = new Store<LoginState>(stored());

export const ENDED = "This login has ended. Log in again, with `windlass console` or a token.";

/** The login is no longer good: the node has refused it. */
export function endLogin(message: string): void {
  sessionStorage.removeItem(KEY);
  loginState.value = { is: "out", message };
}

function logIn(login: Login): void {
  sessionStorage.setItem(KEY, JSON.stringify(login));
  loginState.value = { is: "in", login };
}

/** What pages of the same origin tell each other. A frame with a display has another origin. */
type Told = { is: "asked" } | { is: "login"; login: Login } | { is: "left" };

/** So long a new page waits for the login of another one. */
const ASKED_MS = 500;

const pages = typeof BroadcastChannel === "undefined" ? undefined : new BroadcastChannel("windlass.login");

/** A page that is opened beside another one has its login. Logging out ends all pages. */
export function shareLogin(hasCode: boolean): void {
  if (pages === undefined) return;
  pages.onmessage = ({ data }: MessageEvent<Told>) => {
    const state = loginState.value;
    if (data.is === "asked" && state.is === "in") tell({ is: "login", login: state.login });
    if (data.is === "login" && state.is !== "in") logIn(data.login);
    // The node may have refused a request of this page before the other page said that it has logged out.
    if (data.is === "left" && (state.is === "in" || (state.is === "out" && state.message === ENDED))) endLogin(LEFT);
  };
  if (hasCode || loginState.value.is === "in") return;
  loginState.value = { is: "entering" };
  tell({ is: "asked" });
  setTimeout(() => {
    if (loginState.value.is === "entering") loginState.value = { is: "out" };
  }, ASKED_MS);
}

function tell(what: Told): void {
  pages?.postMessage(what);
}

const LEFT = "You have logged out.";

/** Takes a login code out of the address, before anything else sees the address. */
export function takeCode(): string | undefined {
  const code = /^#login=([^&]+)/.exec(location.hash)?.[1];
  if (code === undefined) return undefined;
  history.replaceState(null, "", `${location.pathname}${location.search}#/`);
  return decodeURIComponent(code);
}

export async function enter(proof: { code: string } | { token: string }): Promise<void> {
  const before = loginState.value;
  loginState.value = { is: "entering" };
  let message: string;
  try {
    const reply = await fetch("/v1/console/session", {
      method: "POST",
      credentials: "same-origin",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(proof),
    });
    if (reply.ok) {
      const { key, scope, tenant } = (await reply.json()) as Login;
      const login = { key, ...(scope ? { scope } : {}), tenant: tenant ?? null };
      logIn(login);
      tell({ is: "login", login });
      return;
    }
    const problem = (await reply.json().catch(() => ({}))) as { message?: string };
    message =
      "code" in proof
        ? "The login code was used before or is too old. Run `windlass console` again."
        : (problem.message ?? `The node refused the token (${reply.status}).`);
  } catch {
    message = "The node does not answer. Is it running?";
  }
  // A page that was open already stays open when an old link is opened in it again.
  loginState.value = before.is === "in" && "code" in proof ? before : { is: "out", message };
}

export async function leave(): Promise<void> {
  const state = loginState.value;
  if (state.is !== "in") return;
  await fetch("/v1/console/session", {
    method: "DELETE",
    credentials: "same-origin",
    headers: { "X-Windlass-Console": state.login.key },
  }).catch(() => undefined);
  tell({ is: "left" });
  endLogin(LEFT);
}
