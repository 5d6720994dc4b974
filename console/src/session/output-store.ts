// The output of a turn, by lines. Its head and its end stay in memory; what lies between is left to the node when it
// is large, and comes back by a range of bytes when somebody looks at it.

import type { Stream } from "../../../sdk/typescript/src/api.ts";
import { type Look, lookAfter, type Piece, PLAIN, renderLine } from "./ansi.ts";
import { leavesLine, LiveLines, unfinished } from "./live-lines.ts";

/** Text of about this length is one chunk. */
const CHUNK_CHARS = 64 * 1024;

/** Chunks at the begin that stay in memory. */
const HEAD_CHUNKS = 2;

/** Text that stays in memory for one store, in characters. */
const RESIDENT_MAX = 8 * 1024 * 1024;

/** The same for a turn that has ended: a session can have many. */
const SETTLED_MAX = 1024 * 1024;

/** Ranges that are asked for at the same time. */
const READS_MAX = 4;

/** A range that did not come is asked for again after this. */
const AGAIN_MS = 1000;

/** Chunks whose lines are kept as pieces. */
const RENDERED_CHUNKS = 12;

/** Earlier lines that a cursor can reach when it first moves. */
const LIVE_BEFORE = 24;

/** An unfinished line is cut to its last state beyond this. */
const OPEN_MAX = 256 * 1024;

export interface Row {
  pieces: Piece[];
  stream: Stream;
}

interface Chunk {
  /** Absent: the node has it. */
  text: string | undefined;
  lines: number;
  firstLine: number;
  /** The range in the turn's output. */
  from: number;
  to: number;
  look: Look;
  /** From which line on the text is of which stream. */
  streams: { line: number; stream: Stream }[];
}

/** The bytes of a range of the turn's output. */
export type ReadRange = (from: number, to: number) => Promise<string>;

const encoder = new TextEncoder();

export class OutputStore {
  readonly #chunks: Chunk[] = [];
  readonly #rows = new Map<Chunk, Row[]>();
  readonly #loading = new Set<Chunk>();
  #look: Look = PLAIN;
  #current: Chunk;
  #parts: string[] = [];
  #chars = 0;
  #open = "";
  #openStream: Stream;
  #resident = 0;
  #residentMax = RESIDENT_MAX;
  /** A range of bytes can name another text than it did: nothing is left to the node. */
  #keepAll = false;
  /** Absent until the output moves the cursor between lines. */
  #live: LiveLines | undefined;
  bytes = 0;
  version = 0;

  constructor(stream: Stream, from: number) {
    this.#openStream = stream;
    this.#current = this.#begin(from, 0, stream);
  }

