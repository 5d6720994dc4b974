// The frame: `u32 BE rest length | u32 BE header length | header (UTF-8 JSON) | body (raw bytes)`.

/** A frame's bytes after its first length word. */
export const FRAME_BYTES_MAX = 256 * 1024;

/** Most body bytes in one frame. A header of the largest size fits beside them. */
export const CHUNK_BYTES_MAX = 196_604;

/** One message, all its frames together. */
export const MESSAGE_BYTES_MAX = 16 * 1024 * 1024;

const LENGTH_BYTES = 4;

export interface Frame<Header> {
  header: Header;
  body: Buffer;
}

export function encodeFrame(header: object, body: Uint8Array = Buffer.alloc(0)): Buffer {
  const json = Buffer.from(JSON.stringify(header));
  const rest = LENGTH_BYTES + json.length + body.length;
  const frame = Buffer.allocUnsafe(LENGTH_BYTES + rest);
  frame.writeUInt32BE(rest, 0);
  frame.writeUInt32BE(json.length, LENGTH_BYTES);
  json.copy(frame, 2 * LENGTH_BYTES);
  frame.set(body, 2 * LENGTH_BYTES + json.length);
  return frame;
}

/** A message that is exactly one frame. */
export function decodeFrame<Header>(bytes: Buffer): Frame<Header> {
  if (bytes.length < 2 * LENGTH_BYTES) throw new Error("a frame is cut short");
  const rest = bytes.readUInt32BE(0);
  const header = bytes.readUInt32BE(LENGTH_BYTES);
  const from = 2 * LENGTH_BYTES;
  if (rest > FRAME_BYTES_MAX || rest !== bytes.length - LENGTH_BYTES || from + header > bytes.length) {
    throw new Error(`a frame of ${bytes.length} bytes has wrong lengths`);
  }
  const json = bytes.toString("utf8", from, from + header);
  return { header: JSON.parse(json) as Header, body: bytes.subarray(from + header) };
}

/** A message in as many frames as needed. All but the last have `more`. */
export function* encodeMessage(header: object, body: Uint8Array): Generator<Buffer> {
  let from = 0;
  for (; body.length - from > CHUNK_BYTES_MAX; from += CHUNK_BYTES_MAX) {
    yield encodeFrame({ ...header, more: true }, body.subarray(from, from + CHUNK_BYTES_MAX));
  }
  yield encodeFrame(header, body.subarray(from));
}
