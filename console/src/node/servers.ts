// The MCP servers that the node runs, as `GET /v1/mcp/servers` tells them. The route is not in docs/openapi.json, because
// the servers are not a part of the node's own door.

export interface McpServer {
  name: string;
  sessions: "by_policy" | "all";
  state: "starting" | "running" | "waiting" | "failed";
  /** Why it does not run, or why it last did not run. */
  reason?: string | null;
  /** Time until the next restart. */
  restart_in_ms?: number | null;
  pid?: number | null;
  tools: number;
  calls: number;
  open_calls: number;
  restarts: number;
}

export interface ServerList {
  /** The path of the configuration file. */
  config: string;
  error?: string | null;
  servers: McpServer[];
}

export const TONES = { starting: "busy", running: "good", waiting: "wait", failed: "bad" } as const;

/** The state of a server in words, with what else is to be known of it. */
export function stateText(server: McpServer): string {
  if (server.state === "waiting" && server.restart_in_ms != null) return `restarts in ${Math.ceil(server.restart_in_ms / 1000)} s`;
  return server.state;
}
