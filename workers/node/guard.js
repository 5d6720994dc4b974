'use strict';
// The guard: says when the IO thread may terminate what the main thread executes.
//
// V8 can stop running code only by terminating it at an arbitrary point. A frame that is being written must
// never be cut, so one word of shared memory says whose code runs:
// * USER: code of the session may run. The IO thread may switch the word to TERMINATING and terminate;
// * WORKER: the worker's own code runs. The IO thread waits;
// * TERMINATING: a termination is on its way. The main thread does not start anything of its own.

const { WORD } = require('../js-kit/shared.js');

const MODE = WORD.PLUGIN;
// The last turn for which the main thread has received an interrupt.
const ACKNOWLEDGED = WORD.PLUGIN + 1;
// The last turn that is over.
const OVER = WORD.PLUGIN + 2;
// Number of `interrupt` frames that the IO thread has read.
const INTERRUPTS = WORD.PLUGIN + 3;

const WORKER = 0;
const USER = 1;
const TERMINATING = 2;

// A termination reaches the main thread within this time, or it was used up on other code.
const TERMINATION_WAIT_MS = 1000;

class Guard {
  constructor(words) {
    this.words = words;
  }

  /** Run the worker's own code, from an event loop callback or from code of the session. */
  protect(work) {
    const entered = this._enter();
    try {
      return work();
    } finally {
      if (entered) this._leave();
    }
  }

  /** Run code of the session from within the worker's own code. */
  release(work) {
    const { words } = this;
    // Within code of the session nothing changes, and a termination that is on its way stays so.
    const mode = Atomics.compareExchange(words, MODE, WORKER, USER);
    try {
      return work();
    } finally {
      if (mode === WORKER) this._enter();
    }
  }

  /** The start is over: from now on code of the session may run. */
  open() {
    this._leave();
  }

  acknowledge(turn) {
    Atomics.store(this.words, ACKNOWLEDGED, turn | 0);
    Atomics.notify(this.words, ACKNOWLEDGED);
  }

  /** The turn is over: an interrupt for it does nothing any more. */
  finish(turn) {
    Atomics.store(this.words, OVER, turn | 0);
    this.acknowledge(turn);
  }

  interrupts() {
    return Atomics.load(this.words, INTERRUPTS);
  }

  _enter() {
    const { words } = this;
    for (let waited = 0; ; waited += 1) {
      const mode = Atomics.compareExchange(words, MODE, USER, WORKER);
      if (mode === WORKER) return false;
      if (mode === USER) return true;
      // The termination ends this very loop. If it was used up on other code, the IO thread restores the mode.
      Atomics.wait(words, MODE, TERMINATING, TERMINATION_WAIT_MS);
    }
  }

  _leave() {
    Atomics.store(this.words, MODE, USER);
    Atomics.notify(this.words, MODE);
  }
}

module.exports = { ACKNOWLEDGED, Guard, INTERRUPTS, MODE, OVER, TERMINATING, USER, WORKER };
