//! Request bodies, query strings and parts of paths: JSON of bounded size, refused with a named error. A body over
//! the limit is read to its end and thrown away, so that its connection can go on.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, Sleep, sleep_until};
use windlass_protocol::ErrorCode;
use windlass_protocol::limits::MESSAGE_BYTES_MAX;

use super::App;
use super::reply::{Refusal, bad_request};
use crate::bounds::Budget;
use crate::failure::Failure;

/// Room for a message of the largest size in its JSON form. One that is mostly control characters
/// can need more, and is then refused although it is within the message limit.
const BODY_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// How much of a body that is too large is read away before the connection is given up.
const DISCARD_BYTES_MAX: usize = 8 * BODY_BYTES_MAX;

/// How long a body may take from its request's head to its last byte.
const BODY_WAIT: Duration = Duration::from_secs(60);

/// A request's body as JSON.
pub(super) struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        let bytes = read(request.into_body(), &app.serving.bounds.input).await?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| bad_request(format!("the body is not what is asked for: {error}")))
    }
}

/// Reads a body whole, within the time it may take and what the node may hold of bodies.
async fn read(body: Body, budget: &Arc<Budget>) -> Result<Bytes, Refusal> {
    within(BODY_WAIT, collect(body, budget)).await.unwrap_or_else(|| {
        let seconds = BODY_WAIT.as_secs();
        Err(bad_request(format!("the body did not come within {seconds} s")))
    })
}

/// What `future` gives, or `None` when it takes longer than `limit`. The usual body is there at
/// once, and needs no timer.
async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        timer.as_mut().poll(cx).map(|()| None)
    })
    .await
}

async fn collect(mut body: Body, budget: &Arc<Budget>) -> Result<Bytes, Refusal> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut length = 0;
    let mut held = budget.claim(0)?;
    let mut refused = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| bad_request(format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > DISCARD_BYTES_MAX {
            break;
        }
        if refused.is_none() && length <= BODY_BYTES_MAX {
            refused = held.grow(data.len()).err();
        }
        if length > BODY_BYTES_MAX || refused.is_some() {
            (first, rest) = (Bytes::new(), BytesMut::new());
        } else if first.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
    }
    if length > BODY_BYTES_MAX {
        return Err(too_large(length, BODY_BYTES_MAX));
    }
    if let Some(failure) = refused {
        return Err(failure.into());
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// A message's bytes, if it is not too large. They are counted as the node's input until the keeper
/// has them and nobody else does.
pub(super) fn message(bytes: impl Into<Bytes>, budget: &Arc<Budget>) -> Result<Bytes, Refusal> {
    let bytes = bytes.into();
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(too_large(bytes.len(), MESSAGE_BYTES_MAX));
    }
    Ok(budget.counted(bytes)?)
}

fn too_large(bytes: usize, limit: usize) -> Refusal {
    let message = format!("a message of {bytes} bytes is over the limit of {limit}");
    Refusal(Failure::new(ErrorCode::MessageTooLarge, message))
}

/// A request's query string.
pub(super) struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        Query::<T>::from_request_parts(parts, state)
            .await
            .map(|Query(query)| Self(query))
            .map_err(|error| bad_request(error.body_text()))
    }
}

/// The parts of a request's path, which must be UTF-8 and of the kinds that the handler takes.
pub(super) struct InPath<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        Path::<T>::from_request_parts(parts, state).await.map(|Path(path)| Self(path)).map_err(
            |error| bad_request(format!("the path is not understood: {}", error.body_text())),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn only_what_does_not_come_in_time_is_given_up() {
        let short = Duration::from_millis(1);
        assert_eq!(within(short, async { 7 }).await, Some(7));
        assert_eq!(within(short, pending::<()>()).await, None);
        let later = async {
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(within(BODY_WAIT, later).await, Some(7));
    }
}
