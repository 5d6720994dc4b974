// What a terminal of the session shows: commands, output and ends of turns, as they happen. Keeps the last part of it
// for a terminal that is opened later.

export type ScreenPart =
  | { is: "command"; turn: string; code: string }
  | { is: "output"; text: string }
  | { is: "end" }
  /** In place of parts that are not drawn: the turn that runs, unless it is as before, and whether it has the whole screen. */
  | { is: "resume"; turn: string | undefined; whole: boolean };

/** Characters of the past that a terminal shows when it is opened. */
export const RECENT_CHARS_MAX = 256 * 1024;

export class ScreenFeed {
  #recent: ScreenPart[] = [];
  #chars = 0;
  readonly #forgotten = new ForgottenParts();
  #reader: ((part: ScreenPart) => void) | undefined;

  push(part: ScreenPart): void {
    this.#recent.push(part);
    this.#chars += size(part);
    // Not with each part: a removal from the front moves all others.
    if (this.#chars > 2 * RECENT_CHARS_MAX) this.#forget();
    this.#reader?.(part);
  }

  /** Gives the recent parts and then each new one to the reader, until the returned function is called. */
  read(reader: (part: ScreenPart) => void): () => void {
    this.#forget();
    reader(this.#forgotten.part());
    for (const part of this.#recent) reader(part);
    this.#reader = reader;
    return () => {
      if (this.#reader === reader) this.#reader = undefined;
    };
  }

  #forget(): void {
    let first = 0;
    // The last part stays, however long it is.
    while (this.#chars > RECENT_CHARS_MAX && first < this.#recent.length - 1) {
      const part = this.#recent[first] as ScreenPart;
      this.#chars -= size(part);
      this.#forgotten.add(part);
      first += 1;
    }
    this.#recent.splice(0, first);
  }
}

/** Remembers of parts that are not drawn which turn runs, and whether it has begun to use the whole screen. */
export class ForgottenParts {
  #turn: string | undefined;
  #whole = false;

  add(part: ScreenPart): void {
    if (part.is === "output") {
      const last = [...part.text.matchAll(/\x1b\[\?(?:47|1047|1049)([hl])/g)].at(-1);
      if (last !== undefined) this.#whole = last[1] === "h";
      return;
    }
    this.#turn = part.is === "command" ? part.turn : undefined;
    this.#whole = false;
  }

  part(): ScreenPart {
    return { is: "resume", turn: this.#turn, whole: this.#whole };
  }
}

export function size(part: ScreenPart): number {
  // A part without text takes memory too.
  return 16 + (part.is === "command" ? part.code.length : part.is === "output" ? part.text.length : 0);
}

/** Characters that become a part of the one before. */
const JOINED = /[\p{M}\p{Cf}\u1160-\u11ff]+/gu;

/** How many of them one character may have. The library would keep, measure and repeat any number. */
const JOINED_MAX = 8;

/** Characters that are not drawn, and between which others are still joined. */
const UNSEEN = /[\x7f\x9c\ufeff]/g;

/** Output as the screen draws it, piece by piece. */
export class OutputText {
  /** Joined characters at the end of the piece before. */
  #run = 0;

  next(piece: string): string {
    const text = piece.replace(UNSEEN, "");
    let end = -1;
    let run = 0;
    const limited = text.replace(JOINED, (joined, at: number) => {
      const before = at === 0 ? this.#run : 0;
      const characters = [...joined];
      end = at + joined.length;
      run = before + characters.length;
      return characters.slice(0, Math.max(0, JOINED_MAX - before)).join("");
    });
    if (text !== "") this.#run = end === text.length ? run : 0;
    return limited;
  }
}

const HEAD = "\x1b[0;1m$ ";
const NEXT_LINE = "\r\n> ";

/** A command as a terminal shows it. Its control characters would be obeyed. */
export function commandText(code: string): string {
  const lines = code.replace(/\n+$/, "").split("\n");
  const plain = lines.map((line) => line.replace(/\t/g, "    ").replace(/\p{Cc}/gu, "\u{fffd}"));
  return `${HEAD}${plain.join(NEXT_LINE)}\x1b[0m\r\n`;
}

/** Undoes what a program may have left: attributes, hidden cursor, modes of mouse, keys and paste, character sets and
 *  margins. */
export const PLAIN_MODES = "\x1b[!p\x1b(B\x0f\x1b[?25h\x1b[?9;1000;1002;1003;1005;1006;1015;2004;2026l\x1b[?7h";

export const ENTER_WHOLE_SCREEN = "\x1b[?1049h";

/** Leaves the screen of a program that uses all of it. Elsewhere this would move the cursor. */
export const LEAVE_WHOLE_SCREEN = "\x1b[?1049l";
