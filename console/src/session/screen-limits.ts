// What a terminal refuses of a session: sequences that would take the page's time or memory, make links, change the
// page's colours, or be answered. An answer would be typed into whatever runs when it is drawn.

import type { IFunctionIdentifier, Terminal } from "@xterm/xterm";

/** Sequences of the form CSI that repeat something as often as they say. */
const REPEATING: IFunctionIdentifier[] = ["@", "A", "B", "C", "D", "E", "F", "I", "L", "M", "P", "S", "T", "X", "Z", "b"].map((final) => ({ final }));

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

/** The mode in which a terminal reports its focus, at once and at each change. */
const FOCUS_MODE = 1004;

export function limitTerminal(terminal: Terminal): void {
  const { parser } = terminal;
  for (const id of REPEATING) parser.registerCsiHandler(id, ([count]) => typeof count === "number" && count > repeatsMax(terminal, id));
  for (const id of QUESTIONS) parser.registerCsiHandler(id, () => true);
  for (const number of REFUSED_OSC) parser.registerOscHandler(number, () => true);
  parser.registerDcsHandler({ intermediates: "$", final: "q" }, () => true);
  parser.registerDcsHandler({ intermediates: "+", final: "q" }, () => true);
  parser.registerCsiHandler({ prefix: "?", final: "h" }, (modes) => modes.flat().includes(FOCUS_MODE));
}

/** Nothing is seen of more. */
function repeatsMax(terminal: Terminal, id: IFunctionIdentifier): number {
  return id.final === "b" ? terminal.cols * terminal.rows : Math.max(terminal.cols, terminal.rows);
}
