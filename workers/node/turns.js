'use strict';
// The turns: begins each one, decides how it ends, and reports the end exactly once.
//
// A turn ends when the value of its code is there, when the code asked for the exit of the process, or when an
// interrupt stopped it. Everything here runs in callbacks of the event loop that can be lost to a termination: no
// step depends on code behind a call of the session's code.

const util = require('node:util');
const { encodeFrame, encodeMessage } = require('../js-kit/frames.js');
const { Cells } = require('./cell.js');
const { Interrupted, ProcessExit, describe, isA, traceback } = require('./errors.js');

// How long code that noticed an interrupt in an `await` may take to end.
const SETTLE_MS = 150;
// How long the `interrupt` frame may take to be read after its signal. The thread that reads it may have to wait for a
// processor. The wait ends with the frame, so only a child that another process ended with SIGINT costs this time.
const LATE_FRAME_MS = 250;
// Maximum number of interrupts that are remembered for turns that have not begun.
const EARLY_MAX = 64;
const SHOWN = { colors: false, maxStringLength: 16 * 1024 * 1024, maxArrayLength: 1000 };

class Turns {
  constructor({ timers }) {
    this._timers = timers;
    this.current = null;
    this.latest = 0;
    this._interrupted = null;
    // Turns that were interrupted before they began.
    this._early = new Set();
    this._exit = null;
    this._promise = null;
    // Promises of turns that were stopped. Node 22 aborts when one of them is collected.
    this._abandoned = new Set();
    this._waiting = [];
    this._code = [];
    this._codeOf = null;
    this._context = undefined;
  }

  /** The parts that a turn needs. They need the turns too, so they come later. */
  attach({ link, guard, cells, pending, input, owners, tools, streams, program }) {
    this._program = program;
    Object.assign(this, { _link: link, _guard: guard, _cells: cells, _pending: pending });
    Object.assign(this, { _input: input, _owners: owners, _tools: tools, _streams: streams });
  }

  isInterrupted(turn) {
    return turn !== null && this._interrupted === turn;
  }

  /** Call a function when the next turn begins. */
  onNext(work) {
    this._waiting.push(work);
  }

  /** A frame of a `turn_start` arrived. */
  start(header, body) {
    if (this._codeOf !== header.turn) {
      this._code = [];
      this._context = header.context;
    }
    this._codeOf = header.turn;
    this._code.push(body);
    if (header.more) return;
    const source = Buffer.concat(this._code).toString('utf8');
    this._code = [];
    this._codeOf = null;
    this._begin(header.turn, source, this._context);
  }

  /** Run frames that arrive while the main thread blocks on behalf of the code. */
  waitFor(isDone, timeoutMs = Infinity) {
    const turn = this.current;
    while (!isDone() && !this.isInterrupted(turn)) {
      const frame = this._link.receive(timeoutMs);
      if (frame === null) return;
      this._link.onFrame(...frame);
    }
  }

  /** A child process that blocked the code was ended by SIGINT. Throws if an interrupt of the turn caused it. */
  checkInterrupt() {
    const turn = this.current;
    if (turn === null) return;
    this._guard.protect(() => this.waitFor(() => false, LATE_FRAME_MS));
    if (this.isInterrupted(turn)) throw new Interrupted();
  }

  /** An `interrupt` arrived. With `again`, the code was terminated already. */
  interrupt(turn, again) {
    if (turn !== this.current && again && turn > this.latest) {
      // The termination ended the handler of the `turn_start`, which was posted before this message.
      this._code = [];
      this._codeOf = null;
      this._early.add(turn);
      this._begin(turn, '');
      return;
    }
    if (turn !== this.current) {
      if (turn > this.latest && this._early.size < EARLY_MAX) this._early.add(turn);
      return;
    }
    const isFirst = this._interrupted !== turn;
    this._interrupted = turn;
    this._guard.acknowledge(turn);
    this._input.interrupt();
    const isNoticed = this._pending.interrupt();
    if (again) this._abandon(turn);
    else if (isFirst) {
      if (isNoticed) this._timers.setTimeout(() => this._abandon(turn), SETTLE_MS);
      else this._timers.setImmediate(() => this._abandon(turn));
    }
  }

  /** An error that nothing has caught ends a program. Returns whether it does. */
  fail(error) {
    const turn = this.current;
    if (turn === null || !this._program.isRunning) return false;
    this._timers.setImmediate(() => this._finish(turn, { error }));
    return true;
  }

  /** Code called `process.exit`. */
  exit(status) {
    const turn = this.current;
    if (turn === null) return;
    this._exit ??= { turn, status };
    this._timers.setImmediate(() => this._finish(turn));
  }

