// What `windlass doctor --json` prints, as far as the page shows it.

import type { ControlReport } from "../../../sdk/typescript/src/api.ts";

export interface Check {
  name: string;
  state: "good" | "lacking" | "bad";
  says: string;
  help?: string;
}

export interface TestedLevel {
  level: string;
  attempts: number;
  took_ms: number;
  controls: ControlReport[];
  error?: string;
}

export interface DoctorReport {
  kernel: string;
  uid: number;
  confined: string | null;
  levels: Check[];
  mechanisms: Check[];
  user_ids: Check[];
  node: Check[];
  disk: Check[];
  tests: TestedLevel[];
  programs: { name: string; path: string | null; needed: boolean }[];
}

/** The checks that a person should look at, the bad ones first, and the number of the others. */
export function notGood(report: DoctorReport): { shown: Check[]; good: number } {
  const programs = report.programs.map((one): Check => {
    const state = one.path !== null ? "good" : one.needed ? "bad" : "lacking";
    return { name: one.name, state, says: one.path ?? "is not on PATH" };
  });
  const all = [...report.levels, ...report.mechanisms, ...report.user_ids, ...report.node, ...report.disk, ...programs];
  const order = ["bad", "lacking"];
  const shown = all.filter((one) => one.state !== "good").sort((left, right) => order.indexOf(left.state) - order.indexOf(right.state));
  return { shown, good: all.length - shown.length };
}
