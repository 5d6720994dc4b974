'use strict';
// Standard input of the code. The worker asks for input only when the code reads.
//
// Owns the unread bytes of the running turn and every way to read them: `prompt`, `process.stdin`, `fs.readSync(0)`,
// `fs.readFileSync(0)`. Never keeps a byte for another turn.

const fs = require('node:fs');
const { Readable } = require('node:stream');
const { headerText } = require('../js-kit/frames.js');
const { Interrupted } = require('./errors.js');

class Input {
  constructor({ turns, link, guard, pending, setImmediate }) {
    this._turns = turns;
    this._link = link;
    this._guard = guard;
    this._pending = pending;
    this._setImmediate = setImmediate;
    this._unread = [];
    this._ended = false;
    // Parts of an answer that is not complete.
    this._parts = [];
    // What takes the answer to the request that was sent: a function, or null.
    this._taker = null;
    this._stream = null;
  }

  install() {
    const prompt = (text = '') => this._ask(text, false);
    prompt.secret = (text = '') => this._ask(text, true);
    prompt.async = (text = '', { secret = false } = {}) => this._askLater(text, secret);
    Object.defineProperty(globalThis, 'prompt', { configurable: true, value: prompt, writable: true });
    Object.defineProperty(process, 'stdin', { configurable: true, enumerable: true, get: () => this._current() });
    this._replaceReads();
  }

  /** Whether the code waits for an answer. */
  get isAsked() {
    return this._taker !== null;
  }

  /** A frame of an answer arrived. */
  deliver(header, body) {
    if (header.turn !== this._turns.current || this._ended) return;
    this._parts.push(body);
    if (header.more) return;
    const answer = Buffer.concat(this._parts);
    this._parts = [];
    if (header.eof) this._ended = true;
    if (answer.length > 0) this._unread.push(answer);
    this._wake();
  }

  /** The turn was interrupted: its input is at its end. */
  interrupt() {
    this._unread = [];
    this._parts = [];
    this._ended = true;
    this._taker = null;
  }

  /** The turn is over: drop its unread input. */
  reset() {
    const wasEnded = this._ended;
    this._unread = [];
    this._parts = [];
    this._ended = false;
    this._taker = null;
    const stream = this._stream;
    // A stream that somebody still reads serves the next turn too. Any other state must not outlive the turn.
    if (stream && (wasEnded || stream.destroyed || stream.readableLength > 0 || !stream.isWanted())) this._stream = null;
  }

  _wake() {
    const taker = this._taker;
    this._taker = null;
    if (taker) taker();
  }

  _request(text, secret) {
    const turn = this._turns.current;
    this._guard.protect(() => {
      this._link.send({ kind: 'stdin_wait', turn, prompt: headerText(text), secret });
    });
  }

  /** Block until one answer is there. False at the end of input. */
  _more(text, secret) {
    const turn = this._turns.current;
    if (this._ended || turn === null) return false;
    this._guard.protect(() => {
      let isThere = false;
      // A stream may have asked already; its answer serves this reader.
      const asked = this._taker;
      this._taker = () => {
        isThere = true;
        if (asked) asked();
      };
      if (!asked) this._request(text, secret);
      this._turns.waitFor(() => isThere);
    });
    if (this._turns.isInterrupted(turn)) throw new Interrupted();
    return !this._ended || this._unread.length > 0;
  }

  _take(size) {
    const all = this._unread.length === 1 ? this._unread[0] : Buffer.concat(this._unread);
    this._unread = all.length > size ? [all.subarray(size)] : [];
    return all.subarray(0, size);
  }

  /** A line without its line end. An answer without one counts as a line. */
  _line() {
    if (this._unread.length === 0) return '';
    const all = Buffer.concat(this._unread);
    const end = all.indexOf(10);
    const line = this._take(end < 0 ? all.length : end + 1).toString('utf8');
    return line.replace(/\r?\n$/, '');
  }

  _ask(text, secret) {
    if (this._unread.length === 0 && !this._more(String(text), secret)) return null;
    return this._line();
  }

  _askLater(text, secret) {
    if (this._unread.length > 0) return Promise.resolve(this._line());
    if (this._turns.isInterrupted(this._turns.current)) return new Promise(() => {});
    if (this._ended || this._turns.current === null) return Promise.resolve(null);
    return this._pending.promise((resolve) => {
      const before = this._taker;
      this._taker = () => {
        resolve(this._unread.length === 0 && this._ended ? null : this._line());
        if (before) before();
      };
      this._request(String(text), secret);
    });
  }

  _current() {
    if (this._stream === null) this._stream = new InputStream(this);
    return this._stream;
  }

  /** A stream wants bytes. */
  feed(stream) {
    const give = () => {
      if (this._unread.length > 0) stream.push(this._take(Infinity));
      else if (this._ended) stream.push(null);
      else ask();
    };
    const ask = () => {
      const turn = this._turns.current;
      if (turn === null) return this._turns.onNext(() => this.feed(stream));
      const before = this._taker;
      this._taker = () => {
        if (before) before();
        this._guard.release(give);
      };
      if (!before) this._request('', false);
      return undefined;
    };
    if (this._unread.length > 0 || this._ended) return give();
    // A reader that has what it wants pauses within this iteration of the event loop, and then nothing is asked.
    this._setImmediate(() => {
      if (stream.destroyed || !stream.isWanted()) stream.isHungry = true;
      else if (this._unread.length > 0 || this._ended) give();
      else ask();
    });
    return undefined;
  }

  _replaceReads() {
    const { readSync, readFileSync } = fs;
    const isInput = (file) => file === 0 || file === '/dev/stdin';
    fs.readSync = (fd, buffer, ...rest) => {
      if (fd !== 0 || this._turns.current === null) return readSync(fd, buffer, ...rest);
      const given = typeof rest[0] === 'object' && rest[0] !== null ? rest[0] : { offset: rest[0], length: rest[1] };
      const offset = given.offset ?? 0;
      const length = given.length ?? buffer.byteLength - offset;
      while (length > 0 && this._unread.length === 0 && this._more('', false));
      const data = this._take(length);
      Buffer.from(buffer.buffer, buffer.byteOffset, buffer.byteLength).set(data, offset);
      return data.length;
    };
    fs.readFileSync = (file, options) => {
      if (!isInput(file) || this._turns.current === null) return readFileSync(file, options);
      while (this._more('', false));
      const data = Buffer.from(this._take(Infinity));
      const encoding = typeof options === 'string' ? options : options && options.encoding;
      return encoding && encoding !== 'buffer' ? data.toString(encoding) : data;
    };
    require('node:module').syncBuiltinESMExports();
  }
}

/** Standard input as a stream. */
class InputStream extends Readable {
  constructor(source) {
    super({ highWaterMark: 0 });
    this.fd = 0;
    this.isHungry = false;
    this._source = source;
  }

  /** Whether somebody reads. */
  isWanted() {
    return this.readableFlowing === true || this.listenerCount('readable') > 0;
  }

  _read() {
    this.isHungry = false;
    this._source.feed(this);
  }

  resume() {
    const resumed = super.resume();
    if (this.isHungry) this._read();
    return resumed;
  }

  on(event, listener) {
    const added = super.on(event, listener);
    if (this.isHungry && (event === 'readable' || event === 'data')) this._read();
    return added;
  }

  setRawMode() {
    return this;
  }

  ref() {
    return this;
  }

  unref() {
    return this;
  }
}

module.exports = { Input };
