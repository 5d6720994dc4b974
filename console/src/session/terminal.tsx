// The terminal of a session that has one. Its line runs commands as turns, and answers the program that runs; a program
// that uses the whole screen gets the keys themselves.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import type { TerminalSize } from "../../../sdk/typescript/src/api.ts";
import { ApiProblem, call, path, words } from "../lib/api.ts";
import { Empty, Problem } from "../lib/parts.tsx";
import { useStore } from "../lib/store.ts";
import { theme } from "../lib/theme.ts";
import { pastCode } from "./compose.tsx";
import { giveInput, type TypedInput } from "./input.tsx";
import type { LiveSession } from "./live.ts";
import type { Screen } from "./screen.ts";
import { CELLS_MAX } from "./screen-limits.ts";
import { Typist } from "./typist.ts";

const INTERRUPT_KEY = "\x03";

export function TerminalTab({ id, live }: { id: string; live: LiveSession }) {
  const size = live.session?.terminal;
  if (live.session === undefined) return null;
  if (size == null) {
    return (
      <Empty>
        <p>This session has no terminal. A shell session gets one when it is made.</p>
      </Empty>
    );
  }
  if (size.columns * size.rows > CELLS_MAX) {
    return (
      <Empty>
        <p>The terminal of this session is too large to be shown: {size.columns} columns and {size.rows} rows.</p>
      </Empty>
    );
  }
  return <OpenTerminal id={id} live={live} size={size} />;
}

function isNotRunning(thrown: unknown): boolean {
  return thrown instanceof ApiProblem && thrown.code === "turn_not_running";
}

function OpenTerminal({ id, live, size }: { id: string; live: LiveSession; size: TerminalSize }) {
  const { transcript } = live;
  const [problem, setProblem] = useState("");
  const [alternate, setAlternate] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const screen = useRef<Screen>();
  const typist = useRef<Typist>();
  const field = useRef<HTMLInputElement>(null);
  const stop = useRef<HTMLButtonElement>(null);
  const chosen = useStore(theme);
  const current = transcript.current;
  const over = live.state === "ended" || live.state === "lost";
  // A background job can use the screen too, and gets no keys.
  const whole = alternate && current !== undefined;

  const tell = (thrown: unknown) => {
    // The turn ended while the request was on its way.
    if (!isNotRunning(thrown)) setProblem(words(thrown));
  };
  const interrupt = (turn: string) => void call(path("sessions", id, "turns", turn, "interrupt"), { method: "POST" }).catch(tell);
  const answer = (turn: string, input: TypedInput) =>
    void giveInput(id, turn, input).catch((thrown: unknown) =>
      setProblem(isNotRunning(thrown) ? "Nothing took this input: the command has ended, or has not begun." : words(thrown)),
    );

  useEffect(() => {
    const at = box.current;
    if (at === null) return;
    let gone = false;
    let unread: (() => void) | undefined;
    typist.current = new Typist((turn, text) =>
      giveInput(id, turn, { text, keys: true }).catch((thrown: unknown) => {
        tell(thrown);
        throw thrown;
      }),
    );
    const typed = (drawn: string, text: string) => {
      const turn = transcript.current;
      // What is drawn may lag: a key that was meant for its program is for no other.
      if (turn?.id !== drawn) return;
      // A program that reads gets the character, and its terminal makes the signal of it, or not.
      if (text === INTERRUPT_KEY && turn.phase !== "awaiting_input") interrupt(turn.id);
      else if (typist.current?.type(turn.id, text) === false) setProblem("The program does not read what you type.");
    };
    const leave = () => (transcript.current === undefined || field.current?.readOnly === false ? field : stop).current?.focus();
    import("./screen.ts").then(
      (module) => {
        if (gone) return;
        const opened = new module.Screen(at, { ...size, typed, whole: setAlternate, leave });
        screen.current = opened;
        unread = transcript.screen.read((part) => opened.show(part));
        field.current?.focus();
      },
      (thrown) => setProblem(words(thrown)),
    );
    return () => {
      gone = true;
      unread?.();
      screen.current?.dispose();
      screen.current = undefined;
    };
  }, [id, transcript, size.columns, size.rows]);
  useEffect(() => {
    const repaint = () => screen.current?.repaint();
    repaint();
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", repaint);
    return () => system.removeEventListener("change", repaint);
  }, [chosen]);
  useEffect(() => {
    if (current?.wait !== undefined) typist.current?.asked(current.id, current.wait.seq);
    else typist.current?.answered();
  }, [current?.id, current?.wait?.seq]);
  // The keys follow the program, unless the person is at something else.
  useLayoutEffect(() => {
    const active = document.activeElement;
    if (whole && active === field.current) screen.current?.focus();
    if (!whole && box.current?.contains(active) === true) field.current?.focus();
  }, [whole]);

  return (
    <div class="terminal-tab">
      <div class="terminal-screen" ref={box} role="group" aria-label="Terminal" />
      {!over && (
        <div class="terminal-line">
          <Problem text={problem} />
          <TerminalLine id={id} live={live} field={field} whole={whole} told={setProblem} interrupt={interrupt} answer={answer} />
          <button ref={stop} type="button" disabled={current === undefined} onClick={() => current !== undefined && interrupt(current.id)} title="Interrupt the running command">Stop</button>
          <p class="hint">{hint(current !== undefined, whole)}</p>
        </div>
      )}
    </div>
  );
}

