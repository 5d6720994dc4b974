// What is wrong with the node, as far as its answers tell: each finding says what to do. `windlass doctor` checks more,
// because it starts processes on the node's machine.

import type { EnvironmentList, FleetStatus, NodeStatus, WorkerList } from "../../../sdk/typescript/src/api.ts";
import { bytes, count, plural } from "../lib/text.ts";
import { type Sample, sum } from "./metrics.ts";
import type { ServerList } from "./servers.ts";

export interface Finding {
  /** Things fail already, or only could. */
  tone: "bad" | "wait";
  what: string;
  remedy: string;
}

/** The answers of the node that are there so far. */
export interface Facts {
  status?: NodeStatus | undefined;
  samples?: Sample[] | undefined;
  workers?: WorkerList | undefined;
  environments?: EnvironmentList | undefined;
  servers?: ServerList | undefined;
  fleet?: FleetStatus | undefined;
}

/** Below this, journals and workspaces soon find the disk full. */
const FREE_BYTES_MIN = 1024 * 1024 * 1024;

const LOG = "Look at the node's log, whose path `windlass status` prints.";

export function findings({ status, samples, workers, environments, servers, fleet }: Facts): Finding[] {
  const found: Finding[] = [];
  const bad = (what: string, remedy: string) => found.push({ tone: "bad", what, remedy });
  const wait = (what: string, remedy: string) => found.push({ tone: "wait", what, remedy });

  const storage = status?.storage;
  if (storage?.free_bytes != null && storage.free_bytes < FREE_BYTES_MIN) {
    wait(`The disk of the node has only ${bytes(storage.free_bytes)} free`, "Remove ended sessions with `windlass prune`, or free space.");
  }
  if (storage?.index === "memory") bad("The index of sessions is only in memory", `It is built again at each start of the node. ${LOG}`);
  if (storage !== undefined && storage !== null && storage.log_lines_dropped > 0) {
    wait(`${plural(storage.log_lines_dropped, "line")} of the node's log could not be written`, "Free space on the disk of the log.");
  }
  const failures = sum(samples ?? [], "windlass_journal_append_failures_total");
  if (failures > 0) bad(`The journal could not be written ${count(failures)} times since the node started`, `Turns fail as disk_full then. ${LOG}`);
  for (const zygote of environments?.environments ?? []) {
    if (zygote.zygote.state === "failed") wait(`No worker is forked for ${zygote.interpreter}: ${zygote.zygote.error ?? "it failed"}`, "Sessions start more slowly: each one starts the interpreter.");
  }
  if (environments?.error != null) bad(`The settings of environments cannot be used: ${environments.error}`, "Correct the file, then restart the node with `windlass down --keep-sessions` and `windlass up`.");
  if (workers?.error != null) bad(`The settings of workers cannot be used: ${workers.error}`, "Correct the file, then restart the node with `windlass down --keep-sessions` and `windlass up`.");
  const python = workers?.workers.find((worker) => worker.name === "python");
  if (python?.missing != null) bad(`Sessions of the default kind cannot start: ${python.missing}`, "Install what is missing.");
  if (servers?.error != null) bad(`The file of MCP servers cannot be used: ${servers.error}`, `Correct ${servers.config}, then restart the node with \`windlass down --keep-sessions\` and \`windlass up\`.`);
  for (const server of servers?.servers ?? []) {
    if (server.state === "failed") bad(`The MCP server ${server.name} does not run: ${server.reason ?? "it failed"}`, `Correct its entry in ${servers?.config ?? "the file"}.`);
    if (server.state === "waiting") wait(`The MCP server ${server.name} has ended: ${server.reason ?? "no reason is known"}`, "The node starts it again by itself.");
  }
  if (fleet !== undefined && !fleet.store.reachable) bad(`The store of the fleet does not answer: ${fleet.store.error ?? "no reason is known"}`, "Look at the servers of the store.");
  return found;
}
