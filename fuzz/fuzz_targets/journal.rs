//! A session's segment file of any content: it is read to its last whole record without a panic, and
//! in the same way twice. Each message of an input is a record with a right check sum.

#![no_main]
#![allow(dead_code, reason = "the journal's own files, of which this uses a part")]

#[path = "../../crates/journal/src/facts.rs"]
mod facts;
#[path = "../../crates/journal/src/load.rs"]
mod load;
#[path = "../../crates/journal/src/record.rs"]
mod record;
#[path = "../../crates/journal/src/segment.rs"]
mod segment;

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use windlass_fuzz::{Input, Message};
use windlass_protocol::{Seq, SessionId};

/// A directory of this process's own, in memory where the machine has that.
static PLACE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let place = base.join(format!("windlass-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory for the segment");
    place
});

fuzz_target!(|input: &[u8]| {
    let bytes = match Input::of(input) {
        Input::Raw(bytes) => bytes.to_vec(),
        Input::Messages(messages) => messages.iter().flat_map(whole_record).collect(),
    };
    let path = segment::path(&PLACE, Seq(1));
    std::fs::write(&path, &bytes).expect("the segment is written");
    let id = SessionId::parse("a").expect("an id");
    let first = load::load(&PLACE, &id);
    let again = load::load(&PLACE, &id);
    assert_eq!(first.is_ok(), again.is_ok());
    if let (Ok(first), Ok(again)) = (&first, &again) {
        assert_eq!(first.facts, again.facts);
        assert!(first.segments.iter().all(|segment| segment.bytes <= bytes.len() as u64));
    }
    let _ = load::ended_turns(&PLACE, &id, Seq(0));
    let file = std::fs::File::open(&path).expect("the segment is there");
    let mut scanner = record::Scanner::new(file, 0, bytes.len() as u64);
    while let Ok(Some(record)) = scanner.next() {
        let _ = (segment::parse_event(&record), segment::parse_common(&record));
        let _ = segment::parse_output(&record);
    }
});

fn whole_record(Message { header, body }: &Message) -> Vec<u8> {
    let length = u32::try_from(header.len()).unwrap_or(u32::MAX);
    let frame = [&length.to_be_bytes()[..], header, body].concat();
    let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &crc32fast::hash(&frame).to_be_bytes(), &frame].concat()
}
