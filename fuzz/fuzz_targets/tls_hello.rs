//! The first bytes of a client in a tunnel: the detection never panics, and once it has decided, more
//! bytes do not change its result.

#![no_main]

#[allow(dead_code, reason = "this target uses only a part of the file")]
#[path = "../../crates/egress/src/hello.rs"]
mod hello;

use hello::{ClientProtocol, detect};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = detect(bytes);
    for cut in [bytes.len() / 2, bytes.len().saturating_sub(1)] {
        let part = detect(&bytes[..cut]);
        if !matches!(part, ClientProtocol::Undecided(_)) {
            assert_eq!(part, whole, "cut at {cut}");
        }
    }
});
