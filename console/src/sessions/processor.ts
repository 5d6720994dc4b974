// How much of a processor each session uses, between two readings of its CPU time.

import type { SessionRow } from "../../../sdk/typescript/src/api.ts";

interface Reading {
  cpuMs: number;
  atMs: number;
  /** Percent of one processor; absent after the first reading. */
  percent: number | undefined;
}

export class ProcessorUse {
  #readings = new Map<string, Reading>();

  /** Takes the rows of one reading of all sessions. Sessions that are not in it are forgotten. */
  take(rows: readonly SessionRow[]): void {
    const before = this.#readings;
    this.#readings = new Map();
    for (const row of rows) {
      if (row.cpu_ms == null || row.measured_at_ms == null) continue;
      const now = { cpuMs: row.cpu_ms, atMs: row.measured_at_ms };
      // Two nodes of a fleet have clocks of their own, and never the same session at one time.
      const key = `${row.node ?? ""}/${row.id}`;
      this.#readings.set(key, next(before.get(key), now));
    }
  }

  /** Percent of one processor: two busy processors are 200. Absent until two readings are there. */
  percent(row: SessionRow): number | undefined {
    return this.#readings.get(`${row.node ?? ""}/${row.id}`)?.percent;
  }
}

function next(before: Reading | undefined, now: { cpuMs: number; atMs: number }): Reading {
  if (before === undefined) return { ...now, percent: undefined };
  const passed = now.atMs - before.atMs;
  // The node gives one reading to all clients that ask within a second.
  if (passed === 0) return before;
  const used = now.cpuMs - before.cpuMs;
  // The clock was set back, or another session has the id.
  if (passed < 0 || used < 0) return { ...now, percent: undefined };
  return { ...now, percent: (used / passed) * 100 };
}

/** A share of a processor, short. */
export function percentText(percent: number | undefined): string {
  if (percent === undefined) return "";
  return percent > 0 && percent < 1 ? "<1%" : `${Math.round(percent)}%`;
}
