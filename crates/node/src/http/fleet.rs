//! Certificates of the fleet: a new node joins with an invitation, and a node renews its certificate. Both are served
//! only where nodes connect, and are not a part of the documented API. The fleet's authority decides; this file reads
//! the requests.

use axum::Json;
use axum::extract::{Extension, FromRequest, Request, State};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use windlass_protocol::ErrorCode;
use windlass_protocol::enrolment::{
    ENROLMENT_BYTES_MAX, JoinAnswer, JoinRequest, RenewAnswer, RenewRequest,
};

use super::App;
use super::body::{BODY_WAIT, within};
use super::peers::ConnectionPeer;
use super::reply::{Answer, Refusal, bad_request, internal};
use crate::failure::Failure;
use crate::fleet::FleetNode;
use crate::fleet::certificates::{admit_node, renew_node};

/// Maximum number of requests that the authority decides at the same time. It takes a lock, so more would only take
/// threads from sessions. A program without a certificate can send such requests.
const DECISIONS_MAX: usize = 4;

static DECISIONS: Semaphore = Semaphore::const_new(DECISIONS_MAX);

/// The body of a request for a certificate.
pub(super) struct EnrolmentBody(pub Bytes);

impl FromRequest<App> for EnrolmentBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &App) -> Result<Self, Refusal> {
        let body = Limited::new(request.into_body(), ENROLMENT_BYTES_MAX).collect();
        match within(BODY_WAIT, body).await {
            Some(Ok(body)) => Ok(Self(body.to_bytes())),
            Some(Err(error)) if error.is::<LengthLimitError>() => {
                let message =
                    format!("a request for a certificate has at most {ENROLMENT_BYTES_MAX} bytes");
                Err(Failure::new(ErrorCode::MessageTooLarge, message).into())
            }
            Some(Err(error)) => Err(bad_request(format!("the body broke off: {error}"))),
            None => {
                let seconds = BODY_WAIT.as_secs();
                Err(bad_request(format!("the body did not arrive within {seconds} s")))
            }
        }
    }
}

/// Gives a new node its certificate, in exchange for an invitation.
pub(super) async fn join(
    State(app): State<App>,
    peer: Option<Extension<ConnectionPeer>>,
    EnrolmentBody(body): EnrolmentBody,
) -> Answer<Json<JoinAnswer>> {
    match peer {
        Some(Extension(ConnectionPeer::Nobody)) => {
            let request: JoinRequest = read(&body)?;
            decide(&app, move |fleet| admit_node(fleet, &request)).await
        }
        _ => Err(not_a_node()),
    }
}

/// Gives a node a new certificate for its own name.
pub(super) async fn renew(
    State(app): State<App>,
    peer: Option<Extension<ConnectionPeer>>,
    EnrolmentBody(body): EnrolmentBody,
) -> Answer<Json<RenewAnswer>> {
    match peer {
        Some(Extension(ConnectionPeer::Node(node))) => {
            let request: RenewRequest = read(&body)?;
            decide(&app, move |fleet| renew_node(fleet, &request, &node)).await
        }
        _ => Err(not_a_node()),
    }
}

/// The authority reads and writes files, so it decides on a thread that may block.
async fn decide<T: Send + 'static>(
    app: &App,
    decision: impl FnOnce(&FleetNode) -> Result<T, Failure> + Send + 'static,
) -> Answer<Json<T>> {
    let Some(fleet) = app.fleet().cloned() else { return Err(not_a_node()) };
    let slot = DECISIONS.acquire().await.map_err(internal)?;
    let decide = move || {
        let decided = decision(&fleet);
        // Also after the client has left.
        drop(slot);
        decided
    };
    let decided = tokio::task::spawn_blocking(decide).await;
    Ok(Json(decided.map_err(internal)??))
}

fn read<T: DeserializeOwned>(body: &Bytes) -> Answer<T> {
    serde_json::from_slice(body).map_err(|error| {
        bad_request(format!("the request for a certificate is not valid: {error}"))
    })
}

/// The router is also behind other doors. They refuse such a request before it gets here.
fn not_a_node() -> Refusal {
    Failure::new(ErrorCode::Unauthorized, "only where the nodes of a fleet connect").into()
}
