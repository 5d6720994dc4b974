//! Encodes the worker's messages to frames within the limits of the protocol: long bodies are split, long texts
//! are shortened. Does no I/O.

use windlass_protocol::frame::{EncodeError, encode};
use windlass_protocol::limits::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX, WORKER_HEADER_BYTES_MAX};
use windlass_protocol::worker::{FromWorker, PROTOCOL, StartupFigures, WorkerError};

use crate::text::shortened;

/// Maximum bytes, as JSON, of the longest text in a header: a prompt, a message, a reason.
const LONG_TEXT_BYTES_MAX: usize = WORKER_HEADER_BYTES_MAX / 2;

/// Maximum bytes, as JSON, of a name in a header.
const NAME_BYTES_MAX: usize = 1024;

/// The fields of a `display`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Display<'a> {
    pub mime: &'a str,
    pub id: Option<&'a str>,
    /// Whether the display replaces the earlier one of the same `id`.
    pub update: bool,
}

/// A message with this body, in as many frames as it takes. `header` is called with whether more frames
/// follow.
pub fn in_frames(
    out: &mut Vec<u8>,
    body: &[u8],
    header: impl Fn(bool) -> FromWorker,
) -> Result<(), EncodeError> {
    if body.len() > MESSAGE_BYTES_MAX {
        return Err(EncodeError::MessageTooLong { bytes: body.len(), limit: MESSAGE_BYTES_MAX });
    }
    let mut rest = body;
    loop {
        let (part, later) = rest.split_at(rest.len().min(CHUNK_BYTES_MAX));
        encode(out, &header(!later.is_empty()), part)?;
        rest = later;
        if rest.is_empty() {
            return Ok(());
        }
    }
}

/// A `worker_ready`. `worker` names the worker for people, like `bash 5.2`.
pub fn ready(
    out: &mut Vec<u8>,
    worker: &str,
    capabilities: &[&str],
    startup: Option<&StartupFigures>,
) -> Result<(), EncodeError> {
    let ready = FromWorker::WorkerReady {
        protocol: PROTOCOL,
        worker: shortened(worker, NAME_BYTES_MAX),
        capabilities: capabilities.iter().map(ToString::to_string).collect(),
        startup: startup.copied(),
    };
    encode(out, &ready, &[])
}

/// A message without a body, its texts shortened.
pub fn plain(out: &mut Vec<u8>, mut message: FromWorker) -> Result<(), EncodeError> {
    match &mut message {
        FromWorker::StdinWait { prompt: text, .. } | FromWorker::SessionEnd { reason: text } => {
            shorten(text, LONG_TEXT_BYTES_MAX);
        }
        FromWorker::Idle { error: Some(WorkerError { name, message }), .. } => {
            shorten(name, NAME_BYTES_MAX);
            shorten(message, LONG_TEXT_BYTES_MAX);
        }
        _ => {}
    }
    encode(out, &message, &[])
}

/// A name that keeps the header within its limit.
pub fn name(text: &str) -> String {
    shortened(text, NAME_BYTES_MAX)
}

fn shorten(text: &mut String, json_bytes_max: usize) {
    if text.len() > json_bytes_max / 6 {
        *text = shortened(text, json_bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::frame::Decoder;
    use windlass_protocol::worker::WorkerOutcome;
    use windlass_protocol::{Stream, TurnNo};

    use super::*;

    #[test]
    fn headers_keep_their_limit_with_any_text() {
        for text in ["\u{1}".repeat(300_000), "\u{10ffff}".repeat(100_000), "\"".repeat(70_000)] {
            let error = WorkerError { name: text.clone(), message: text.clone() };
            for message in [
                FromWorker::StdinWait { turn: TurnNo(1), prompt: text.clone(), secret: false },
                FromWorker::SessionEnd { reason: text.clone() },
                FromWorker::Idle {
                    turn: TurnNo(u64::MAX),
                    outcome: WorkerOutcome::Error,
                    error: Some(error),
                    exit_code: Some(i32::MIN),
                    value: None,
                },
            ] {
                let mut out = Vec::new();
                plain(&mut out, message).unwrap();
                assert!(out.len() < WORKER_HEADER_BYTES_MAX);
            }
        }
    }

    #[test]
    fn a_long_body_is_split_and_all_frames_but_the_last_have_more() {
        for (bytes, frames) in [
            (0, 1),
            (1, 1),
            (CHUNK_BYTES_MAX, 1),
            (CHUNK_BYTES_MAX + 1, 2),
            (3 * CHUNK_BYTES_MAX, 3),
            (MESSAGE_BYTES_MAX, 86),
        ] {
            let body: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            let mut out = Vec::new();
            let header = |more| FromWorker::Display {
                turn: TurnNo(1),
                mime: "a/b".to_owned(),
                id: None,
                update: false,
                more,
            };
            in_frames(&mut out, &body, header).unwrap();
            let mut decoder = Decoder::default();
            decoder.push(&out);
            let mut joined = Vec::new();
            let mut count = 0;
            while let Some(frame) = decoder.next_frame().unwrap() {
                count += 1;
                joined.extend_from_slice(&frame.body);
                let text = std::str::from_utf8(&frame.header).unwrap();
                assert_eq!(text.contains("more"), count < frames, "{text}");
            }
            assert!(joined == body && count == frames, "{bytes} bytes in {count} frames");
        }
        let header =
            |_| FromWorker::Output { turn: TurnNo(1), stream: Stream::Result, background: false };
        assert!(in_frames(&mut Vec::new(), &vec![0; MESSAGE_BYTES_MAX + 1], header).is_err());
    }

    #[test]
    fn startup_figures_are_in_the_first_message() {
        let mut out = Vec::new();
        let figures = StartupFigures { runtime_load_ms: Some(1), ..Default::default() };
        ready(&mut out, "odd 1", &["stdin"], Some(&figures)).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&out[8..]),
            r#"{"kind":"worker_ready","protocol":1,"worker":"odd 1","capabilities":["stdin"],"startup":{"runtime_load_ms":1}}"#
        );
    }
}
