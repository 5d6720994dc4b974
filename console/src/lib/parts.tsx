// Small parts that pages share.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

export type Tone = "busy" | "wait" | "good" | "bad" | "quiet";

const STATES: Record<string, [Tone, string]> = {
  starting: ["busy", "starting"],
  idle: ["good", "idle"],
  busy: ["busy", "running"],
  running: ["busy", "running"],
  awaiting_input: ["wait", "waiting for input"],
  interrupting: ["busy", "interrupting"],
  restarting: ["busy", "restarting"],
  ended: ["quiet", "ended"],
  waiting: ["quiet", "queued"],
  unreachable: ["bad", "unreachable"],
  lost: ["bad", "lost"],
  ok: ["good", "ok"],
  error: ["bad", "error"],
  interrupted: ["quiet", "interrupted"],
  timed_out: ["bad", "timed out"],
};

export function stateWord(state: string): string {
  return STATES[state]?.[1] ?? state.replaceAll("_", " ");
}

/** A state as a dot and a word: colour is never the only sign. */
export function State({ of, short }: { of: string; short?: boolean }) {
  const [tone, word] = STATES[of] ?? ["quiet", of];
  return (
    <span class={`state ${tone}`}>
      <i class="dot" aria-hidden="true" />
      {short && of === "awaiting_input" ? "input" : word}
    </span>
  );
}

export function Problem({ text }: { text: string | undefined }) {
  if (text === undefined || text === "") return null;
  return (
    <p class="problem" role="alert">
      {text}
    </p>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <div class="empty">{children}</div>;
}

/** A window above the page; Escape closes it. */
export function Dialog(props: { title: string; close: () => void; children: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = box.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog ref={box} aria-label={props.title} onClose={props.close} onClick={(event) => event.target === box.current && props.close()}>
      <div class="dialog-in">
        <h2>{props.title}</h2>
        {props.children}
      </div>
    </dialog>
  );
}
