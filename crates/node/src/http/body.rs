//! Request bodies and query strings: JSON of bounded size, refused with a named error. A body over
//! the limit is read to its end and thrown away, so that its connection can go on.

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use windlass_protocol::ErrorCode;
use windlass_protocol::limits::MESSAGE_BYTES_MAX;

use super::reply::{Refusal, bad_request};
use crate::failure::Failure;

/// Room for a message of the largest size in its JSON form. One that is mostly control characters
/// can need more, and is then refused although it is within the message limit.
const BODY_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// How much of a body that is too large is read away before the connection is given up.
const DISCARD_BYTES_MAX: usize = 8 * BODY_BYTES_MAX;

/// A request's body as JSON.
pub(super) struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Refusal> {
        let bytes = read(request.into_body()).await?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| bad_request(format!("the body is not what is asked for: {error}")))
    }
}

async fn read(mut body: Body) -> Result<Bytes, Refusal> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| bad_request(format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > DISCARD_BYTES_MAX {
            break;
        }
        if length > BODY_BYTES_MAX {
            rest = BytesMut::new();
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
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// A message's bytes, if it is not too large.
pub(super) fn message(bytes: impl Into<Bytes>) -> Result<Bytes, Refusal> {
    let bytes = bytes.into();
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(too_large(bytes.len(), MESSAGE_BYTES_MAX));
    }
    Ok(bytes)
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