  _begin(turn, source, context) {
    this.latest = turn;
    const isEarly = this._early.has(turn);
    for (const early of this._early) if (early <= turn) this._early.delete(early);
    this.current = turn;
    this._interrupted = null;
    this._exit = null;
    for (const stream of this._streams) stream.unhold();
    if (isEarly) {
      this._interrupted = turn;
      this._finish(turn);
      return;
    }
    this._pending.begin();
    for (const work of this._waiting.splice(0)) this._timers.setImmediate(work);
    try {
      if (context) this._program.enter(context, (status) => this._finish(turn, { status }));
    } catch (error) {
      this._finish(turn, { error });
      return;
    }
    const { promise, failure } = this._owners.run(turn, () => this._cells.begin(turn, source, this._program.file));
    if (failure) this._finish(turn, { error: failure });
    else this._follow(turn, promise, Cells.valueOf);
  }

  _follow(turn, promise, valueOf) {
    if (this.current === turn) this._promise = promise;
    promise.then(
      (settled) => this._settled(turn, promise, valueOf(settled)),
      (error) => {
        this._abandoned.delete(promise);
        this._finishSoon(turn, { error });
      },
    );
  }

  _settled(turn, promise, value) {
    this._abandoned.delete(promise);
    if (turn !== this.current) return;
    // A program does not wait for the value of its last statement.
    if (this._program.isRunning) this._program.settled();
    else if (util.types.isPromise(value)) this._follow(turn, value, (settled) => settled);
    else this._finishSoon(turn, { value });
  }

  /** Errors that nothing caught are printed before the end of the turn, so the end waits for the next callback. */
  _finishSoon(turn, end) {
    const finish = () => this._finish(turn, end);
    // The SIGINT of an interrupt ends child processes before the worker has read its frame.
    if ('error' in end && isKilledChild(end.error)) this._timers.setTimeout(finish, LATE_FRAME_MS);
    else this._timers.setImmediate(finish);
  }

  /** The code does not end, but its turn does. */
  _abandon(turn) {
    if (turn !== this.current) return;
    if (this._promise !== null) this._abandoned.add(this._promise);
    this._finish(turn);
  }

  _finish(turn, end = {}) {
    if (turn !== this.current) return;
    // Values and errors are shown by code of the session, which can be interrupted.
    const frames = this._guard.release(() => this._describe(turn, end));
    this._guard.protect(() => {
      if (turn !== this.current) return;
      this.current = null;
      this._promise = null;
      this._guard.finish(turn);
      this._input.reset();
      if (this._program.isRunning) this._pending.clear();
      else this._pending.end();
      this._program.leave();
      this._tools.endTurn();
      for (const frame of frames) this._link.write(frame);
      this._cells.forget();
    });
  }

  /** The frames that end a turn. */
  _describe(turn, end) {
    const frames = [];
    const idle = { kind: 'idle', turn, outcome: 'ok' };
    const say = (stream, text) => {
      frames.push(...encodeMessage({ kind: 'output', turn, stream }, Buffer.from(text), false));
    };
    const isExit = this._exit !== null && this._exit.turn === turn;
    idle.exit_code = 0;
    if ((isExit || 'status' in end) && this._interrupted !== turn) {
      let status = isExit ? this._exit.status : end.status;
      if (this._program.isRunning) status = this._program.exit(status);
      idle.exit_code = status;
      if (status !== 0) Object.assign(idle, { outcome: 'error', error: { name: 'ProcessExit', message: String(status) } });
    } else if ('error' in end) {
      if (!isA(end.error, ProcessExit)) say('traceback', traceback(end.error));
      const isInterrupted = this._interrupted === turn || isA(end.error, Interrupted);
      if (isInterrupted) idle.outcome = 'interrupted';
      else Object.assign(idle, { outcome: 'error', error: describe(end.error), exit_code: 1 });
      if (this._program.isRunning && !isInterrupted) idle.exit_code = this._program.exit(1);
    } else if ('value' in end) {
      try {
        if (end.value !== undefined) say('result', `${util.inspect(end.value, SHOWN)}\n`);
      } catch (error) {
        say('traceback', traceback(error));
        Object.assign(idle, { outcome: 'error', error: describe(error), exit_code: 1 });
      }
    } else idle.outcome = 'interrupted';
    if (idle.outcome === 'interrupted') idle.exit_code = 130;
    frames.push(encodeFrame(idle));
    return frames.length > 1 ? [Buffer.concat(frames)] : frames;
  }
}

/** Whether an error says that SIGINT ended a child process. */
function isKilledChild(error) {
  try {
    return error.signal === 'SIGINT' || error.status === 130 || error.code === 130;
  } catch {
    return false;
  }
}

module.exports = { Turns };
