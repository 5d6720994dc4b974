// The node: its health, what it holds, what sessions can use, and its fleet.

import { useState } from "preact/hooks";

import type { DiskUse, EnvironmentList, FleetNodeList, FleetStatus, NodeStatus, UsageList, WorkerList } from "../../../sdk/typescript/src/api.ts";
import { call, request, words } from "../lib/api.ts";
import { fleetStatus } from "../lib/fleet.ts";
import { Problem } from "../lib/parts.tsx";
import { usePolling } from "../lib/poll.ts";
import { age, bytes, count, duration } from "../lib/text.ts";
import { Doctor } from "./doctor.tsx";
import { findings, type Finding } from "./findings.ts";
import { parseMetrics, quantile, type Sample, sum } from "./metrics.ts";
import { type ServerList, stateText, TONES } from "./servers.ts";
import { Table, word } from "./table.tsx";

interface NodeState {
  status?: NodeStatus;
  samples?: Sample[];
  workers?: WorkerList;
  environments?: EnvironmentList;
  servers?: ServerList;
  disk?: DiskUse;
  usage?: UsageList;
  fleet?: FleetStatus;
  nodes?: FleetNodeList;
}

const EVERY_MS = 3000;
const SLOW_EVERY_MS = 30_000;

export function NodePage() {
  const [state, setState] = useState<NodeState>({});
  const [problem, setProblem] = useState("");
  /** A part that this login may not see is left out. */
  const part = async <Name extends keyof NodeState>(name: Name, reading: Promise<NonNullable<NodeState[Name]>>) => {
    const value = await reading.catch((thrown: unknown) => {
      if (name === "status") setProblem(words(thrown));
      return undefined;
    });
    if (value !== undefined) setState((before) => ({ ...before, [name]: value }));
    if (value !== undefined && name === "status") setProblem("");
  };
  usePolling(EVERY_MS, async (signal) => {
    await Promise.all([
      part("status", call<NodeStatus>("/v1/version", { signal })),
      part("samples", request("/v1/metrics", { signal }).then((reply) => reply.text()).then(parseMetrics)),
      part("usage", call<UsageList>("/v1/usage", { signal })),
    ]);
  }, []);
  usePolling(SLOW_EVERY_MS, async (signal) => {
    await Promise.all([
      part("workers", call<WorkerList>("/v1/workers", { signal })),
      part("environments", call<EnvironmentList>("/v1/environments", { signal })),
      part("disk", call<DiskUse>("/v1/node/disk", { signal })),
      part("servers", call<ServerList>("/v1/mcp/servers", { signal })),
    ]);
    const fleet = await fleetStatus(signal);
    if (fleet !== undefined) await Promise.all([part("fleet", Promise.resolve(fleet)), part("nodes", call<FleetNodeList>("/v1/fleet/nodes", { signal }))]);
  }, []);
  return (
    <div tabIndex={0} class="pane wide node-page">
      <h1>Node</h1>
      <Problem text={problem} />
      {state.status && <Status status={state.status} samples={state.samples ?? []} />}
      {state.status && <Findings found={findings(state)} />}
      <Doctor />
      {state.fleet && <Fleet fleet={state.fleet} nodes={state.nodes} />}
      {state.environments && <Environments list={state.environments} />}
      {state.workers && <Workers list={state.workers} />}
      {state.servers && <Servers list={state.servers} />}
      {state.usage && state.usage.tenants.length > 0 && <Tenants usage={state.usage} />}
      {state.disk && <Disk disk={state.disk} />}
    </div>
  );
}

