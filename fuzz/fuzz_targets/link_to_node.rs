//! Anything that a keeper can send to a node, against the node's half of the link: no number makes it
//! panic, what it sends fits its frames, and each event is taken once.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use windlass_fuzz::Input;
use windlass_lifecycle::link::{Arrival, NodeHalf};
use windlass_protocol::frame::Decoder;
use windlass_protocol::link::{FromKeeper, KeeperCommand, ToKeeper};
use windlass_protocol::{Epoch, LinkSeq, TurnNo};

fuzz_target!(|input: &[u8]| {
    let mut decoder = Decoder::default();
    let mut half = NodeHalf::new(Epoch(1), LinkSeq(0));
    let mut out = Vec::new();
    half.attach(&mut out, None).expect("it fits");
    let turn = KeeperCommand::TurnStart { turn: TurnNo(1), more: false, context: None };
    let given = half.command(turn, Bytes::from_static(b"1"), &mut out).expect("it fits");
    decoder.push(&Input::of(input).frames());
    while let Ok(Some(frame)) = decoder.next_frame() {
        let Ok(message) = serde_json::from_slice(&frame.header) else { break };
        match message {
            FromKeeper::Attached(attached) => {
                half.attached(&attached, &mut out).expect("it fits");
                half.lacks(&attached, TurnNo(1));
            }
            FromKeeper::Event { link, command, .. } => {
                half.seen(command);
                let after = half.after();
                match half.arrived(link) {
                    Arrival::Again => assert!(link <= after),
                    Arrival::Next => assert_eq!(half.after(), link),
                    Arrival::Gap { missing } => assert!(missing > 0 && half.after() == link),
                }
            }
            FromKeeper::Seen { command } => half.seen(command),
            FromKeeper::Prepared { .. }
            | FromKeeper::Refused { .. }
            | FromKeeper::Forked { .. } => {}
        }
        half.is_seen(given);
        half.acknowledge(&mut out).expect("it fits");
        half.command(KeeperCommand::Restart, Bytes::new(), &mut out).expect("it fits");
    }
    let mut sent = Decoder::default();
    sent.push(&out);
    while let Some(frame) = sent.next_frame().expect("what is sent is frames") {
        let _: ToKeeper = serde_json::from_slice(&frame.header).expect("and messages");
    }
});
