//! Watches a directory of a workspace until the session ends or the watch is dropped.

use hyper::body::Incoming;
use windlass_protocol::SessionId;
use windlass_protocol::api::FileEvent;

use crate::call::HttpCall;
use crate::client::Client;
use crate::connection::HttpConnection;
use crate::error::ClientError;
use crate::query::RequestPath;
use crate::sse::SseParser;

/// A directory being watched. Dropping it ends the watch.
pub struct FileWatch {
    connection: HttpConnection,
    body: Incoming,
    parser: SseParser,
}

impl FileWatch {
    /// Opens the watch of [`Client::watch_files`].
    pub(super) async fn open(
        client: &Client,
        session: &SessionId,
        path: &str,
    ) -> Result<Self, ClientError> {
        let asked = RequestPath::new(&["sessions", session.as_str(), "files", "watch"])
            .text("path", Some(path).filter(|path| !path.is_empty()));
        let call = HttpCall::get(asked.done()).accepting("text/event-stream");
        let (connection, body) = client.stream(&call).await?;
        Ok(Self { connection, body, parser: SseParser::default() })
    }

    /// The next event; `None` when the session ended or the watched directory is gone. Events that
    /// happen without a connection are not reported later: watch again, then list.
    pub async fn next(&mut self) -> Result<Option<FileEvent>, ClientError> {
        let cut = |cause| ClientError::Cut { cause };
        loop {
            if let Some(data) = self.parser.next_data() {
                return serde_json::from_slice(&data).map(Some).map_err(|fault| {
                    let request = "the watch of files".to_owned();
                    ClientError::BadAnswer { request, cause: fault.to_string() }
                });
            }
            let Some(bytes) = self.connection.chunk(&mut self.body).await.map_err(cut)? else {
                return Ok(None);
            };
            self.parser.feed(&bytes).map_err(|fault| cut(fault.to_string()))?;
        }
    }
}

impl std::fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileWatch").finish_non_exhaustive()
    }
}
