//! A file's content as an answer: in pieces that are read on the pool when the last one is on its
//! way, so that memory does not depend on the file.

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
use crate::failure::Failure;
use windlass_files::OpenFile;

/// Bytes read at once.
const PIECE_BYTES: u64 = 128 * 1024;

/// Which bytes of a file are asked for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Whole,
    Part {
        from: u64,
        to: u64,
    },
    /// None that it has.
    Nothing,
}

pub(super) fn answer(opened: OpenFile, asked: &HeaderMap) -> Response {
    let total = opened.bytes;
    let etag = format!("\"{}\"", opened.etag);
    let text = |name| asked.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let range = text(header::RANGE)
        .filter(|_| text(header::IF_RANGE).is_none_or(|if_range| if_range == etag));
    let (status, from, to) = match range.map_or(Wanted::Whole, |range| wanted(range, total)) {
        Wanted::Whole => (StatusCode::OK, 0, total),
        Wanted::Part { from, to } => (StatusCode::PARTIAL_CONTENT, from, to),
        Wanted::Nothing => return nothing(total),
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
    (status, headers, content(opened.file, from, to)).into_response()
}

fn nothing(total: u64) -> Response {
    let message = format!("the range is not in the file, which has {total} bytes");
    let mut response = Refusal(Failure::new(ErrorCode::BadRequest, message)).into_response();
    *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
    let total = HeaderValue::from_str(&format!("bytes */{total}")).expect("digits");
    response.headers_mut().insert(header::CONTENT_RANGE, total);
    response
}

fn content(file: File, from: u64, to: u64) -> Body {
    let pieces = stream::unfold((Arc::new(file), from), move |(file, at)| async move {
        if at >= to {
            return None;
        }
        let source = file.clone();
        let read = tokio::task::spawn_blocking(move || piece(&source, at, to)).await;
        // A file that became shorter ends the connection: the client must not take it for whole.
        let piece = read.unwrap_or_else(|error| Err(io::Error::other(error)));
        let next = piece.as_ref().map_or(to, |piece: &Bytes| at + piece.len() as u64);
        Some((piece, (file, next)))
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

/// What a `Range` header asks for. Several ranges, or what is no range, is the whole file.
fn wanted(range: &str, total: u64) -> Wanted {
    let Some(range) = range.trim().strip_prefix("bytes=") else { return Wanted::Whole };
    let Some((first, last)) = range.split_once('-') else { return Wanted::Whole };
    let (from, to) = match (first.trim(), last.trim()) {
        ("", last) => match last.parse::<u64>() {
            Ok(count) => (total.saturating_sub(count), total),
            Err(_) => return Wanted::Whole,
        },
        (first, "") => match first.parse() {
            Ok(from) => (from, total),
            Err(_) => return Wanted::Whole,
        },
        (first, last) => match (first.parse(), last.parse::<u64>()) {
            (Ok(from), Ok(last)) if from <= last => (from, last.saturating_add(1).min(total)),
            _ => return Wanted::Whole,
        },
    };
    if from < to { Wanted::Part { from, to } } else { Wanted::Nothing }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_understood_and_all_else_is_the_whole_file() {
        let part = |from, to| Wanted::Part { from, to };
        let cases = [
            ("bytes=0-0", part(0, 1)),
            ("bytes=2-4", part(2, 5)),
            ("bytes=2-", part(2, 10)),
            ("bytes=-3", part(7, 10)),
            ("bytes=-30", part(0, 10)),
            ("bytes=5-99", part(5, 10)),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=18446744073709551615-", Wanted::Nothing),
            ("bytes=4-2", Wanted::Whole),
            ("bytes=0-1,3-4", Wanted::Whole),
            ("lines=1-2", Wanted::Whole),
            ("bytes=", Wanted::Whole),
            ("bytes=x-y", Wanted::Whole),
        ];
        for (text, expected) in cases {
            assert_eq!(wanted(text, 10), expected, "{text}");
        }
        assert_eq!(wanted("bytes=0-", 0), Wanted::Nothing);
    }
}
