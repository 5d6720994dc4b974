// Finds the program `windlass` that npm installed beside this package.

import { createRequire } from "node:module";
import { isAbsolute } from "node:path";

/** The program of the package for this platform, or `windlass` on the PATH. */
export function findProgram(): string {
  const name = `@windlass/${process.platform}-${process.arch}/bin/windlass`;
  try {
    return createRequire(import.meta.url).resolve(name);
  } catch {
    return "windlass";
  }
}

/** Whether `findProgram` found the program of a package. */
export function isInstalled(program: string): boolean {
  return isAbsolute(program);
}
