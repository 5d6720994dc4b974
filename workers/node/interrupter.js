'use strict';
// The part of an interrupt that happens in the IO thread: it stops a main thread that does not answer.
//
// An `interrupt` first goes to the main thread as a message. A main thread that is in its event loop, or that
// blocks on behalf of the code, acknowledges at once and ends the turn by itself. If the acknowledgement does not
// come, code of the session occupies the main thread, and this file terminates that code through the inspector.

const fs = require('node:fs');
const inspector = require('node:inspector');
const { ACKNOWLEDGED, INTERRUPTS, MODE, OVER, TERMINATING, USER } = require('./guard.js');

// How long a main thread in its event loop takes to acknowledge. Code that is over within this time is not cut.
const ACKNOWLEDGE_MS = 5;
// How long code that caught an interrupt, or that must end for a shutdown, may continue.
const CAUGHT_MS = 400;
// How long code may resist a termination before its child processes get SIGINT again.
const SIGNAL_CHILDREN_MS = 40;
// Maximum number of descendants that get SIGINT again.
const DESCENDANTS_MAX = 1000;
// How long a termination may take; native code can delay it.
const TERMINATION_MS = 30_000;

module.exports = function interrupter({ words, post }) {
  // The last turn whose code has gone to the main thread as a whole.
  let started = 0;

  const isOver = (turn) => Atomics.load(words, OVER) === turn;
  const isAcknowledged = (turn) => Atomics.load(words, ACKNOWLEDGED) === turn;

  function waitUntil(isSo, word, ms) {
    const end = performance.now() + ms;
    for (;;) {
      const value = Atomics.load(words, word);
      if (isSo()) return true;
      const left = end - performance.now();
      if (left <= 0) return false;
      Atomics.wait(words, word, value, left);
    }
  }

  async function stop(turn) {
    if (waitUntil(() => isAcknowledged(turn) || isOver(turn), ACKNOWLEDGED, ACKNOWLEDGE_MS)) {
      // The main thread stores both words and then notifies the first.
      if (waitUntil(() => isOver(turn), ACKNOWLEDGED, CAUGHT_MS)) return;
    }
    let signalled = performance.now();
    while (!isOver(turn)) {
      // Each termination may be answered at once and still not end the code.
      if (performance.now() - signalled > SIGNAL_CHILDREN_MS) {
        signalled = performance.now();
        signalChildren();
      }
      if (Atomics.compareExchange(words, MODE, USER, TERMINATING) === USER) {
        await terminate();
        Atomics.compareExchange(words, MODE, TERMINATING, USER);
        Atomics.notify(words, MODE);
      }
      // The termination may have ended the handler of the message.
      post({ kind: 'interrupt', turn, again: true }, null);
      waitUntil(() => isOver(turn), ACKNOWLEDGED, ACKNOWLEDGE_MS);
    }
  }

  return {
    frame(header) {
      if (header.kind === 'turn_start' && !header.more) started = header.turn | 0;
      if (header.kind !== 'interrupt') return undefined;
      Atomics.add(words, INTERRUPTS, 1);
      const turn = header.turn | 0;
      return turn === started && !isOver(turn) ? stop(turn) : undefined;
    },
    ended() {
      disconnect();
      // Code that occupies the main thread must not keep the process alive. The IO thread kills the process
      // if this does not help.
      const at = setInterval(() => {
        if (Atomics.compareExchange(words, MODE, USER, TERMINATING) !== USER) return;
        clearInterval(at);
        terminate().then(() => {
          disconnect();
          Atomics.compareExchange(words, MODE, TERMINATING, USER);
          Atomics.notify(words, MODE);
          post({ kind: 'shutdown', grace_ms: 0, again: true }, null);
        });
      }, ACKNOWLEDGE_MS);
    },
  };
};

let session = null;

/** A connected session would delay the exit of the process. */
function disconnect() {
  if (session !== null) session.disconnect();
  session = null;
}

/** Terminate what the main thread executes. Resolves when the main thread can execute again. */
function terminate() {
  return new Promise((resolve) => {
    if (session === null) {
      session = new inspector.Session();
      session.connectToMainThread();
    }
    const done = () => {
      clearTimeout(timer);
      clearInterval(signals);
      resolve();
    };
    const timer = setTimeout(done, TERMINATION_MS);
    const signals = setInterval(signalChildren, SIGNAL_CHILDREN_MS);
    // An error says that an earlier termination is still on its way. Until it is used up, the mode must not change.
    const request = () => session && session.post('Runtime.terminateExecution', (error) => {
      if (error) setTimeout(request, ACKNOWLEDGE_MS);
      else done();
    });
    request();
  });
}

/**
 * Send SIGINT to the descendants in the worker's process group. A child that the code started just after the keeper's
 * SIGINT did not get it, and code that waits for that child in `execSync` cannot be terminated. A shell that waits for
 * its own child ends only when that child does.
 */
function signalChildren() {
  const found = childrenOf('self');
  for (let at = 0; at < found.length && at < DESCENDANTS_MAX; at += 1) {
    // A process that left the group would not get the keeper's signal either.
    if (groupOf(found[at]) !== groupOf('self')) continue;
    found.push(...childrenOf(found[at]));
    attempt(() => process.kill(Number(found[at]), 'SIGINT'));
  }
}

/** The numbers of a process's children. A thread may end meanwhile, and a kernel may not list children. */
function childrenOf(pid) {
  const threads = attempt(() => fs.readdirSync(`/proc/${pid}/task`)) ?? [];
  return threads.flatMap((thread) => {
    const children = attempt(() => fs.readFileSync(`/proc/${pid}/task/${thread}/children`, 'latin1')) ?? '';
    return children.split(' ').filter((child) => child !== '');
  });
}

/** The process group: the third field behind the program's name, which may hold any character. */
function groupOf(pid) {
  const status = attempt(() => fs.readFileSync(`/proc/${pid}/stat`, 'latin1')) ?? '';
  return status.slice(status.lastIndexOf(')') + 2).split(' ')[2];
}

function attempt(work) {
  try {
    return work();
  } catch {
    return undefined;
  }
}
