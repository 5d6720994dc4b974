// A guest of the chaos suite: counts in a session through the TypeScript SDK and prints one JSON object per
// line. It ends when its standard input is closed.
//
// Arguments: the seed, the built module of the SDK.

const [seed, module] = process.argv.slice(-2);
const { Windlass } = await import(module);

const TURNS_PER_SESSION = 60;

// Pauses between two turns and after a failure, so that the other clients get CPU time.
const PAUSE_MS = 50;
const FAILURE_PAUSE_MS = 200;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const COUNT = "n = globals().get('n', 0) + 1\nprint(n)";

const tell = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

let over = false;
process.stdin.on("end", () => (over = true)).resume();

let state = Number(seed) + 1;
const below = (bound) => {
  state = (state * 48271) % 2147483647;
  return state % bound;
};

/** Counts in the session. A request without an answer may have run, so the expected count is a range. */
async function count(session) {
  let low = 0;
  let high = 0;
  for (let left = 1 + below(TURNS_PER_SESSION); left > 0 && !over; left -= 1) {
    await pause(below(PAUSE_MS));
    try {
      const turn = await session.run(COUNT);
      tell({ turn: turn.outcome, code: turn.error?.code ?? null, id: turn.id });
      if (turn.outcome !== "ok") {
        [low, high] = [0, high + 1];
        continue;
      }
      const counted = Number(turn.output);
      if (!(low < counted && counted <= high + 1)) {
        tell({ violation: `${turn.id}: counted ${counted}, last count: ${low} to ${high}` });
      }
      low = high = counted;
    } catch (error) {
      high += 1;
      tell({ raised: error.code ?? error.name, text: String(error.message) });
      await pause(FAILURE_PAUSE_MS);
      if (error.code === "session_ended") return;
    }
  }
}

const node = new Windlass({ start: false });
while (!over) {
  try {
    const session = await node.session();
    await count(session);
    await session.close();
  } catch (error) {
    tell({ raised: error.code ?? error.name, text: String(error.message) });
    await pause(FAILURE_PAUSE_MS);
  }
}
node.close();
process.exit(0);
