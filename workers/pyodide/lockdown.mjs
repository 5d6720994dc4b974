// Takes the powers of Node.js away from JavaScript that the session's code might get hold of.
//
// Python code has no JavaScript object (see lockdown.py). If code finds one all the same, these walls follow: no text
// becomes code (a flag of Node.js), the global object has no door to the system, and the built-in objects cannot be
// changed, so nobody can lay hands on the values that the worker passes through them.

// What the worker and the interpreter need after the start.
const NEEDED = new Set([
  'Array', 'ArrayBuffer', 'Atomics', 'BigInt', 'BigInt64Array', 'BigUint64Array', 'Boolean', 'Buffer', 'DataView', 'Date',
  'Error', 'EvalError', 'FinalizationRegistry', 'Float32Array', 'Float64Array', 'Function', 'Infinity', 'Int16Array',
  'Int32Array', 'Int8Array', 'Intl', 'Iterator', 'JSON', 'Map', 'Math', 'NaN', 'Number', 'Object', 'Promise', 'Proxy',
  'RangeError', 'ReferenceError', 'Reflect', 'RegExp', 'Set', 'SharedArrayBuffer', 'String', 'Symbol', 'SyntaxError',
  'TextDecoder', 'TextEncoder', 'TypeError', 'URIError', 'Uint16Array', 'Uint32Array', 'Uint8Array', 'Uint8ClampedArray',
  'WeakMap', 'WeakRef', 'WeakSet', 'WebAssembly', 'clearTimeout', 'console', 'crypto', 'globalThis', 'isFinite', 'isNaN',
  'parseFloat', 'parseInt', 'performance', 'setTimeout', 'undefined', 'AggregateError',
]);

const FROZEN = [
  Array, ArrayBuffer, Atomics, BigInt, Boolean, DataView, Date, Error, EvalError, Float32Array, Float64Array, Function,
  Int16Array, Int32Array, Int8Array, JSON, Map, Math, Number, Object, Promise, Proxy, RangeError, ReferenceError, Reflect,
  RegExp, Set, SharedArrayBuffer, String, Symbol, SyntaxError, TypeError, Uint16Array, Uint32Array, Uint8Array, WeakMap,
  WeakRef, WeakSet, WebAssembly, Buffer, Object.getPrototypeOf(Int8Array), async function () {}.constructor,
  function* () {}.constructor, async function* () {}.constructor,
];

/** Call it last: nothing can be loaded or changed afterwards. */
export function closeGlobals(pyodide) {
  // The interpreter's entry points. Only closures of this worker keep what they need.
  for (const name of ['NODEFS', 'PROXYFS', 'IDBFS', 'WORKERFS', 'NATIVEFS_ASYNC']) delete pyodide.FS.filesystems[name];
  for (const name of Object.getOwnPropertyNames(globalThis)) {
    if (!NEEDED.has(name)) delete globalThis[name];
  }
  for (const known of FROZEN) {
    if (known.prototype !== undefined && known.prototype !== null) Object.freeze(known.prototype);
    Object.freeze(known);
  }
  for (const iterable of [[], new Map(), new Set(), '']) {
    Object.freeze(Object.getPrototypeOf(iterable[Symbol.iterator]()));
  }
}