  /** All lines, with an unfinished last one. */
  get lineCount(): number {
    const finished = this.#current.firstLine + this.#current.lines;
    if (this.#live !== undefined) return finished + this.#live.count;
    return finished + (this.#open === "" ? 0 : 1);
  }

  /** Nothing more comes. */
  settle(): void {
    this.#residentMax = SETTLED_MAX;
    this.#evict();
  }

  keepAll(): void {
    this.#keepAll = true;
  }

  /** Adds a piece of output whose first byte is at `from`. */
  append(text: string, byteCount: number, stream: Stream, from: number): void {
    this.version += 1;
    this.bytes += byteCount;
    let written = text;
    if (this.#live === undefined && leavesLine(unfinished(this.#open) + text)) {
      written = unfinished(this.#open) + text;
      this.#goLive();
    }
    if (this.#live !== undefined) {
      for (const line of this.#live.write(written)) this.#append(`${line}\n`, 0, stream, from);
      return;
    }
    this.#append(text, byteCount, stream, from);
  }

  #append(text: string, byteCount: number, stream: Stream, from: number): void {
    const last = text.lastIndexOf("\n");
    if (last < 0) {
      this.#addOpen(text, stream);
      return;
    }
    const whole = this.#open + text.slice(0, last + 1);
    const rest = text.slice(last + 1);
    const restBytes = rest.length === 0 ? 0 : text.length === byteCount ? rest.length : encoder.encode(rest).length;
    const lineStream = this.#open === "" ? stream : this.#openStream;
    this.#rows.delete(this.#current);
    this.#mark(lineStream);
    const lines = countLines(whole);
    if (lineStream !== stream && lines > 1) this.#mark(stream, 1);
    this.#parts.push(whole);
    this.#chars += whole.length;
    this.#current.lines += lines;
    this.#current.to = from + byteCount - restBytes;
    this.#open = "";
    if (this.#chars >= CHUNK_CHARS) this.#close(stream);
    if (rest !== "") this.#addOpen(rest, stream);
  }

  /** The row of a line. Absent while the node is asked for it. */
  row(line: number): Row | undefined {
    const live = this.#live?.lines[line - this.#current.firstLine - this.#current.lines];
    if (live !== undefined) return { pieces: renderLine(live, PLAIN).pieces, stream: "stdout" };
    if (this.#open !== "" && line === this.lineCount - 1) {
      const start = this.#current.lines > 0 ? lookAfter(this.#parts.join(""), this.#current.look) : this.#current.look;
      return { pieces: renderLine(this.#open, start).pieces, stream: this.#openStream };
    }
    const chunk = this.#chunkOf(line);
    if (chunk === undefined) return undefined;
    return this.#rowsOf(chunk)?.[line - chunk.firstLine];
  }

  /** Reads what the node has of the lines `first` to `last`; calls back when something came. */
  load(first: number, last: number, read: ReadRange, came: () => void): void {
    for (const chunk of this.#chunks) {
      if (chunk.text !== undefined || this.#loading.has(chunk)) continue;
      if (this.#loading.size >= READS_MAX) return;
      if (chunk.firstLine > last || chunk.firstLine + chunk.lines <= first) continue;
      this.#loading.add(chunk);
      const done = (text: string) => {
        chunk.text = text;
        this.#resident += text.length;
        this.#loading.delete(chunk);
        this.#evict(chunk);
        came();
      };
      const failed = () => {
        this.#loading.delete(chunk);
        setTimeout(came, AGAIN_MS);
      };
      read(chunk.from, chunk.to).then(done, failed);
    }
  }

  /** The whole text that is in memory, for copying. */
  text(): string {
    const parts = this.#chunks.map((chunk) => chunk.text ?? "\n[more]\n");
    return [...parts, ...this.#parts, this.#live?.lines.join("\n") ?? this.#open].join("");
  }

  /** The lines that the cursor can reach are taken back. From now on lines are no longer ranges of bytes. */
  #goLive(): void {
    this.#keepAll = true;
    this.#rows.delete(this.#current);
    const lines = this.#parts.join("").split("\n");
    lines.pop();
    const taken = lines.splice(Math.max(0, lines.length - LIVE_BEFORE));
    this.#parts = lines.map((line) => `${line}\n`);
    this.#chars = this.#parts.join("").length;
    this.#current.lines = lines.length;
    this.#current.streams = this.#current.streams.filter((mark) => mark.line === 0 || mark.line < lines.length);
    this.#live = new LiveLines([...taken, this.#open.slice(0, this.#open.length - unfinished(this.#open).length)]);
    this.#open = "";
  }

  #addOpen(text: string, stream: Stream): void {
    if (this.#open === "") this.#openStream = stream;
    this.#open += text;
    if (this.#open.length > OPEN_MAX) {
      const from = this.#open.lastIndexOf("\r", this.#open.length - OPEN_MAX / 4);
      if (from > 0) this.#open = this.#open.slice(from);
    }
  }

  #begin(from: number, firstLine: number, stream: Stream): Chunk {
    return { text: undefined, lines: 0, firstLine, from, to: from, look: this.#look, streams: [{ line: 0, stream }] };
  }

  #mark(stream: Stream, ahead = 0): void {
    const streams = this.#current.streams;
    const line = this.#current.lines + ahead;
    const last = streams.at(-1);
    if (last?.stream === stream) return;
    if (last?.line === line) last.stream = stream;
    else streams.push({ line, stream });
  }

  #close(stream: Stream): void {
    const chunk = this.#current;
    chunk.text = this.#parts.join("");
    this.#look = lookAfter(chunk.text, chunk.look);
    this.#chunks.push(chunk);
    this.#resident += chunk.text.length;
    this.#parts = [];
    this.#chars = 0;
    this.#current = this.#begin(chunk.to, chunk.firstLine + chunk.lines, stream);
    this.#evict();
  }

  /** Leaves chunks to the node, from the oldest, until the rest is small enough. */
  #evict(keep?: Chunk): void {
    if (this.#keepAll) return;
    const until = this.#chunks.length - HEAD_CHUNKS;
    for (let at = HEAD_CHUNKS; at < until && this.#resident > this.#residentMax; at += 1) {
      const chunk = this.#chunks[at];
      if (chunk?.text === undefined || chunk === keep || this.#rows.has(chunk)) continue;
      this.#resident -= chunk.text.length;
      chunk.text = undefined;
    }
  }

  #chunkOf(line: number): Chunk | undefined {
    if (line >= this.#current.firstLine) return this.#current;
    let low = 0;
    let high = this.#chunks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.#chunks[middle]?.firstLine ?? 0) <= line) low = middle;
      else high = middle - 1;
    }
    return this.#chunks[low];
  }

  #rowsOf(chunk: Chunk): Row[] | undefined {
    const kept = this.#rows.get(chunk);
    if (kept !== undefined) {
      // The chunk that was looked at last is dropped last.
      this.#rows.delete(chunk);
      this.#rows.set(chunk, kept);
      return kept;
    }
    const text = chunk === this.#current ? this.#parts.join("") : chunk.text;
    if (text === undefined) return undefined;
    if (chunk === this.#current) this.#parts = [text];
    const rows = renderRows(text, chunk);
    this.#rows.set(chunk, rows);
    for (const oldest of this.#rows.keys()) {
      if (this.#rows.size <= RENDERED_CHUNKS) break;
      this.#rows.delete(oldest);
    }
    return rows;
  }
}

function renderRows(text: string, chunk: Chunk): Row[] {
  const rows: Row[] = [];
  let look = chunk.look;
  let mark = 0;
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  for (const line of lines) {
    while ((chunk.streams[mark + 1]?.line ?? Infinity) <= rows.length) mark += 1;
    const rendered = renderLine(line, look);
    look = rendered.end;
    rows.push({ pieces: rendered.pieces, stream: chunk.streams[mark]?.stream ?? "stdout" });
  }
  return rows;
}

function countLines(text: string): number {
  let count = 0;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) count += 1;
  return count;
}
