// The doctor: tests the isolation on the node's machine when a person asks for it, and shows what it found.

import { useState } from "preact/hooks";

import { call, words } from "../lib/api.ts";
import { Problem } from "../lib/parts.tsx";
import { count, duration } from "../lib/text.ts";
import { type DoctorReport, notGood, type TestedLevel } from "./doctor-report.ts";
import { Table, word } from "./table.tsx";

export function Doctor() {
  const [report, setReport] = useState<DoctorReport>();
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const test = async () => {
    setBusy(true);
    setProblem("");
    try {
      setReport(await call<DoctorReport>("/v1/node/doctor", { method: "POST" }));
    } catch (thrown) {
      setProblem(words(thrown));
    }
    setBusy(false);
  };
  return (
    <section>
      <div class="row">
        <h2>Doctor</h2>
        <button type="button" onClick={() => void test()} disabled={busy}>{busy ? "Testing…" : report === undefined ? "Test the isolation" : "Test again"}</button>
      </div>
      <Problem text={problem} />
      {report === undefined ? (
        <p class="muted">Starts a throwaway process at each level and tries what is forbidden there, as <code>windlass doctor</code> does.</p>
      ) : (
        <Report report={report} />
      )}
    </section>
  );
}

const TONES = { good: "good", lacking: "wait", bad: "bad" } as const;

function Report({ report }: { report: DoctorReport }) {
  const { shown, good } = notGood(report);
  return (
    <div role="status">
      <p>
        {report.confined == null
          ? word("bad", "Sessions with the default policy are not confined on this machine")
          : word("good", `Sessions are confined at the level ${report.confined}`)}
        <small> Linux {report.kernel}, user id {report.uid}</small>
      </p>
      <Table
        title="Tested levels"
        heads={["Level", "Result", "Forbidden actions tried", "Took", "Controls that do not hold"]}
        rows={report.tests.map((one) => ({ key: one.level, cells: [one.level, result(one), count(one.attempts), duration(one.took_ms), broken(one)] }))}
      />
      <Table
        title="Checks that are not good"
        heads={["Check", "State", "What it says", "Help"]}
        rows={shown.map((one) => ({ key: one.name, cells: [one.name, word(TONES[one.state], one.state), one.says, one.help ?? ""] }))}
      />
      <p class="muted">{count(good)} checks are good.</p>
    </div>
  );
}

function result(test: TestedLevel) {
  if (test.error !== undefined) return word("bad", "did not run");
  return broken(test) === "" ? word("good", "holds") : word("wait", "in part");
}

function broken(test: TestedLevel): string {
  if (test.error !== undefined) return test.error;
  return test.controls.filter((one) => one.state === "not_enforced").map((one) => one.control).join(", ");
}
