// Files in and out of a session's workspace, streamed, with conditions that keep two writers from
// overwriting each other.

import { createReadStream } from "node:fs";
import { Readable } from "node:stream";

import { dataOf, isCut } from "./events.js";
import type { Door } from "./door.js";
import { asError, badAnswer, WindlassError } from "./errors.js";
import { CHUNK_BYTES_MAX, encodeFrame } from "./frame.js";
import { path } from "./paths.js";

/** How long an upload may take. */
const UPLOAD_WAIT_MS = 60 * 60 * 1000;

/** The content of a file. A stream is read once. */
export type Content =
  | string
  | Uint8Array
  | Readable
  | AsyncIterable<string | Uint8Array>
  | { readonly file: string };

/** Conditions on the existing file. */
export interface Conditions {
  /** The etag that the file must have. */
  ifMatch?: string | undefined;
  /** `*`: the file must not exist. */
  ifNoneMatch?: "*" | undefined;
}

export interface FileEntry {
  path: string;
  kind: "file" | "directory" | "link" | "other";
  bytes: number;
  modified_ms: number;
  etag?: string | null;
}

export interface FileWritten {
  path: string;
  bytes: number;
  etag: string;
}

/** One change of a write-back. */
export type Change =
  | ({ put: string; content: Content } & Conditions)
  | ({ delete: string } & Pick<Conditions, "ifMatch">);

/** A change of a file. `overflow`: events were lost, so list the directory again. */
export interface Watched {
  kind: "made" | "changed" | "removed" | "overflow";
  path: string;
}

export interface Listing {
  entries: FileEntry[];
  more: boolean;
}

/** A file's content as a stream. */
export class FileContent implements AsyncIterable<Buffer> {
  constructor(
    /** The content as a stream. */
    readonly stream: Readable,
    /** Changes with every change of the file. */
    readonly etag: string | undefined,
    /** Length of the requested part in bytes. */
    readonly length: number | undefined,
  ) {}

  async bytes(): Promise<Buffer> {
    const pieces: Buffer[] = [];
    for await (const piece of this) pieces.push(piece);
    return Buffer.concat(pieces);
  }

  async text(): Promise<string> {
    return (await this.bytes()).toString();
  }

  [Symbol.asyncIterator](): AsyncIterator<Buffer> {
    return (this.stream as AsyncIterable<Buffer>)[Symbol.asyncIterator]();
  }
}

export class Files {
  readonly #door: Door;
  readonly #session: string;

  /** Use {@link Session.files}. */
  constructor(door: Door, session: string) {
    this.#door = door;
    this.#session = session;
  }

