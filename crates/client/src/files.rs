//! Files of a session's workspace: list, read, put, delete, write many back, watch. Content is
//! streamed in pieces. Each transfer has a separate connection, and none is sent twice.

mod content;
mod exchange;
mod watch;

use std::io;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use hyper::Method;
use hyper::header::{ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH, RANGE};
use serde::de::DeserializeOwned;
use windlass_protocol::SessionId;
use windlass_protocol::api::{
    FileChange, FileDeleted, FileList, FileWritten, FilesQuery, WrittenBack,
};
use windlass_protocol::frame;
use windlass_protocol::limits::CHUNK_BYTES_MAX;
use windlass_protocol::text::bounded;

use crate::call::HttpCall;
use crate::client::Client;
use crate::error::ClientError;
use crate::query::RequestPath;

pub use content::FileContent;
use exchange::{Exchange, RequestBody};
pub use watch::FileWatch;

/// Longest part of a path in an error message, in bytes.
const PATH_SHOWN_BYTES: usize = 200;

/// The state that a file must have for a change to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Expect {
    #[default]
    Anything,
    /// The file does not exist.
    Absent,
    /// The file has this etag.
    Etag(String),
}

/// One change of a write-back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteBackChange {
    Put { path: String, content: Bytes, expect: Expect },
    Delete { path: String, expect: Expect },
}

/// Which bytes of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileRange {
    #[default]
    Whole,
    /// From the first number up to, but not including, the second.
    Part(u64, u64),
    /// From this byte to the end.
    From(u64),
    /// This many bytes at the end.
    Last(u64),
}

/// A file that is being downloaded.
#[derive(Debug)]
pub struct Download {
    exchange: Exchange,
    pub etag: String,
    /// Number of bytes to come: the whole file or the range.
    pub bytes: u64,
}

impl Download {
    /// The next piece; `None` at the end. A file that was cut short is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.exchange.chunk().await
    }
}

/// Files.
impl Client {
    /// Watches a directory of the workspace and everything below it. An empty path is the workspace
    /// itself. Events that happen after this function returned are reported.
    pub async fn watch_files(
        &self,
        session: &SessionId,
        path: &str,
    ) -> Result<FileWatch, ClientError> {
        FileWatch::open(self, session, path).await
    }

    pub async fn files(
        &self,
        session: &SessionId,
        query: &FilesQuery,
    ) -> Result<FileList, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str(), "files"])
            .text("path", Some(query.path.as_str()).filter(|path| !path.is_empty()))
            .text("recursive", query.recursive.then_some("true"))
            .text("after", query.after.as_deref())
            .number("limit", query.limit);
        self.json(HttpCall::get(path.done())).await
    }

    /// A file in pieces.
    pub async fn download(
        &self,
        session: &SessionId,
        path: &str,
        range: FileRange,
    ) -> Result<Download, ClientError> {
        let mut headers = HeaderMap::new();
        let range = match range {
            FileRange::Whole => None,
            FileRange::Part(from, to) => Some(format!("bytes={from}-{}", to.saturating_sub(1))),
            FileRange::From(from) => Some(format!("bytes={from}-")),
            FileRange::Last(count) => Some(format!("bytes=-{count}")),
        };
        if let Some(range) = range {
            headers.insert(RANGE, HeaderValue::from_str(&range).expect("digits"));
        }
        let uri = file_path(session, path);
        let sent = Exchange::send(self, Method::GET, uri, headers, RequestBody::nothing()).await;
        let exchange = sent?;
        let etag = exchange.header(&ETAG).trim_matches('"').to_owned();
        let bytes = exchange.header(&hyper::header::CONTENT_LENGTH).parse().unwrap_or(0);
        Ok(Download { exchange, etag, bytes })
    }

    /// A whole file, in memory.
    pub async fn read_file(&self, session: &SessionId, path: &str) -> Result<Bytes, ClientError> {
        let download = self.download(session, path, FileRange::Whole).await?;
        download.exchange.collect().await
    }

    /// Makes or replaces a file.
    pub async fn put_file(
        &self,
        session: &SessionId,
        path: &str,
        content: impl Into<FileContent>,
        expect: &Expect,
    ) -> Result<FileWritten, ClientError> {
        let uri = file_path(session, path);
        let body = RequestBody::from(content.into());
        self.sent(Method::PUT, uri, expect.headers(), body).await
    }

    pub async fn delete_file(
        &self,
        session: &SessionId,
        path: &str,
        expect: &Expect,
    ) -> Result<FileDeleted, ClientError> {
        let uri = file_path(session, path);
        self.sent(Method::DELETE, uri, expect.headers(), RequestBody::nothing()).await
    }

    /// Makes all changes or none.
    pub async fn write_back(
        &self,
        session: &SessionId,
        changes: Vec<WriteBackChange>,
    ) -> Result<WrittenBack, ClientError> {
        // Check all changes first: one that cannot be sent must stop all of them.
        for change in &changes {
            check(change)?;
        }
        let frames = stream::iter(changes).flat_map(|change| stream::iter(frames(change)));
        let body = RequestBody::pieces(frames);
        let uri = RequestPath::new(&["sessions", session.as_str(), "files"]).done();
        self.sent(Method::POST, uri, HeaderMap::new(), body).await
    }

    async fn sent<T: DeserializeOwned>(
        &self,
        method: Method,
        uri: String,
        headers: HeaderMap,
        body: RequestBody,
    ) -> Result<T, ClientError> {
        let exchange = Exchange::send(self, method, uri, headers, body).await?;
        let request = exchange.name().to_owned();
        let answer = exchange.collect().await?;
        serde_json::from_slice(&answer)
            .map_err(|fault| ClientError::BadAnswer { request, cause: fault.to_string() })
    }
}

