'use strict';
// What a turn waits for: its timers, and its promises that the worker can reject.
//
// Owns both lists for the running turn only. An interrupt rejects the promises and clears the timers, so that code
// that was interrupted in an `await` does not continue behind the back of later turns. Timers of earlier turns stay.
// A termination within Node's own list of timers would stop all timers of one duration, so Node's functions run protected.

const timers = require('node:timers');
const timersPromises = require('node:timers/promises');
const { promisify } = require('node:util');
const { syncBuiltinESMExports } = require('node:module');
const { Interrupted } = require('./errors.js');

const CLEAR = { setTimeout: 'clearTimeout', setInterval: 'clearInterval', setImmediate: 'clearImmediate' };

class Pending {
  constructor(guard) {
    this._guard = guard;
    // Functions that clear a timer of the running turn, by the timer.
    this._timers = new Map();
    this._rejects = new Set();
    this._isOpen = false;
  }

  begin() {
    this._isOpen = true;
  }

  /** The turn is over. Its timers run on. */
  end() {
    this._isOpen = false;
    this._timers = new Map();
    this._rejects = new Set();
  }

  /** The turn is over, and its timers too. */
  clear() {
    for (const [timer, clear] of this._timers) clear(timer);
    this.end();
  }

  /** Stop what the turn waits for. True if code could notice. */
  interrupt() {
    const rejects = this._rejects;
    for (const [timer, clear] of this._timers) clear(timer);
    this._timers = new Map();
    this._rejects = new Set();
    for (const reject of rejects) reject(new Interrupted());
    return rejects.size > 0;
  }

  /** A promise that an interrupt of the running turn rejects. `start` gets resolve and reject. */
  promise(start) {
    const rejects = this._rejects;
    const made = new Promise((resolve, reject) => {
      const settle = (how) => (value) => {
        rejects.delete(reject);
        how(value);
      };
      if (this._isOpen) rejects.add(reject);
      start(settle(resolve), settle(reject));
    });
    // A promise that the code dropped must not be reported as unhandled when it is interrupted.
    made.catch((error) => {
      if (!(error instanceof Interrupted)) throw error;
    }).catch(() => {});
    return made;
  }

  install() {
    for (const [set, clear] of Object.entries(CLEAR)) this._watch(set, clear);
    for (const name of ['setTimeout', 'setImmediate']) {
      const original = timersPromises[name];
      timersPromises[name] = this._rejectable(original, name);
    }
    const { scheduler } = timersPromises;
    const wait = scheduler.wait.bind(scheduler);
    scheduler.wait = this._rejectable(wait, 'wait');
    syncBuiltinESMExports();
  }

  _rejectable(original, name) {
    const pending = this;
    const wrapped = function (...given) {
      if (!pending._isOpen) return original.apply(this, given);
      // Options may have getters of the session.
      const start = () => original.apply(this, given);
      const started = given.length <= 2 && isPlain(given[0]) ? pending._guard.protect(start) : start();
      return pending.promise((resolve, reject) => started.then(resolve, reject));
    };
    Object.defineProperty(wrapped, 'name', { value: name });
    return wrapped;
  }

  /** Node's functions. A time or a timer of another type may have code of the session. */
  _protected({ set, clear }) {
    const guard = this._guard;
    return {
      set: (callback, ...rest) => (
        isPlain(rest[0]) ? guard.protect(() => set(callback, ...rest)) : set(callback, ...rest)
      ),
      clear: (timer) => (this._timers.has(timer) ? guard.protect(() => clear(timer)) : clear(timer)),
    };
  }

  _watch(setName, clearName) {
    const pending = this;
    const original = { set: globalThis[setName], clear: globalThis[clearName] };
    const { set, clear } = this._protected(original);
    const isRepeated = setName === 'setInterval';
    function watched(callback, ...rest) {
      if (!pending._isOpen || typeof callback !== 'function') return set(callback, ...rest);
      const mine = pending._timers;
      const timer = set(isRepeated ? callback : function (...given) {
        mine.delete(timer);
        return Reflect.apply(callback, this, given);
      }, ...rest);
      mine.set(timer, clear);
      return timer;
    }
    function cleared(timer) {
      const result = clear(timer);
      pending._timers.delete(timer);
      return result;
    }
    Object.defineProperty(watched, 'name', { value: setName });
    if (promisify.custom in original.set) {
      Object.defineProperty(watched, promisify.custom, {
        configurable: true, enumerable: true, get: () => timersPromises[setName],
      });
    }
    Object.defineProperty(cleared, 'name', { value: clearName });
    for (const target of [globalThis, timers]) {
      target[setName] = watched;
      target[clearName] = cleared;
    }
  }
}

function isPlain(time) {
  return time === undefined || typeof time === 'number';
}

module.exports = { Pending };
