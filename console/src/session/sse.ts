// Reads server-sent events: bytes in, the data of whole events out.

export class SseReader {
  readonly #decoder = new TextDecoder();
  #rest = "";

  /** The data of the events that `bytes` complete. */
  feed(bytes: Uint8Array): string[] {
    const text = this.#rest + this.#decoder.decode(bytes, { stream: true });
    const frames = text.split("\n\n");
    this.#rest = frames.pop() ?? "";
    const found: string[] = [];
    for (const frame of frames) {
      const data = frame
        .split("\n")
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(line[5] === " " ? 6 : 5));
      // Comments keep the connection alive.
      if (data.length > 0) found.push(data.join("\n"));
    }
    return found;
  }
}
