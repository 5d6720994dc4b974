//! Anything that a node can send to its nursery, with and without a file, and anything that a nursery
//! can answer: neither side panics, or takes a request in a file that is not one.

#![no_main]

#[allow(dead_code, reason = "this target uses only a part of the file")]
#[path = "../../crates/node/src/nursery/messages.rs"]
mod messages;

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use windlass_fuzz::{Input, Message};
use windlass_keeper::fuzzing::nursery_message;

fuzz_target!(|input: &[u8]| {
    let messages = match Input::of(input) {
        Input::Raw(bytes) => vec![Message { header: bytes.to_vec(), body: Vec::new() }],
        Input::Messages(messages) => messages,
    };
    for Message { header, body } in messages {
        nursery_message(&header, None);
        if let Some(file) = file(&body) {
            nursery_message(&header, Some(&file));
        }
        answer(&header);
    }
});

fn file(bytes: &[u8]) -> Option<OwnedFd> {
    let mut file = File::from(memfd_create(c"fuzz", MemfdFlags::CLOEXEC).ok()?);
    file.write_all(bytes).ok()?;
    Some(file.into())
}

/// Hears one answer of a nursery, as a node does.
fn answer(message: &[u8]) {
    let kind = SocketType::SEQPACKET;
    let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let Ok((ours, theirs)) = pair else { return };
    if send(&theirs, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok() {
        let _ = messages::receive(&ours, Instant::now() + Duration::from_secs(1));
    }
}
