'use strict';
// Imports in a turn. The engine evaluates a turn as a script, where `import x from "y"` is no syntax and `import()`
// has no loader, so both are rewritten to calls of a helper. The helper loads as from a file in the working directory.
//
// Owns the rewriting, the helper, and `require`. Line numbers never change.

const path = require('node:path');
const vm = require('node:vm');
const { createRequire } = require('node:module');
const { pathToFileURL } = require('node:url');
const { tokens } = require('./scan.js');

const HELPER = '__windlass_import__';
const META = '__windlass_meta__';
// The name of the file that a turn's imports are relative to. The file need not exist.
const FILE = '[turn]';

const DECLARES = new Set(['const', 'let', 'var', 'function', 'class', 'async']);

/** The edits that rewrite the imports of a source, in order: `{start, end, text}`. */
function importEdits(source) {
  if (!source.includes('import') && !source.includes('export')) return [];
  const list = tokens(source);
  const edits = [];
  for (let at = 0; at < list.length; at += 1) {
    const token = list[at];
    if (token.type !== 'word' || (at > 0 && list[at - 1].text === '.')) continue;
    const next = list[at + 1];
    if (!next) continue;
    if (token.text === 'import') {
      if (next.text === '(') {
        // `import(...) {` is a method of that name.
        edits.push({ start: token.start, end: token.end, text: HELPER });
      } else if (next.text === '.' && list[at + 2] && list[at + 2].text === 'meta') {
        edits.push({ start: token.start, end: list[at + 2].end, text: META });
      } else if (token.depth === 0) {
        const edit = staticImport(source, list, at);
        if (edit) edits.push(edit);
      }
    } else if (token.text === 'export' && token.depth === 0 && DECLARES.has(next.text)) {
      edits.push({ start: token.start, end: token.end, text: '' });
    }
  }
  return edits;
}

/** The edit for one import statement, or null if it is not one. */
function staticImport(source, list, first) {
  let at = first + 1;
  const names = [];
  let whole = null;
  if (list[at].type === 'string') {
    // `import "x"`: for its effects.
  } else {
    if (list[at].type === 'word' && list[at].text !== 'from') {
      names.push(['default', list[at].text]);
      at += 1;
      if (textAt(list, at) === ',') at += 1;
    } else if (list[at].text === 'from' && textAt(list, at + 1) === 'from') {
      names.push(['default', 'from']);
      at += 1;
    }
    if (textAt(list, at) === '*') {
      if (textAt(list, at + 1) !== 'as' || !list[at + 2]) return null;
      whole = list[at + 2].text;
      at += 3;
    } else if (textAt(list, at) === '{') {
      at = namedImports(list, at + 1, names);
    }
    if (at < 0 || textAt(list, at) !== 'from') return null;
    at += 1;
  }
  const from = list[at];
  if (!from || from.type !== 'string') return null;
  let end = from.end;
  let options = 'undefined';
  if ((textAt(list, at + 1) === 'with' || textAt(list, at + 1) === 'assert') && textAt(list, at + 2) === '{') {
    const close = list.findIndex((token, index) => index > at + 2 && token.text === '}');
    if (close < 0) return null;
    end = list[close].end;
    options = `{with: ${source.slice(list[at + 2].start, end)}}`;
  }
  const keys = JSON.stringify(names.map(([key]) => key));
  const call = `await ${HELPER}(${from.text}, ${options}, ${keys})`;
  // An import has no value.
  let text = `void ${call}`;
  if (whole && names.length > 0) text = `const ${whole} = ${call}, {default: ${names[0][1]}} = ${whole}`;
  else if (whole) text = `const ${whole} = ${call}`;
  else if (names.length > 0) text = `const {${names.map(([key, name]) => `${key}: ${name}`).join(', ')}} = ${call}`;
  // A statement of several lines keeps their number, also for the lines that follow.
  const lines = source.slice(list[first].start, end).split('\n').length - text.split('\n').length;
  return { start: list[first].start, end, text: `;${text};${'\n'.repeat(Math.max(0, lines))}` };
}

/** Reads `a, b as c}` into `names`. The index after the bracket, or -1. */
function namedImports(list, start, names) {
  let at = start;
  while (list[at] && list[at].text !== '}') {
    const key = list[at].text;
    let name = key;
    if (textAt(list, at + 1) === 'as') {
      if (!list[at + 2]) return -1;
      name = list[at + 2].text;
      at += 2;
    }
    names.push([key, name]);
    at += 1;
    if (textAt(list, at) === ',') at += 1;
    else if (textAt(list, at) !== '}') return -1;
  }
  return list[at] ? at + 1 : -1;
}

function textAt(list, at) {
  return list[at] && list[at].text;
}

/**
 * Defines what rewritten code and other code of the session use to load modules. Returns a function that sets the file
 * that loads them, or null for one in the working directory.
 */
function installLoader(target) {
  let filename = null;
  let program = null;
  let load;
  let requireHere;
  const refresh = () => {
    const now = program ?? path.join(process.cwd(), FILE);
    if (now === filename) return;
    filename = now;
    requireHere = createRequire(filename);
    load = quietly(() => new vm.Script('(specifier, options) => import(specifier, options)', {
      filename,
      importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
    }).runInThisContext());
  };

  hidden(target, HELPER, async (specifier, options, names = []) => {
    refresh();
    const loaded = await quietly(() => load(specifier, options));
    for (const name of names) {
      if (!(name in loaded)) {
        throw new SyntaxError(`The requested module '${specifier}' does not provide an export named '${name}'`);
      }
    }
    return loaded;
  });
  Object.defineProperty(target, META, {
    get() {
      refresh();
      return { dirname: path.dirname(filename), filename, url: pathToFileURL(filename).href };
    },
  });
  const settable = (name, get) => Object.defineProperty(target, name, {
    configurable: true,
    get,
    set(value) {
      Object.defineProperty(target, name, { configurable: true, enumerable: true, value, writable: true });
    },
  });
  settable('require', () => {
    refresh();
    return requireHere;
  });
  settable('__dirname', () => (program === null ? process.cwd() : path.dirname(program)));
  for (const name of require('node:module').builtinModules) {
    if (name.startsWith('_') || name.includes('/') || name in target) continue;
    settable(name, () => {
      const loaded = require(name);
      target[name] = loaded;
      return loaded;
    });
  }
  return (file) => {
    program = file;
    // `require.main` is new, even for the same file.
    filename = null;
  };
}

/** Without the warning that this way of loading is experimental in Node 20. */
function quietly(work) {
  const { emitWarning } = process;
  process.emitWarning = (warning, ...rest) => {
    if (!String(warning).includes('USE_MAIN_CONTEXT_DEFAULT_LOADER')) emitWarning.call(process, warning, ...rest);
  };
  try {
    return work();
  } finally {
    process.emitWarning = emitWarning;
  }
}

function hidden(target, name, value) {
  Object.defineProperty(target, name, { value });
}

module.exports = { importEdits, installLoader };
