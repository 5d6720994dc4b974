// The box in which a person runs code in the session.

import { useEffect, useRef, useState } from "preact/hooks";

import { call, path, words } from "../lib/api.ts";
import { useKeys } from "../lib/keys.ts";
import { Problem } from "../lib/parts.tsx";
import type { Transcript } from "./fold.ts";

/** Code that was not sent yet, by session: it stays when the person looks at something else. */
const drafts = new Map<string, string>();

const HEIGHT_MAX_PX = 280;

export function Compose({ id, kind, transcript, sent }: { id: string; kind: string; transcript: Transcript; sent: () => void }) {
  const [code, setCode] = useState(drafts.get(id) ?? "");
  const [at, setAt] = useState<number>();
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const isAgent = kind.startsWith("agent") || kind.startsWith("acp");
  drafts.set(id, code);
  useKeys({ "/": () => field.current?.focus() });
  useEffect(() => {
    const box = field.current;
    if (box === null) return;
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight + 2, HEIGHT_MAX_PX)}px`;
  }, [code]);

  const run = async () => {
    if (code.trim() === "" || busy) return;
    setBusy(true);
    setProblem("");
    // At once: what the person types while the request is on its way is the next code.
    setCode("");
    setAt(undefined);
    try {
      await call(path("sessions", id, "turns"), { method: "POST", json: { code } });
      sent();
    } catch (thrown) {
      setProblem(words(thrown));
      setCode((now) => (now === "" ? code : now));
    }
    setBusy(false);
  };

  /** Earlier code, as in a shell: only from the first or the last line. */
  const recall = (event: KeyboardEvent, by: number) => {
    const box = field.current;
    if (box === null || box.selectionStart !== box.selectionEnd) return;
    const before = box.value.slice(0, box.selectionStart);
    const behind = box.value.slice(box.selectionEnd);
    if (by < 0 ? before.includes("\n") : behind.includes("\n")) return;
    const past = pastCode(transcript);
    const next = (at ?? -1) - by;
    if (by > 0 && at === undefined) return;
    const found = next < 0 ? "" : past[next];
    if (found === undefined) return;
    event.preventDefault();
    setAt(next < 0 ? undefined : next);
    setCode(found);
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void run();
    } else if (event.key === "ArrowUp") recall(event, -1);
    else if (event.key === "ArrowDown") recall(event, 1);
  };

  return (
    <div class="compose">
      <Problem text={problem} />
      <div class="compose-in">
        <textarea
          ref={field}
          rows={1}
          spellcheck={isAgent}
          autocomplete="off"
          autocapitalize="off"
          aria-label={isAgent ? "Prompt for the agent" : "Code to run"}
          placeholder={isAgent ? "Prompt for the agent" : `Run ${kind || "code"} in this session  /`}
          value={code}
          onInput={(event) => { setCode(event.currentTarget.value); setAt(undefined); }}
          onKeyDown={key}
        />
        <button type="button" class="primary" onClick={() => void run()} disabled={busy || code.trim() === ""} title="Ctrl Enter">{isAgent ? "Send" : "Run"}</button>
      </div>
    </div>
  );
}

/** The code of the session's turns, the last one first, each once. */
export function pastCode(transcript: Transcript): string[] {
  return [...new Set([...transcript.turns.values()].map((turn) => turn.code).toReversed())];
}
