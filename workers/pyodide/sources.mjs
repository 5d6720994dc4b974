// The Python files of the worker: its own package, and the shared part of the native Python worker.

import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Where the packages are in the interpreter's file system. Tracebacks leave out frames from there. */
export const PYTHON_ROOT = '/lib/windlass';

/** Modules of the native worker that need what Pyodide does not have: processes, descriptors, matplotlib's window. */
const NATIVE_ONLY = new Set([
  'afresh.py', 'import_guard.py', 'practice.py', 'scratch.py', 'twin.py', 'twin_state.py', 'zygote.py',
]);

const PACKAGES = [
  ['windlass_worker/in_pyodide', './python/in_pyodide'],
  ['windlass_worker', '../python/windlass_worker'],
];

/** `[path, bytes]` of each file, in a fixed order. */
export function pythonFiles() {
  return PACKAGES.flatMap(([name, directory]) => {
    const from = fileURLToPath(new URL(directory, import.meta.url));
    return readdirSync(from)
      .filter((file) => file.endsWith('.py') && !NATIVE_ONLY.has(file))
      .sort()
      .map((file) => [`${PYTHON_ROOT}/${name}/${file}`, readFileSync(join(from, file))]);
  });
}

export function installPython({ FS }, files) {
  for (const [path, bytes] of files) {
    FS.mkdirTree(path.slice(0, path.lastIndexOf('/')));
    FS.writeFile(path, bytes);
  }
}