impl Expect {
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut add = |name: HeaderName, value: &str| {
            // Text that is not a valid header value is no etag either. Send one that matches no
            // file.
            let value = HeaderValue::from_str(value);
            headers.insert(name, value.unwrap_or(HeaderValue::from_static("\"?\"")));
        };
        match self {
            Self::Anything => {}
            Self::Absent => add(IF_NONE_MATCH, "*"),
            Self::Etag(etag) => add(IF_MATCH, &format!("\"{etag}\"")),
        }
        headers
    }

    fn etag(&self) -> Option<String> {
        match self {
            Self::Etag(etag) => Some(etag.clone()),
            Self::Anything | Self::Absent => None,
        }
    }

    fn absent(&self) -> Option<String> {
        (*self == Self::Absent).then(|| "*".to_owned())
    }
}

/// Checks that a change fits into frames.
fn check(change: &WriteBackChange) -> Result<(), ClientError> {
    let (path, expect) = match change {
        WriteBackChange::Delete { path, expect } | WriteBackChange::Put { path, expect, .. } => {
            (path, expect)
        }
    };
    let header = FileChange::Put {
        path: path.clone(),
        if_match: expect.etag(),
        if_none_match: expect.absent(),
        more: true,
    };
    frame::encode_head(&mut Vec::new(), &header, 0).map_err(|cause| {
        let what = format!("a change of the file {:?}", bounded(path, PATH_SHOWN_BYTES));
        ClientError::TooLarge { what, cause }
    })
}

/// The frames of one change, made one at a time so that only one frame is in memory.
fn frames(change: WriteBackChange) -> Box<dyn Iterator<Item = io::Result<Bytes>> + Send> {
    let encoded = |header: &FileChange, body: &[u8]| {
        let mut frame = Vec::with_capacity(body.len() + 256);
        frame::encode(&mut frame, header, body).map_err(io::Error::other)?;
        Ok(Bytes::from(frame))
    };
    match change {
        WriteBackChange::Delete { path, expect } => {
            let header = FileChange::Delete { path, if_match: expect.etag() };
            Box::new(std::iter::once(encoded(&header, b"")))
        }
        WriteBackChange::Put { path, content, expect } => {
            let count = content.len().div_ceil(CHUNK_BYTES_MAX).max(1);
            Box::new((0..count).map(move |number| {
                let from = number * CHUNK_BYTES_MAX;
                let to = (from + CHUNK_BYTES_MAX).min(content.len());
                let header = FileChange::Put {
                    path: path.clone(),
                    if_match: expect.etag(),
                    if_none_match: expect.absent(),
                    more: number + 1 < count,
                };
                encoded(&header, &content[from..to])
            }))
        }
    }
}

/// The request path of a file: slashes stay, the rest is escaped.
fn file_path(session: &SessionId, path: &str) -> String {
    let above = RequestPath::new(&["sessions", session.as_str(), "files"]);
    // `files/watch` is an endpoint, so a file of that name needs this parameter.
    let content = (path == "watch").then_some("true");
    above.below(path).text("content", content).done()
}
