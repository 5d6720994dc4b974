// What a session in WebAssembly may use of this program: files, HTTP requests, name lookups, programs. Owns the host
// tools `files.*` and `host.*`. Knows no connection.

import type { Tools } from "./offer.js";
import { type JsonSchema, tool, type Tool } from "./tool.js";

/** Most bytes of one read or write. */
export const CALL_BYTES_MAX = 4 * 1024 * 1024;

/** The kind of worker that uses these providers. */
const WORKER = "pyodide";

/** What a provider says about a file or directory. */
export interface FileStat {
  kind: "file" | "directory";
  /** Bytes of a file. */
  size: number;
  mtimeMs?: number | undefined;
}

type Answer<T> = T | Promise<T>;

/**
 * Serves the files of a session. Paths are relative, with `/` between the parts; the mount point itself is the empty
 * path. An error whose `code` is `ENOENT`, `EEXIST`, `ENOTDIR`, `EISDIR`, `ENOTEMPTY` or `EACCES` becomes the same error
 * in the code.
 */
export interface FileProvider {
  stat(path: string): Answer<FileStat>;
  list(path: string): Answer<readonly string[]>;
  /** At most `length` bytes; fewer only at the end of the file. */
  read(path: string, offset: number, length: number): Answer<Uint8Array>;
  write(path: string, offset: number, data: Uint8Array, options: WriteOptions): Answer<void>;
  mkdir(path: string): Answer<void>;
  rename(path: string, to: string): Answer<void>;
  remove(path: string, options: { directory: boolean }): Answer<void>;
}

export interface WriteOptions {
  /** Whether to create a missing file. */
  create: boolean;
  /** Whether the file ends after `data`. */
  truncate: boolean;
}

export interface HttpRequest {
  method: string;
  url: string;
  headers: [string, string][];
  body: Uint8Array | undefined;
}

export interface HttpAnswer {
  status: number;
  headers?: Iterable<readonly [string, string]> | undefined;
  body?: Uint8Array | undefined;
  /** The last URL, after redirects. */
  url?: string | undefined;
}

export interface ProgramRequest {
  /** The program and its arguments, or a text for a shell. */
  args: string | string[];
  shell: boolean;
  cwd: string | undefined;
  env: Record<string, string> | undefined;
  input: Uint8Array;
}

export interface ProgramAnswer {
  returncode: number;
  stdout?: Uint8Array | undefined;
  stderr?: Uint8Array | undefined;
}

/** What a session with `worker: "pyodide"` may use of this program. Anything else is refused. */
export interface HostProviders {
  /** Serves the session's directory: `DirectoryFiles`, `MemoryFiles` or an object of your own. */
  files?: FileProvider | undefined;
  http?: ((request: HttpRequest) => Answer<HttpAnswer>) | undefined;
  /** The addresses of a name. */
  lookup?: ((name: string) => Answer<readonly string[]>) | undefined;
  run?: ((program: ProgramRequest) => Answer<ProgramAnswer>) | undefined;
}

/** Throws if another worker is given providers. */
export function checkWorker(providers: HostProviders, worker: string | undefined): void {
  const given = Object.entries(providers).find(([, provider]) => provider !== undefined);
  if (given !== undefined && worker !== WORKER) {
    throw new TypeError(`${given[0]} needs worker: "${WORKER}"; other workers use the system's own`);
  }
}

/** The session's variables; a file provider adds one. */
export function providerEnvironment(
  { files }: HostProviders,
  env: Record<string, string> | undefined,
): Record<string, string> | undefined {
  return files === undefined ? env : { ...env, WINDLASS_FILES: "host" };
}

/** The host tools of the providers; undefined if there are none. */
export function providerTools({ files, http, lookup, run }: HostProviders): Tools | undefined {
  const tools: Record<string, Tool> = { ...(files === undefined ? {} : fileTools(files)) };
  if (http !== undefined) tools["host.http"] = httpTool(http);
  if (lookup !== undefined) tools["host.lookup"] = lookupTool(lookup);
  if (run !== undefined) tools["host.run"] = runTool(run);
  return Object.keys(tools).length === 0 ? undefined : tools;
}

/** An error with a code, as Node's own. */
export function fileError(code: string, path: string): Error {
  return Object.assign(new Error(`${code}: ${path}`), { code });
}

/** The parts of a path that a session sent. */
export function pathParts(path: string): string[] {
  const parts = path === "" ? [] : path.split("/");
  if (parts.some((part) => part === "" || part === "." || part === ".." || part.includes("\0"))) {
    throw fileError("EACCES", path);
  }
  return parts;
}

const text: JsonSchema = { type: "string" };
const count: JsonSchema = { type: "integer", minimum: 0 };
const flag: JsonSchema = { type: "boolean", default: false };

