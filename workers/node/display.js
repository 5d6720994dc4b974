'use strict';
// Rich output: `display(value, {mime, id, update})` and its short forms. Owns the form of a value and the ids.

const fs = require('node:fs');
const path = require('node:path');
const util = require('node:util');
const { MESSAGE_BYTES_MAX, headerText } = require('../js-kit/frames.js');

const ID_CHARS_MAX = 200;
// Objects offer their forms by MIME type under this key, as in other JavaScript notebooks.
const BUNDLE = Symbol.for('Jupyter.display');
const PREFERRED = ['image/png', 'image/jpeg', 'image/svg+xml', 'text/html', 'text/markdown', 'application/json'];
const BY_EXTENSION = {
  '.gif': 'image/gif', '.jpeg': 'image/jpeg', '.jpg': 'image/jpeg', '.png': 'image/png', '.svg': 'image/svg+xml', '.webp': 'image/webp',
};
const BY_START = [
  [[0x89, 0x50, 0x4e, 0x47], 'image/png'], [[0xff, 0xd8, 0xff], 'image/jpeg'], [[0x47, 0x49, 0x46, 0x38], 'image/gif'],
  [[0x52, 0x49, 0x46, 0x46], 'image/webp'],
];

class Display {
  constructor({ turns, link, guard }) {
    this._turns = turns;
    this._link = link;
    this._guard = guard;
    this._count = 0;
  }

  install() {
    const display = (value, options = {}) => this._show(value, options);
    display.image = (image, mime, options = {}) => {
      const { body, type } = imageOf(image, typeof mime === 'string' ? mime : undefined);
      return this._show(body, { ...(typeof mime === 'object' ? mime : options), mime: type });
    };
    const asText = (mime) => (text, options = {}) => this._show(String(text), { ...options, mime });
    display.html = asText('text/html');
    display.markdown = asText('text/markdown');
    display.svg = asText('image/svg+xml');
    display.text = asText('text/plain');
    display.json = (value, options = {}) => this._show(jsonOf(value), { ...options, mime: 'application/json' });
    Object.defineProperty(globalThis, 'display', { configurable: true, value: display, writable: true });
  }

  _show(value, { mime, id, update = false }) {
    const { body, type } = formOf(value, mime);
    if (body.length > MESSAGE_BYTES_MAX) {
      throw new RangeError(`a display of ${body.length} bytes is over the limit of ${MESSAGE_BYTES_MAX}`);
    }
    const name = id === undefined ? `display-${(this._count += 1)}` : headerText(id, ID_CHARS_MAX);
    const turn = this._turns.current;
    // Between turns there is no turn that could show it.
    if (turn !== null) {
      const header = { kind: 'display', turn, mime: headerText(type, ID_CHARS_MAX), id: name };
      if (update) header.update = true;
      this._guard.protect(() => this._link.send(header, body));
    }
    return new Handle(this, name);
  }
}

class Handle {
  #display;

  constructor(display, id) {
    this.#display = display;
    this.id = id;
  }

  /** Show another value in place of this display. */
  update(value, { mime } = {}) {
    this.#display._show(value, { mime, id: this.id, update: true });
  }

  [util.inspect.custom]() {
    return `<display ${this.id}>`;
  }
}

function formOf(value, mime) {
  if (mime !== undefined) return { body: contentOf(value, mime), type: String(mime) };
  if (value !== null && typeof value === 'object' && typeof value[BUNDLE] === 'function') {
    const bundle = value[BUNDLE]();
    const type = [...PREFERRED, ...Object.keys(bundle)].find((one) => bundle[one] !== undefined);
    if (type) return { body: contentOf(bundle[type], type, true), type };
  }
  if (ArrayBuffer.isView(value)) {
    const type = imageTypeOf(value);
    if (type) return { body: bytesOf(value), type };
  }
  return { body: Buffer.from(util.inspect(value)), type: 'text/plain' };
}

function contentOf(value, mime, isBundle = false) {
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return bytesOf(value);
  if (typeof value === 'string') {
    const isBinary = isBundle && mime.startsWith('image/') && mime !== 'image/svg+xml';
    return Buffer.from(value, isBinary ? 'base64' : 'utf8');
  }
  return mime.endsWith('json') ? Buffer.from(jsonOf(value)) : Buffer.from(util.inspect(value));
}

function imageOf(image, mime) {
  if (ArrayBuffer.isView(image) || image instanceof ArrayBuffer) {
    const body = bytesOf(image);
    return { body, type: mime ?? imageTypeOf(body) ?? 'image/png' };
  }
  const file = image instanceof URL ? image : String(image);
  const type = mime ?? BY_EXTENSION[path.extname(String(file)).toLowerCase()];
  const body = fs.readFileSync(file);
  return { body, type: type ?? imageTypeOf(body) ?? 'image/png' };
}

function imageTypeOf(bytes) {
  const found = BY_START.find(([start]) => start.every((byte, at) => bytes[at] === byte));
  return found && found[1];
}

function bytesOf(value) {
  return ArrayBuffer.isView(value) ? Buffer.from(value.buffer, value.byteOffset, value.byteLength) : Buffer.from(value);
}

function jsonOf(value) {
  const text = JSON.stringify(value);
  if (text === undefined) throw new TypeError(`a value of type ${typeof value} is not JSON`);
  return text;
}

module.exports = { Display };
