// The copies of workspace files that one call of a tool works on: fetches them before the function
// runs, writes changed ones back after it, and removes them all.
//
// The paths come from the session's code. The node resolves them, for reading as any client's, and
// for writing only where the session's policy lets the code write.

import { createHash } from "node:crypto";
import { constants, rmSync } from "node:fs";
import { type FileHandle, mkdir, mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, posix } from "node:path";

import type { Session as SessionView } from "./api.js";
import type { Door } from "./door.js";
import { hasCode } from "./errors.js";
import { type Change, type FileContent, Files } from "./files.js";
import { path as requestPath } from "./paths.js";
import type { ToolCall } from "./tool.js";

/** The largest file that a call can be given, or can write back. */
const FILE_BYTES_MAX = 256 * 1024 * 1024;

/** Most bytes of all files of one call. */
const CALL_BYTES_MAX = 1024 * 1024 * 1024;

/**
 * Counts the bytes of the copies of all open calls of this process. A sparse file costs a session
 * nothing, and its copy is that long.
 */
export const hostBudget = {
  bytesMax: 4 * 1024 * 1024 * 1024,
  held: 0,

  take(length: number): void {
    if (this.held + length > this.bytesMax) {
      const message = `the files of all open calls have more than ${this.bytesMax} bytes together; call the tool again when other calls have ended`;
      throw new FileFault("FileTooLarge", message);
    }
    this.held += length;
  },

  release(length: number): void {
    this.held -= length;
  },
};

/** Most files of one call. */
const FILES_MAX = 64;

/** The longest path. The node accepts no longer one. */
const PATH_BYTES_MAX = 4000;

