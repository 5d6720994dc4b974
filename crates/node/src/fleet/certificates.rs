//! Certificates: this node renews its own in time, and gives certificates to other nodes if it has the fleet's authority.

use std::time::Duration;

use windlass_fleet::credentials::{
    AuthoritySite, CredentialsError, EnrolError, FleetAuthority, JoinError, renew,
};
use windlass_protocol::enrolment::{JoinAnswer, JoinRequest, RenewAnswer, RenewRequest};
use windlass_protocol::{ErrorCode, NodeName};

use super::FleetNode;
use crate::clock::now_ms;
use crate::failure::Failure;

/// How often the node looks at how long its certificate is valid.
const LOOK: Duration = Duration::from_secs(3_600);

/// Why a certificate was not renewed.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error(transparent)]
    Enrolment(#[from] EnrolError),
    #[error(transparent)]
    Refused(#[from] JoinError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// Renews the node's certificate whenever a third of its time is left.
pub(super) async fn keep_valid(fleet: &FleetNode) {
    loop {
        if fleet.tls.is_due(now_ms()) {
            match renew_own(fleet).await {
                Ok(()) => tracing::info!("the node's certificate in its fleet was renewed"),
                Err(error) => tracing::warn!(
                    %error,
                    expires_at_ms = fleet.tls.expires_at(),
                    "the node's certificate in its fleet was not renewed; the node tries again in an hour"
                ),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn renew_own(fleet: &FleetNode) -> Result<(), RenewalError> {
    let dir = &fleet.config.credentials;
    match FleetAuthority::open(dir)? {
        Some(authority) => {
            let answer = authority.renew(&fleet.tls.renewal_request()?, fleet.name(), now_ms())?;
            Ok(fleet.tls.install(&answer)?)
        }
        None => Ok(renew(&fleet.tls, &AuthoritySite::read(dir)?).await?),
    }
}

/// Gives a new node its certificate. Blocks.
pub(crate) fn admit_node(fleet: &FleetNode, request: &JoinRequest) -> Result<JoinAnswer, Failure> {
    let issued = authority(fleet)?.join(request, now_ms()).map_err(|error| refused(&error))?;
    tracing::info!(node = %request.node, "a node has joined the fleet");
    Ok(issued.answer(fleet.config.settings()))
}

/// Gives a node another certificate for its name. Blocks.
pub(crate) fn renew_node(
    fleet: &FleetNode,
    request: &RenewRequest,
    node: &NodeName,
) -> Result<RenewAnswer, Failure> {
    authority(fleet)?.renew(request, node, now_ms()).map_err(|error| refused(&error))
}

fn authority(fleet: &FleetNode) -> Result<FleetAuthority, Failure> {
    let opened = FleetAuthority::open(&fleet.config.credentials);
    opened.map_err(|error| refused(&error.into()))?.ok_or_else(|| {
        let message = "this node does not have the fleet's authority; ask the node where \
                       `windlass fleet init` ran";
        Failure::new(ErrorCode::NotHere, message)
    })
}

fn refused(error: &JoinError) -> Failure {
    tracing::warn!(%error, "a request for a certificate was refused");
    Failure::new(error.code(), error.to_string())
}
