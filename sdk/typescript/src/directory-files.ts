// A file provider that serves the files below a directory.

import { constants } from "node:fs";
import { type FileHandle, lstat, mkdir, open, readdir, rename, rmdir, unlink } from "node:fs/promises";
import { resolve } from "node:path";

import { CALL_BYTES_MAX, fileError, type FileProvider, type FileStat, pathParts, type WriteOptions } from "./providers.js";

const { O_CREAT, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants;
const DIRECTORY = O_RDONLY | O_DIRECTORY;
const FILE_MODE = 0o666;

export interface DirectoryFilesOptions {
  readOnly?: boolean | undefined;
}

/** Serves the files below a directory. Symlinks are neither shown nor followed, and a path cannot leave the directory. */
export class DirectoryFiles implements FileProvider {
  readonly #root: string;
  readonly #readOnly: boolean;

  constructor(path: string, options: DirectoryFilesOptions = {}) {
    this.#root = resolve(path);
    this.#readOnly = options.readOnly ?? false;
  }

  stat(path: string): Promise<FileStat> {
    return this.#beneath(path, async (place) => {
      const found = await lstat(place);
      if (found.isDirectory()) return { kind: "directory", size: 0, mtimeMs: found.mtimeMs };
      if (!found.isFile()) throw fileError("EACCES", path);
      return { kind: "file", size: found.size, mtimeMs: found.mtimeMs };
    });
  }

  list(path: string): Promise<string[]> {
    return this.#beneath(path, async (place) => {
      const directory = await open(place, DIRECTORY | O_NOFOLLOW);
      try {
        const entries = await readdir(descriptorPath(directory), { withFileTypes: true });
        return entries.filter((one) => one.isFile() || one.isDirectory()).map(({ name }) => name).sort();
      } finally {
        await directory.close();
      }
    });
  }

  read(path: string, offset: number, length: number): Promise<Uint8Array> {
    return this.#withFile(path, O_RDONLY, async (file) => {
      const data = Buffer.alloc(Math.min(length, CALL_BYTES_MAX));
      let filled = 0;
      while (filled < data.length) {
        const { bytesRead } = await file.read(data, filled, data.length - filled, offset + filled);
        if (bytesRead === 0) break;
        filled += bytesRead;
      }
      return data.subarray(0, filled);
    });
  }

  async write(path: string, offset: number, data: Uint8Array, { create, truncate }: WriteOptions): Promise<void> {
    this.#checkWritable(path);
    await this.#withFile(path, O_WRONLY | (create ? O_CREAT : 0), async (file) => {
      for (let at = 0; at < data.length; ) {
        at += (await file.write(data, at, data.length - at, offset + at)).bytesWritten;
      }
      if (truncate) await file.truncate(offset + data.length);
    });
  }

  async mkdir(path: string): Promise<void> {
    this.#checkWritable(path);
    await this.#beneath(path, (place) => mkdir(place));
  }

  async rename(path: string, to: string): Promise<void> {
    this.#checkWritable(path);
    await this.#beneath(path, (from) => this.#beneath(to, (place) => rename(from, place)));
  }

  async remove(path: string, { directory }: { directory: boolean }): Promise<void> {
    this.#checkWritable(path);
    await this.#beneath(path, (place) => (directory ? rmdir(place) : unlink(place)));
  }

  #checkWritable(path: string): void {
    if (this.#readOnly) throw fileError("EROFS", path);
  }

  /**
   * Acts on the last part of a path, beneath the open directory that holds it. Each part is opened beneath the one before,
   * without following a link, so a swapped directory gains nothing.
   */
  async #beneath<T>(path: string, act: (place: string) => Promise<T>): Promise<T> {
    const parts = pathParts(path);
    // The root's own path belongs to this program, and may be a link.
    let directory = await open(this.#root, DIRECTORY);
    try {
      for (const part of parts.slice(0, -1)) {
        const below = await open(`${descriptorPath(directory)}/${part}`, DIRECTORY | O_NOFOLLOW);
        await directory.close();
        directory = below;
      }
      return await act(`${descriptorPath(directory)}/${parts.at(-1) ?? "."}`);
    } finally {
      await directory.close();
    }
  }

  /** Opens a regular file. A pipe or device must not block or act. */
  #withFile<T>(path: string, flags: number, act: (file: FileHandle) => Promise<T>): Promise<T> {
    return this.#beneath(path, async (place) => {
      const file = await open(place, flags | O_NOFOLLOW | O_NONBLOCK, FILE_MODE);
      try {
        const found = await file.stat();
        if (!found.isFile()) throw fileError(found.isDirectory() ? "EISDIR" : "EACCES", path);
        return await act(file);
      } finally {
        await file.close();
      }
    });
  }
}

/** The kernel resolves this path to the open directory itself, wherever that is now. */
function descriptorPath(directory: FileHandle): string {
  return `/proc/self/fd/${directory.fd}`;
}
