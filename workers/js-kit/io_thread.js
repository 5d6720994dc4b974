'use strict';
// The IO thread: reads the protocol socket, so that frames arrive while the main thread runs code.
//
// It owns the read side of the socket and nothing else. Each frame goes to the main thread as a message, and
// a counter in shared memory wakes a main thread that blocks in `Atomics.wait`. A plugin (`pluginPath`) sees
// each header too, in this thread: it is how an interrupt reaches code that never returns to the event loop.
//
// A plugin exports `function (shared)` that returns an object with the optional methods
// * `frame(header)`: called after the frame went to the main thread. If it returns a promise, the thread reads on when
//   the promise is settled;
// * `ended()`: called when `shutdown` came or the socket closed, before the main thread hears of it.

const fs = require('node:fs');
const { workerData } = require('node:worker_threads');
const { Decoder, FRAME_BYTES_MAX } = require('./frames.js');
const { WORD, EXIT_GRACE_MS_MAX } = require('./shared.js');

const { fd, words, port, pluginPath, pluginData } = workerData;
const plugin = pluginPath ? require(pluginPath)({ words, port, data: pluginData, post }) : {};
const decoder = new Decoder();

/** Hand one message to the main thread, and wake it if it blocks. */
function post(header, body) {
  const transfer = body && body.byteLength > 4096 ? [body.buffer] : [];
  port.postMessage([header, body], transfer);
  Atomics.add(words, WORD.POSTED, 1);
  Atomics.notify(words, WORD.POSTED);
}

/** Read once. False when the socket has ended. */
function readSome() {
  const bytes = Buffer.allocUnsafe(FRAME_BYTES_MAX);
  for (;;) {
    try {
      const count = fs.readSync(fd, bytes, 0, bytes.length, null);
      if (count === 0) return false;
      // A small piece must not hold the whole buffer.
      decoder.push(count < bytes.length / 2 ? Buffer.from(bytes.subarray(0, count)) : bytes.subarray(0, count));
      return true;
    } catch (error) {
      if (error.code === 'EINTR') continue;
      if (error.code === 'EAGAIN') {
        // Another holder of the socket made it non-blocking. Node has no poll(2), so the thread sleeps
        // between attempts.
        Atomics.wait(words, WORD.NEVER, 0, 2);
        continue;
      }
      return false;
    }
  }
}

async function run() {
  for (;;) {
    let frame;
    try {
      while ((frame = decoder.next()) !== null) {
        const [header, body] = frame;
        if (header.kind === 'shutdown') return end(header.grace_ms, header, body);
        post(header, body);
        const pause = plugin.frame && plugin.frame(header);
        if (pause) await pause;
      }
    } catch (error) {
      // The framing of the stream is lost.
      return end(EXIT_GRACE_MS_MAX, null, Buffer.from(String(error.message)));
    }
    if (!readSome()) return end(EXIT_GRACE_MS_MAX, null, null);
  }
}

/** The main thread exits by itself. If it cannot, because code blocks it, the process is killed. */
function end(graceMs, header, body) {
  if (plugin.ended) plugin.ended();
  post(header, body);
  const wait = Math.min(Number(graceMs) || 0, EXIT_GRACE_MS_MAX);
  setTimeout(() => process.kill(process.pid, 'SIGKILL'), wait);
}

run();
