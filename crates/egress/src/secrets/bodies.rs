//! Bodies of requests and responses: a request's body is searched for placeholders, a response's body is redacted.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::redaction::Redactor;
use super::screening::{PLACEHOLDER_BYTES_MAX, placeholder_in};
use super::value::SecretValue;

/// The body of a request to a host.
pub(crate) type ForwardedBody = UnsyncBoxBody<Bytes, BodyError>;

/// Why the body of a request breaks off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error(transparent)]
    Client(#[from] hyper::Error),
    #[error("the body has a secret's placeholder")]
    Placeholder,
}

/// A body that is passed on as it is.
pub(crate) fn unchecked(body: Incoming) -> ForwardedBody {
    body.map_err(BodyError::from).boxed_unsync()
}

/// A body that breaks off at a placeholder. Trailers are left out.
pub(crate) struct SearchedBody<B, F> {
    body: B,
    on_found: Option<F>,
    /// The last bytes that were passed on: a placeholder may begin in them.
    tail: Vec<u8>,
}

impl<B, F: FnOnce()> SearchedBody<B, F> {
    /// `on_found` is called when the body breaks off.
    pub fn new(body: B, on_found: F) -> Self {
        Self { body, on_found: Some(on_found), tail: Vec::new() }
    }

    /// Whether a placeholder ends in these bytes.
    fn is_in(&mut self, bytes: &[u8]) -> bool {
        let overlap = bytes.len().min(PLACEHOLDER_BYTES_MAX - 1);
        self.tail.extend_from_slice(&bytes[..overlap]);
        let found = placeholder_in(&self.tail) || placeholder_in(bytes);
        if overlap < bytes.len() {
            self.tail = bytes[bytes.len() - overlap..].to_vec();
        } else {
            let surplus = self.tail.len().saturating_sub(PLACEHOLDER_BYTES_MAX - 1);
            self.tail.drain(..surplus);
        }
        found
    }
}

impl<B, F> Body for SearchedBody<B, F>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
    F: FnOnce() + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                return Poll::Ready(None);
            };
            let Ok(data) = frame?.into_data() else { continue };
            if self.is_in(&data) {
                if let Some(on_found) = self.on_found.take() {
                    on_found();
                }
                return Poll::Ready(Some(Err(BodyError::Placeholder)));
            }
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response with all values masked. Trailers are left out.
pub(crate) struct RedactedBody<B> {
    body: B,
    redactor: Redactor,
    /// The values that were added since the last call.
    new_values: Box<dyn FnMut() -> Vec<Arc<SecretValue>> + Send>,
    ended: bool,
}

impl<B> RedactedBody<B> {
    /// `new_values` is asked before each piece: a value that is sent to the host while its response is open may come
    /// back in it.
    pub fn new(
        body: B,
        new_values: impl FnMut() -> Vec<Arc<SecretValue>> + Send + 'static,
    ) -> Self {
        let redactor = Redactor::new(Vec::new());
        Self { body, redactor, new_values: Box::new(new_values), ended: false }
    }

    fn push(&mut self, data: &[u8]) -> Bytes {
        let more = (self.new_values)();
        self.redactor.add(more);
        self.redactor.push(data)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for RedactedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        loop {
            if self.ended {
                return Poll::Ready(None);
            }
            let passed = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(frame) => match frame?.into_data() {
                    Ok(data) => self.push(&data),
                    Err(_) => continue,
                },
                None => {
                    self.ended = true;
                    self.redactor.finish()
                }
            };
            if !passed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(passed))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (self.redactor.holds() == 0 && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.redactor.holds() as u64;
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(held));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_is_found_however_the_body_is_cut() {
        let text = "{\"key\": \"windlass-secret-OPENAI_API_KEY-placeholder\"}";
        let long = "x".repeat(300) + text;
        for (text, expected) in [
            (text, true),
            (&long, true),
            ("windlass-secret--placeholder", false),
            ("windlass-secret-A", false),
        ] {
            for size in 1..=text.len() {
                let mut body = SearchedBody::new((), || ());
                let found = text.as_bytes().chunks(size).any(|piece| body.is_in(piece));
                assert_eq!(found, expected, "{text} in {size}");
            }
        }
    }
}
