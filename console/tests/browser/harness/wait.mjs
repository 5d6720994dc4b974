// Waiting for what the page or the node does, always with a limit.

/** How long something that must happen may take. */
export const PATIENCE_MS = 20_000;

const STEP_MS = 25;

export function pause(ms) {
  return new Promise((done) => setTimeout(done, ms));
}

/** Waits until the answer is neither `undefined` nor `false`, and returns it. */
export async function eventually(what, ask, patience = PATIENCE_MS) {
  const end = performance.now() + patience;
  let failure;
  while (performance.now() < end) {
    try {
      const answer = await ask();
      if (answer !== undefined && answer !== false) return answer;
      failure = undefined;
    } catch (thrown) {
      failure = thrown;
    }
    await pause(STEP_MS);
  }
  throw new Error(`not within ${patience} ms: ${what}`, { cause: failure });
}

export function isGone(child) {
  return child === undefined || child.exitCode !== null || child.signalCode !== null;
}

/** The value below which a part of the values is. */
export function quantile(values, part) {
  const sorted = [...values].sort((left, right) => left - right);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];
}
