// Answers code that asks for input.

import { useEffect, useRef, useState } from "preact/hooks";

import { call, path, words } from "../lib/api.ts";
import { Problem } from "../lib/parts.tsx";

export interface InputProps {
  session: string;
  turn: string;
  wait: { prompt: string; secret: boolean };
}

export interface TypedInput {
  text?: string;
  eof?: boolean;
  /** The text is keys, and not a line. */
  keys?: boolean;
}

export function giveInput(session: string, turn: string, input: TypedInput): Promise<unknown> {
  return call(path("sessions", session, "turns", turn, "input"), { method: "POST", json: input });
}

export function InputBox({ session, turn, wait }: InputProps) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    // A person who types something else is left in peace.
    const active = document.activeElement;
    const free = active === null || active === document.body || (active instanceof HTMLTextAreaElement && active.value === "");
    if (free) field.current?.focus({ preventScroll: true });
  }, []);
  const send = async (input: { text?: string; eof?: boolean }) => {
    setBusy(true);
    setProblem("");
    try {
      await giveInput(session, turn, input);
      setText("");
    } catch (thrown) {
      setProblem(words(thrown));
    }
    setBusy(false);
  };
  return (
    <form class="ask" onSubmit={(event) => { event.preventDefault(); void send({ text: `${text}\n` }); }}>
      <label for={`input-${turn}`}>{wait.prompt.trim() || (wait.secret ? "A secret" : "Input")}</label>
      <div class="row">
        <input
          id={`input-${turn}`}
          ref={field}
          type={wait.secret ? "password" : "text"}
          autocomplete="off"
          spellcheck={false}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <button type="submit" class="primary" disabled={busy}>Send</button>
        <button type="button" class="ghost" disabled={busy} onClick={() => void send({ eof: true })} title="No more input follows">End of input</button>
      </div>
      <Problem text={problem} />
    </form>
  );
}
