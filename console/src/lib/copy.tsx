// Copies a text. Browsers allow that on this machine and over https.

import { useState } from "preact/hooks";

const DONE_MS = 1500;

export function Copy({ text, label }: { text: () => string; label: string }) {
  const [done, setDone] = useState(false);
  if (navigator.clipboard === undefined) return null;
  const copy = async () => {
    await navigator.clipboard.writeText(text());
    setDone(true);
    setTimeout(() => setDone(false), DONE_MS);
  };
  return (
    <button type="button" class="link copy" aria-label={label} onClick={() => void copy()}>
      {done ? "Copied" : "Copy"}
    </button>
  );
}