interface FileArguments {
  path: string;
  to: string;
  offset: number;
  length: number;
  data: string;
  create?: boolean;
  truncate?: boolean;
  directory?: boolean;
}

function fileTools(files: FileProvider): Record<string, Tool> {
  const made = (more: Record<string, JsonSchema>, run: (args: FileArguments) => Answer<unknown>): Tool => {
    const properties = { path: text, ...more };
    const required = Object.keys(properties).filter((name) => !("default" in properties[name as "path"]));
    const answer = async (args: Record<string, unknown>): Promise<unknown> => {
      const given = args as unknown as FileArguments;
      try {
        return (await run(given)) ?? null;
      } catch (thrown) {
        throw sessionError(thrown, given.path);
      }
    };
    return tool({ input: { type: "object", properties, required, additionalProperties: false }, run: answer });
  };
  return {
    "files.stat": made({}, async ({ path }) => {
      return facts(await files.stat(path));
    }),
    "files.list": made({}, async ({ path }) => {
      const found = (await files.list(path)).map((name) => entryOf(files, path, name));
      return { entries: (await Promise.all(found)).filter((entry) => entry !== undefined) };
    }),
    "files.read": made({ offset: count, length: count }, async ({ path, offset, length }) => {
      const data = await files.read(path, offset, Math.min(length, CALL_BYTES_MAX));
      return { data: encode(data) };
    }),
    "files.write": made(
      { offset: count, data: text, create: flag, truncate: flag },
      ({ path, offset, data, create = false, truncate = false }) => {
        const bytes = Buffer.from(data, "base64");
        if (bytes.length > CALL_BYTES_MAX) throw new RangeError(`a write of ${bytes.length} bytes is too large`);
        return files.write(path, offset, bytes, { create, truncate });
      },
    ),
    "files.mkdir": made({}, ({ path }) => files.mkdir(path)),
    "files.rename": made({ to: text }, ({ path, to }) => files.rename(path, to)),
    "files.remove": made({ directory: flag }, ({ path, directory = false }) => files.remove(path, { directory })),
  };
}

function facts({ kind, size, mtimeMs }: FileStat): Record<string, unknown> {
  return { kind, size, mtime_ms: Math.floor(mtimeMs ?? 0) };
}

/** One name of a list, with what is known about it; undefined if it is gone. */
async function entryOf(files: FileProvider, path: string, name: string): Promise<unknown> {
  try {
    return { ...facts(await files.stat(path === "" ? name : `${path}/${name}`)), name };
  } catch {
    return undefined;
  }
}

/** An error with its code in the message, and the session's path instead of this machine's. */
function sessionError(thrown: unknown, path: string): unknown {
  const code = thrown instanceof Error ? (thrown as NodeJS.ErrnoException).code : undefined;
  if (typeof code !== "string" || !/^E[A-Z]+$/.test(code)) return thrown;
  // What only a link or a special file causes is a refusal.
  return new Error(`${["ELOOP", "ENXIO", "EPERM"].includes(code) ? "EACCES" : code}: ${path}`);
}

function httpTool(http: NonNullable<HostProviders["http"]>): Tool {
  return tool({
    description: "Sends an HTTP request.",
    run: async (args) => {
      const { method, url, headers, body } = args as unknown as Omit<HttpRequest, "body"> & { body?: string | null };
      const given = typeof body === "string" ? Buffer.from(body, "base64") : undefined;
      const answer = await http({ method, url, headers, body: given });
      return {
        status: answer.status,
        headers: [...(answer.headers ?? [])],
        body: encode(answer.body),
        ...(answer.url === undefined ? {} : { url: answer.url }),
      };
    },
  });
}

function lookupTool(lookup: NonNullable<HostProviders["lookup"]>): Tool {
  return tool({
    description: "Finds the addresses of a name.",
    run: async (args) => ({ addresses: await lookup(String(args["name"])) }),
  });
}

interface ProgramArguments {
  args: string | string[];
  shell?: boolean;
  cwd?: string | null;
  env?: Record<string, string> | null;
  input?: string;
}

function runTool(run: NonNullable<HostProviders["run"]>): Tool {
  return tool({
    description: "Runs a program to its end.",
    run: async (args) => {
      const given = args as unknown as ProgramArguments;
      const answer = await run({
        args: given.args,
        shell: given.shell ?? false,
        cwd: given.cwd ?? undefined,
        env: given.env ?? undefined,
        input: Buffer.from(given.input ?? "", "base64"),
      });
      return { returncode: answer.returncode, stdout: encode(answer.stdout), stderr: encode(answer.stderr) };
    },
  });
}

function encode(bytes: Uint8Array | undefined): string {
  return Buffer.from(bytes ?? new Uint8Array()).toString("base64");
}
