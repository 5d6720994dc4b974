// A file provider that keeps its files in memory.

import { CALL_BYTES_MAX, fileError, type FileProvider, type FileStat, pathParts, type WriteOptions } from "./providers.js";

const BYTES_MAX_DEFAULT = 256 * 1024 * 1024;

interface Entry {
  /** The content; null for a directory. */
  data: Buffer | null;
  mtimeMs: number;
}

/** Serves files from memory. */
export class MemoryFiles implements FileProvider {
  readonly #entries = new Map<string, Entry>([["", { data: null, mtimeMs: 0 }]]);
  readonly #bytesMax: number;

  /** @param files contents by path @param options.bytesMax most bytes of all files together */
  constructor(files: Record<string, Uint8Array | string> = {}, options: { bytesMax?: number } = {}) {
    this.#bytesMax = options.bytesMax ?? BYTES_MAX_DEFAULT;
    for (const [path, content] of Object.entries(files)) {
      const parts = pathParts(path);
      for (let end = 1; end < parts.length; end++) {
        const above = parts.slice(0, end).join("/");
        if (!this.#entries.has(above)) this.#entries.set(above, { data: null, mtimeMs: 0 });
      }
      this.#entries.set(path, { data: Buffer.from(content as string), mtimeMs: 0 });
    }
  }

  /** The content of a file. */
  content(path: string): Uint8Array {
    return Buffer.from(this.#file(path));
  }

  stat(path: string): FileStat {
    const { data, mtimeMs } = this.#entry(path);
    return { kind: data === null ? "directory" : "file", size: data?.length ?? 0, mtimeMs };
  }

  list(path: string): string[] {
    if (this.#entry(path).data !== null) throw fileError("ENOTDIR", path);
    return this.#below(path).filter((other) => parentOf(other) === path).map((other) => other.slice(other.lastIndexOf("/") + 1)).sort();
  }

  read(path: string, offset: number, length: number): Uint8Array {
    return this.#file(path).subarray(offset, offset + Math.min(length, CALL_BYTES_MAX));
  }

  write(path: string, offset: number, data: Uint8Array, { create, truncate }: WriteOptions): void {
    if (create && !this.#entries.has(path)) {
      this.#checkParent(path);
      this.#entries.set(path, { data: Buffer.alloc(0), mtimeMs: 0 });
    }
    const held = this.#file(path);
    const end = offset + data.length;
    const size = truncate ? end : Math.max(held.length, data.length === 0 ? 0 : end);
    if (size > held.length && this.#bytes() + size - held.length > this.#bytesMax) throw fileError("ENOSPC", path);
    const grown = Buffer.alloc(size);
    held.copy(grown, 0, 0, size);
    grown.set(data.subarray(0, Math.max(0, size - offset)), Math.min(offset, size));
    this.#entries.set(path, { data: grown, mtimeMs: 0 });
    this.#touch(path);
  }

  mkdir(path: string): void {
    if (this.#entries.has(path)) throw fileError("EEXIST", path);
    this.#checkParent(path);
    this.#entries.set(path, { data: null, mtimeMs: 0 });
    this.#touch(path);
  }

  rename(path: string, to: string): void {
    const { data } = this.#entry(path);
    this.#checkParent(to);
    if (path === to) return;
    if (to.startsWith(`${path}/`)) throw fileError("EINVAL", to);
    const replaced = this.#entries.get(to);
    if (replaced !== undefined) {
      if (replaced.data === null && data !== null) throw fileError("EISDIR", to);
      if (replaced.data !== null && data === null) throw fileError("ENOTDIR", to);
      if (this.#below(to).length > 0) throw fileError("ENOTEMPTY", to);
    }
    for (const old of [path, ...this.#below(path)]) {
      const entry = this.#entry(old);
      this.#entries.delete(old);
      this.#entries.set(to + old.slice(path.length), entry);
    }
    this.#touch(path);
    this.#touch(to);
  }

  remove(path: string, { directory }: { directory: boolean }): void {
    const isDirectory = this.#entry(path).data === null;
    if (isDirectory !== directory) throw fileError(isDirectory ? "EISDIR" : "ENOTDIR", path);
    if (path === "" || this.#below(path).length > 0) throw fileError("ENOTEMPTY", path);
    this.#entries.delete(path);
    this.#touch(path);
  }

  #entry(path: string): Entry {
    const entry = this.#entries.get(path);
    if (entry !== undefined) return entry;
    this.#checkParent(path);
    throw fileError("ENOENT", path);
  }

  #file(path: string): Buffer {
    const { data } = this.#entry(path);
    if (data === null) throw fileError("EISDIR", path);
    return data;
  }

  #checkParent(path: string): void {
    const parts = pathParts(path);
    for (let end = 0; end < parts.length; end++) {
      const above = this.#entries.get(parts.slice(0, end).join("/"));
      if (above === undefined) throw fileError("ENOENT", path);
      if (above.data !== null) throw fileError("ENOTDIR", path);
    }
  }

  #below(path: string): string[] {
    const prefix = path === "" ? "" : `${path}/`;
    return [...this.#entries.keys()].filter((other) => other !== "" && other !== path && other.startsWith(prefix));
  }

  #bytes(): number {
    let bytes = 0;
    for (const { data } of this.#entries.values()) bytes += data?.length ?? 0;
    return bytes;
  }

  #touch(path: string): void {
    for (const touched of [path, parentOf(path)]) {
      const entry = this.#entries.get(touched);
      if (entry !== undefined) entry.mtimeMs = Date.now();
    }
  }
}

function parentOf(path: string): string {
  return path.slice(0, Math.max(0, path.lastIndexOf("/")));
}
