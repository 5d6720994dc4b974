// What the turns of the session cost, as small charts.

import { bytes, count, duration } from "../lib/text.ts";
import type { TurnView } from "./fold.ts";
import type { LiveSession } from "./live.ts";

/** Turns in one chart. */
const TURNS_MAX = 120;

const WIDTH = 600;
const HEIGHT = 96;

interface Measure {
  name: string;
  of: (turn: TurnView) => number;
  text: (value: number) => string;
  total: "sum" | "max";
}

const MEASURES: Measure[] = [
  { name: "Wall time", of: (turn) => turn.end?.usage?.wall_ms ?? 0, text: duration, total: "sum" },
  { name: "Processor time", of: (turn) => turn.end?.usage?.cpu_ms ?? 0, text: duration, total: "sum" },
  { name: "Peak memory of the worker", of: (turn) => turn.end?.usage?.peak_rss_bytes ?? 0, text: bytes, total: "max" },
  { name: "Output", of: (turn) => turn.end?.usage?.output_bytes ?? turn.outputBytes, text: bytes, total: "sum" },
];

export function UsageTab({ live }: { live: LiveSession }) {
  const turns = [...live.transcript.turns.values()].filter((turn) => turn.end !== undefined);
  const outcomes = new Map<string, number>();
  for (const turn of turns) outcomes.set(turn.end?.outcome ?? "", (outcomes.get(turn.end?.outcome ?? "") ?? 0) + 1);
  if (turns.length === 0) return <div tabIndex={0} class="pane"><p class="muted">No turn has ended yet.</p></div>;
  return (
    <div tabIndex={0} class="pane">
      <p class="facts">
        {[...outcomes].map(([outcome, number]) => <span key={outcome}>{count(number)} {outcome.replace("_", " ")}</span>)}
        {turns.length > TURNS_MAX && <span>the charts have the last {TURNS_MAX} turns</span>}
      </p>
      <div class="charts">
        {MEASURES.map((measure) => <Chart key={measure.name} measure={measure} turns={turns} />)}
      </div>
    </div>
  );
}

function Chart({ measure, turns }: { measure: Measure; turns: TurnView[] }) {
  const shown = turns.slice(-TURNS_MAX);
  const values = shown.map(measure.of);
  const most = Math.max(1e-9, ...values);
  const all = turns.map(measure.of);
  const total = measure.total === "sum" ? all.reduce((sum, value) => sum + value, 0) : Math.max(...all);
  const step = WIDTH / Math.max(values.length, 40);
  return (
    <figure class="chart">
      <figcaption>
        <span>{measure.name}</span>
        <b>{measure.text(total)}</b>
        <small>{measure.total === "sum" ? "in all" : "at most"}, largest turn {measure.text(most)}</small>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${measure.name} of ${count(values.length)} turns`}>
        {values.map((value, at) => {
          const height = Math.max(1.5, (value / most) * (HEIGHT - 4));
          const turn = shown[at];
          return (
            <rect key={at} class={turn?.end?.outcome === "ok" ? "" : "bad"} x={at * step + 1} y={HEIGHT - height} width={Math.max(1, step - 2)} height={height}>
              <title>{`Turn ${turn?.number}: ${measure.text(value)}`}</title>
            </rect>
          );
        })}
      </svg>
    </figure>
  );
}
