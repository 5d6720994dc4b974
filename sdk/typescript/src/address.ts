// The address of a node: its unix socket, or its TCP door with a token. Owns the rules by which the
// environment names it, which all clients share.

import { lstatSync, readFileSync, statSync } from "node:fs";
import { isAbsolute, join, resolve } from "node:path";

import { asError, WindlassError } from "./errors.js";
import { loadTls, type NodeTls } from "./tls.js";

/** The longest path a unix socket can have. */
const SOCKET_PATH_BYTES_MAX = 107;

/** The form of a token: 32 bytes as hexadecimal digits. */
const TOKEN = /^[0-9a-fA-F]{64}$/;

export type Environment = Record<string, string | undefined>;

export type Address =
  | { readonly kind: "socket"; readonly path: string; readonly dirs: Dirs }
  | {
      readonly kind: "tcp";
      readonly host: string;
      readonly port: number;
      readonly authority: string;
      readonly token: string;
      /** Undefined if the URL begins with `http://`. */
      readonly tls: NodeTls | undefined;
    };

/** The two directories that a node and its clients share. */
export interface Dirs {
  readonly runtime: string;
  readonly state: string;
}

export interface AddressOptions {
  url?: string | undefined;
  token?: string | undefined;
  ca?: string | undefined;
  runtimeDir?: string | undefined;
  stateDir?: string | undefined;
}

/** The node's address from the options and the environment. */
export function findAddress(options: AddressOptions, env: Environment): Address {
  const url = options.url ?? env["WINDLASS_URL"];
  if (url === undefined) {
    const dirs = chooseDirs(options, env);
    return { kind: "socket", path: socketOf(dirs), dirs };
  }
  const given = options.token ?? env["WINDLASS_TOKEN"];
  const token = given === undefined ? readToken(options, env) : given.trim();
  if (!TOKEN.test(token)) {
    throw new WindlassError(
      "bad_token",
      "the node's token is malformed: a token has 64 hexadecimal digits",
      "set WINDLASS_TOKEN to what `windlass token` prints",
    );
  }
  const { secure, ...where } = parseUrl(url);
  const tls = secure ? loadTls(options.ca ?? (env["WINDLASS_CA"] || undefined)) : undefined;
  return { kind: "tcp", ...where, token, tls };
}

export function describe(address: Address): string {
  return address.kind === "socket" ? address.path : address.authority;
}

/**
 * The directories, most specific setting first. Without XDG_RUNTIME_DIR, the conventional
 * `/run/user/UID` is tried.
 */
export function chooseDirs(options: AddressOptions, env: Environment, uid = ownUid()): Dirs {
  const named = (name: string): string | undefined => env[name] || undefined;
  const usual = `/run/user/${uid}`;
  const base = named("XDG_RUNTIME_DIR") ?? (isOwnDirectory(usual, uid) ? usual : undefined);
  const runtime =
    options.runtimeDir ??
    named("WINDLASS_RUNTIME_DIR") ??
    (base === undefined ? `/tmp/windlass-${uid}` : join(base, "windlass"));
  const home = named("HOME");
  const state =
    options.stateDir ??
    named("WINDLASS_STATE_DIR") ??
    (named("XDG_STATE_HOME") && join(named("XDG_STATE_HOME")!, "windlass")) ??
    (home && join(home, ".local/state/windlass"));
  if (!state) {
    throw new WindlassError(
      "bad_directory",
      "no state directory: neither XDG_STATE_HOME nor HOME is set",
      "set HOME or WINDLASS_STATE_DIR",
    );
  }
  return { runtime: absolute(runtime), state: absolute(state) };
}

/** Refuses a runtime directory in which another user could have put a socket. */
export function checkOwn(directory: string, uid = ownUid()): void {
  let link, target;
  try {
    link = lstatSync(directory);
    target = statSync(directory);
  } catch {
    // The directory does not exist yet: the client that starts the node creates it.
    return;
  }
  if (link.uid !== uid || target.uid !== uid) {
    throw new WindlassError(
      "bad_directory",
      `${directory} belongs to someone else, not to you (user ${uid})`,
      "set WINDLASS_RUNTIME_DIR and WINDLASS_STATE_DIR to directories of your own",
    );
  }
  if ((target.mode & 0o022) !== 0) {
    const mode = (target.mode & 0o777).toString(8);
    throw new WindlassError(
      "bad_directory",
      `${directory} can be written by others (mode ${mode})`,
      `run: chmod 700 ${directory}`,
    );
  }
}

function socketOf(dirs: Dirs): string {
  const path = join(dirs.runtime, "node.sock");
  const bytes = Buffer.byteLength(path);
  if (bytes > SOCKET_PATH_BYTES_MAX) {
    throw new WindlassError(
      "bad_directory",
      `the socket path ${path} is ${bytes} bytes long; a unix socket holds ${SOCKET_PATH_BYTES_MAX}`,
      "set WINDLASS_RUNTIME_DIR to a shorter path",
    );
  }
  return path;
}

/** Host and port of a plain URL. An error never repeats the URL: it may hold a secret. */
function parseUrl(text: string): { host: string; port: number; authority: string; secure: boolean } {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const plain =
    url !== undefined &&
    (url.protocol === "http:" || url.protocol === "https:") &&
    url.pathname === "/" &&
    url.search === "" &&
    url.hash === "" &&
    url.username === "" &&
    url.password === "" &&
    url.hostname !== "";
  if (!plain) {
    throw new WindlassError(
      "bad_url",
      "the node's address is not a plain URL such as http://127.0.0.1:8040 or https://node.example:8040",
      "set WINDLASS_URL to the URL that `windlass status` prints on the node's machine",
    );
  }
  const secure = url.protocol === "https:";
  const port = url.port === "" ? (secure ? 443 : 80) : Number(url.port);
  const host = url.hostname.replace(/^\[(.*)\]$/, "$1");
  return { host, port, authority: `${url.hostname}:${port}`, secure };
}

/** The token of the user's own node, from a file that only the user may access. */
function readToken(options: AddressOptions, env: Environment): string {
  const path = join(chooseDirs(options, env).state, "token");
  try {
    const about = statSync(path);
    if (about.uid !== ownUid() || (about.mode & 0o077) !== 0) {
      throw new Error("other users can read it");
    }
    return readFileSync(path, "utf8").trim();
  } catch (thrown) {
    throw new WindlassError(
      "bad_token",
      `the token file ${path} cannot be used: ${asError(thrown).message}`,
      "set WINDLASS_TOKEN to what `windlass token` prints",
      { cause: thrown },
    );
  }
}

function absolute(path: string): string {
  return isAbsolute(path) ? path : resolve(path);
}

function isOwnDirectory(path: string, uid: number): boolean {
  try {
    const about = lstatSync(path);
    return about.isDirectory() && about.uid === uid;
  } catch {
    return false;
  }
}

function ownUid(): number {
  return process.geteuid?.() ?? 0;
}
