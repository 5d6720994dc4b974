// The last lines of output that moves the cursor between lines: progress bars over several lines, `watch`, `top`.
// A line keeps what was written to it, moves within the line included; `renderLine` makes its final look of that.

/** Lines that the cursor can still reach. */
const LINES_MAX = 60;

/** The screen that programs suppose when they address it from its top. */
const SCREEN_ROWS = 24;

/** A line is cut to what was written last beyond this. */
const LINE_MAX = 8192;

/** Sequences without a character that can be seen. */
const EMPTY = /^(?:\r|\x1b\[[\d;]*[A-Za-z])*$/;

const MOVE = /\r?\n|\x1b\[([\d;]*)([ABEFHJdf])/g;

/** The begin of a sequence whose end has not come. */
const SEQUENCE_MAX = 32;
const UNFINISHED = /\x1b(?:\[[\d;?]*)?$/;

const LEAVES_LINE = /\x1b\[[\d;]*(?:[ABEFHdf]|[0-3]?J)/;

/** Whether a text moves the cursor out of its line. */
export function leavesLine(text: string): boolean {
  return text.includes("\x1b[") && LEAVES_LINE.test(text);
}

/** The begin of a sequence at the end of a text. */
export function unfinished(text: string): string {
  return UNFINISHED.exec(text.slice(-SEQUENCE_MAX))?.[0] ?? "";
}

export class LiveLines {
  readonly lines: string[];
  #at: number;
  #rest = "";
  /** The cursor is in the first column. */
  #atBegin = false;
  /** The first line of the screen. */
  #top = 0;

  constructor(lines: string[]) {
    this.lines = lines.length === 0 ? [""] : lines;
    this.#at = this.lines.length - 1;
    this.#atBegin = this.lines.at(-1) === "";
    this.#top = Math.max(0, this.lines.length - SCREEN_ROWS);
  }

  /** Lines without an empty last one. */
  get count(): number {
    return this.lines.length - (EMPTY.test(this.lines.at(-1) ?? "") ? 1 : 0);
  }

  /** Writes a text; the lines that the cursor can no longer reach come back. */
  write(text: string): string[] {
    const out: string[] = [];
    const all = this.#rest + text;
    this.#rest = unfinished(all);
    const whole = all.slice(0, all.length - this.#rest.length);
    let done = 0;
    for (const found of whole.matchAll(MOVE)) {
      this.#put(whole.slice(done, found.index));
      done = found.index + found[0].length;
      if (found[2] === undefined) this.#down(1, "\r", true);
      else this.#move(found[2], (found[1] ?? "").split(";").map((number) => Number.parseInt(number, 10) || 0), out);
      while (this.lines.length > LINES_MAX) this.#shift(out);
    }
    this.#put(whole.slice(done));
    return out;
  }

  #put(text: string): void {
    if (text === "") return;
    let line = (this.lines[this.#at] ?? "") + text;
    if (line.length > LINE_MAX) {
      const from = Math.max(line.lastIndexOf("\r", line.length - 2), line.lastIndexOf("\x1b[2K"));
      line = from > 0 ? line.slice(from) : line.slice(-LINE_MAX);
    }
    this.lines[this.#at] = line;
    this.#atBegin = line.endsWith("\r");
  }

  #shift(out: string[]): void {
    out.push(this.lines.shift() ?? "");
    this.#at = Math.max(0, this.#at - 1);
    this.#top = Math.max(0, this.#top - 1);
  }

  #down(steps: number, begin: string, grows: boolean): void {
    for (let step = 0; step < steps; step += 1) {
      if (this.#at === this.lines.length - 1) {
        if (!grows) return;
        this.lines.push("");
        this.#at += 1;
        this.#atBegin = true;
        this.#top = Math.max(this.#top, this.lines.length - SCREEN_ROWS);
      } else {
        this.#at += 1;
        this.#put(begin);
      }
    }
  }

  #move(act: string, numbers: number[], out: string[]): void {
    const steps = Math.max(1, numbers[0] ?? 1);
    const begin = this.#atBegin || act === "E" || act === "F" ? "\r" : "";
    if (act === "A" || act === "F") {
      this.#at = Math.max(0, this.#at - steps);
      this.#put(begin);
    } else if (act === "B" || act === "E") this.#down(Math.min(steps, LINES_MAX), begin, false);
    else if (act === "J") this.#erase(numbers[0] ?? 0, out);
    else this.#goTo(this.#top + Math.min(steps, SCREEN_ROWS * 2) - 1, act === "d" ? undefined : Math.max(1, numbers[1] ?? 1));
  }

  #goTo(line: number, column: number | undefined): void {
    while (this.lines.length <= line) this.lines.push("");
    this.#at = line;
    if (column !== undefined) this.#put(column === 1 ? "\r" : `\x1b[${column}G`);
  }

  #erase(what: number, out: string[]): void {
    if (what === 0) {
      this.lines.length = this.#at + 1;
      this.#put("\x1b[K");
    } else if (what >= 2) {
      // The screen is written anew; what has left it stays above.
      out.push(...this.lines.slice(0, this.#top));
      this.lines.splice(0, this.lines.length, "");
      this.#at = 0;
      this.#top = 0;
    }
  }
}
