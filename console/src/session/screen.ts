// A terminal's screen, drawn by xterm.js. Loaded when somebody opens a terminal. What a session prints moves the cursor
// and sets colours of its text; it makes no link and no title, it gets no answers, and what takes long is refused
// (`screen-limits.ts`). Only a program that uses the whole screen gets keys from it.

import "@xterm/xterm/css/xterm.css";

import { Terminal } from "@xterm/xterm";

import { allowLibraryStyle } from "../lib/library-style.ts";
import { limitTerminal } from "./screen-limits.ts";
import { commandText, ENTER_WHOLE_SCREEN, ForgottenParts, LEAVE_WHOLE_SCREEN, OutputText, PLAIN_MODES, RECENT_CHARS_MAX, type ScreenPart, size } from "./screen-feed.ts";

/** Lines above the screen that can be scrolled to. */
const SCROLLBACK_LINES = 5000;

/** Characters that are drawn at once. The page answers in between. */
const DRAWN_CHARS = 4096;

/** Characters that wait to be drawn. Of a faster flood the older part is left out: the transcript has all of it. */
const WAITING_CHARS_MAX = 4 * RECENT_CHARS_MAX;

export interface ScreenOptions {
  columns: number;
  rows: number;
  /** Keys for the program whose turn is drawn, which uses the whole screen. */
  typed: (turn: string, text: string) => void;
  /** A program begins or ends to use the whole screen. */
  whole: (is: boolean) => void;
  /** A key was pressed that is for nobody here. */
  leave: () => void;
}

export class Screen {
  readonly #terminal: Terminal;
  readonly #box: HTMLElement;
  #waiting: ScreenPart[] = [];
  #chars = 0;
  #skipped = 0;
  #forgotten = new ForgottenParts();
  readonly #output = new OutputText();
  /** The turn whose command is drawn, and whose end is not. */
  #turn: string | undefined;
  #drawing = false;
  #gone = false;

  constructor(box: HTMLElement, { columns, rows, typed, whole, leave }: ScreenOptions) {
    allowLibraryStyle();
    this.#box = box;
    const look = getComputedStyle(box);
    this.#terminal = new Terminal({
      cols: columns,
      rows,
      scrollback: SCROLLBACK_LINES,
      convertEol: true,
      cursorBlink: false,
      fontFamily: look.fontFamily,
      fontSize: 13,
      // Colours of programs are readable on both grounds.
      minimumContrastRatio: 4.5,
      theme: theme(look),
      logLevel: "off",
    });
    limitTerminal(this.#terminal);
    this.#terminal.onData((text) => {
      if (this.#isWhole() && this.#turn !== undefined) typed(this.#turn, text);
    });
    this.#terminal.buffer.onBufferChange(() => whole(this.#isWhole()));
    this.#terminal.attachCustomKeyEventHandler((event) => {
      const leaves = this.#isWhole() ? event.shiftKey && event.key === "Escape" : !event.ctrlKey && !event.metaKey && event.key.length === 1;
      if (leaves && event.type === "keydown") {
        if (event.key === "Escape") {
          event.preventDefault();
          event.stopPropagation();
        }
        leave();
      }
      return this.#isWhole() && !leaves;
    });
    this.#terminal.open(box);
    this.#terminal.textarea?.setAttribute("aria-label", "Keys for the program");
  }

  show(part: ScreenPart): void {
    this.#waiting.push(part);
    this.#chars += size(part);
    while (this.#chars > WAITING_CHARS_MAX && this.#skip());
    if (!this.#drawing) void this.#draw();
  }

  /** Takes the colours of the page again. */
  repaint(): void {
    this.#terminal.options.theme = theme(getComputedStyle(this.#box));
  }

  focus(): void {
    this.#terminal.focus();
  }

  dispose(): void {
    this.#gone = true;
    this.#terminal.dispose();
  }

  #isWhole(): boolean {
    return this.#terminal.buffer.active.type === "alternate";
  }

  /** Leaves out the oldest output that waits. The last part stays. */
  #skip(): boolean {
    const at = this.#waiting.findIndex((part) => part.is === "output");
    if (at < 0 || at >= this.#waiting.length - 1) return false;
    const [part] = this.#waiting.splice(at, 1) as [ScreenPart & { is: "output" }];
    this.#chars -= size(part);
    this.#forgotten.add(part);
    this.#skipped += part.text.length;
    return true;
  }

  async #draw(): Promise<void> {
    this.#drawing = true;
    // A terminal that is gone calls nobody back.
    for (let part = this.#next(); part !== undefined && !this.#gone; part = this.#next()) {
      const text = this.#text(part);
      for (let at = 0; at < text.length && !this.#gone; at += DRAWN_CHARS) {
        await new Promise<void>((done) => this.#terminal.write(text.slice(at, at + DRAWN_CHARS), done));
      }
    }
    this.#drawing = false;
  }

  #next(): ScreenPart | undefined {
    if (this.#skipped > 0) {
      const text = `${this.#plain()}[${this.#skipped} characters came too fast; the transcript has them]\n`;
      this.#waiting.unshift(this.#forgotten.part());
      this.#skipped = 0;
      this.#forgotten = new ForgottenParts();
      return { is: "output", text };
    }
    const part = this.#waiting.shift();
    if (part === undefined) return undefined;
    this.#chars -= size(part);
    if (part.is !== "output") return part;
    // Each write waits for a timer of the library.
    let text = part.text;
    for (let next = this.#waiting[0]; next?.is === "output" && text.length < DRAWN_CHARS; next = this.#waiting[0]) {
      this.#waiting.shift();
      this.#chars -= size(next);
      text += next.text;
    }
    return { is: "output", text };
  }

  #text(part: ScreenPart): string {
    switch (part.is) {
      case "command":
        this.#turn = part.turn;
        // A background job may have changed the modes since the last turn.
        return this.#plain() + this.#output.next(commandText(part.code));
      case "output":
        return this.#output.next(part.text);
      case "end":
        this.#turn = undefined;
        return this.#plain();
      case "resume":
        this.#turn = part.turn ?? this.#turn;
        return part.whole ? ENTER_WHOLE_SCREEN : "";
    }
  }

  #plain(): string {
    return (this.#isWhole() ? LEAVE_WHOLE_SCREEN : "") + PLAIN_MODES + this.#newLine();
  }

  /** Ends a line that a program has not ended. */
  #newLine(): string {
    return this.#terminal.buffer.normal.cursorX > 0 ? "\r\n" : "";
  }
}

function theme(look: CSSStyleDeclaration) {
  const { color, backgroundColor } = look;
  return { foreground: color, background: backgroundColor, cursor: color, cursorAccent: backgroundColor, selectionBackground: "rgba(120, 140, 255, 0.4)" };
}
