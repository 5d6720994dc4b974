// Lines of a terminal's output as pieces of text with a look. Nothing of the output ever becomes markup.

/** A look. A colour is one of the sixteen of the palette, or `#rrggbb`. */
export interface Look {
  readonly fg?: number | string;
  readonly bg?: number | string;
  readonly bold?: boolean;
  readonly dim?: boolean;
  readonly italic?: boolean;
  readonly underline?: boolean;
  readonly inverse?: boolean;
  readonly strike?: boolean;
}

export interface Piece {
  text: string;
  look: Look;
}

export const PLAIN: Look = {};

/** Characters of one line that are shown. */
export const LINE_SHOWN_MAX = 4000;

/** Characters of one line that are looked at. */
const LINE_READ_MAX = 64 * 1024;

/** A move of the cursor ends here: a terminal has a last column. */
const COLUMN_MAX = 500;

// An escape sequence: CSI with parameters, OSC to its end, or a short one.
const ESCAPE = /\x1b(?:\[([0-9;:?<=>]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-Z\\^-~])/y;
const SPECIAL = /[\x00-\x08\x0b-\x1f\x7f]/;
const MOVES = /[\r\b]|\x1b\[[0-9;]*[GCDKP]/;

/** A line without its line break, from the look at its begin; `end` is the look at its end. */
export function renderLine(line: string, start: Look): { pieces: Piece[]; end: Look } {
  if (!SPECIAL.test(line)) return { pieces: [{ text: cut(line), look: start }], end: start };
  const read = line.length > LINE_READ_MAX ? lastFrame(line) : line;
  return MOVES.test(read.replace(/\r+$/, "")) ? renderCells(read, start) : renderSpans(read, start);
}

function cut(text: string): string {
  return text.length > LINE_SHOWN_MAX ? `${text.slice(0, LINE_SHOWN_MAX)}…` : text;
}

/** A progress bar writes one line over and over: only its last states can be seen. */
function lastFrame(line: string): string {
  const from = line.lastIndexOf("\r", line.length - LINE_READ_MAX / 2);
  return from < 0 ? line.slice(0, LINE_READ_MAX) : line.slice(from, from + LINE_READ_MAX);
}

/** The look after a text, without its pieces. */
export function lookAfter(text: string, start: Look): Look {
  let look = start;
  for (let at = text.indexOf("\x1b["); at >= 0; at = text.indexOf("\x1b[", at + 1)) {
    ESCAPE.lastIndex = at;
    const found = ESCAPE.exec(text);
    if (found?.[2] === "m") look = changed(look, found[1] ?? "");
  }
  return look;
}

function renderSpans(line: string, start: Look): { pieces: Piece[]; end: Look } {
  const pieces: Piece[] = [];
  let look = start;
  let text = "";
  let shown = 0;
  const put = () => {
    if (text !== "" && shown < LINE_SHOWN_MAX) pieces.push({ text: cut(text), look });
    shown += text.length;
    text = "";
  };
  for (let at = 0; at < line.length; at += 1) {
    const code = line.charCodeAt(at);
    if (code !== 0x1b) {
      if (code >= 0x20 && code !== 0x7f) text += line[at];
      else if (code === 9) text += "\t";
      continue;
    }
    ESCAPE.lastIndex = at;
    const found = ESCAPE.exec(line);
    if (found === null) continue;
    if (found[2] === "m") {
      put();
      look = changed(look, found[1] ?? "");
    }
    at += found[0].length - 1;
  }
  put();
  return { pieces, end: look };
}

interface Cell {
  text: string;
  look: Look;
}

/** A line that writes over itself: with carriage returns, backspaces, or moves of the cursor. */
function renderCells(line: string, start: Look): { pieces: Piece[]; end: Look } {
  const cells: Cell[] = [];
  let look = start;
  let column = 0;
  for (let at = 0; at < line.length; at += 1) {
    const code = line.charCodeAt(at);
    if (code === 13) column = 0;
    else if (code === 8) column = Math.max(0, column - 1);
    else if (code === 0x1b) {
      ESCAPE.lastIndex = at;
      const found = ESCAPE.exec(line);
      if (found === null) continue;
      at += found[0].length - 1;
      if (found[2] === "m") look = changed(look, found[1] ?? "");
      else column = moved(cells, column, found[1] ?? "", found[2]);
    } else if ((code >= 0x20 && code !== 0x7f) || code === 9) {
      const text = String.fromCodePoint(line.codePointAt(at) ?? 0x20);
      at += text.length - 1;
      if (column >= LINE_SHOWN_MAX) continue;
      while (cells.length < column) cells.push({ text: " ", look: PLAIN });
      cells[column] = { text, look };
      column += 1;
    }
  }
  return { pieces: joined(cells), end: look };
}

function moved(cells: Cell[], column: number, parameters: string, act: string | undefined): number {
  const number = Math.min(Number.parseInt(parameters, 10) || 0, COLUMN_MAX);
  const steps = Math.max(1, number);
  if (act === "G") return steps - 1;
  if (act === "C") return Math.max(column, Math.min(column + steps, COLUMN_MAX));
  if (act === "D") return Math.max(0, column - steps);
  if (act === "P") cells.splice(column, steps);
  if (act === "K") {
    if (number === 0) cells.length = Math.min(cells.length, column);
    if (number === 2) cells.length = 0;
    if (number === 1) for (let at = 0; at <= column && at < cells.length; at += 1) cells[at] = { text: " ", look: PLAIN };
  }
  return column;
}

function joined(cells: Cell[]): Piece[] {
  const pieces: Piece[] = [];
  for (const cell of cells) {
    const last = pieces.at(-1);
    if (last !== undefined && last.look === cell.look) last.text += cell.text;
    else pieces.push({ ...cell });
  }
  return pieces;
}

/** The look after one sequence `ESC [ parameters m`. */
function changed(before: Look, parameters: string): Look {
  const codes = parameters.split(/[;:]/).map((text) => Number.parseInt(text, 10) || 0);
  let look: Look = before;
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at] ?? 0;
    if (code === 38 || code === 48) {
      const [colour, used] = extended(codes, at + 1);
      at += used;
      if (colour !== undefined) look = code === 38 ? { ...look, fg: colour } : { ...look, bg: colour };
    } else look = simple(look, code);
  }
  return look;
}

