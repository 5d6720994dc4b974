// The Pyodide worker: Python in WebAssembly, driven by the worker protocol.
//
// Owns the start. After it, the main thread is inside Python until the session ends, and every wait blocks it.
// README.md says how the worker is started.

import { constants, readdirSync, readFileSync, readSync, writeSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import frames from '../js-kit/frames.js';
import { installDevices } from './devices.mjs';
import { Host } from './host.mjs';
import { Failure, hostFileSystem } from './hostfs.mjs';
import { closeGlobals } from './lockdown.mjs';
import { readSnapshot, sourceHash, writeSnapshot } from './snapshot.mjs';
import { installPython, PYTHON_ROOT, pythonFiles } from './sources.mjs';

const MOUNT_POINT = '/workspace';
const PACKAGES_ROOT = '/lib/packages';
const WHEEL_PATH = '/tmp/package.whl';
const FILES_DEADLINE_MS = 10_000;
const WASM_PAGES_PER_MB = 16;
const CHUNK_BYTES = 4096;

const exit = process.exit.bind(process);
const { kill, pid } = process;

const options = {
  package: { type: 'string' },
  packages: { type: 'string' },
  snapshot: { type: 'string' },
  'make-snapshot': { type: 'string' },
};
const { values: given } = parseArgs({ options });
if (given.package === undefined) fail('--package DIRECTORY is missing: the directory of the npm package pyodide');
const packageDirectory = resolve(given.package);

function fail(why) {
  writeSync(2, `windlass-worker pyodide: ${why}\n`);
  exit(1);
}

/** Loads the interpreter; from `memory` if there is one. */
async function load(memory, more = {}) {
  // Emscripten asks for the file system's constants in a way that Node's permission model refuses.
  process.binding = () => ({ fs: constants });
  const { loadPyodide } = await import(pathToFileURL(join(packageDirectory, 'pyodide.mjs')).href);
  const silent = () => {};
  return loadPyodide({
    indexURL: packageDirectory,
    jsglobals: Object.create(null),
    stdin: silent,
    stdout: silent,
    stderr: silent,
    ...(memory === null ? {} : { _loadSnapshot: memory }),
    ...more,
  });
}

function prepare(pyodide, files) {
  installPython(pyodide, files);
  pyodide.runPython(`import sys; sys.path.append(${JSON.stringify(PYTHON_ROOT)})
import windlass_worker.in_pyodide.entry; windlass_worker.in_pyodide.entry.prepare(); del windlass_worker, sys`);
}

async function makeSnapshot(file) {
  const files = pythonFiles();
  const pyodide = await load(null, { _makeSnapshot: true });
  prepare(pyodide, files);
  writeSnapshot(file, sourceHash(packageDirectory, files), pyodide.makeMemorySnapshot());
  if (process.env.WINDLASS_FD !== undefined) sayReady(Number(process.env.WINDLASS_FD), pyodide.version);
  exit(0);
}

/** As the worker of a session that only makes a snapshot: tells its keeper, who then ends this process. */
function sayReady(fd, version) {
  writeSync(fd, frames.encodeFrame({ kind: 'worker_ready', protocol: 1, worker: `pyodide ${version}`, capabilities: [] }));
  const bytes = Buffer.alloc(CHUNK_BYTES);
  while (readSync(fd, bytes) > 0);
}

/** The snapshot's memory; null, with a word on standard error, if it cannot be used. */
function usableSnapshot(files) {
  if (given.snapshot === undefined) return null;
  try {
    return readSnapshot(given.snapshot, sourceHash(packageDirectory, files));
  } catch (error) {
    return { refused: `the snapshot ${given.snapshot} is not used: ${error.message}` };
  }
}

/** Unpacks the wheels of a directory that the user named. */
function installPackages(pyodide) {
  if (given.packages === undefined) return [];
  const wheels = readdirSync(given.packages).filter((name) => name.endsWith('.whl')).sort();
  for (const wheel of wheels) {
    pyodide.FS.writeFile(WHEEL_PATH, readFileSync(join(given.packages, wheel)));
    pyodide.runPython(`import zipfile
with zipfile.ZipFile(${JSON.stringify(WHEEL_PATH)}) as wheel: wheel.extractall(${JSON.stringify(PACKAGES_ROOT)})
del wheel, zipfile`);
    pyodide.FS.unlink(WHEEL_PATH);
  }
  return wheels;
}

function mountFiles(pyodide, host, failure) {
  const { FS } = pyodide;
  FS.mkdirTree(MOUNT_POINT);
  if (process.env.WINDLASS_FILES === 'host') {
    const deadlineMs = Number(process.env.WINDLASS_FILES_DEADLINE_MS ?? FILES_DEADLINE_MS);
    if (!(deadlineMs > 0)) fail('WINDLASS_FILES_DEADLINE_MS is not a number of milliseconds');
    FS.mount(hostFileSystem(pyodide, host, failure, { mountPoint: MOUNT_POINT, deadlineMs }), {}, MOUNT_POINT);
  } else {
    FS.mount(FS.filesystems.NODEFS, { root: process.cwd() }, MOUNT_POINT);
  }
}

function sessionEnvironment() {
  const others = Object.entries(process.env).filter(([name]) => !name.startsWith('WINDLASS_'));
  return { ...Object.fromEntries(others), HOME: MOUNT_POINT, PWD: MOUNT_POINT };
}

/** Writes all bytes to one of the raw pipes. */
function pipe(fd) {
  return {
    isatty: false,
    write(bytes) {
      for (let at = 0; at < bytes.length; ) at += writeSync(fd, bytes, at);
      return bytes.length;
    },
  };
}

async function serve() {
  // SIGINT comes with a frame, and the frame is enough. It must not end the process.
  process.on('SIGINT', () => {});
  const heapMb = Number(process.env.WINDLASS_HEAP_MB ?? 0);
  if (heapMb > 0) setFlagsFromString(`--wasm-max-mem-pages=${Math.floor(heapMb * WASM_PAGES_PER_MB)}`);
  const started = performance.now();
  const host = new Host(Number(process.env.WINDLASS_FD), exit);
  const files = pythonFiles();
  const snapshot = usableSnapshot(files);
  const memory = snapshot?.refused === undefined ? snapshot : null;
  const pyodide = await load(memory);
  if (memory === null) prepare(pyodide, files);
  else installPython(pyodide, files);
  const loaded = performance.now();
  const wheels = installPackages(pyodide);
  const figures = {
    runtime_load_ms: Math.round(loaded - started),
    package_load_ms: Math.round(performance.now() - loaded),
    package_count: wheels.length,
    snapshot: memory !== null,
  };
  const failure = new Failure();
  installDevices(pyodide, host, failure);
  mountFiles(pyodide, host, failure);
  pyodide.setStdout(pipe(1));
  pyodide.setStderr(pipe(2));
  pyodide.setInterruptBuffer(host.interruptBuffer);
  const startup = {
    pyodide: pyodide.version,
    figures,
    environment: sessionEnvironment(),
    directory: MOUNT_POINT,
    paths: wheels.length > 0 ? [PACKAGES_ROOT] : [],
    note: snapshot?.refused ?? '',
    stack_top: pyodide._module.stackSave(),
  };
  run(pyodide, startup);
}

/** Runs the session inside Python, to its end. */
function run(pyodide, startup) {
  const entry = pyodide.pyimport('windlass_worker.in_pyodide.entry');
  const begin = entry.serve;
  const text = JSON.stringify(startup);
  closeGlobals(pyodide);
  try {
    begin(text);
  } catch (error) {
    // The code called `os._exit`, or the interpreter has failed. The IO thread is inside a read, and an ordinary exit would
    // wait for it.
    const why = String(error?.message ?? error).slice(0, 4096);
    writeSync(2, `windlass-worker pyodide: the interpreter ended: ${why}\n`);
    kill(pid, 'SIGKILL');
  }
  exit(0);
}

if (given['make-snapshot'] !== undefined) await makeSnapshot(resolve(given['make-snapshot']));
else {
  try {
    await serve();
  } catch (error) {
    // The IO thread is inside a read, and an ordinary exit would wait for it.
    writeSync(2, `windlass-worker pyodide: cannot start: ${error?.stack ?? error?.message ?? error}\n`);
    kill(pid, 'SIGKILL');
  }
}
