// What a terminal refuses of a session: sequences that would take the page's time or memory, make links, change the
// page's colours, or be answered. An answer would be typed into whatever runs when it is drawn.

import type { IFunctionIdentifier, Terminal } from "@xterm/xterm";

/** Characters in a terminal that can be shown. A client chooses the size. */
export const CELLS_MAX = 25_000;

/** Sequences of the form CSI that the library repeats as often as they say. Nothing is seen of more than a line or a screen. */
const BY_COLUMNS = ["I", "Z", "b"];
const BY_ROWS = ["L", "M", "S", "T"];

/** Questions of the form CSI: device attributes, reports of status, modes, version and window. */
const QUESTIONS: IFunctionIdentifier[] = [
  { final: "c" },
  { prefix: ">", final: "c" },
  { prefix: "=", final: "c" },
  { final: "n" },
  { prefix: "?", final: "n" },
  { intermediates: "$", final: "p" },
  { prefix: "?", intermediates: "$", final: "p" },
  { prefix: ">", final: "q" },
  { final: "t" },
];

/** Links, and colours of the whole terminal, which are questions too. */
const REFUSED_OSC = [4, 5, 8, 10, 11, 12, 13, 14, 17, 19, 104, 105, 110, 111, 112, 117, 119];

/** Modes that the terminal reports at each change of its focus, or for which it makes all its style anew. */
const REFUSED_MODES = [20];
const REFUSED_PRIVATE_MODES = [12, 1004];

export function limitTerminal(terminal: Terminal): void {
  const { parser } = terminal;
  const refuse = (id: IFunctionIdentifier, when: (params: (number | number[])[]) => boolean) => parser.registerCsiHandler(id, when);
  for (const final of BY_COLUMNS) refuse({ final }, ([count]) => Number(count) > terminal.cols);
  for (const final of BY_ROWS) refuse({ final }, ([count]) => Number(count) > terminal.rows);
  for (const id of QUESTIONS) refuse(id, () => true);
  for (const final of ["h", "l"]) {
    refuse({ final }, (modes) => modes.flat().some((mode) => REFUSED_MODES.includes(mode)));
    refuse({ prefix: "?", final }, (modes) => modes.flat().some((mode) => REFUSED_PRIVATE_MODES.includes(mode)));
  }
  // The library fails at the last line of its buffer.
  for (const id of [{ final: "J" }, { prefix: "?", final: "J" }]) refuse(id, ([part]) => part === 1 && isAtLastLine(terminal));
  for (const number of REFUSED_OSC) parser.registerOscHandler(number, () => true);
  for (const intermediates of ["$", "+"]) parser.registerDcsHandler({ intermediates, final: "q" }, () => true);
}

function isAtLastLine(terminal: Terminal): boolean {
  const { baseY, cursorY, length } = terminal.buffer.active;
  return baseY + cursorY + 1 >= length;
}
