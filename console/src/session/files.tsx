// The files of the session's workspace: list, look, download, upload.

import { useEffect, useRef, useState } from "preact/hooks";

import type { FileEntry, FileList } from "../../../sdk/typescript/src/api.ts";
import { call, path, request, words } from "../lib/api.ts";
import { Problem } from "../lib/parts.tsx";
import { pictureUrl } from "../lib/picture.ts";
import { age, bytes } from "../lib/text.ts";

/** Bytes of a file that are shown. */
const SHOWN_MAX = 256 * 1024;

const PICTURE = /\.(png|jpe?g|gif|webp|avif|bmp|ico|svg)$/i;

function filePath(session: string, file: string): string {
  return `${path("sessions", session, "files")}/${file.split("/").map(encodeURIComponent).join("/")}`;
}

/** Never empty: of a file without a type, browsers guess whether it is a document. */
function pictureType(file: string): string {
  const ending = file.slice(file.lastIndexOf(".") + 1).toLowerCase();
  return `image/${{ jpg: "jpeg", svg: "svg+xml", ico: "x-icon" }[ending] ?? ending}`;
}

const nameOf = (file: string) => file.slice(file.lastIndexOf("/") + 1);

/** Directories, then files, and last what begins with a dot. */
function rank(entry: FileEntry): number {
  return (nameOf(entry.path).startsWith(".") ? 2 : 0) + (entry.kind === "directory" ? 0 : 1);
}

export function FilesTab({ id }: { id: string }) {
  const [directory, setDirectory] = useState("");
  const [entries, setEntries] = useState<FileEntry[]>();
  const [more, setMore] = useState(false);
  const [opened, setOpened] = useState<FileEntry>();
  const [problem, setProblem] = useState("");
  const [asked, setAsked] = useState(0);
  const upload = useRef<HTMLInputElement>(null);

  const read = async (after?: string) => {
    try {
      const query = { path: directory === "" ? undefined : directory, after };
      const list = await call<FileList>(path("sessions", id, "files"), { query });
      setEntries((before) => [...(after === undefined ? [] : (before ?? [])), ...list.entries]);
      setMore(list.more);
      setProblem("");
    } catch (thrown) {
      setProblem(words(thrown));
      setEntries((before) => before ?? []);
    }
  };
  useEffect(() => void read(), [id, directory, asked]);

  const put = async (files: globalThis.FileList | null) => {
    for (const file of files ?? []) {
      try {
        const place = directory === "" ? file.name : `${directory}/${file.name}`;
        const taken = entries?.some((entry) => entry.path === place) ?? false;
        if (taken && !confirm(`Replace ${place}?`)) continue;
        await request(filePath(id, place), { method: "PUT", body: file, headers: taken ? {} : { "if-none-match": "*" } });
      } catch (thrown) {
        setProblem(words(thrown));
        return;
      }
    }
    setAsked(asked + 1);
  };

  const sorted = [...(entries ?? [])].sort((left, right) => rank(left) - rank(right) || (left.path < right.path ? -1 : 1));
  return (
    <div tabIndex={0} class="pane files" onDragOver={(event) => event.preventDefault()} onDrop={(event) => { event.preventDefault(); void put(event.dataTransfer?.files ?? null); }}>
      <div class="row">
        <Crumbs directory={directory} go={(next) => { setOpened(undefined); setDirectory(next); }} />
        <button type="button" class="ghost" onClick={() => setAsked(asked + 1)}>Reload</button>
        <button type="button" onClick={() => upload.current?.click()}>Upload</button>
        <input ref={upload} type="file" multiple hidden onChange={(event) => { void put(event.currentTarget.files); event.currentTarget.value = ""; }} />
      </div>
      <Problem text={problem} />
      <div class="file-columns">
        <ul class="file-list">
          {sorted.map((entry) => (
            <li key={entry.path}>
              <button type="button" class={`file ${entry.kind}`} aria-pressed={opened?.path === entry.path} onClick={() => (entry.kind === "directory" ? (setOpened(undefined), setDirectory(entry.path)) : setOpened(entry))}>
                <span class="mono file-name">{nameOf(entry.path)}{entry.kind === "directory" && "/"}{entry.kind === "link" && " →"}</span>
                <span class="num">{entry.kind === "file" ? bytes(entry.bytes) : ""}</span>
                <span class="num">{age(Date.now() - entry.modified_ms)}</span>
              </button>
            </li>
          ))}
          {more && <li><button type="button" class="link" onClick={() => void read(entries?.at(-1)?.path)}>Show more</button></li>}
          {entries?.length === 0 && problem === "" && <li class="muted">The directory is empty.</li>}
        </ul>
        {opened !== undefined && <Opened key={opened.path} session={id} entry={opened} close={() => setOpened(undefined)} />}
      </div>
    </div>
  );
}

function Crumbs({ directory, go }: { directory: string; go: (directory: string) => void }) {
  const parts = directory === "" ? [] : directory.split("/");
  return (
    <nav class="crumbs mono" aria-label="Directory">
      <button type="button" class="link" onClick={() => go("")}>workspace</button>
      {parts.map((part, at) => (
        <span key={at}> / <button type="button" class="link" onClick={() => go(parts.slice(0, at + 1).join("/"))}>{part}</button></span>
      ))}
    </nav>
  );
}

function Opened({ session, entry, close }: { session: string; entry: FileEntry; close: () => void }) {
  const [text, setText] = useState<string>();
  const [url, setUrl] = useState<string>();
  const [problem, setProblem] = useState("");
  const picture = PICTURE.test(entry.path) && entry.bytes < 32 * 1024 * 1024;
  useEffect(() => {
    let made: string | undefined;
    const show = async () => {
      if (picture) {
        const reply = await request(filePath(session, entry.path));
        made = await pictureUrl(new Blob([await reply.arrayBuffer()], { type: pictureType(entry.path) }));
        setUrl(made);
        return;
      }
      const range: Record<string, string> = entry.bytes > SHOWN_MAX ? { range: `bytes=0-${SHOWN_MAX - 1}` } : {};
      const content = new Uint8Array(await (await request(filePath(session, entry.path), { headers: range })).arrayBuffer());
      setText(content.includes(0) ? "(not a text)" : new TextDecoder().decode(content));
    };
    show().catch((thrown: unknown) => setProblem(words(thrown)));
    return () => {
      if (made !== undefined) URL.revokeObjectURL(made);
    };
  }, []);
  const download = async () => {
    try {
      const blob = await (await request(filePath(session, entry.path))).blob();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = nameOf(entry.path);
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } catch (thrown) {
      setProblem(words(thrown));
    }
  };
  return (
    <section class="opened" aria-label={entry.path}>
      <header class="row">
        <h3 class="mono">{entry.path}</h3>
        <span class="muted">{bytes(entry.bytes)}</span>
        <button type="button" onClick={() => void download()}>Download</button>
        <button type="button" class="ghost" onClick={close}>Close</button>
      </header>
      <Problem text={problem} />
      {url !== undefined && <figure class="picture"><img src={url} alt={entry.path} /></figure>}
      {text !== undefined && <pre class="out" tabIndex={0}>{text}</pre>}
      {entry.bytes > SHOWN_MAX && text !== undefined && <p class="muted">The first {bytes(SHOWN_MAX)} are shown.</p>}
    </section>
  );
}
