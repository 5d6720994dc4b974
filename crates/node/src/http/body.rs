//! Extracts request bodies, query strings and path parts, and refuses invalid ones with an error code. Bodies
//! are JSON of bounded size. A body over the limit is read to its end and discarded, so that the connection
//! can be used further.

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
use super::tenant::bounds_of;
use crate::bounds::Budget;
use crate::failure::Failure;

/// Maximum size of a body: enough for the largest message in JSON form. A message that is mostly control
/// characters can need more; it is then refused although it is within the message limit.
const BODY_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// Maximum number of bytes of a too large body that are discarded before the connection is closed.
const DISCARD_BYTES_MAX: usize = 8 * BODY_BYTES_MAX;

/// Maximum time from a request's head to the last byte of its body.
pub(super) const BODY_WAIT: Duration = Duration::from_secs(60);

/// A request's body as JSON.
pub(super) struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        let bounds = bounds_of(request.extensions(), app);
        let bytes = read(request.into_body(), &bounds.input).await?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| bad_request(format!("the body does not match the schema: {error}")))
    }
}

/// A request's body as text. An error never repeats the text.
pub(super) struct TextBody(pub String);

impl FromRequest<App> for TextBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        let bounds = bounds_of(request.extensions(), app);
        let bytes = read(request.into_body(), &bounds.input).await?;
        let text =
            String::from_utf8(bytes.into()).map_err(|_| bad_request("the body is not UTF-8"))?;
        Ok(Self(text))
    }
}

/// Reads a whole body, within the time limit and the node's budget for input.
pub(super) async fn read(body: Body, budget: &Arc<Budget>) -> Result<Bytes, Refusal> {
    within(BODY_WAIT, collect(body, budget)).await.unwrap_or_else(|| {
        let seconds = BODY_WAIT.as_secs();
        Err(bad_request(format!("the body did not arrive within {seconds} s")))
    })
}

/// The result of `future`, or `None` if it takes longer than `limit`. Most bodies are available at once and
/// need no timer.
pub(super) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
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

/// The bytes of a message, if it is not too large. They count in the node's input budget until they are
/// dropped, after the keeper has them.
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

/// The parameters in a request's path.
pub(super) struct InPath<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        Path::<T>::from_request_parts(parts, state).await.map(|Path(path)| Self(path)).map_err(
            |error| bad_request(format!("the request's path is invalid: {}", error.body_text())),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn only_a_future_that_takes_too_long_is_given_up() {
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
