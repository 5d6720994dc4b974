//! Follows a session's events: each event once, in order, over any number of connections. Owns the
//! position in the stream; interprets only the last event.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use windlass_protocol::api::{EventItem, EventsQuery};
use windlass_protocol::{EventKind, Seq, SessionId};

use crate::call::HttpCall;
use crate::client::Client;
use crate::connection::HttpConnection;
use crate::error::ClientError;
use crate::query::RequestPath;
use crate::sse::SseParser;

/// Number of streams in a row that may end at once without a new event before that is an error.
const EMPTY_STREAMS_MAX: u32 = 20;

/// A stream that lasted longer than this does not count as empty, even without an event.
const LONG_STREAM: Duration = Duration::from_secs(1);

/// A session's events after a given sequence number. Dropping it ends only the stream.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    session: SessionId,
    after: Seq,
    source: EventSource,
    empty_streams: u32,
    opened: Instant,
}

/// Where the next event comes from.
#[derive(Debug)]
enum EventSource {
    /// No connection is open.
    Disconnected,
    Streaming(Box<LiveStream>),
    /// The stream ended without a last event. This page tells whether more events can come.
    Page {
        events: VecDeque<EventItem>,
        ended: bool,
    },
    Ended,
}

struct LiveStream {
    connection: HttpConnection,
    body: Incoming,
    parser: SseParser,
}

impl EventStream {
    pub(crate) fn new(client: &Client, session: &SessionId, after: Seq) -> Self {
        Self {
            client: client.clone(),
            session: session.clone(),
            after,
            source: EventSource::Disconnected,
            empty_streams: 0,
            opened: Instant::now(),
        }
    }

    /// The last event that was returned. A new stream after it continues where this one is.
    pub fn after(&self) -> Seq {
        self.after
    }

    /// The next event, or `None` when the session has ended. After an error the next call connects
    /// again. Cancelling this call loses no event.
    pub async fn next(&mut self) -> Result<Option<EventItem>, ClientError> {
        loop {
            let found = match &mut self.source {
                EventSource::Ended => return Ok(None),
                EventSource::Disconnected => {
                    self.source = self.open().await?;
                    self.opened = Instant::now();
                    None
                }
                EventSource::Streaming(streaming) => match streaming.next().await {
                    Ok(Some(data)) => Some(self.parse(&data)?),
                    // The node closed the stream: it is stopping, or the session has ended. A page
                    // of events tells which.
                    Ok(None) => {
                        self.source = self.fetch_page().await?;
                        None
                    }
                    Err(cause) => {
                        self.source = EventSource::Disconnected;
                        self.count_empty_stream(cause)?;
                        None
                    }
                },
                EventSource::Page { events, ended } => match events.pop_front() {
                    Some(event) => Some(event),
                    None if *ended => {
                        self.source = EventSource::Ended;
                        None
                    }
                    None => {
                        self.source = EventSource::Disconnected;
                        self.count_empty_stream("the node closed the stream".to_owned())?;
                        None
                    }
                },
            };
            // A node may repeat events that it is not sure we received.
            if let Some(item) = found.filter(|item| item.event.seq > self.after) {
                self.after = item.event.seq;
                self.empty_streams = 0;
                if matches!(item.event.kind, EventKind::SessionEnded { .. }) {
                    self.source = EventSource::Ended;
                }
                return Ok(Some(item));
            }
        }
    }

    /// Counts streams that ended at once, so that a node that ends every stream is not followed for
    /// ever.
    fn count_empty_stream(&mut self, cause: String) -> Result<(), ClientError> {
        let was_long = self.opened.elapsed() > LONG_STREAM;
        self.empty_streams = if was_long { 0 } else { self.empty_streams + 1 };
        if self.empty_streams > EMPTY_STREAMS_MAX {
            self.empty_streams = 0;
            return Err(ClientError::Cut { cause });
        }
        Ok(())
    }

    async fn open(&self) -> Result<EventSource, ClientError> {
        let path = RequestPath::new(&["sessions", self.session.as_str(), "events"])
            .number("after", Some(self.after));
        let call = HttpCall::get(path.done()).accepting("text/event-stream");
        let (connection, body) = self.client.stream(&call).await?;
        let streaming = LiveStream { connection, body, parser: SseParser::default() };
        Ok(EventSource::Streaming(Box::new(streaming)))
    }

    async fn fetch_page(&self) -> Result<EventSource, ClientError> {
        let query = EventsQuery { after: self.after.0, wait_ms: 0, limit: None };
        let page = self.client.events_page(&self.session, query).await?;
        // After this page the stream opens again, unless the session has ended.
        Ok(EventSource::Page { events: page.events.into(), ended: page.ended })
    }

    fn parse(&self, data: &[u8]) -> Result<EventItem, ClientError> {
        serde_json::from_slice(data).map_err(|fault| ClientError::BadAnswer {
            request: format!("the events of session {}", self.session),
            cause: fault.to_string(),
        })
    }
}

impl LiveStream {
    /// The next event's data; `None` when the node closed the stream, an error when it was cut.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            if let Some(data) = self.parser.next_data() {
                return Ok(Some(data));
            }
            let Some(bytes) = self.connection.chunk(&mut self.body).await? else {
                return Ok(None);
            };
            self.parser.feed(&bytes).map_err(|fault| fault.to_string())?;
        }
    }
}

impl std::fmt::Debug for LiveStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveStream").finish_non_exhaustive()
    }
}
