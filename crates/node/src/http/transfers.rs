//! The headers of a client's trace, and the spans of files that clients transfer. Costs nothing on a node without
//! telemetry.

use axum::http::HeaderMap;
use windlass_protocol::SessionId;
use windlass_telemetry::{FileDirection, FileTransfer, TraceParent};

use super::App;
use crate::clock::now_ms;
use crate::session::{Request, SessionHandle};

/// The header of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";

/// Maximum length of a file's path in a span. Thousands of reports may wait for the collector.
const PATH_BYTES_MAX: usize = 1024;

/// The client's span, if the node has telemetry and the header follows the standard. The standard lets a service ignore
/// any other header.
pub(super) fn trace_parent(app: &App, headers: &HeaderMap) -> Option<TraceParent> {
    app.serving.telemetry.as_ref()?;
    let mut sent = headers.get_all(TRACEPARENT).iter();
    let only = sent.next().filter(|_| sent.next().is_none())?;
    TraceParent::parse(only.to_str().ok()?)
}

/// A transfer that goes on. Dropping it reports the transfer to the session.
pub(super) struct TransferWatch {
    session: SessionHandle,
    transfer: Option<Box<FileTransfer>>,
}

impl TransferWatch {
    /// `None` if the node has no telemetry or the session is not live.
    pub fn begin(
        app: &App,
        headers: &HeaderMap,
        direction: FileDirection,
        (session, path): (&str, &str),
    ) -> Option<Self> {
        app.serving.telemetry.as_ref()?;
        let session = app.sessions.find(&SessionId::parse(session).ok()?)?;
        let (path, parent) = (cut_path(path), trace_parent(app, headers));
        let transfer = FileTransfer { direction, path, bytes: None, began_at_ms: now_ms(), parent };
        Some(Self { session, transfer: Some(Box::new(transfer)) })
    }

    /// The transfer is complete.
    pub fn complete(&mut self, bytes: u64) {
        if let Some(transfer) = &mut self.transfer {
            transfer.bytes = Some(bytes);
        }
    }
}

impl Drop for TransferWatch {
    fn drop(&mut self) {
        if let Some(transfer) = self.transfer.take() {
            // A session with a full inbox has more important work than this span.
            self.session.try_send(Request::Transferred(transfer));
        }
    }
}

fn cut_path(path: &str) -> String {
    path.get(..path.floor_char_boundary(PATH_BYTES_MAX)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_cut_between_two_characters() {
        for (path, expected) in [
            ("out/a.csv".to_owned(), "out/a.csv".to_owned()),
            ("a".repeat(58_000), "a".repeat(1024)),
            (format!("{}日b", "a".repeat(1022)), "a".repeat(1022)),
        ] {
            assert_eq!(cut_path(&path), expected);
        }
    }
}
