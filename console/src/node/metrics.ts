// Reads figures in Prometheus' text format.

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /(\w+)="((?:\\.|[^"\\])*)"/g;

export function parseMetrics(text: string): Sample[] {
  const samples: Sample[] = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("#")) continue;
    const found = LINE.exec(line);
    if (found === null) continue;
    const labels: Record<string, string> = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) {
      if (name !== undefined) labels[name] = (value ?? "").replace(/\\(.)/g, (_, one: string) => (one === "n" ? "\n" : one));
    }
    const value = found[3] === "+Inf" ? Infinity : Number(found[3]);
    samples.push({ name: found[1] ?? "", labels, value });
  }
  return samples;
}

/** The sum of a metric over its labels. */
export function sum(samples: Sample[], name: string, labels: Record<string, string> = {}): number {
  let total = 0;
  for (const sample of samples) {
    if (sample.name === name && Object.entries(labels).every(([key, value]) => sample.labels[key] === value)) total += sample.value;
  }
  return total;
}

/** The value below which a share of the observations of a histogram lies, within its buckets. */
export function quantile(samples: Sample[], name: string, share: number): number | undefined {
  const buckets = new Map<number, number>();
  for (const sample of samples) {
    if (sample.name !== `${name}_bucket`) continue;
    const bound = sample.labels.le === "+Inf" ? Infinity : Number(sample.labels.le);
    buckets.set(bound, (buckets.get(bound) ?? 0) + sample.value);
  }
  const sorted = [...buckets].sort(([left], [right]) => left - right);
  const total = sorted.at(-1)?.[1] ?? 0;
  if (total === 0) return undefined;
  return sorted.find(([, below]) => below >= total * share)?.[0];
}
