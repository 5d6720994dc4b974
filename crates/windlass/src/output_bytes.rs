//! Fetches the bytes of output events: from the event, or from the session's output if they were too many
//! for the event. Counts the output offset. Prints nothing.

use base64::Engine;
use windlass_client::Client;
use windlass_protocol::api::{EventItem, OutputQuery};
use windlass_protocol::{EventKind, SessionId};

/// The offset in a session's output that its events have reached.
#[derive(Debug, Clone, Copy)]
pub struct OutputOffset(u64);

impl OutputOffset {
    pub fn at(offset: u64) -> Self {
        Self(offset)
    }

    /// Advances by the output of an event, and returns the offset where that output begins. Must be called
    /// once for every event.
    pub fn advance(&mut self, item: &EventItem) -> u64 {
        let from = self.0;
        self.0 += match item.event.kind {
            EventKind::Output { .. } => item.bytes,
            EventKind::OutputDropped { bytes, .. } => bytes,
            _ => 0,
        };
        from
    }
}

/// The bytes of an output event; `from` is their offset.
pub async fn fetch(
    client: &Client,
    session: &SessionId,
    item: &EventItem,
    from: u64,
) -> anyhow::Result<Vec<u8>> {
    if let Some(text) = &item.text {
        return Ok(text.clone().into_bytes());
    }
    if let Some(base64) = &item.base64 {
        return Ok(base64::engine::general_purpose::STANDARD.decode(base64)?);
    }
    let end = from + item.bytes;
    let mut bytes = Vec::new();
    let mut at = from;
    while at < end {
        let query = OutputQuery { from: Some(at), to: Some(end), ..OutputQuery::default() };
        let part = client.output(session, &query).await?;
        bytes.extend_from_slice(&part.bytes);
        if part.next <= at {
            break;
        }
        at = part.next;
    }
    Ok(bytes)
}
