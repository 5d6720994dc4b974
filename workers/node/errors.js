'use strict';
// Describes the error that ended a turn: its name, its message and a stack without frames of the worker.
//
// An error's properties belong to the code: a getter may throw. Then the error is described by what is left.

const path = require('node:path');
const util = require('node:util');
const { headerText } = require('../js-kit/frames.js');

const WORKERS = path.dirname(__dirname) + path.sep;
const NAME_CHARS_MAX = 200;
// Maximum number of sources whose columns are corrected. The oldest are dropped first.
const SOURCES_MAX = 1000;

// Where the text of each source has moved, by the name of the source: see `apply` in cell.js.
const places = new Map();

/** Thrown into code that waits when its turn is interrupted. */
class Interrupted extends Error {
  constructor(message = 'the turn was interrupted') {
    super(message);
    this.name = 'Interrupted';
  }
}

/** Thrown by `process.exit`. The turn is over, whatever the code does with this error. */
class ProcessExit extends Error {
  constructor(status) {
    super(String(status));
    this.name = 'ProcessExit';
    this.status = status;
  }
}

/** `{name, message}` for the `idle` frame. */
function describe(error) {
  return {
    name: headerText(attempt(() => nameOf(error), 'Error'), NAME_CHARS_MAX),
    message: headerText(attempt(() => messageOf(error), '<the message of the error cannot be shown>')),
  };
}

function nameOf(error) {
  if (!isError(error)) return 'Uncaught';
  const own = String(error.name || 'Error');
  const type = error.constructor && error.constructor.name;
  return own === 'Error' && typeof type === 'string' && type ? type : own;
}

function messageOf(error) {
  return isError(error) ? String(error.message) : util.inspect(error);
}

/** The text of an error as a REPL shows it. */
function traceback(error) {
  if (!isError(error)) return `Uncaught ${attempt(() => util.inspect(error), '<a value that cannot be shown>')}\n`;
  if (typeof error.place === 'string') return `${clean(error.place)}${error.name}: ${error.message}\n`;
  const text = attempt(() => util.inspect(error, { maxStringLength: Infinity }), null)
    ?? attempt(() => String(error.stack), null)
    ?? `${describe(error).name}: ${describe(error).message}`;
  return `${clean(text)}\n`;
}

/** Keep where the text of a source has moved, for stack traces. */
function rememberPlaces(name, moved) {
  places.delete(name);
  places.set(name, moved);
  if (places.size > SOURCES_MAX) places.delete(places.keys().next().value);
}

/** The column in the source for one in the text that the engine has evaluated. Line and column count from 0. */
function sourceColumn(name, line, column) {
  let shift = 0;
  for (const edit of places.get(name) ?? []) {
    if (edit.line !== line || edit.start > column) continue;
    // Inside of an edit there is only its begin.
    if (column < edit.end) return edit.from;
    shift = edit.to - edit.end;
  }
  return column + shift;
}

/** Corrects the columns of a frame. */
function placed(frame) {
  return frame.replace(/([^\s()]+):(\d+):(\d+)/g, (all, name, line, column) => (
    places.has(name) ? `${name}:${line}:${sourceColumn(name, line - 1, column - 1) + 1}` : all
  ));
}

/** Removes the worker's frames, and everything below them, from each stack in a text. */
function clean(text) {
  const kept = [];
  let below = false;
  for (const line of text.split('\n')) {
    const isFrame = /^\s*at /.test(line);
    if (!isFrame) {
      // A brace that opens the error's properties stands behind its last frame.
      below = false;
      kept.push(line);
    } else if (below || line.includes(WORKERS) || line.includes('node:inspector:')) {
      below = true;
      if (line.endsWith(' {') && kept.length > 0) kept[kept.length - 1] += ' {';
    } else kept.push(placed(line));
  }
  return kept.join('\n')
    .replace(/<turn-(\w+)>/g, '<turn $1>');
}

/** Like `instanceof`, for any thrown value: a proxy may throw. */
function isA(value, type) {
  return attempt(() => value instanceof type, false);
}

function isError(value) {
  return attempt(() => value instanceof Error || util.types.isNativeError(value), false);
}

function attempt(work, otherwise) {
  try {
    return work();
  } catch {
    return otherwise;
  }
}

module.exports = { ProcessExit, Interrupted, clean, describe, isA, rememberPlaces, sourceColumn, traceback };
