//! The first bytes of a client in a tunnel: whatever they are, they are looked at without a panic, and
//! more bytes never change what a decided look said.

#![no_main]

#[allow(dead_code, reason = "the node's own file, of which this uses a part")]
#[path = "../../crates/egress/src/hello.rs"]
mod hello;

use hello::{Seen, look};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = look(bytes);
    for cut in [bytes.len() / 2, bytes.len().saturating_sub(1)] {
        let part = look(&bytes[..cut]);
        if !matches!(part, Seen::Undecided(_)) {
            assert_eq!(part, whole, "cut at {cut}");
        }
    }
});
