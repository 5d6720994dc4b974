//! Anything that a worker can send to its keeper: nothing ends the keeper, and every event that comes
//! of it is a message that the node can read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use windlass_fuzz::Input;
use windlass_keeper::fuzzing::{Begin, worker_bytes};

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    // `s` is a worker that was just started.
    let begin = if *first == b's' { Begin::Starting } else { Begin::InTurn };
    worker_bytes(begin, &Input::of(rest).frames());
});
