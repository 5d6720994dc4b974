// Memory snapshots: the interpreter's memory after its start, in a file, for faster starts.
//
// Owns the file's form: one line of JSON, zero bytes up to `PAGE_BYTES`, then the memory. The line names what the memory
// was made from. A snapshot of anything else than exactly this Pyodide and this worker is refused.

import { createHash } from 'node:crypto';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';

const FORMAT = 'windlass-pyodide-snapshot-1';
const PAGE_BYTES = 4096;
const PACKAGE_FILES = ['package.json', 'pyodide.mjs', 'pyodide.asm.mjs', 'pyodide.asm.wasm', 'python_stdlib.zip'];

/** The name of everything that goes into a snapshot. */
export function sourceHash(packageDirectory, pythonFiles) {
  const hash = createHash('sha256').update(process.version);
  for (const name of PACKAGE_FILES) hash.update(readFileSync(join(packageDirectory, name)));
  for (const [path, bytes] of pythonFiles) hash.update(path).update(bytes);
  return hash.digest('hex');
}

export function writeSnapshot(file, source, memory) {
  const header = JSON.stringify({ format: FORMAT, source, bytes: memory.length, crc32: crc32(memory) }) + '\n';
  const page = Buffer.alloc(PAGE_BYTES);
  page.write(header);
  const partial = `${file}.${process.pid}`;
  writeFileSync(partial, Buffer.concat([page, memory]));
  renameSync(partial, file);
}

/** The memory in the file. Throws with the reason if it cannot be used. */
export function readSnapshot(file, source) {
  const content = readFileSync(file);
  const line = content.subarray(0, PAGE_BYTES).toString('utf8').split('\n', 1)[0];
  const header = headerOf(line);
  if (header?.format !== FORMAT) throw new Error('it is not a snapshot of this worker');
  if (header.source !== source) throw new Error('it was made from another version');
  const memory = content.subarray(PAGE_BYTES);
  if (memory.length !== header.bytes) throw new Error('it is incomplete');
  if (crc32(memory) !== header.crc32) throw new Error('it is damaged');
  return memory;
}

function headerOf(line) {
  try {
    return JSON.parse(line);
  } catch {
    return null;
  }
}
