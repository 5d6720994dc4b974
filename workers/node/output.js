'use strict';
// Standard output and error: streams that write at once, so that order is kept and nothing is lost at a turn's end.
//
// Node's own streams make the keeper's pipes non-blocking, for child processes too. These streams write with
// `writeSync` through descriptions of their own: a child that makes its copy non-blocking changes nothing here.

const fs = require('node:fs');
const { Writable } = require('node:stream');
const { writeAll } = require('../js-kit/link.js');

// Maximum bytes that are held back before the first turn.
const HELD_BYTES_MAX = 1024 * 1024;

class RawStream extends Writable {
  constructor(fd) {
    super({ decodeStrings: true });
    this.fd = fd;
    this._type = 'pipe';
    this._isStdio = true;
    this._own = ownDescription(fd);
    this._held = null;
    // Takes output that does not belong to the running turn; see `setBackground`.
    this._takeBackground = () => false;
  }

  /** A function that takes bytes of an earlier turn while another one runs, and returns true if it did. */
  setBackground(take) {
    this._takeBackground = take;
  }

  /** Keep what is written from now on. */
  hold() {
    this._held = [];
    this._heldBytes = 0;
  }

  /** Write what was kept. */
  unhold() {
    const held = this._held;
    this._held = null;
    if (held) for (const chunk of held) this._put(chunk);
  }

  /** Without the queue of `Writable`: a termination between its steps would leave the stream stuck. */
  write(chunk, encoding, done) {
    const callback = typeof encoding === 'function' ? encoding : done;
    const bytes = typeof chunk === 'string'
      ? Buffer.from(chunk, typeof encoding === 'string' ? encoding : 'utf8')
      : bytesOf(chunk);
    if (this._held === null) {
      if (!this._takeBackground(bytes)) this._put(bytes);
    } else if ((this._heldBytes += bytes.length) <= HELD_BYTES_MAX) this._held.push(bytes);
    if (typeof callback === 'function') process.nextTick(callback);
    return true;
  }

  // Some libraries write through the methods of `Writable` that subclasses have.
  _write(chunk, _encoding, done) {
    this.write(chunk);
    done();
  }

  _put(chunk) {
    try {
      writeAll(this._own, chunk);
    } catch (error) {
      // Nobody reads the pipe any more. The socket closes too, and ends the process.
      if (error.code !== 'EPIPE') throw error;
    }
  }

  // The code cannot close standard output: the next turn needs it.
  end(chunk, encoding, done) {
    const callback = [chunk, encoding, done].find((value) => typeof value === 'function');
    if (chunk !== undefined && chunk !== null && typeof chunk !== 'function') {
      this.write(chunk, typeof encoding === 'string' ? encoding : undefined);
    }
    if (callback) process.nextTick(callback);
    return this;
  }

  destroy() {
    return this;
  }

  destroySoon() {}
}

function bytesOf(chunk) {
  if (ArrayBuffer.isView(chunk)) return Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
  const error = new TypeError(
    `The "chunk" argument must be of type string or an instance of Buffer, TypedArray, or DataView. Received ${typeof chunk}`,
  );
  error.code = 'ERR_INVALID_ARG_TYPE';
  throw error;
}

/** A descriptor with its own file description, so that its blocking mode is its own. */
function ownDescription(fd) {
  try {
    return fs.openSync(`/proc/self/fd/${fd}`, 'w');
  } catch {
    return fd;
  }
}

function installOutput() {
  const streams = { stdout: new RawStream(1), stderr: new RawStream(2) };
  for (const [name, stream] of Object.entries(streams)) {
    Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => stream });
  }
  return streams;
}

module.exports = { installOutput };
