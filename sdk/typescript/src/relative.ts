// Paths of requests. The node runs in another directory, where a relative path means another path.

import { statSync } from "node:fs";
import { basename, resolve } from "node:path";

import type { PolicyRequest } from "./api.js";

/** A relative path becomes absolute. The node looks up a bare name on its PATH. */
export function absoluteProgram(named: string): string {
  const isDirectory = statSync(named, { throwIfNoEntry: false })?.isDirectory() ?? false;
  return basename(named) === named && !isDirectory ? named : resolve(named);
}

/** The policy with absolute paths. `shown` has names of the preset's lists too, and stays. */
export function absolutePolicy(policy: PolicyRequest): PolicyRequest {
  const changed = { ...policy };
  if (policy.readable) changed.readable = policy.readable.map(absolute);
  if (policy.writable) changed.writable = policy.writable.map(absolute);
  if (policy.hidden) changed.hidden = policy.hidden.map(absolute);
  return changed;
}

/** The node expands `~/`. */
function absolute(path: string): string {
  return path === "~" || path.startsWith("~/") ? path : resolve(path);
}
