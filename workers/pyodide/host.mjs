// The main thread's side of the session: bytes for the interpreter, and calls to the host.
//
// Owns the queue of received frames. Frames go to the interpreter as bytes, as from a socket; only the answers to this
// module's own calls stay here. Every wait blocks the thread, has a limit, and ends at an interrupt.

import { fileURLToPath } from 'node:url';
import frames from '../js-kit/frames.js';
import kit from '../js-kit/link.js';
import shared from '../js-kit/shared.js';

const { MESSAGE_BYTES_MAX, encodeFrame } = frames;
const { WORD } = shared;

// The interpreter numbers its calls from 1. It does not reach these numbers.
const FIRST_CALL = 2 ** 32;
// How much later than the node this worker gives a call up, so that the node's own answer comes first.
const LATER_MS = 250;
// Exit status for an invalid frame of the keeper (EX_PROTOCOL).
const PROTOCOL_ERROR = 76;

/** A call that was not answered with a value. `code` is a code of the node, or absent if the tool itself failed. */
export class CallError extends Error {
  constructor({ message, code, type }) {
    super(String(message ?? code ?? 'the call failed'));
    this.code = code;
    this.type = type;
  }
}

/** The running turn was interrupted while the thread waited. */
export class Interrupted extends Error {}

export class Host {
  #link;
  #exit;
  #interrupt = new Int32Array(new SharedArrayBuffer(4));
  #incoming = [];
  // Bytes of the first incoming frame that the interpreter has taken.
  #taken = 0;
  #answers = new Map();
  #nextCall = FIRST_CALL;
  #turn = 0;

  constructor(fd, exit) {
    this.#exit = exit;
    this.#link = new kit.Link({
      fd,
      plugin: fileURLToPath(new URL('./io_plugin.js', import.meta.url)),
      data: { interrupt: this.#interrupt.buffer },
      onFrame: (header, body) => this.#route(header, body),
    });
  }

  /**
   * What the interpreter takes for its interrupt buffer. The interpreter reads element 0, then writes 0 to it; an interrupt
   * that arrives between the two would be lost. Here the read takes the signal number and clears the word in one step.
   */
  get interruptBuffer() {
    const word = this.#interrupt;
    return {
      get 0() {
        return Atomics.exchange(word, 0, 0);
      },
      set 0(_cleared) {},
    };
  }

  /** Sends bytes that are whole frames. */
  sendBytes(bytes) {
    try {
      this.#link.write(bytes);
    } catch {
      // The keeper has closed the socket.
      this.#exit(0);
    }
  }

  /** Copies received bytes for the interpreter to `target`; 0 if there are none now. */
  take(target) {
    this.#pump();
    let filled = 0;
    while (filled < target.length && this.#incoming.length > 0) {
      const first = this.#incoming[0];
      const part = first.subarray(this.#taken, this.#taken + target.length - filled);
      target.set(part, filled);
      filled += part.length;
      this.#taken += part.length;
      if (this.#taken === first.length) {
        this.#incoming.shift();
        this.#taken = 0;
      }
    }
    return filled;
  }

  /**
   * Waits until bytes for the interpreter are there (true), or `deadline` has passed (false).
   * Throws `Interrupted` at an interrupt that the interpreter has not seen yet.
   */
  waitForBytes(deadline = Infinity) {
    return this.#waitUntil(() => this.#incoming.length > 0, deadline);
  }

  /** Waits until `deadline`, whatever arrives. Throws `Interrupted`. */
  sleep(deadline) {
    this.#waitUntil(() => false, deadline);
  }

  /** Calls a host tool and waits for its value. Throws `CallError` or `Interrupted`. */
  call(name, values, deadlineMs) {
    const body = Buffer.from(JSON.stringify(values));
    if (body.length > MESSAGE_BYTES_MAX) {
      throw new CallError({ code: 'message_too_large', message: `the arguments of ${name} are too large` });
    }
    const call = this.#nextCall++;
    const answer = { parts: [], ok: false, done: false };
    const names = { turn: this.#turn, call };
    this.#answers.set(call, answer);
    this.#link.send({ kind: 'tool_call', ...names, name, deadline_ms: deadlineMs }, body);
    let answered = false;
    try {
      answered = this.#waitUntil(() => answer.done, performance.now() + deadlineMs + LATER_MS);
    } finally {
      this.#answers.delete(call);
      if (!answered) this.#link.send({ kind: 'tool_cancel', ...names });
    }
    if (!answered) throw new CallError({ code: 'tool_deadline_passed' });
    return valueOf(answer, name);
  }

  #waitUntil(isDone, deadline) {
    const { words } = this.#link;
    for (;;) {
      const seen = Atomics.load(words, WORD.POSTED);
      this.#pump();
      if (isDone()) return true;
      if (Atomics.load(this.#interrupt, 0) !== 0) throw new Interrupted();
      const left = deadline - performance.now();
      if (left <= 0) return false;
      Atomics.wait(words, WORD.POSTED, seen, left);
    }
  }

  #pump() {
    for (;;) {
      const message = this.#link.receive(0);
      if (message === null) return;
      this.#route(...message);
    }
  }

  #route(header, body) {
    if (header === null) this.#exit(body ? PROTOCOL_ERROR : 0);
    const { kind } = header;
    if (kind === 'turn_start') this.#turn = header.turn;
    // The plugin has passed this frame on already, unless it is late.
    if (kind === 'interrupt' && !header.signalled) return;
    if (kind !== 'tool_result' || header.call < FIRST_CALL) {
      this.#incoming.push(encodeFrame(header, body ?? undefined));
      return;
    }
    const answer = this.#answers.get(header.call);
    if (answer === undefined || answer.done) return;
    answer.ok = header.ok === true;
    if (!answer.ok) answer.parts.length = 0;
    answer.parts.push(body);
    answer.done = header.more !== true || !answer.ok;
  }
}

function valueOf(answer, name) {
  let value;
  try {
    const body = Buffer.concat(answer.parts);
    value = body.length > 0 ? JSON.parse(body.toString('utf8')) : null;
  } catch (error) {
    throw new CallError({ code: 'bad_request', message: `the answer of ${name} is not JSON: ${error.message}` });
  }
  if (answer.ok) return value;
  throw new CallError(typeof value === 'object' && value !== null ? value : { message: String(value) });
}
