'use strict';
// The main thread's end of the protocol socket: sends frames, and receives them from the IO thread.
//
// Frames arrive in two ways. While the event loop runs, each frame goes to `onFrame`. While the main thread
// blocks (synchronous input, a synchronous tool call), `receive` takes frames one by one; a frame that the
// caller does not want goes back with `keep` and reaches `onFrame` later, in order.

const fs = require('node:fs');
const path = require('node:path');
const { MessageChannel, Worker, receiveMessageOnPort } = require('node:worker_threads');
const { EMPTY, encodeFrame, encodeMessage, CHUNK_BYTES_MAX } = require('./frames.js');
const { WORD, WORDS } = require('./shared.js');

class Link {
  /**
   * @param options.fd the protocol socket
   * @param options.onFrame called with `(header, body)`; with a null header when the socket has ended
   * @param options.plugin path of a plugin for the IO thread, optional
   * @param options.data value for the plugin, optional
   */
  constructor({ fd, onFrame, plugin, data }) {
    this.words = new Int32Array(new SharedArrayBuffer(4 * WORDS));
    this.onFrame = onFrame;
    this._fd = fd;
    this._kept = [];
    this._keptScheduled = false;
    const { port1, port2 } = new MessageChannel();
    this._port = port1;
    this._port.on('message', (message) => {
      this._flushKept();
      this._deliver(message);
    });
    this._thread = new Worker(path.join(__dirname, 'io_thread.js'), {
      workerData: { fd, words: this.words, port: port2, pluginPath: plugin, pluginData: data },
      transferList: [port2],
      env: {},
      execArgv: [],
      stdin: false,
      stdout: false,
      stderr: false,
    });
    this._thread.unref();
  }

  /** Send one message. A long body goes in several frames with `more`. */
  send(header, body = EMPTY) {
    if (body.length <= CHUNK_BYTES_MAX) this.write(encodeFrame(header, body));
    else for (const frame of encodeMessage(header, body)) this.write(frame);
  }

  /** Send bytes of a stream: several frames need no `more`. */
  sendStream(header, body) {
    for (const frame of encodeMessage(header, body, false)) this.write(frame);
  }

  /** Write the bytes of whole frames. Blocks while the socket is full; the IO thread reads meanwhile. */
  write(bytes) {
    writeAll(this._fd, bytes, this.words);
  }

  /** Block until the next message `[header, body]`; null if none came within the time. */
  receive(timeoutMs = Infinity) {
    const end = timeoutMs === Infinity ? Infinity : performance.now() + timeoutMs;
    for (;;) {
      const posted = Atomics.load(this.words, WORD.POSTED);
      const received = receiveMessageOnPort(this._port);
      if (received !== undefined) return asFrame(received.message);
      const left = end === Infinity ? Infinity : end - performance.now();
      if (left <= 0) return null;
      Atomics.wait(this.words, WORD.POSTED, posted, left);
    }
  }

  /** Whether the socket keeps the process alive: then the event loop never ends. */
  hold(isHeld) {
    if (isHeld) this._port.ref();
    else this._port.unref();
  }

  /** Give back a message that `receive` returned. It reaches `onFrame` when the event loop runs. */
  keep(message) {
    this._kept.push(message);
    if (!this._keptScheduled) {
      this._keptScheduled = true;
      setImmediate(() => this._flushKept());
    }
  }

  _flushKept() {
    this._keptScheduled = false;
    while (this._kept.length > 0) this._deliver(this._kept.shift());
  }

  _deliver(message) {
    const [header, body] = asFrame(message);
    this.onFrame(header, body);
  }
}

/** A body crosses threads as a Uint8Array. */
function asFrame([header, body]) {
  const isBuffer = body === null || body === undefined || Buffer.isBuffer(body);
  return [header, isBuffer ? body : Buffer.from(body.buffer, body.byteOffset, body.byteLength)];
}

const SLEEP_MS_MAX = 10;
const sleepWord = new Int32Array(new SharedArrayBuffer(4));

/** Write all bytes to a descriptor. A descriptor that somebody made non-blocking is retried after a sleep. */
function writeAll(fd, bytes) {
  let at = 0;
  let sleepMs = 1;
  while (at < bytes.length) {
    try {
      at += fs.writeSync(fd, bytes, at, bytes.length - at);
      sleepMs = 1;
    } catch (error) {
      if (error.code === 'EINTR') continue;
      if (error.code !== 'EAGAIN') throw error;
      // Node has no poll(2).
      Atomics.wait(sleepWord, 0, 0, sleepMs);
      sleepMs = Math.min(2 * sleepMs, SLEEP_MS_MAX);
    }
  }
}

module.exports = { Link, writeAll };
