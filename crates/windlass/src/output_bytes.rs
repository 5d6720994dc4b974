//! The bytes of output events, wherever they are: in the event, or, where they were too many for
//! it, in the session's output. Owns the place that counts them; shows nothing.

use base64::Engine;
use windlass_client::Client;
use windlass_protocol::api::{EventItem, OutputQuery};
use windlass_protocol::{EventKind, SessionId};

/// How far into a session's output its events have come.
#[derive(Debug, Clone, Copy)]
pub struct OutputPlace(u64);

impl OutputPlace {
    pub fn at(offset: u64) -> Self {
        Self(offset)
    }

    /// Passes an event, and gives where its output began. Every event must be passed once.
    pub fn pass(&mut self, item: &EventItem) -> u64 {
        let from = self.0;
        self.0 += match item.event.kind {
            EventKind::Output { .. } => item.bytes,
            EventKind::OutputDropped { bytes, .. } => bytes,
            _ => 0,
        };
        from
    }
}

/// An output event's bytes; `from` is where they begin.
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
