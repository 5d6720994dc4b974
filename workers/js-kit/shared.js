'use strict';
// The words of shared memory between the main thread and the IO thread, by index into one Int32Array.

const WORD = {
  // Messages that the IO thread has posted. A main thread that blocks waits on this word.
  POSTED: 0,
  // Never changes. Waiting on it is a sleep.
  NEVER: 1,
  // For plugins; see their own files.
  PLUGIN: 8,
};
const WORDS = 32;

// How long a main thread that was told to exit may take before the process is killed.
const EXIT_GRACE_MS_MAX = 1000;

module.exports = { EXIT_GRACE_MS_MAX, WORD, WORDS };
