//! What a worker said in one turn.

use bytes::Bytes;
use windlass_protocol::Stream;
use windlass_protocol::worker::{FromWorker, WorkerError, WorkerOutcome};

/// One thing that a worker said.
#[derive(Debug, Clone)]
pub(crate) enum Said {
    Message { message: FromWorker, body: Bytes },
    Raw { stream: Stream, bytes: Bytes },
}

/// A turn that has ended.
#[derive(Debug)]
pub(crate) struct ObservedTurn {
    pub said: Vec<Said>,
    pub outcome: WorkerOutcome,
    pub error: Option<WorkerError>,
}

impl ObservedTurn {
    /// Text of standard output and results.
    pub fn shown(&self) -> String {
        shown(&self.said)
    }

    /// The bytes of one stream, from frames and raw pipes.
    pub fn stream(&self, stream: Stream) -> Vec<u8> {
        let mut bytes = Vec::new();
        for said in &self.said {
            if let Some((of, part)) = output_of(said)
                && of == stream
            {
                bytes.extend_from_slice(part);
            }
        }
        bytes
    }

    /// All text of the turn: output, results, tracebacks, and the error of its end.
    pub fn everything(&self) -> String {
        let mut bytes = Vec::new();
        for (_, part) in self.said.iter().filter_map(output_of) {
            bytes.extend_from_slice(part);
        }
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some(error) = &self.error {
            text.push_str(&error.name);
            text.push_str(&error.message);
        }
        text
    }

    /// Number of complete displays.
    pub fn displays(&self) -> usize {
        let is_last = |said: &&Said| {
            matches!(said, Said::Message { message: FromWorker::Display { more: false, .. }, .. })
        };
        self.said.iter().filter(is_last).count()
    }
}

/// Text of standard output and results.
pub(crate) fn shown(said: &[Said]) -> String {
    let mut bytes = Vec::new();
    for (stream, part) in said.iter().filter_map(output_of) {
        if matches!(stream, Stream::Stdout | Stream::Result) {
            bytes.extend_from_slice(part);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn output_of(said: &Said) -> Option<(Stream, &Bytes)> {
    match said {
        Said::Raw { stream, bytes } => Some((*stream, bytes)),
        Said::Message { message: FromWorker::Output { stream, .. }, body } => Some((*stream, body)),
        Said::Message { .. } => None,
    }
}
