'use strict';
// The frame format: `u32 BE rest length | u32 BE header length | header (UTF-8 JSON) | body`.
// This file encodes to and decodes from memory. It never reads or writes a descriptor.

const FRAME_BYTES_MAX = 256 * 1024;
const HEADER_BYTES_MAX = 64 * 1024;
// A worker's own header is smaller, because the keeper adds its numbers to the header.
const WORKER_HEADER_BYTES_MAX = HEADER_BYTES_MAX - 1024;
// Maximum body bytes that a sender puts into one frame. The largest header always fits beside them.
const CHUNK_BYTES_MAX = FRAME_BYTES_MAX - HEADER_BYTES_MAX - 4;
// Maximum bytes of one message, all its frames together.
const MESSAGE_BYTES_MAX = 16 * 1024 * 1024;

const EMPTY = Buffer.alloc(0);

// A header field that can be long (an error's message, a prompt) is cut to this many characters. Six bytes
// a character is the longest form that JSON gives one UTF-16 unit.
const TEXT_CHARS_MAX = 10_000;

/** Text as valid Unicode of a bounded length. */
function headerText(value, charsMax = TEXT_CHARS_MAX) {
  let text = String(value);
  if (text.length > charsMax) text = text.slice(0, charsMax - 3) + '...';
  return wellFormed(text);
}

/** Half of a surrogate pair is not Unicode. It becomes U+FFFD. */
function wellFormed(text) {
  return text.toWellFormed ? text.toWellFormed() : Buffer.from(text, 'utf8').toString('utf8');
}

/** The bytes of one frame. */
function encodeFrame(header, body = EMPTY) {
  const head = JSON.stringify(header);
  const headBytes = Buffer.byteLength(head);
  if (headBytes > WORKER_HEADER_BYTES_MAX) {
    throw new RangeError(`a header of ${headBytes} bytes is over the limit of ${WORKER_HEADER_BYTES_MAX}`);
  }
  const bytes = Buffer.allocUnsafe(8 + headBytes + body.length);
  bytes.writeUInt32BE(4 + headBytes + body.length, 0);
  bytes.writeUInt32BE(headBytes, 4);
  bytes.write(head, 8, 'utf8');
  bytes.set(body, 8 + headBytes);
  return bytes;
}

/** All frames of one message, in order. With `more` false, each frame stands alone (`output`). */
function* encodeMessage(header, body, more = true) {
  for (let at = 0; at + CHUNK_BYTES_MAX < body.length; at += CHUNK_BYTES_MAX) {
    const part = body.subarray(at, at + CHUNK_BYTES_MAX);
    yield encodeFrame(more ? { ...header, more: true } : header, part);
  }
  const last = body.length === 0 ? 0 : Math.floor((body.length - 1) / CHUNK_BYTES_MAX) * CHUNK_BYTES_MAX;
  yield encodeFrame(header, last === 0 ? body : body.subarray(last));
}

/** Takes bytes in pieces of any size and gives whole frames, in order. */
class Decoder {
  constructor() {
    this._pieces = [];
    this._length = 0;
  }

  push(bytes) {
    this._pieces.push(bytes);
    this._length += bytes.length;
  }

  /** The next frame as `[header, body]`, or null until more bytes arrive. Throws for a malformed frame. */
  next() {
    if (this._length < 4) return null;
    const rest = this._word(0);
    if (rest > FRAME_BYTES_MAX || rest < 4) throw new RangeError(`a frame of ${rest} bytes is malformed`);
    if (this._length < 4 + rest) return null;
    const bytes = this._joined();
    const headBytes = bytes.readUInt32BE(4);
    if (headBytes > HEADER_BYTES_MAX || headBytes > rest - 4) {
      throw new RangeError(`a header of ${headBytes} bytes is malformed`);
    }
    const header = JSON.parse(bytes.toString('utf8', 8, 8 + headBytes));
    if (header === null || typeof header !== 'object') throw new TypeError('a header is not a JSON object');
    // The body is a copy: the caller may hand the memory to another thread.
    const body = Buffer.allocUnsafeSlow(rest - 4 - headBytes);
    bytes.copy(body, 0, 8 + headBytes, 4 + rest);
    this._length -= 4 + rest;
    this._pieces = this._length === 0 ? [] : [bytes.subarray(4 + rest)];
    return [header, body];
  }

  _word(at) {
    if (this._pieces[0].length < at + 4) this._joined();
    return this._pieces[0].readUInt32BE(at);
  }

  _joined() {
    if (this._pieces.length > 1) this._pieces = [Buffer.concat(this._pieces)];
    return this._pieces[0];
  }
}

module.exports = {
  CHUNK_BYTES_MAX,
  Decoder,
  EMPTY,
  FRAME_BYTES_MAX,
  MESSAGE_BYTES_MAX,
  encodeFrame,
  encodeMessage,
  headerText,
  wellFormed,
};
