// Rich displays. None of them reaches the page: images are images, HTML lives in a frame without scripts and without
// an origin, everything else is text.

import { useEffect, useState } from "preact/hooks";

import { path, request, words } from "../lib/api.ts";
import { pictureUrl } from "../lib/picture.ts";
import { bytes } from "../lib/text.ts";
import type { Display } from "./fold.ts";

/** Larger displays are only drawn when somebody asks for them. */
const DRAWN_MAX = 16 * 1024 * 1024;

const TEXT_MAX = 256 * 1024;

export function DisplayPart({ display, session, version }: { display: Display; session: string; version: number }) {
  const [wanted, setWanted] = useState(display.bytes <= DRAWN_MAX);
  if (!wanted) {
    return (
      <button type="button" class="gap" onClick={() => setWanted(true)}>
        {display.mime}, {bytes(display.bytes)} · <b>Show</b>
      </button>
    );
  }
  if (display.mime.startsWith("image/")) return <Picture display={display} session={session} key={version} />;
  return <TextDisplay display={display} session={session} key={version} />;
}

async function blobOf(display: Display, session: string): Promise<Blob> {
  const type = display.mime.split(";")[0] ?? "";
  if (display.body !== undefined) return new Blob([display.body], { type });
  const reply = await request(path("sessions", session, "displays", String(display.seq)));
  return new Blob([await reply.arrayBuffer()], { type });
}

function Picture({ display, session }: { display: Display; session: string }) {
  const [url, setUrl] = useState<string>();
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let made: string | undefined;
    let gone = false;
    blobOf(display, session).then(pictureUrl).then(
      (address) => {
        if (gone) return URL.revokeObjectURL(address);
        made = address;
        return setUrl(address);
      },
      (thrown) => setProblem(words(thrown)),
    );
    return () => {
      gone = true;
      if (made !== undefined) URL.revokeObjectURL(made);
    };
  }, []);
  if (problem !== "") return <p class="notice bad">{problem}</p>;
  if (url === undefined) return <div class="picture loading" />;
  return (
    <figure class="picture">
      <img src={url} alt={`Display of type ${display.mime}`} />
    </figure>
  );
}

function TextDisplay({ display, session }: { display: Display; session: string }) {
  const [text, setText] = useState(typeof display.body === "string" ? display.body : undefined);
  useEffect(() => {
    if (text !== undefined) return;
    blobOf(display, session).then((blob) => blob.slice(0, TEXT_MAX * 4).text()).then(setText, (thrown) => setText(words(thrown)));
  }, []);
  if (text === undefined) return <p class="muted">Loading {display.mime}…</p>;
  if (display.mime.startsWith("text/html")) return <HtmlFrame html={text} />;
  return (
    <figure class="text-display">
      <figcaption>{display.mime}</figcaption>
      <pre class="out" tabIndex={0}>{readable(text, display.mime)}</pre>
    </figure>
  );
}

function HtmlFrame({ html }: { html: string }) {
  const [source, setSource] = useState(false);
  return (
    <figure class="text-display">
      <figcaption>
        text/html, without scripts
        <button type="button" class="link" onClick={() => setSource(!source)}>{source ? "Show drawn" : "Show source"}</button>
      </figcaption>
      {source ? <pre class="out" tabIndex={0}>{html.slice(0, TEXT_MAX)}</pre> : <iframe sandbox="" loading="lazy" referrerpolicy="no-referrer" title="HTML display" srcdoc={html} style={{ height: `${heightOf(html)}px` }} />}
    </figure>
  );
}

/** The frame does not tell its height to the page, so it is guessed by the elements that begin a line. */
function heightOf(html: string): number {
  const lines = html.match(/<(?:tr|p|li|div|br|h[1-6]|pre|hr)\b/gi)?.length ?? 0;
  const pictures = html.match(/<(?:img|svg|canvas|table)\b/gi)?.length ?? 0;
  return Math.min(480, Math.max(72, 36 + lines * 27 + pictures * 20));
}

function readable(text: string, mime: string): string {
  const cut = text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}\n…` : text;
  if (!/[/+]json\b/.test(mime) || cut !== text) return cut;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