function Status({ status, samples }: { status: NodeStatus; samples: Sample[] }) {
  const turns = sum(samples, "windlass_turns_total");
  const failed = turns - sum(samples, "windlass_turns_total", { outcome: "ok" });
  const median = quantile(samples, "windlass_turn_seconds", 0.5);
  const free = status.storage?.free_bytes;
  return (
    <>
      <p class="facts">
        <span>Windlass {status.version}</span>
        <span>up {age(Date.now() - status.started_at_ms)}</span>
        <span>pid {status.pid}</span>
        <span>start {status.epoch}</span>
        {status.listen && <span>{status.listen_tls ? "https" : "http"}://{status.listen}</span>}
        <span class="mono fact-path">{status.state_dir}</span>
      </p>
      <div class="figures">
        <Figure name="Live sessions" value={count(status.sessions)} />
        <Figure name="Sessions created" value={count(sum(samples, "windlass_sessions_created_total"))} />
        <Figure name="Turns" value={count(turns)} more={failed > 0 ? `${count(failed)} not ok` : ""} />
        <Figure name="Half of the turns within" value={median === undefined ? "–" : Number.isFinite(median) ? duration(median * 1000) : "over 1 h"} />
        <Figure name="Output" value={bytes(sum(samples, "windlass_output_bytes_total"))} />
        <Figure name="Tool calls" value={count(sum(samples, "windlass_tool_calls_total"))} />
        <Figure name="Requests" value={count(sum(samples, "windlass_http_requests_total"))} />
        {free != null && <Figure name="Free on the disk" value={bytes(free)} />}
        <Figure name="Journal failures" value={count(sum(samples, "windlass_journal_append_failures_total"))} bad={sum(samples, "windlass_journal_append_failures_total") > 0} />
      </div>
    </>
  );
}

function Figure({ name, value, more, bad }: { name: string; value: string; more?: string; bad?: boolean }) {
  return (
    <div class={`figure${bad ? " bad" : ""}`}>
      <span>{name}</span>
      <b>{value}</b>
      {more && <small>{more}</small>}
    </div>
  );
}

function Fleet({ fleet, nodes }: { fleet: FleetStatus; nodes: FleetNodeList | undefined }) {
  const tones = { alive: "good", unreachable: "wait", lost: "bad" } as const;
  const rows = (nodes?.nodes ?? []).map((node) => ({
    key: node.node,
    cells: [
      <span class="mono">{node.node}{node.is_self && " (this node)"}</span>,
      word(tones[node.status], node.load?.cordoned ? `${node.status}, cordoned` : node.status),
      node.load ? `${count(node.load.sessions.live)} of ${count(node.load.sessions.max)}` : (node.error ?? ""),
      node.load ? `${bytes(node.load.memory.available_bytes)} of ${bytes(node.load.memory.total_bytes)}` : "",
      node.load ? `${(node.load.processors.load_hundredths / 100).toFixed(2)} on ${node.load.processors.count}` : "",
      node.load?.release ?? "",
      node.address ?? "",
    ],
  }));
  const store = fleet.store.reachable ? undefined : `The store of the fleet does not answer: ${fleet.store.error ?? ""}`;
  return <Table title={`Fleet: ${fleet.nodes.alive} nodes, ${count(fleet.sessions)} sessions, this node is ${fleet.standing}`} heads={["Node", "State", "Sessions", "Memory free", "Load", "Release", "Address"]} rows={rows} note={store} />;
}

function Environments({ list }: { list: EnvironmentList }) {
  const tones = { ready: "good", starting: "busy", failed: "bad", none: "quiet" } as const;
  const pools = list.environments.map((one) => ({
    key: `${one.worker}:${one.interpreter}`,
    cells: [one.worker ?? "", <span class="mono">{one.program ?? one.interpreter}</span>, word(tones[one.zygote.state], one.zygote.error ?? one.zygote.state), `${one.pool.ready} of ${one.pool.size}`, one.preload.join(", ")],
  }));
  const packages = (list.packages ?? []).map((one) => ({
    key: one.name,
    cells: [<span class="mono">{one.name}</span>, word(one.state === "ready" ? "good" : one.state === "failed" ? "bad" : "busy", one.error ?? one.state), (one.packages ?? []).join(", "), one.python, age(Date.now() - one.used_at_ms)],
  }));
  return (
    <>
      <Table title="Pools" heads={["Kind", "Interpreter", "Zygote", "Ready", "Loaded ahead"]} rows={pools} note={list.error} />
      {packages.length > 0 && <Table title="Package environments" heads={["Name", "State", "Packages", "Python", "Last used"]} rows={packages} />}
    </>
  );
}

function Workers({ list }: { list: WorkerList }) {
  const rows = list.workers.map((one) => ({
    key: one.name,
    cells: [<span class="mono">{one.name}</span>, one.language, one.missing ? word("quiet", "missing") : word("good", "ready"), <span class={one.missing ? "" : "mono"}>{one.missing ?? one.interpreter ?? ""}</span>],
  }));
  return <Table title="Workers" heads={["Kind", "Language", "State", "Program"]} rows={rows} note={list.error} />;
}

function Findings({ found }: { found: Finding[] }) {
  return (
    <section>
      <h2>Findings</h2>
      {found.length === 0 ? (
        <p class="muted">The node reports no fault.</p>
      ) : (
        <ul class="findings">
          {found.map(({ tone, what, remedy }) => (
            <li key={what}>
              {word(tone, tone === "bad" ? "fault" : "warning")} <span>{what}.</span> <small>{remedy}</small>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Servers({ list }: { list: ServerList }) {
  const rows = list.servers.map((one) => ({
    key: one.name,
    cells: [
      <span class="mono">{one.name}</span>,
      word(TONES[one.state], stateText(one)),
      one.sessions === "all" ? "all sessions" : "by policy",
      count(one.tools),
      `${count(one.calls)}${one.open_calls > 0 ? ` (${count(one.open_calls)} open)` : ""}`,
      count(one.restarts),
      one.pid ?? "",
      one.state === "running" ? "" : (one.reason ?? ""),
    ],
  }));
  const heads = ["Server", "State", "For", "Tools", "Calls", "Restarts", "Process", "Reason"];
  return <Table title="MCP servers" heads={heads} rows={rows} note={list.error} />;
}

function Tenants({ usage }: { usage: UsageList }) {
  const rows = usage.tenants.map((one) => ({
    key: one.tenant ?? "",
    cells: [one.tenant ?? <span class="muted">no tenant</span>, count(one.sessions), count(one.turns), duration(one.cpu_ms), bytes(one.output_bytes)],
  }));
  return <Table title={`Use since the node started (${age(Date.now() - usage.since_ms)})`} heads={["Tenant", "Sessions", "Turns", "Processor", "Output"]} rows={rows} />;
}

function Disk({ disk }: { disk: DiskUse }) {
  const shares = disk.kinds.filter((share) => share.bytes > 0).sort((left, right) => right.bytes - left.bytes);
  const rows = shares.map((share) => ({ key: share.kind, cells: [share.kind.replaceAll("_", " "), bytes(share.bytes), count(share.entries)] }));
  return <Table title={`Disk: ${bytes(disk.bytes)}${disk.complete ? "" : " or more"}`} heads={["Kind", "Bytes", "Files"]} rows={rows} />;
}