const { O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants;

/** A failure with a file of a call. The code sees `name` as the error's type. */
class FileFault extends Error {
  constructor(
    override readonly name: string,
    message: string,
  ) {
    super(message);
  }
}

/** One copy. `etag` and `digest` tell the version that was fetched, if a file existed. */
interface HostCopy {
  readonly place: string;
  writesBack: boolean;
  etag?: string | undefined;
  digest?: string;
}

/** Directories of open calls, which are removed when the process exits. */
const directories = new Set<string>();
let removesAtExit = false;

/** The copies of one call, in a directory that only this user can open. Close it after the call. */
export class HostCopies {
  readonly #files: Files;
  /** By path in the workspace. */
  readonly #copies = new Map<string, HostCopy>();
  /** The bytes that were received, or that are written back. */
  #bytes = 0;
  /** The bytes that this call has taken from the budget of the process. */
  #held = 0;
  #directory: string | undefined;

  constructor(
    private readonly door: Door,
    private readonly call: ToolCall,
  ) {
    this.#files = new Files(door, call.session);
  }

  /** Copies a file and returns the path of the copy. */
  async copy(named: string, writeBack: boolean): Promise<string> {
    const path = await this.#pathOf(named);
    const known = this.#copies.get(path);
    if (known !== undefined) {
      // The same file twice is one copy, so that no change hides the other.
      known.writesBack ||= writeBack;
      return known.place;
    }
    if (this.#copies.size >= FILES_MAX) {
      throw new FileFault("FileTooLarge", `the call names more than ${FILES_MAX} files`);
    }
    this.#directory ??= await makeDirectory();
    // A directory for each copy, because files of different directories can have the same name.
    const inside = join(this.#directory, String(this.#copies.size));
    await mkdir(inside, { mode: 0o700 });
    const copy: HostCopy = { place: join(inside, posix.basename(path)), writesBack: writeBack };
    try {
      await this.#receive(path, copy, await this.#files.get(path));
    } catch (thrown) {
      if (!hasCode(thrown, "file_not_found")) throw explained(thrown);
      if (!writeBack) {
        const message = `there is no file ${JSON.stringify(named)} in the workspace`;
        throw new FileFault("FileNotFoundError", message);
      }
    }
    this.#copies.set(path, copy);
    return copy.place;
  }

  /**
   * Writes the changed copies, all or none. Writes nothing for a call that is over, also if it ends
   * while its files are compared or sent: the node discards a body that is cut.
   */
  async writeBack(): Promise<void> {
    const { signal } = this.call;
    const handles: FileHandle[] = [];
    try {
      const changes: Change[] = [];
      this.#bytes = 0;
      for (const [path, copy] of this.#copies) {
        if (!copy.writesBack) continue;
        const handle = await opened(path, copy);
        if (handle === undefined) continue;
        handles.push(handle);
        const { size } = await handle.stat();
        this.#bytes += size;
        checkSize(path, size, this.#bytes);
        if (copy.digest !== undefined && (await digestOf(handle, signal)) === copy.digest) continue;
        const condition =
          copy.digest === undefined ? { ifNoneMatch: "*" as const } : { ifMatch: copy.etag };
        changes.push({ put: path, content: streamOf(handle, signal), ...condition });
      }
      signal.throwIfAborted();
      if (changes.length > 0) await this.#files.writeBack(changes, { withinPolicy: true });
    } catch (thrown) {
      throw explained(thrown);
    } finally {
      for (const handle of handles) await handle.close();
    }
  }

  /** Removes the copies. */
  async close(): Promise<void> {
    const directory = this.#directory;
    if (directory === undefined) return;
    await rm(directory, { recursive: true, force: true }).catch(() => undefined);
    directories.delete(directory);
    hostBudget.release(this.#held);
    this.#held = 0;
  }

  /** The path relative to the workspace. `..` and symlinks are left to the node. */
  async #pathOf(named: string): Promise<string> {
    if (Buffer.byteLength(named) > PATH_BYTES_MAX) {
      throw refused(named.slice(0, 80), `it is longer than ${PATH_BYTES_MAX} bytes`);
    }
    if (Buffer.from(named).toString() !== named) {
      throw refused(named, "it has half of a surrogate pair");
    }
    let path = named;
    if (named.startsWith("/")) {
      const workspace = `${(await this.#workspace()).replace(/\/+$/, "")}/`;
      if (!named.startsWith(workspace)) {
        throw refused(named, `it is not in the workspace ${workspace}`);
      }
      path = named.slice(workspace.length);
    }
    path = path
      .split("/")
      .filter((part) => part !== "" && part !== ".")
      .join("/");
    if (path === "") throw refused(named, "it names no file");
    return path;
  }

  async #workspace(): Promise<string> {
    const place = requestPath(["sessions", this.call.session]);
    const call = { method: "GET", path: place, repeat: "freely" } as const;
    return (await this.door.json<SessionView>(call)).workspace;
  }

  async #receive(path: string, copy: HostCopy, content: FileContent): Promise<void> {
    const hash = createHash("sha256");
    let handle: FileHandle | undefined;
    try {
      const announced = content.length ?? 0;
      checkSize(path, announced, this.#bytes + announced);
      handle = await open(copy.place, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600);
      let length = 0;
      for await (const piece of content) {
        this.call.signal.throwIfAborted();
        length += piece.length;
        this.#bytes += piece.length;
        checkSize(path, length, this.#bytes);
        hostBudget.take(piece.length);
        this.#held += piece.length;
        hash.update(piece);
        await handle.writeFile(piece);
      }
    } finally {
      content.stream.destroy();
      await handle?.close();
    }
    copy.etag = content.etag;
    copy.digest = hash.digest("hex");
  }
}

async function makeDirectory(): Promise<string> {
  if (!removesAtExit) {
    removesAtExit = true;
    process.once("exit", () => {
      for (const left of directories) rmSync(left, { recursive: true, force: true });
    });
  }
  const made = await mkdtemp(join(tmpdir(), "windlass-"));
  directories.add(made);
  return made;
}

/** The open copy. A copy that the tool removed, or never made, changes nothing. */
async function opened(path: string, copy: HostCopy): Promise<FileHandle | undefined> {
  let handle: FileHandle;
  try {
    handle = await open(copy.place, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  } catch (thrown) {
    const { code } = thrown as NodeJS.ErrnoException;
    if (code === "ENOENT") return undefined;
    throw refused(path, `its copy cannot be opened: ${code}`);
  }
  if ((await handle.stat()).isFile()) return handle;
  await handle.close();
  throw refused(path, "the tool put something else than a file in place of its copy");
}

/** The content of a copy, which ends with an error when its call is over. */
async function* streamOf(handle: FileHandle, signal: AbortSignal): AsyncGenerator<Buffer> {
  const pieces = handle.createReadStream({ start: 0, autoClose: false }) as AsyncIterable<Buffer>;
  for await (const piece of pieces) {
    signal.throwIfAborted();
    yield piece;
  }
  signal.throwIfAborted();
}

async function digestOf(handle: FileHandle, signal: AbortSignal): Promise<string> {
  const hash = createHash("sha256");
  for await (const piece of streamOf(handle, signal)) hash.update(piece);
  return hash.digest("hex");
}

function checkSize(path: string, length: number, whole: number): void {
  if (length > FILE_BYTES_MAX) {
    const message = `the file ${JSON.stringify(path)} has more than ${FILE_BYTES_MAX} bytes, the limit of a tool's file`;
    throw new FileFault("FileTooLarge", message);
  }
  if (whole > CALL_BYTES_MAX) {
    const message = `the files of the call have more than ${CALL_BYTES_MAX} bytes together`;
    throw new FileFault("FileTooLarge", message);
  }
}

function refused(path: string, why: string): FileFault {
  return new FileFault("PathRefused", `the path ${JSON.stringify(path)} is refused: ${why}`);
}

/** The node's refusal with a type of its own. */
function explained(thrown: unknown): unknown {
  if (hasCode(thrown, "file_conflict")) return new FileFault("FileConflict", thrown.message);
  if (hasCode(thrown, "path_refused")) return new FileFault("PathRefused", thrown.message);
  return thrown;
}