function hint(runs: boolean, whole: boolean): string {
  if (!runs) return "Enter runs the command as a turn.";
  if (whole) return "The program has the screen and gets your keys. Shift Esc leaves it.";
  return "Enter answers the program. Ctrl C interrupts it, Ctrl D ends its input.";
}

interface TerminalLineProps {
  id: string;
  live: LiveSession;
  field: { current: HTMLInputElement | null };
  whole: boolean;
  told: (problem: string) => void;
  interrupt: (turn: string) => void;
  answer: (turn: string, input: TypedInput) => void;
}

/** The line below the screen: a command while nothing runs, else an answer. */
function TerminalLine({ id, live, field, whole, told, interrupt, answer }: TerminalLineProps) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(-1);
  const current = live.transcript.current;
  const secret = current?.wait?.secret === true;
  // A command that was being typed is no answer, and an answer no command. Before the person sees the change.
  useLayoutEffect(() => setText(""), [current?.id, secret]);
  const send = async (event: Event) => {
    event.preventDefault();
    told("");
    if (current !== undefined) {
      setText("");
      return answer(current.id, { text: `${text}\n` });
    }
    if (text.trim() === "") return;
    setText("");
    setAt(-1);
    try {
      await call(path("sessions", id, "turns"), { method: "POST", json: { code: text } });
    } catch (thrown) {
      told(words(thrown));
      setText(text);
    }
  };
  const key = (event: KeyboardEvent) => {
    if (event.ctrlKey && !event.altKey && !event.metaKey && !event.shiftKey) {
      const { selectionStart, selectionEnd } = event.currentTarget as HTMLInputElement;
      // With a selection it copies.
      if (event.key === "c" && selectionStart === selectionEnd) {
        event.preventDefault();
        setText("");
        if (current !== undefined) interrupt(current.id);
      } else if (event.key === "d" && current !== undefined && text === "") {
        event.preventDefault();
        answer(current.id, { eof: true });
      }
      return;
    }
    const by = event.key === "ArrowUp" ? 1 : event.key === "ArrowDown" ? -1 : 0;
    if (by === 0 || current !== undefined) return;
    event.preventDefault();
    // A field of one line would join the lines of the others.
    const past = pastCode(live.transcript).filter((one) => !one.trim().includes("\n"));
    const next = Math.max(-1, Math.min(past.length - 1, at + by));
    setAt(next);
    setText(past[next] ?? "");
  };
  return (
    <form class="terminal-command" onSubmit={send}>
      <span aria-hidden="true">{current === undefined ? "$" : "…"}</span>
      <input
        ref={field}
        type={secret ? "password" : "text"}
        aria-label={current === undefined ? "Command" : "Input for the program"}
        autocomplete="off"
        autocapitalize="off"
        spellcheck={false}
        readOnly={whole}
        value={text}
        onInput={(event) => { setText(event.currentTarget.value); setAt(-1); }}
        onKeyDown={key}
      />
      <button type="submit" class="primary" disabled={whole || (current === undefined && text.trim() === "")}>{current === undefined ? "Run" : "Send"}</button>
    </form>
  );
}
