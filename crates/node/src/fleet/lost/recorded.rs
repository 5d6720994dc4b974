//! The turns and the output of a lost session: its copy is read whole, and the handlers of such requests read it instead
//! of the journal. Displays too, if the copy has their bytes.

use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use windlass_journal::{CopiedReader, CopiedSession, EventReader, TurnRecord};
use windlass_protocol::api::EventItem;
use windlass_protocol::{ErrorCode, Seq, TurnId};

use super::{CREATED, CopyFoldError, CopyReader, FleetNode, LostSession, unreadable};
use crate::bounds::ReadTurn;
use crate::context::Context;
use crate::event_stream::{StreamFrame, frames};
use crate::failure::Failure;

/// Maximum number of bytes of a copy that is read for one request. It is in memory until the request is answered.
const COPY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What a request reads of the recorded turns and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordedPart {
    /// A turn, or output.
    Output,
    Display(Seq),
}

impl RecordedPart {
    /// `below` is the path below the session.
    pub fn of(below: &str) -> Option<Self> {
        if ["output", "output/search"].contains(&below) {
            return Some(Self::Output);
        }
        match below.split_once('/')? {
            ("turns", turn) if !turn.contains('/') => Some(Self::Output),
            ("displays", seq) => Some(Self::Display(Seq(seq.parse().ok()?))),
            _ => None,
        }
    }
}

/// The copy of a session, in the extensions of a request that reads turns or output.
#[derive(Debug, Clone)]
pub(crate) struct CopiedLog {
    session: Arc<CopiedSession>,
    /// Held until the request is answered.
    _slot: Arc<ReadTurn>,
}

impl CopiedLog {
    /// Whether the copy has the end of the session.
    pub fn is_complete(&self) -> bool {
        self.session.has_end()
    }

    pub fn turn(&self, id: &TurnId) -> Option<TurnRecord> {
        self.session.turn(id).cloned()
    }

    pub fn reader(&self) -> Box<dyn EventReader> {
        Box::new(CopiedReader::new(self.session.clone()))
    }
}

/// Reads the whole copy of a session.
pub(super) async fn read(
    context: &Context,
    fleet: &FleetNode,
    lost: &LostSession,
    part: RecordedPart,
) -> Result<CopiedLog, Failure> {
    let slot = context.serving.bounds.of_session(&lost.session).lost_reads.enter().await?;
    let mut reader = CopyReader::open(fleet, lost).await?;
    reader.seek(Seq(0)).await?;
    let (mut copy, mut bytes) = (None, 0);
    while let Some(batch) = reader.batch().await? {
        bytes += batch.events.len();
        if bytes > COPY_BYTES_MAX {
            return Err(too_long(lost));
        }
        add(&mut copy, &batch.events).map_err(|error| unreadable(lost, &error))?;
    }
    let Some(session) = copy else { return Err(lost.refusal(reader.last)) };
    if let RecordedPart::Display(seq) = part
        && session.lacks_display(seq)
    {
        return Err(lacks_display(lost, seq));
    }
    Ok(CopiedLog { session: Arc::new(session), _slot: Arc::new(slot) })
}

/// Adds the events of a batch. The first batch says how the session was made.
fn add(copy: &mut Option<CopiedSession>, batch: &Bytes) -> Result<(), CopyFoldError> {
    for frame in frames(batch)? {
        match frame {
            StreamFrame::Comment(text) if copy.is_none() => {
                let Some(json) = text.strip_prefix(CREATED.as_bytes()) else { continue };
                let created = serde_json::from_slice(json).map_err(CopyFoldError::Created)?;
                *copy = Some(CopiedSession::new(created));
            }
            StreamFrame::Comment(_) => {}
            StreamFrame::Event { data, .. } => {
                // An event of a later release is passed over.
                if let Some(copy) = copy.as_mut()
                    && let Ok(item) = serde_json::from_slice::<EventItem>(&data)
                {
                    let EventItem { event, text, base64, bytes } = item;
                    copy.push(event, body_of(text, base64), bytes);
                }
            }
        }
    }
    Ok(())
}

/// The body of an event. A body that cannot be read counts as one that the copy lacks.
fn body_of(text: Option<String>, base64: Option<String>) -> Bytes {
    let decode = |text: String| base64::engine::general_purpose::STANDARD.decode(text).ok();
    let bytes = text.map(String::into_bytes).or_else(|| base64.and_then(decode));
    bytes.map_or_else(Bytes::new, Bytes::from)
}

fn too_long(lost: &LostSession) -> Failure {
    let LostSession { session, node, .. } = lost;
    let mib = COPY_BYTES_MAX >> 20;
    let message = format!(
        "session {session} was lost with node {node}, and its copy has more than {mib} MiB: turns and output cannot be \
         read from it; GET /v1/sessions/{session}/events returns its events"
    );
    Failure::new(ErrorCode::SessionLost, message)
}

fn lacks_display(lost: &LostSession, seq: Seq) -> Failure {
    let LostSession { session, node, .. } = lost;
    let message = format!(
        "session {session} was lost with node {node}, and the copy of its events does not have the bytes of display {seq}"
    );
    Failure::new(ErrorCode::SessionLost, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_text_or_base64_or_missing() {
        let some = |text: &str| Some(text.to_owned());
        for (text, base64, expected) in [
            (some("one"), None, &b"one"[..]),
            (None, some("/wA="), &[255, 0][..]),
            (None, some("?"), &[][..]),
            (None, None, &[][..]),
        ] {
            assert_eq!(&body_of(text.clone(), base64.clone())[..], expected, "{text:?} {base64:?}");
        }
    }

    #[test]
    fn a_batch_without_the_record_of_the_creation_gives_nothing() {
        let mut copy = None;
        let batch = b"id: 1\ndata: {\"seq\":1,\"at_ms\":1,\"kind\":\"unheard_of\"}\n\n";
        add(&mut copy, &Bytes::from_static(batch)).unwrap();
        assert!(copy.is_none());
    }
}
