// The routes of the page, in the fragment of its address: the node serves one document.

import { Store } from "./store.ts";

export type SessionTab = "transcript" | "terminal" | "files" | "policy" | "usage";

export type Route =
  | { page: "sessions" }
  | { page: "session"; id: string; tab: SessionTab }
  | { page: "node" };

const TABS: readonly string[] = ["transcript", "terminal", "files", "policy", "usage"];

export function parseRoute(hash: string): Route {
  const parts = hash.replace(/^#?\/?/, "").split("/");
  if (parts[0] === "node") return { page: "node" };
  if (parts[0] === "s" && parts[1] !== undefined && parts[1] !== "") {
    const tab = TABS.includes(parts[2] ?? "") ? (parts[2] as SessionTab) : "transcript";
    return { page: "session", id: decode(parts[1]), tab };
  }
  return { page: "sessions" };
}

export function routeText(route: Route): string {
  if (route.page === "node") return "#/node";
  if (route.page === "sessions") return "#/";
  const tab = route.tab === "transcript" ? "" : `/${route.tab}`;
  return `#/s/${encodeURIComponent(route.id)}${tab}`;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const inPage = typeof location !== "undefined";

export const route = new Store<Route>(parseRoute(inPage ? location.hash : ""));

export function goTo(next: Route): void {
  location.hash = routeText(next);
}

export function followAddress(): void {
  route.value = parseRoute(location.hash);
  addEventListener("hashchange", () => (route.value = parseRoute(location.hash)));
}
