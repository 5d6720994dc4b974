//! The content of a file as a response. Each piece is read on the blocking pool when the last piece was
//! taken, so memory use does not depend on the size of the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use windlass_protocol::ErrorCode;

use super::super::reply::Refusal;
use super::super::transfers::TransferWatch;
use crate::failure::Failure;
use windlass_files::OpenFile;

/// Maximum size of a piece.
const PIECE_BYTES: u64 = 128 * 1024;

/// Which bytes of a file a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum RequestedRange {
    Whole,
    Part {
        from: u64,
        to: u64,
    },
    /// The range is outside the file.
    Unsatisfiable,
}

/// `watch` reports how the transfer ends.
pub(super) fn answer(
    opened: OpenFile,
    asked: &HeaderMap,
    watch: Option<TransferWatch>,
) -> Response {
    let total = opened.bytes;
    let etag = format!("\"{}\"", opened.etag);
    let text = |name| asked.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let range = text(header::RANGE)
        .filter(|_| text(header::IF_RANGE).is_none_or(|if_range| if_range == etag));
    let (status, from, to) =
        match range.map_or(RequestedRange::Whole, |range| parse_range(range, total)) {
            RequestedRange::Whole => (StatusCode::OK, 0, total),
            RequestedRange::Part { from, to } => (StatusCode::PARTIAL_CONTENT, from, to),
            RequestedRange::Unsatisfiable => return unsatisfiable(total),
        };
    let mut headers = HeaderMap::new();
    let mut add = |name, value: &str| {
        headers.insert(name, HeaderValue::from_str(value).expect("digits and plain letters"));
    };
    add(header::CONTENT_TYPE, "application/octet-stream");
    add(header::CONTENT_LENGTH, &(to - from).to_string());
    add(header::ACCEPT_RANGES, "bytes");
    add(header::CACHE_CONTROL, "no-store");
    add(header::ETAG, &etag);
    if status == StatusCode::PARTIAL_CONTENT {
        add(header::CONTENT_RANGE, &format!("bytes {from}-{}/{total}", to - 1));
    }
    (status, headers, content(opened.file, (from, to), watch)).into_response()
}

fn unsatisfiable(total: u64) -> Response {
    let message = format!("the range is outside the file, which has {total} bytes");
    let mut response = Refusal(Failure::new(ErrorCode::BadRequest, message)).into_response();
    *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
    let total = HeaderValue::from_str(&format!("bytes */{total}")).expect("digits");
    response.headers_mut().insert(header::CONTENT_RANGE, total);
    response
}

fn content(file: File, (from, to): (u64, u64), mut watch: Option<TransferWatch>) -> Body {
    if from >= to
        && let Some(watch) = &mut watch
    {
        watch.complete(0);
    }
    let begun = (Arc::new(file), from, watch);
    let pieces = stream::unfold(begun, move |(file, at, mut watch)| async move {
        if at >= to {
            return None;
        }
        let source = file.clone();
        let read = tokio::task::spawn_blocking(move || piece(&source, at, to)).await;
        // A file that became shorter ends the connection, so that the client sees an incomplete response.
        let piece = read.unwrap_or_else(|error| Err(io::Error::other(error)));
        let next = piece.as_ref().map_or(to, |piece: &Bytes| at + piece.len() as u64);
        // Nobody asks for what comes after the last piece.
        if piece.is_ok()
            && next >= to
            && let Some(watch) = &mut watch
        {
            watch.complete(to - from);
        }
        Some((piece, (file, next, watch)))
    });
    Body::from_stream(pieces)
}

fn piece(file: &File, at: u64, to: u64) -> io::Result<Bytes> {
    let length = usize::try_from(PIECE_BYTES.min(to - at)).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    loop {
        match file.read_at(&mut bytes, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                bytes.truncate(read);
                return Ok(bytes.into());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Parses a `Range` header. Several ranges or an invalid range mean the whole file.
fn parse_range(range: &str, total: u64) -> RequestedRange {
    let Some(range) = range.trim().strip_prefix("bytes=") else { return RequestedRange::Whole };
    let Some((first, last)) = range.split_once('-') else { return RequestedRange::Whole };
    let (from, to) = match (first.trim(), last.trim()) {
        ("", last) => match last.parse::<u64>() {
            Ok(count) => (total.saturating_sub(count), total),
            Err(_) => return RequestedRange::Whole,
        },
        (first, "") => match first.parse() {
            Ok(from) => (from, total),
            Err(_) => return RequestedRange::Whole,
        },
        (first, last) => match (first.parse(), last.parse::<u64>()) {
            (Ok(from), Ok(last)) if from <= last => (from, last.saturating_add(1).min(total)),
            _ => return RequestedRange::Whole,
        },
    };
    if from < to { RequestedRange::Part { from, to } } else { RequestedRange::Unsatisfiable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_range_is_served_and_all_else_means_the_whole_file() {
        let part = |from, to| RequestedRange::Part { from, to };
        let cases = [
            ("bytes=0-0", part(0, 1)),
            ("bytes=2-4", part(2, 5)),
            ("bytes=2-", part(2, 10)),
            ("bytes=-3", part(7, 10)),
            ("bytes=-30", part(0, 10)),
            ("bytes=5-99", part(5, 10)),
            ("bytes=10-", RequestedRange::Unsatisfiable),
            ("bytes=-0", RequestedRange::Unsatisfiable),
            ("bytes=18446744073709551615-", RequestedRange::Unsatisfiable),
            ("bytes=4-2", RequestedRange::Whole),
            ("bytes=0-1,3-4", RequestedRange::Whole),
            ("lines=1-2", RequestedRange::Whole),
            ("bytes=", RequestedRange::Whole),
            ("bytes=x-y", RequestedRange::Whole),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_range(text, 10), expected, "{text}");
        }
        assert_eq!(parse_range("bytes=0-", 0), RequestedRange::Unsatisfiable);
    }
}
