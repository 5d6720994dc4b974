//! Anything that a node can send to a keeper, against the keeper's half of the link: parts are joined
//! within their limit, commands are done once and in order, and held events stay in order.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use windlass_fuzz::Input;
use windlass_lifecycle::link::{CommandProgress, KeeperHalf};
use windlass_protocol::event::{EventKind, Stream};
use windlass_protocol::frame::Decoder;
use windlass_protocol::limits::MESSAGE_BYTES_MAX;
use windlass_protocol::link::ToKeeper;
use windlass_protocol::parts::Joiner;

fuzz_target!(|input: &[u8]| {
    let (mut decoder, mut joiner) = (Decoder::default(), Joiner::default());
    let mut keeper = KeeperHalf::default();
    decoder.push(&Input::of(input).frames());
    while let Ok(Some(frame)) = decoder.next_frame() {
        let Ok(taken) = joiner.take(frame) else { return };
        let Some((message, body)) = taken else { continue };
        let (before, seen) = (keeper.last(), keeper.seen());
        match message {
            ToKeeper::Attach { epoch, after, .. } => {
                let known = keeper.epoch();
                assert_eq!(keeper.attach(epoch, after).is_ok(), epoch >= known);
                check(&keeper, after);
            }
            ToKeeper::Ack { after } => {
                keeper.acknowledge(after);
                check(&keeper, after);
            }
            ToKeeper::Command { command, after, act } => {
                keeper.acknowledge(after);
                match keeper.command(command, act, &body) {
                    CommandProgress::Execute(_, body) => {
                        assert!(body.len() <= MESSAGE_BYTES_MAX);
                        assert_eq!(keeper.seen(), command);
                        assert!(command > seen);
                    }
                    CommandProgress::TooLarge(_) => assert_eq!(keeper.seen(), command),
                    CommandProgress::Ignored | CommandProgress::Incomplete => {
                        assert_eq!(keeper.seen(), seen)
                    }
                }
            }
            ToKeeper::Prepare(_) | ToKeeper::Part { .. } => {}
        }
        let event = EventKind::Output { stream: Stream::Stdout, background: false };
        let pushed = keeper.push(None, event, Bytes::from_static(b"o")).expect("it fits");
        assert!(pushed.link > before || pushed.link.0 == u64::MAX);
    }
});

/// What is held after a number is consecutive, and after it.
fn check(keeper: &KeeperHalf, after: windlass_protocol::LinkSeq) {
    let mut last = None;
    for event in keeper.held_after(after) {
        assert!(event.link > after);
        assert!(last.is_none_or(|last: u64| event.link.0 == last + 1));
        last = Some(event.link.0);
    }
}
