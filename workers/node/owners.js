'use strict';
// Which turn a piece of running code belongs to: the turn that started it, also behind timers and promises.
//
// Node 24 keeps this in the engine, at no cost. Older versions would need a hook for every promise, so there all
// output of code that outlived its turn counts for the running turn.

const { AsyncLocalStorage } = require('node:async_hooks');
const { EMPTY } = require('../js-kit/frames.js');

const IS_CHEAP = Number(process.versions.node.split('.')[0]) >= 24;

class Owners {
  constructor() {
    this._storage = IS_CHEAP ? new AsyncLocalStorage() : null;
  }

  get isKnown() {
    return this._storage !== null;
  }

  /** Run code that belongs to a turn, with everything that it starts. */
  run(turn, work) {
    return this._storage === null ? work() : this._storage.run(turn, work);
  }

  /** The earlier turn that the running code belongs to, while another turn runs; otherwise null. */
  earlier(current) {
    if (this._storage === null || current === null) return null;
    const turn = this._storage.getStore();
    return turn === undefined || turn === current ? null : turn;
  }

  /** Send output of earlier turns as background output. */
  watch(stream, name, { turns, guard, link }) {
    if (!this.isKnown) return;
    stream.setBackground((bytes) => {
      const turn = this.earlier(turns.current);
      if (turn === null) return false;
      const header = { kind: 'output', turn, stream: name, background: true };
      guard.protect(() => link.sendStream(header, bytes ?? EMPTY));
      return true;
    });
  }
}

module.exports = { Owners };
