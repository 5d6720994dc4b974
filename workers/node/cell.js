'use strict';
// A cell: the source of one turn, evaluated in the session's global scope as a REPL does.
//
// Owns the inspector session of the main thread, TypeScript, and the names of cells and programs in stack traces.
//
// The engine's REPL mode gives top-level `await` and lets later cells declare `const`, `let` and `class` again. It
// evaluates a cell as an async function; a promise hook catches that function's promise. So the value needs no detour
// through the inspector, and the promise stays referenced: Node 22 aborts when an awaited promise of the inspector is
// collected.
//
// Each cell begins with an `await`, so its code runs when the inspector has returned. Node 20 aborts when code is
// terminated while the inspector attaches itself to the promise.

const inspector = require('node:inspector');
const module_ = require('node:module');
const v8 = require('node:v8');
const { pathToFileURL } = require('node:url');
const { rememberPlaces, sourceColumn } = require('./errors.js');
const { importEdits } = require('./imports.js');

// The key under which the engine's REPL mode keeps the value of a cell.
const RESULT = '.repl_result';

// What stands before the code of each cell.
const BEGIN = 'await void 0;';
// Characters that end the name of a source for the engine, or for a reader of stack traces.
const NOT_IN_NAMES = /[\s'"()]/g;

const GROUP = 'turn';
// A directive: not a string that an operator follows.
const STRICT = /^(?:\s|\/\/[^\n]*\n|\/\*[^]*?\*\/)*(['"])use strict\1(?=[ \t]*(?:;|\n\s*[\w'"{/]))/;

class Cells {
  constructor({ language }) {
    this._language = language;
    this._session = new inspector.Session();
    this._session.connect();
    this._mustForget = false;
  }

  /**
   * Begin a turn, whose code runs after the callback that this call is part of. Returns `{promise}` whose value has the
   * cell's value (see `valueOf`), or `{failure}` if the source is not valid: an error with `place`. `file` is the path
   * of a program, or null.
   */
  begin(turn, source, file = null) {
    const name = file === null ? `<turn-${turn}>` : nameOfFile(file);
    if (this._language === 'typescript') {
      const stripped = stripTypes(source, name);
      if (stripped.failure) return stripped;
      return this._evaluate(stripped.source, name, source);
    }
    const begun = this._evaluate(source, name, source);
    if (!begun.failure) return begun;
    // The source is not JavaScript: it may be TypeScript.
    const stripped = stripTypes(source, name);
    if (stripped.failure) {
      const isTyped = stripped.failure.name === 'TypeScriptUnsupported' && looksTyped(source);
      return isTyped ? stripped : begun;
    }
    if (stripped.source === source) return begun;
    const typed = this._evaluate(stripped.source, name, source);
    return typed.failure ? begun : typed;
  }

  /** The value of a cell from the value of its promise. */
  static valueOf(settled) {
    return settled === null || typeof settled !== 'object' ? undefined : settled[RESULT];
  }

  /** Drop what the inspector holds of the last turns. */
  forget() {
    if (!this._mustForget) return;
    this._mustForget = false;
    this._session.post('Runtime.releaseObjectGroup', { objectGroup: GROUP });
  }

  _evaluate(source, name, original) {
    const { text, moved } = apply(source, edits(source));
    rememberPlaces(name, moved);
    let promise = null;
    let answer = null;
    const unhook = v8.promiseHooks.onInit((created) => {
      if (promise === null) {
        promise = created;
        unhook();
      }
    });
    try {
      this._session.post(
        'Runtime.evaluate',
        {
          expression: `${text}\n//# sourceURL=${name}`,
          objectGroup: GROUP,
          replMode: true,
          silent: true,
        },
        (error, result) => {
          answer = error ? { error } : result;
          if (answer.result && answer.result.objectId) this._mustForget = true;
        },
      );
    } finally {
      if (promise === null) unhook();
    }
    if (promise !== null) return { promise };
    if (answer === null || answer.error) return { failure: new Error('the engine did not evaluate the turn') };
    return { failure: syntaxFailure(answer, name, original) };
  }
}

/** The name of a program's source for the engine: its path, or its URL if the engine does not take the path. */
function nameOfFile(file) {
  if (file.search(NOT_IN_NAMES) < 0) return file;
  return pathToFileURL(file).href.replace(NOT_IN_NAMES, (c) => `%${c.charCodeAt(0).toString(16).padStart(2, '0')}`);
}

/**
 * The edits that make a source a cell: an `await` before its code, and its imports. A directive stays the first
 * statement, and a `#!` line a comment.
 */
function edits(source) {
  const strict = STRICT.exec(source);
  let begin = { start: 0, end: 0, text: BEGIN };
  if (strict) begin = { start: strict[0].length, end: strict[0].length, text: ';await void 0' };
  else if (source.startsWith('#!')) begin = { start: 0, end: 2, text: `${BEGIN}//` };
  return [begin, ...importEdits(source)];
}

/**
 * The edited source, and where its text has moved: `{line, start, end, from, to}`. On that line, the columns from
 * `start` to `end` come from `from` to `to` of the source. All count from 0. An edit leaves the number of lines.
 */
function apply(source, list) {
  const moved = [];
  let text = '';
  let at = 0;
  let line = 0;
  let column = 0;
  let sourceAt = 0;
  const pass = (evaluated, written) => {
    const lines = evaluated.split('\n');
    if (lines.length > 1) {
      line += lines.length - 1;
      column = 0;
      sourceAt = 0;
    }
    column += lines[lines.length - 1].length;
    sourceAt += written.length - written.lastIndexOf('\n') - 1;
  };
  for (const edit of list) {
    if (edit.start < at) continue;
    const between = source.slice(at, edit.start);
    pass(between, between);
    const before = { line, column, sourceAt };
    pass(edit.text, source.slice(edit.start, edit.end));
    const [start, from] = line === before.line ? [before.column, before.sourceAt] : [0, 0];
    moved.push({ line, start, end: column, from, to: sourceAt });
    text += between + edit.text;
    at = edit.end;
  }
  return { text: text + source.slice(at), moved };
}

/** Removes the types of TypeScript source; enums and the like are translated. */
function stripTypes(source, name) {
  if (typeof module_.stripTypeScriptTypes !== 'function') {
    const failure = new Error(
      `Node ${process.versions.node} cannot run TypeScript: use Node 22.13 or newer, or send JavaScript`,
    );
    failure.name = 'TypeScriptUnsupported';
    return { failure };
  }
  const { emitWarning } = process;
  // Node says once that stripping is experimental.
  process.emitWarning = () => {};
  try {
    try {
      return { source: module_.stripTypeScriptTypes(source, { mode: 'strip' }) };
    } catch (error) {
      if (error.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw error;
      return { source: transformTypes(source) };
    }
  } catch (error) {
    const failure = new SyntaxError(String(error.message).trim());
    failure.place = `${name}\n`;
    return { failure };
  } finally {
    process.emitWarning = emitWarning;
  }
}

function transformTypes(source) {
  return module_.stripTypeScriptTypes(source, { mode: 'transform' });
}

/** Whether a source that is not JavaScript has signs of TypeScript. */
function looksTyped(source) {
  return /\b(interface|type|enum|namespace|declare|abstract|implements|readonly|as|satisfies)\b|[\w)\]]\??\s*:\s*[\w{[(]/.test(source);
}

function syntaxFailure(answer, name, source) {
  const details = answer.exceptionDetails;
  const description = (details.exception && details.exception.description) || details.text;
  const [, kind, message] = /^(?:Uncaught )?(\w*Error): ([^\n]*)/.exec(description) || [null, 'SyntaxError', description];
  const failure = new SyntaxError(message);
  failure.name = kind;
  const line = source.split('\n')[details.lineNumber] ?? '';
  const column = sourceColumn(name, details.lineNumber, details.columnNumber);
  const mark = line.length <= 500 ? `${line}\n${' '.repeat(Math.max(0, column))}^\n\n` : '';
  failure.place = `${name}:${details.lineNumber + 1}\n${mark}`;
  return failure;
}

module.exports = { Cells };
