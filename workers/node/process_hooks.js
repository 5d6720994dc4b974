'use strict';
// What code of the session can do to the process: exit, signals, uncaught errors, child processes.
//
// Nothing here ends the worker. `process.exit` ends the turn. An error that nothing catches is printed.

const childProcess = require('node:child_process');
const fs = require('node:fs');
const { Interrupted, ProcessExit, isA, traceback } = require('./errors.js');

// When the socket is full, a SIGINT can arrive before its `interrupt` frame.
const LATE_FRAME_MS = 50;
const O_CLOEXEC = 0o2000000;

/** Replace `process.exit`. Returns the real function. */
function hookExit(turns) {
  const { exit, reallyExit } = process;
  const replaced = function exit(code) {
    // The protocol has a whole number of 32 bits.
    const status = Number(code ?? process.exitCode ?? 0) | 0;
    process.exitCode = undefined;
    turns.exit(status);
    throw new ProcessExit(status);
  };
  process.exit = replaced;
  process.reallyExit = replaced;
  return (status) => {
    Object.assign(process, { exit, reallyExit });
    process.exit(status);
  };
}

/** Print errors that nothing catches; they end a program. Listeners of the code come first. */
function hookErrors(turns) {
  process.setUncaughtExceptionCaptureCallback((error) => {
    if (isA(error, ProcessExit) || isA(error, Interrupted)) return;
    try {
      if (process.listenerCount('uncaughtException') > 0) process.emit('uncaughtException', error, 'uncaughtException');
      else if (turns.fail(error)) return;
      else process.stderr.write(`Uncaught ${traceback(error).replace(/^Uncaught /, '')}`);
    } catch (next) {
      if (!isA(next, ProcessExit)) process.stderr.write(`Uncaught ${traceback(next).replace(/^Uncaught /, '')}`);
    }
  });
}

/** Keep SIGINT from ending the process, and tell signals of the keeper from those of the code. */
function hookSignals(turns, guard, timers) {
  let explained = 0;
  const isKeepers = () => {
    // One signal comes with each frame, and two signals can become one. A signal too many counts as the keeper's.
    if (guard.interrupts() <= explained) return false;
    explained += 1;
    return true;
  };
  const stopOwn = (turn) => {
    if (turn !== null && process.listenerCount('SIGINT') === 1) guard.protect(() => turns.interrupt(turn, false));
  };
  const onSignal = () => {
    if (isKeepers()) return;
    const turn = turns.current;
    timers.setTimeout(() => {
      if (!isKeepers() && turn === turns.current) stopOwn(turn);
    }, LATE_FRAME_MS).unref();
  };
  process.on('SIGINT', onSignal);
  keepListener(onSignal);
  const kill = process.kill.bind(process);
  process.kill = (pid, signal) => {
    const isOwn = pid === process.pid && (signal === 'SIGINT' || signal === 2);
    if (!isOwn || turns.current === null || process.listenerCount('SIGINT') > 1) return kill(pid, signal);
    throw new Interrupted('the code sent itself SIGINT');
  };
}

/** Without any listener SIGINT ends a process, so the code cannot remove this one. */
function keepListener(onSignal) {
  const { removeAllListeners, removeListener } = process;
  const removeOne = function (event, listener) {
    return listener === onSignal ? process : removeListener.call(process, event, listener);
  };
  process.removeListener = removeOne;
  process.off = removeOne;
  process.removeAllListeners = function (...given) {
    if (given.length === 0) {
      // Node's own listeners for these two events start and stop the handling of signals.
      const events = process.eventNames().filter((event) => event !== 'newListener' && event !== 'removeListener');
      for (const event of events) process.removeAllListeners(event);
    } else if (given[0] === 'SIGINT') {
      for (const listener of process.listeners('SIGINT')) removeOne('SIGINT', listener);
    } else removeAllListeners.apply(process, given);
    return process;
  };
}

/** A synchronous child process that the keeper's SIGINT ended: the turn was interrupted, not only the child. */
function hookChildren(turns) {
  const isInterrupted = (ended) => ended && (ended.signal === 'SIGINT' || ended.status === 130);
  for (const name of ['spawnSync', 'execSync', 'execFileSync']) {
    const original = childProcess[name];
    const hooked = function (...given) {
      let ended;
      try {
        ended = Reflect.apply(original, this, given);
      } catch (error) {
        if (isInterrupted(error)) turns.checkInterrupt();
        throw error;
      }
      if (name === 'spawnSync' && isInterrupted(ended)) turns.checkInterrupt();
      return ended;
    };
    Object.defineProperty(hooked, 'name', { value: name });
    childProcess[name] = hooked;
  }
}

/**
 * Keep the protocol socket from child processes. Node marks the descriptors that it inherits as close-on-exec, but only
 * up to 15 or the first gap. For a socket with a higher number, each child gets /dev/null under that number.
 */
function hideSocket(fd) {
  if (isCloseOnExec(fd)) return 'close-on-exec';
  const none = fs.openSync('/dev/null', 'r+');
  const covered = (stdio, standard) => {
    const list = typeof stdio === 'string' ? [stdio, stdio, stdio] : [...(stdio ?? standard)];
    while (list.length < 3) list.push('pipe');
    while (list.length < fd) list.push('ignore');
    if (list.length === fd || list[fd] === null || list[fd] === undefined || list[fd] === 'ignore') list[fd] = none;
    return list;
  };
  const { spawn } = childProcess.ChildProcess.prototype;
  childProcess.ChildProcess.prototype.spawn = function (options) {
    return spawn.call(this, { ...options, stdio: covered(options.stdio, ['pipe', 'pipe', 'pipe']) });
  };
  const replaceSync = (name, standard) => {
    const original = childProcess[name];
    childProcess[name] = (file, ...rest) => {
      const at = rest.findIndex((value) => value !== null && typeof value === 'object' && !Array.isArray(value));
      const options = at < 0 ? {} : rest[at];
      const others = at < 0 ? rest.filter((value) => value !== undefined) : rest.slice(0, at);
      return original(file, ...others, { ...options, stdio: covered(options.stdio, standard) });
    };
  };
  replaceSync('spawnSync', ['pipe', 'pipe', 'pipe']);
  replaceSync('execSync', ['pipe', 'pipe', 'inherit']);
  replaceSync('execFileSync', ['pipe', 'pipe', 'inherit']);
  require('node:module').syncBuiltinESMExports();
  return 'covered';
}

function isCloseOnExec(fd) {
  try {
    const flags = /^flags:\s*([0-7]+)/m.exec(fs.readFileSync(`/proc/self/fdinfo/${fd}`, 'latin1'));
    return (parseInt(flags[1], 8) & O_CLOEXEC) !== 0;
  } catch {
    // Without /proc the number decides.
    return fd <= 15;
  }
}

module.exports = { hideSocket, hookChildren, hookErrors, hookExit, hookSignals };