function simple(look: Look, code: number): Look {
  if (code === 0) return PLAIN;
  if (code === 1) return { ...look, bold: true };
  if (code === 2) return { ...look, dim: true };
  if (code === 3) return { ...look, italic: true };
  if (code === 4) return { ...look, underline: true };
  if (code === 7) return { ...look, inverse: true };
  if (code === 9) return { ...look, strike: true };
  if (code === 22) return without(look, "bold", "dim");
  if (code === 23) return without(look, "italic");
  if (code === 24) return without(look, "underline");
  if (code === 27) return without(look, "inverse");
  if (code === 29) return without(look, "strike");
  if (code === 39) return without(look, "fg");
  if (code === 49) return without(look, "bg");
  if (code >= 30 && code <= 37) return { ...look, fg: code - 30 };
  if (code >= 40 && code <= 47) return { ...look, bg: code - 40 };
  if (code >= 90 && code <= 97) return { ...look, fg: code - 82 };
  if (code >= 100 && code <= 107) return { ...look, bg: code - 92 };
  return look;
}

function without(look: Look, ...names: (keyof Look)[]): Look {
  const rest: Record<string, unknown> = { ...look };
  for (const name of names) delete rest[name];
  return rest as Look;
}

/** A colour of 256 or of all, and how many codes it takes. */
function extended(codes: number[], at: number): [number | string | undefined, number] {
  if (codes[at] === 5) return [indexed(codes[at + 1] ?? 0), 2];
  if (codes[at] === 2) return [hex(codes[at + 1] ?? 0, codes[at + 2] ?? 0, codes[at + 3] ?? 0), 4];
  return [undefined, 0];
}

function indexed(index: number): number | string {
  if (index < 16) return index;
  if (index >= 232) {
    const grey = 8 + (Math.min(index, 255) - 232) * 10;
    return hex(grey, grey, grey);
  }
  const level = (step: number) => (step === 0 ? 0 : 55 + step * 40);
  const cube = index - 16;
  return hex(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6));
}

function hex(...parts: number[]): string {
  return `#${parts.map((part) => Math.min(255, part).toString(16).padStart(2, "0")).join("")}`;
}
