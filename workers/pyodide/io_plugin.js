'use strict';
// The part of the IO thread that interrupts Python: it sets the word that the interpreter looks at while code runs.
//
// The frame goes to the main thread before the word is set, so that Python finds the frame when it handles the signal.

const { WORD } = require('../js-kit/shared.js');

const INTERRUPT_SIGNAL = 2;

module.exports = ({ words, post, data }) => {
  // The last turn whose `turn_start` has begun to arrive.
  let latestTurn = 0;
  const interrupt = new Int32Array(data.interrupt);
  return {
    frame(header) {
      if (header.kind === 'turn_start') latestTurn = header.turn;
      // An interrupt of an earlier turn is late.
      if (header.kind !== 'interrupt' || header.turn < latestTurn) return;
      post({ ...header, signalled: true }, null);
      Atomics.store(interrupt, 0, INTERRUPT_SIGNAL);
      // A main thread that took the frame before the word was set must look again.
      Atomics.add(words, WORD.POSTED, 1);
      Atomics.notify(words, WORD.POSTED);
    },
  };
};
