'use strict';
// The startup file: code of the session's owner that runs once, before the worker is ready.
//
// What it prints is kept for the first turn. Its failure is printed there too, and the worker is ready all the same.

const fs = require('node:fs');
const { ProcessExit, isA, traceback } = require('./errors.js');

// The keeper waits 30 s for a worker to be ready.
const STARTUP_MS_MAX = 20_000;

function runStartup({ file, cells, timers, done }) {
  let isDone = false;
  const finish = (error) => {
    if (isDone) return;
    isDone = true;
    if (error !== undefined && !isA(error, ProcessExit)) {
      process.stderr.write(`the startup file ${file} failed: ${traceback(error)}`);
    }
    done();
  };
  let source;
  try {
    source = fs.readFileSync(file, 'utf8');
  } catch (error) {
    return finish(error);
  }
  const { promise, failure } = cells.begin('startup', source);
  if (failure) return finish(failure);
  timers.setTimeout(() => finish(new Error(`it was not done after ${STARTUP_MS_MAX} ms`)), STARTUP_MS_MAX).unref();
  return promise.then(() => finish(), (error) => finish(error ?? new Error(String(error))));
}

module.exports = { runStartup };
