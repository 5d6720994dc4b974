// Makes a session.

import { useEffect, useState } from "preact/hooks";

import type { Created, CreateSession, Network, WorkerInfo, WorkerList } from "../../../sdk/typescript/src/api.ts";
import { call, words } from "../lib/api.ts";
import { Dialog, Problem } from "../lib/parts.tsx";
import { goTo } from "../lib/route.ts";

/** Wide enough for most programs, narrow enough for the page. */
const TERMINAL = { columns: 120, rows: 24 };

type NetworkChoice = "preset" | "none" | "hosts" | "open";

export function NewSession({ close }: { close: () => void }) {
  const [workers, setWorkers] = useState<WorkerInfo[]>([]);
  const [kind, setKind] = useState("python");
  const [detail, setDetail] = useState("");
  const [id, setId] = useState("");
  const [workspace, setWorkspace] = useState("");
  const [copy, setCopy] = useState(false);
  const [network, setNetwork] = useState<NetworkChoice>("preset");
  const [hosts, setHosts] = useState("");
  const [ask, setAsk] = useState(true);
  const [terminal, setTerminal] = useState(true);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    call<WorkerList>("/v1/workers").then((list) => setWorkers(list.workers), (thrown) => setProblem(words(thrown)));
  }, []);
  const worker = workers.find((one) => one.name === kind);
  const needsDetail = kind === "jupyter" || kind === "agent" || kind === "acp";

  const make = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    const wanted: Network | undefined = network === "hosts" ? { hosts: hosts.split(/[\s,]+/).filter((host) => host !== "") } : network === "preset" ? undefined : network;
    const body: CreateSession = {
      ...(kind === "shell" && terminal ? { terminal: TERMINAL } : {}),
      worker: needsDetail ? `${kind}:${detail}` : kind,
      ...(id === "" ? {} : { id }),
      ...(workspace === "" ? {} : { workspace }),
      ...(copy && workspace !== "" ? { copy_workspace: "needed" } : {}),
      ...(wanted === undefined ? {} : { policy: { network: wanted } }),
      ...(kind === "agent" || kind === "acp" ? { agent: { permissions: ask ? "ask" : "allow" } } : {}),
    };
    try {
      const made = await call<Created>("/v1/sessions", { method: "POST", json: body });
      close();
      goTo({ page: "session", id: made.session.id, tab: made.session.terminal != null ? "terminal" : "transcript" });
    } catch (thrown) {
      setProblem(words(thrown));
      setBusy(false);
    }
  };

  return (
    <Dialog title="New session" close={close}>
      <form class="form" onSubmit={make}>
        <label>
          <span>Kind</span>
          <select value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
            {workers.length === 0 && <option value="python">python</option>}
            {workers.map((one) => <option key={one.name} value={one.name}>{one.name} · {one.language}</option>)}
          </select>
        </label>
        {worker?.missing && <p class="hint">{worker.missing}</p>}
        {needsDetail && (
          <label>
            <span>{kind === "jupyter" ? "Kernel" : kind === "agent" ? "Agent" : "Command"}</span>
            <input required value={detail} placeholder={kind === "jupyter" ? "python3" : kind === "agent" ? "codex" : "my-agent --stdio"} onInput={(event) => setDetail(event.currentTarget.value)} />
          </label>
        )}
        {(kind === "agent" || kind === "acp") && (
          <label class="check">
            <input type="checkbox" checked={ask} onChange={(event) => setAsk(event.currentTarget.checked)} />
            Ask me for permissions
          </label>
        )}
        {kind === "shell" && (
          <label class="check">
            <input type="checkbox" checked={terminal} onChange={(event) => setTerminal(event.currentTarget.checked)} />
            With a terminal: colours and progress bars
          </label>
        )}
        <label>
          <span>Workspace</span>
          <input value={workspace} spellcheck={false} placeholder="a new directory for this session" onInput={(event) => setWorkspace(event.currentTarget.value)} />
        </label>
        {workspace !== "" && (
          <label class="check">
            <input type="checkbox" checked={copy} onChange={(event) => setCopy(event.currentTarget.checked)} />
            Work in a copy
          </label>
        )}
        <label>
          <span>Network</span>
          <select value={network} onChange={(event) => setNetwork(event.currentTarget.value as NetworkChoice)}>
            <option value="preset">as the preset says</option>
            <option value="none">none</option>
            <option value="hosts">only these hosts</option>
            <option value="open">open</option>
          </select>
        </label>
        {network === "hosts" && (
          <label>
            <span>Hosts</span>
            <input required value={hosts} spellcheck={false} placeholder="pypi.org, *.example.org" onInput={(event) => setHosts(event.currentTarget.value)} />
          </label>
        )}
        <label>
          <span>Id</span>
          <input value={id} spellcheck={false} placeholder="the node makes one" onInput={(event) => setId(event.currentTarget.value)} />
        </label>
        <Problem text={problem} />
        <div class="row end">
          <button type="button" onClick={close}>Cancel</button>
          <button type="submit" class="primary" disabled={busy}>{busy ? "Starting…" : "Start"}</button>
        </div>
      </form>
    </Dialog>
  );
}
