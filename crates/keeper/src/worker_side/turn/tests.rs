//! What the owner of a session is told about a worker that violates the protocol.

use super::*;
use crate::worker::{KeeperEnds, SocketRead, Worker};

/// A process id that the kernel never assigns.
const NOBODY: u32 = 0x3fff_ffff;

/// The keeper's complaint about bytes of a worker.
fn complaint(stage: WorkerStage, bytes: &[u8]) -> String {
    let (ours, theirs) = KeeperEnds::make().unwrap();
    let process = Some(Worker::of_twin(NOBODY, None, None, ours));
    let mut side = WorkerSide { process, ..WorkerSide::default() };
    let mut node = NodeSide::new(std::fs::File::open("/dev/null").unwrap().into());
    assert_eq!(rustix::io::write(&theirs.socket, bytes).unwrap(), bytes.len());
    let read = side.process.as_mut().unwrap().fill(&mut vec![0; bytes.len() + 1]);
    assert_eq!(read, SocketRead::Data);
    match side.take_frames(stage, &mut node) {
        Some(WorkerNotice::Invalid(cause)) => cause,
        other => panic!("{other:?}"),
    }
}

fn frame(header: &str) -> Vec<u8> {
    let size = u32::try_from(header.len()).unwrap();
    [&(size + 4).to_be_bytes(), &size.to_be_bytes(), header.as_bytes()].concat()
}

#[test]
fn an_invalid_message_is_told_with_its_cause_and_its_header() {
    let starting = WorkerStage::Starting { until: Instant::now() };
    for (stage, header, told) in [
        (
            WorkerStage::Up,
            r#"{"kind":"idle","turn":1}"#,
            "a header is not a message: missing field `outcome`; the frame's header: \
             {\"kind\":\"idle\",\"turn\":1}",
        ),
        (
            WorkerStage::Up,
            "{\"kind\":\"idle\",\n\x1b\"turn\":1}",
            "a header is not a message: key must be a string at line 2 column 1; the frame's header: \
             {\"kind\":\"idle\",\\n\\u{1b}\"turn\":1}",
        ),
        (
            WorkerStage::Up,
            r#"{"kind":"worker_ready","protocol":1,"worker":"again"}"#,
            "worker_ready came twice; the frame's header: \
             {\"kind\":\"worker_ready\",\"protocol\":1,\"worker\":\"again\"}",
        ),
        (
            starting,
            r#"{"kind":"session_end","reason":"no"}"#,
            "the first message was not worker_ready; the frame's header: \
             {\"kind\":\"session_end\",\"reason\":\"no\"}",
        ),
    ] {
        assert_eq!(complaint(stage, &frame(header)), told);
    }
}

#[test]
fn a_long_header_is_told_in_part() {
    let header = format!("{{\"kind\":\"idle\",\"turn\":\"{}\"}}", "\u{7}".repeat(10_000));
    let told = complaint(WorkerStage::Up, &frame(&header));
    let (_, excerpt) = told.split_once("; the frame's header: ").unwrap();
    assert!(excerpt.ends_with("\\u{7}..."), "{excerpt}");
    assert!(excerpt.chars().count() <= EXCERPT_CHARS + 3, "{}", excerpt.len());
    assert!(!told.chars().any(char::is_control));
}

#[test]
fn bytes_that_are_no_frame_are_shown() {
    let told = complaint(WorkerStage::Up, b"Hello, I am a worker\n");
    assert_eq!(
        told,
        "a frame of 1214606444 bytes is over the limit of 262144; the bytes on the socket: \
         Hello, I am a worker\\n"
    );
}