  /** Writes a whole file and creates its directories. */
  async put(file: string, content: Content, conditions: Conditions = {}): Promise<FileWritten> {
    const body =
      typeof content === "string" || content instanceof Uint8Array
        ? Buffer.from(content as Uint8Array)
        : piecesOf(content);
    const conditional = conditions.ifMatch !== undefined || conditions.ifNoneMatch !== undefined;
    return this.#door.json<FileWritten>({
      method: "PUT",
      path: this.#path(file),
      body,
      headers: headersOf(conditions),
      repeat: conditional || !(body instanceof Uint8Array) ? "if_not_sent" : "freely",
      waitMs: UPLOAD_WAIT_MS,
    });
  }

  /** A file's content, or a part of it. */
  async get(file: string, range: { from?: number; to?: number } = {}): Promise<FileContent> {
    const { from, to } = range;
    // The end of the range is exclusive here, and inclusive in HTTP.
    const part =
      from === undefined && to === undefined
        ? undefined
        : `bytes=${from ?? 0}-${to === undefined ? "" : to - 1}`;
    const response = await this.#door.stream({
      method: "GET",
      path: this.#path(file),
      headers: { range: part },
      repeat: "freely",
    });
    const length = response.headers["content-length"];
    return new FileContent(
      response,
      response.headers.etag,
      length === undefined ? undefined : Number(length),
    );
  }

  /** The entries of a directory, by default of the workspace itself. */
  async list(directory = "", options: { recursive?: boolean } = {}): Promise<FileEntry[]> {
    const entries: FileEntry[] = [];
    for (;;) {
      const page = await this.listPage(directory, { ...options, after: entries.at(-1)?.path });
      entries.push(...page.entries);
      if (!page.more || page.entries.length === 0) return entries;
    }
  }

  /** One page of a list, after the last path of the previous page. */
  listPage(
    directory = "",
    options: { recursive?: boolean; after?: string | undefined; limit?: number } = {},
  ): Promise<Listing> {
    const { recursive, after, limit } = options;
    const query = { path: directory || undefined, recursive: recursive || undefined, after, limit };
    const place = path(["sessions", this.#session, "files"], query);
    return this.#door.json<Listing>({ method: "GET", path: place, repeat: "freely" });
  }

  async delete(file: string, conditions: Pick<Conditions, "ifMatch"> = {}): Promise<void> {
    await this.#door.call({
      method: "DELETE",
      path: this.#path(file),
      headers: headersOf(conditions),
      repeat: "if_not_sent",
    });
  }

  /**
   * Makes all changes or none. If any condition does not hold, throws `file_conflict` and writes
   * nothing. With `withinPolicy` it writes only what the session's code may write.
   */
  async writeBack(
    changes: Iterable<Change>,
    options: { withinPolicy?: boolean } = {},
  ): Promise<{ written: FileWritten[] }> {
    const query = { within_policy: options.withinPolicy || undefined };
    const place = path(["sessions", this.#session, "files"], query);
    return this.#door.json({
      method: "POST",
      path: place,
      body: framesOf(changes),
      headers: { "content-type": "application/octet-stream" },
      repeat: "if_not_sent",
      waitMs: UPLOAD_WAIT_MS,
    });
  }

  /**
   * Changes below a directory from now on, until `signal` aborts or the loop is left. After a
   * restart of the node it continues with an `overflow`.
   */
  async *watch(
    directory = "",
    options: { signal?: AbortSignal } = {},
  ): AsyncGenerator<Watched, void, undefined> {
    const { signal } = options;
    const place = path(["sessions", this.#session, "files", "watch"], { path: directory || undefined });
    for (let first = true; !signal?.aborted; first = false) {
      const streaming = await this.#door.stream({
        method: "GET",
        path: place,
        headers: { accept: "text/event-stream" },
        repeat: "freely",
        signal,
      });
      if (!first) yield { kind: "overflow", path: directory };
      try {
        for await (const data of dataOf(streaming)) yield watchedOf(data);
      } catch (thrown) {
        if (signal?.aborted) return;
        if (!isCut(thrown)) throw thrown;
      } finally {
        streaming.destroy();
      }
    }
  }

  #path(file: string): string {
    const parts = file.split("/").filter((part) => part !== "");
    if (parts.length === 0) {
      throw new WindlassError("bad_request", "a file has a name", "give a path in the workspace");
    }
    // `files/watch` is an endpoint, so a file of that name needs this parameter.
    const query = parts.length === 1 && parts[0] === "watch" ? { content: true } : {};
    return path(["sessions", this.#session, "files", ...parts], query);
  }
}

function headersOf(conditions: Conditions): Record<string, string | undefined> {
  return { "if-match": conditions.ifMatch, "if-none-match": conditions.ifNoneMatch };
}

function watchedOf(data: string): Watched {
  try {
    return JSON.parse(data) as Watched;
  } catch (thrown) {
    throw badAnswer("a watched directory", asError(thrown).message);
  }
}

/** The content in pieces, as bytes. */
async function* piecesOf(content: Content): AsyncGenerator<Uint8Array> {
  if (typeof content === "string") {
    yield Buffer.from(content);
  } else if (content instanceof Uint8Array) {
    yield content;
  } else {
    const pieces: AsyncIterable<string | Uint8Array> =
      "file" in content ? createReadStream(content.file) : content;
    for await (const piece of pieces) yield typeof piece === "string" ? Buffer.from(piece) : piece;
  }
}

/** The body of a write-back: one frame for each piece of each file. */
async function* framesOf(changes: Iterable<Change>): AsyncGenerator<Uint8Array> {
  for (const change of changes) {
    if ("delete" in change) {
      yield encodeFrame({ kind: "delete", path: change.delete, if_match: change.ifMatch });
      continue;
    }
    const { put, ifMatch, ifNoneMatch } = change;
    const header = { kind: "put", path: put, if_match: ifMatch, if_none_match: ifNoneMatch };
    // A piece is the last one only if no further piece follows.
    let held: Uint8Array | undefined;
    for await (const piece of piecesOf(change.content)) {
      for (let at = 0; at < piece.length; at += CHUNK_BYTES_MAX) {
        if (held) yield encodeFrame({ ...header, more: true }, held);
        held = piece.subarray(at, at + CHUNK_BYTES_MAX);
      }
    }
    yield encodeFrame(header, held);
  }
}
