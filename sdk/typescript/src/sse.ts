// Parses server-sent events: bytes in, the data of whole events out.

/** The longest unfinished event. No node sends a longer one. */
const EVENT_BYTES_MAX = 8 * 1024 * 1024;

const NEWLINE = 10;

export class SseParser {
  #pieces: Buffer[] = [];
  #bytes = 0;
  #data: string[] = [];

  /** The data of the events that `bytes` complete. */
  *feed(bytes: Buffer): Generator<string> {
    let from = 0;
    for (let end = bytes.indexOf(NEWLINE); end >= 0; end = bytes.indexOf(NEWLINE, from)) {
      const line = this.#line(bytes.subarray(from, end));
      from = end + 1;
      if (line === "") {
        if (this.#data.length > 0) {
          const data = this.#data.join("\n");
          this.#data = [];
          yield data;
        }
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      }
      // Comments keep the connection alive; ids are in the data as well.
    }
    const rest = bytes.subarray(from);
    this.#bytes += rest.length;
    if (this.#bytes > EVENT_BYTES_MAX) {
      throw new Error(`an event is longer than ${EVENT_BYTES_MAX} bytes`);
    }
    if (rest.length > 0) this.#pieces.push(rest);
  }

  #line(end: Buffer): string {
    const whole = this.#pieces.length === 0 ? end : Buffer.concat([...this.#pieces, end]);
    this.#pieces = [];
    this.#bytes = 0;
    const line = whole.toString();
    return line.endsWith("\r") ? line.slice(0, -1) : line;
  }
}
