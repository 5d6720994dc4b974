//! Accepting connections and serving requests on them. Only the node's own user is served; both
//! sides say which API they speak.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Response};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use windlass_client::stream::LeanStream;
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{API, API_HEADER, ApiVersion, StopSessions};

use super::reply::{Refusal, about_to_stop};
use super::{App, router};
use crate::failure::Failure;

/// Connections served at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 4096;

/// Accepts until the node stops.
pub(crate) async fn serve(listener: UnixListener, context: App) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let user = rustix::process::geteuid().as_raw();
    let router = router(context.clone());
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                // Out of descriptors: room comes when a connection closes.
                tokio::task::yield_now().await;
                continue;
            }
        };
        // The directory keeps others out; this holds even where its mode was changed.
        let allowed = stream.peer_cred().is_ok_and(|peer| peer.uid() == user || peer.uid() == 0);
        let stream = stream.into_std().and_then(|stream| LeanStream::new(stream.into()));
        if let Ok(stream) = stream
            && allowed
        {
            let (router, context) = (router.clone(), context.clone());
            tokio::spawn(async move {
                converse(stream, router, context).await;
                drop(place);
            });
        }
    }
}

async fn converse(stream: LeanStream, router: Router, context: App) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, context) = (router.clone(), context.clone());
        async move { Ok::<_, Infallible>(answer(request, router, &context).await) }
    });
    // A client that breaks off or talks nonsense is its own affair.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(request: Request<Incoming>, mut router: Router, context: &App) -> Response<Body> {
    use tower_service::Service;
    context.metrics.request();
    context.used();
    let of_a_session = request.uri().path().starts_with(SESSIONS);
    let only_looks = request.method() == Method::GET;
    let refused = check_version(&request)
        .err()
        .or_else(|| (of_a_session && let_go(context)).then(about_to_stop));
    let mut response = match refused {
        None => {
            let Ok(response) = router.as_service().call(request).await;
            // It may have been let go of meanwhile; whoever only looks may ask again.
            if of_a_session && only_looks && let_go(context) {
                Refusal(about_to_stop()).into_response()
            } else {
                response
            }
        }
        Some(failure) => Refusal(failure).into_response(),
    };
    response.headers_mut().insert(API_HEADER, HeaderValue::from_static(API_TEXT));
    response
}

/// Where everything about sessions is.
const SESSIONS: &str = "/v1/sessions";

/// Whether the node leaves its sessions to the next one. From then on it cannot tell a session
/// that it let go of from one that has ended, and says neither.
fn let_go(context: &App) -> bool {
    *context.stop.borrow() == Some(StopSessions::Keep)
}

/// [`API`] as a header value.
const API_TEXT: &str = "1.0";

fn check_version(request: &Request<Incoming>) -> Result<(), Failure> {
    let Some(said) = request.headers().get(API_HEADER) else { return Ok(()) };
    let theirs = said.to_str().ok().and_then(ApiVersion::parse);
    if theirs.is_some_and(|theirs| API.compatible(theirs)) {
        return Ok(());
    }
    let theirs = String::from_utf8_lossy(said.as_bytes()).into_owned();
    let node = env!("CARGO_PKG_VERSION");
    let message = format!("the client speaks API {theirs:?}, node {node} speaks {API}");
    Err(Failure::new(ErrorCode::VersionMismatch, message))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_header_says_the_version_we_speak() {
        assert_eq!(super::API_TEXT, super::API.to_string());
    }
}
