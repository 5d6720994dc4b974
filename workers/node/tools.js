'use strict';
// Host tools: `await tools.search({query: "x"})`, `tools.sync.search({...})`, `tools.files.read({...})`.
//
// Owns the open calls. All calls of a turn are over when the turn is.

const { MESSAGE_BYTES_MAX, headerText } = require('../js-kit/frames.js');
const { Interrupted } = require('./errors.js');

const NAME_CHARS_MAX = 1000;
// Names of the node's own tools that need no prefix.
const OWN = { describe: 'windlass.describe', list: 'windlass.list' };
// Properties that the language or a library looks up on any object.
const NOT_TOOLS = new Set(['then', 'toJSON', 'inspect', 'constructor', 'prototype', 'name', 'length', 'arguments', 'caller']);

/** A tool failed, or could not be called. `code` says what happened, `type` is the class of the tool's own error. */
class ToolError extends Error {
  constructor(message, { tool, code = 'tool_failed', type } = {}) {
    super(message);
    this.name = 'ToolError';
    this.tool = tool;
    this.code = code;
    if (type !== undefined) this.type = type;
  }
}

class Tools {
  constructor({ turns, link, guard, pending }) {
    this._turns = turns;
    this._link = link;
    this._guard = guard;
    this._pending = pending;
    this._open = new Map();
    this._next = 1;
  }

  install() {
    const start = (name, given, options) => this._start(name, given, options);
    const block = (name, given, options) => this._block(name, given, options);
    const sync = group(block, '', { ToolError });
    Object.defineProperty(globalThis, 'tools', {
      configurable: true, value: group(start, '', { ToolError, sync }), writable: true,
    });
    Object.defineProperty(globalThis, 'ToolError', { configurable: true, value: ToolError, writable: true });
  }

  /** Whether the code waits for the answer to a call. */
  get isCalled() {
    return this._open.size > 0;
  }

  /** A frame of an answer arrived. */
  deliver(header, body) {
    const call = this._open.get(header.call);
    if (call === undefined || call.turn !== header.turn) return;
    if (header.ok) {
      call.parts.push(body);
      if (header.more) return;
    }
    this._open.delete(header.call);
    if (header.ok) call.succeed(Buffer.concat(call.parts));
    else call.fail(fromAnswer(body, call.tool));
  }

  endTurn() {
    const calls = [...this._open.values()];
    this._open.clear();
    for (const call of calls) {
      call.fail(new ToolError('the turn of the call is over', { tool: call.tool, code: 'tool_cancelled' }));
    }
  }

  _start(tool, given, options = {}) {
    // Code that catches every error and calls again would never return to the event loop.
    if (this._turns.isInterrupted(this._turns.current)) return new Promise(() => {});
    let opened;
    try {
      opened = this._prepare(tool, given, options);
    } catch (error) {
      return Promise.reject(error);
    }
    const { header, body, call } = opened;
    const { signal } = options;
    const made = this._pending.promise((resolve, reject) => {
      call.succeed = (answer) => {
        try {
          resolve(valueOf(answer, tool));
        } catch (error) {
          reject(error);
        }
      };
      call.fail = reject;
      if (signal) {
        if (signal.aborted) return reject(signal.reason);
        signal.addEventListener('abort', () => this._cancel(header.call, signal.reason), { once: true });
      }
      this._send(header, body, call);
      return undefined;
    });
    // A call that the code does not await may end with its turn.
    made.catch(() => {});
    return made;
  }

  _block(tool, given, options = {}) {
    const { header, body, call } = this._prepare(tool, given, options);
    let answer;
    let failure;
    call.succeed = (bytes) => {
      answer = bytes;
    };
    call.fail = (error) => {
      failure = error;
    };
    this._guard.protect(() => {
      this._send(header, body, call);
      this._turns.waitFor(() => answer !== undefined || failure !== undefined);
    });
    if (failure !== undefined) throw failure;
    if (answer === undefined) {
      this._cancel(header.call);
      throw new Interrupted();
    }
    return valueOf(answer, tool);
  }

  _prepare(tool, given, { deadlineMs } = {}) {
    const turn = this._turns.current;
    const refuse = (message, code) => new ToolError(message, { tool, code });
    if (turn === null) throw refuse('no turn is running, so no tool can be called', 'bad_request');
    if (this._turns.isInterrupted(turn)) throw new Interrupted();
    if (given !== undefined && (given === null || typeof given !== 'object' || Array.isArray(given))) {
      throw new TypeError(`the arguments of ${tool} are one object, as in tools.${tool}({name: value})`);
    }
    const text = JSON.stringify(given ?? {});
    if (text === undefined || text[0] !== '{') throw new TypeError(`the arguments of ${tool} are not a JSON object`);
    const body = Buffer.from(text);
    if (body.length > MESSAGE_BYTES_MAX) {
      throw refuse(`arguments of ${body.length} bytes are over the limit of ${MESSAGE_BYTES_MAX}`, 'message_too_large');
    }
    const header = { kind: 'tool_call', turn, call: this._next, name: headerText(tool, NAME_CHARS_MAX) };
    if (deadlineMs !== undefined) {
      if (!Number.isSafeInteger(deadlineMs) || deadlineMs < 0) throw new TypeError('deadlineMs is a whole number of milliseconds');
      header.deadline_ms = deadlineMs;
    }
    this._next += 1;
    return { header, body, call: { turn, tool, parts: [], succeed: null, fail: null } };
  }

  _send(header, body, call) {
    this._guard.protect(() => {
      this._open.set(header.call, call);
      this._link.send(header, body);
    });
  }

  _cancel(number, reason) {
    this._guard.protect(() => {
      const call = this._open.get(number);
      if (call === undefined) return;
      this._open.delete(number);
      this._link.send({ kind: 'tool_cancel', turn: call.turn, call: number });
      call.fail(reason ?? new ToolError('the call was cancelled', { tool: call.tool, code: 'tool_cancelled' }));
    });
  }
}

/** A function for the tool of that name, whose properties are the tools of the group of that name. */
function group(call, prefix, known = {}) {
  const members = new Map(Object.entries(known));
  return new Proxy(function tool() {}, {
    apply(_target, _receiver, [given, options]) {
      if (prefix === '') throw new TypeError('call a tool by its name, as in tools.search({query: "x"})');
      const own = Object.hasOwn(OWN, prefix);
      const named = prefix === 'describe' && typeof given === 'string' ? { name: given } : given;
      return call(own ? OWN[prefix] : prefix, named, options);
    },
    get(_target, key) {
      if (typeof key !== 'string') return undefined;
      if (!members.has(key)) {
        if (NOT_TOOLS.has(key)) return undefined;
        members.set(key, group(call, prefix === '' ? key : `${prefix}.${key}`));
      }
      return members.get(key);
    },
    has: () => false,
  });
}

function valueOf(answer, tool) {
  if (answer.length === 0) return null;
  try {
    return JSON.parse(answer.toString('utf8'));
  } catch (error) {
    throw new ToolError(`the result of the tool is not JSON: ${error.message}`, { tool, code: 'bad_request' });
  }
}

function fromAnswer(body, tool) {
  let answer;
  try {
    answer = JSON.parse(body.toString('utf8'));
  } catch {
    answer = body.toString('utf8');
  }
  if (answer === null || typeof answer !== 'object') answer = { message: String(answer) };
  const code = answer.code || 'tool_failed';
  return new ToolError(String(answer.message || `the tool failed (${code})`), { tool, code, type: answer.type });
}

module.exports = { ToolError, Tools };
