// What the session's code may do, how that is enforced, and where it tried to connect to.

import { useState } from "preact/hooks";

import type { ControlReport, EgressLog, Limits, Policy } from "../../../sdk/typescript/src/api.ts";
import { call, path } from "../lib/api.ts";
import { usePolling } from "../lib/poll.ts";
import { bytes, clock, count, duration } from "../lib/text.ts";
import type { LiveSession } from "./live.ts";

const CONTROL_WORDS: Record<ControlReport["state"], [string, string]> = {
  enforced: ["good", "enforced"],
  not_enforced: ["wait", "not enforced"],
  not_asked: ["quiet", "not requested"],
};

export function PolicyTab({ id, live }: { id: string; live: LiveSession }) {
  const controls = live.transcript.controls ?? live.session?.confinement?.controls ?? [];
  const policy = live.session?.policy;
  return (
    <div tabIndex={0} class="pane">
      <section>
        <h2>Egress</h2>
        <Egress id={id} policy={policy ?? undefined} over={live.state === "ended"} />
      </section>
      <section>
        <h2>Controls</h2>
        {controls.length === 0 && <p class="muted">No worker was started yet.</p>}
        <ul class="controls">
          {[...controls].sort((left, right) => order(left) - order(right)).map((control) => {
            const [tone, word] = CONTROL_WORDS[control.state];
            return (
              <li key={control.control}>
                <span class={`state ${tone}`}><i class="dot" aria-hidden="true" />{control.control.replaceAll("_", " ")}</span>
                <span class="muted">{word}{control.tested && ", tested"}</span>
                <span>{control.mechanism}{control.remedy && <small>{control.remedy}</small>}</span>
              </li>
            );
          })}
        </ul>
      </section>
      {policy != null && <Rules policy={policy} />}
    </div>
  );
}

const order = (control: ControlReport) => ["not_enforced", "enforced", "not_asked"].indexOf(control.state);

function Egress({ id, policy, over }: { id: string; policy: Policy | undefined; over: boolean }) {
  const [log, setLog] = useState<EgressLog>();
  usePolling(over ? 60_000 : 2000, async (signal) => setLog(await call<EgressLog>(path("sessions", id, "egress"), { signal })), [id, over]);
  const network = policy?.network;
  const rule = network === undefined ? "" : typeof network === "string" ? `The network is ${network === "none" ? "closed" : "open"}.` : `Allowed hosts: ${network.hosts.join(", ") || "none"}.`;
  return (
    <>
      <p class="muted">{rule}</p>
      {log !== undefined && log.decisions.length > 0 && (
        <ul class="controls egress">
          {log.decisions.map((decision) => (
            <li key={`${decision.host}:${decision.port}:${decision.allowed}:${decision.reason}`}>
              <span class={`state ${decision.allowed ? "good" : "bad"}`}><i class="dot" aria-hidden="true" />{decision.allowed ? "allowed" : "refused"}</span>
              <span class="mono">{decision.host}:{decision.port}</span>
              <span class="muted">
                {decision.count > 0 && `${count(decision.count)}×, ${bytes(decision.sent_bytes)} sent, ${bytes(decision.received_bytes)} received, `}
                {clock(decision.last_at_ms)}{decision.reason && <small>{decision.reason}</small>}
              </span>
            </li>
          ))}
        </ul>
      )}
      {log?.decisions.length === 0 && <p class="muted">No connection was tried.</p>}
    </>
  );
}

function Rules({ policy }: { policy: Policy }) {
  const lists: [string, string[]][] = [
    ["Readable", policy.readable],
    ["Writable", policy.writable],
    ["Hidden", policy.hidden],
    ["Protected", policy.protected],
    ["Required controls", policy.required],
    ["Environment", policy.environment],
    ["Tools", policy.tools ?? []],
    ["Secrets", (policy.secrets ?? []).map((secret) => `${secret.name} to ${secret.to}`)],
  ];
  return (
    <section>
      <h2>Policy: {policy.preset}</h2>
      <dl class="rules">
        <div><dt>Workspace</dt><dd>{policy.workspace}</dd></div>
        <div><dt>Limits</dt><dd>{limitWords(policy.limits)}</dd></div>
        {lists.filter(([, items]) => items.length > 0).map(([name, items]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class="mono">{items.length <= 8 ? items.join("  ") : <details><summary>{items.length} entries</summary>{items.join("  ")}</details>}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function limitWords(limits: Limits): string {
  const parts: string[] = [];
  if (limits.memory_bytes != null) parts.push(`memory ${bytes(limits.memory_bytes)}`);
  if (limits.cpu_percent != null) parts.push(`processor ${limits.cpu_percent} %`);
  if (limits.processes != null) parts.push(`${count(limits.processes)} processes`);
  if (limits.open_files != null) parts.push(`${count(limits.open_files)} open files`);
  if (limits.file_bytes != null) parts.push(`files ${bytes(limits.file_bytes)}`);
  if (limits.disk_bytes != null) parts.push(`disk ${bytes(limits.disk_bytes)}`);
  if (limits.tmp_bytes != null) parts.push(`/tmp ${bytes(limits.tmp_bytes)}`);
  if (limits.wall_s != null) parts.push(`life ${duration(limits.wall_s * 1000)}`);
  return parts.join(", ") || "none";
}
