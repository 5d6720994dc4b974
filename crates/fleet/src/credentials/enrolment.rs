//! Who may join a fleet, and whose certificate is renewed. The checks of this file are all that decides it.
//!
//! - An invitation is for one node, once, until it expires. It may be bound to a name.
//! - A name that has joined before may join again only with an invitation that is bound to it.
//! - A certificate is renewed for a member's own name.
//! - A removed name is refused until its last certificate has expired.

use std::collections::BTreeMap;
use std::fmt;

use subtle::ConstantTimeEq as _;
use time::OffsetDateTime;
use windlass_protocol::enrolment::{
    ENROLMENT, FleetSettings, JoinAnswer, JoinRequest, RenewAnswer, RenewRequest,
};
use windlass_protocol::{ErrorCode, NodeName};

use super::authority::{FleetAuthority, NODE_VALID_MS};
use super::error::CredentialsError;
use super::random::{base64url, bytes_of, random, sha256};
use super::records::{self, AuthorityRecords, INVITATIONS_MAX, InvitationRecord, MEMBERS_MAX};
use super::token::JoinToken;

/// What an invitation says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewInvitation {
    /// HOST:PORT where the invited machine reaches the authority's node.
    pub address: String,
    /// The name of the authority's node.
    pub authority: NodeName,
    /// The only name that may join with the invitation; absent: any name that never joined.
    pub node: Option<NodeName>,
    pub valid_for_ms: u64,
}

/// The certificates for a node that joins.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedCertificates {
    pub certificate: String,
    pub ca: String,
}

impl IssuedCertificates {
    pub fn answer(self, settings: FleetSettings) -> JoinAnswer {
        let Self { certificate, ca } = self;
        JoinAnswer { version: ENROLMENT, certificate, ca, settings }
    }
}

impl fmt::Debug for IssuedCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedCertificates").finish_non_exhaustive()
    }
}

/// Why a node may not join, or gets no new certificate.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(
        "the message has version {0}, this release knows {ENROLMENT}; use the same release on all nodes"
    )]
    Version(u32),
    #[error("the invitation is unknown or was used; make a new one with `windlass fleet invite`")]
    UnknownInvitation,
    #[error("the invitation has expired; make a new one with `windlass fleet invite`")]
    Expired,
    #[error("the invitation is for the node {0}; join as that node, or make another invitation")]
    BoundTo(NodeName),
    #[error(
        "a node {0} has joined before; choose another name, or make an invitation for it with \
         `windlass fleet invite --node {0}`"
    )]
    NameTaken(NodeName),
    #[error(
        "the node {0} was removed from the fleet, and its name can be used again when its last certificate has \
         expired; join under another name"
    )]
    Removed(NodeName),
    #[error("the node {0} is no member of the fleet; join with an invitation")]
    NotMember(NodeName),
    #[error("{MEMBERS_MAX} nodes have joined the fleet, and no more can join")]
    Full,
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

impl JoinError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Version(_) | Self::Credentials(CredentialsError::Request(_)) => {
                ErrorCode::BadRequest
            }
            Self::UnknownInvitation | Self::Expired => ErrorCode::Unauthorized,
            Self::BoundTo(_)
            | Self::NameTaken(_)
            | Self::Removed(_)
            | Self::NotMember(_)
            | Self::Full => ErrorCode::Forbidden,
            Self::Credentials(_) => ErrorCode::Internal,
        }
    }
}

impl FleetAuthority {
    /// Makes an invitation. Only its token has the secret.
    pub fn invite(
        &self,
        invitation: NewInvitation,
        now_ms: u64,
    ) -> Result<JoinToken, CredentialsError> {
        let NewInvitation { address, authority, node, valid_for_ms } = invitation;
        let secret = random::<32>()?;
        let _lock = records::lock(&self.dir)?;
        let mut records = AuthorityRecords::read(&self.dir)?;
        records.forget_expired(now_ms);
        if records.invitations.len() >= INVITATIONS_MAX {
            return Err(CredentialsError::TooManyInvitations(INVITATIONS_MAX));
        }
        let sha256 = base64url(&sha256(&secret));
        let expires_at_ms = now_ms.saturating_add(valid_for_ms);
        records.invitations.push(InvitationRecord { sha256, expires_at_ms, node });
        records.write(&self.dir)?;
        Ok(JoinToken { address, authority, ca: self.fingerprint(), secret })
    }

    /// Admits a node that has an invitation, and uses the invitation up.
    pub fn join(
        &self,
        request: &JoinRequest,
        now_ms: u64,
    ) -> Result<IssuedCertificates, JoinError> {
        check_version(request.version)?;
        let secret = bytes_of(&request.secret).ok_or(JoinError::UnknownInvitation)?;
        let _lock = records::lock(&self.dir)?;
        let mut records = AuthorityRecords::read(&self.dir)?;
        let found = find(&records.invitations, &secret).ok_or(JoinError::UnknownInvitation)?;
        let invitation = records.invitations.swap_remove(found);
        if now_ms >= invitation.expires_at_ms {
            return Err(JoinError::Expired);
        }
        records.forget_expired(now_ms);
        may_join(&records, &invitation, &request.node)?;
        let certificate = self.sign_at(&request.csr, &request.node, time_of(now_ms))?;
        records.members.insert(request.node.clone());
        // Before the answer: an invitation that could not be used up admits nobody.
        records.write(&self.dir)?;
        Ok(IssuedCertificates { certificate, ca: self.certificate().to_owned() })
    }

    /// A new certificate for the node on the other side of the connection.
    pub fn renew(
        &self,
        request: &RenewRequest,
        peer: &NodeName,
        now_ms: u64,
    ) -> Result<RenewAnswer, JoinError> {
        check_version(request.version)?;
        // A renewal changes no record, but a removal that is under way must count.
        let _lock = records::lock(&self.dir)?;
        let records = AuthorityRecords::read(&self.dir)?;
        if records.removed.contains_key(peer) {
            return Err(JoinError::Removed(peer.clone()));
        }
        if !records.members.contains(peer) {
            return Err(JoinError::NotMember(peer.clone()));
        }
        let certificate = self.sign_at(&request.csr, peer, time_of(now_ms))?;
        Ok(RenewAnswer { version: ENROLMENT, certificate })
    }

    /// Removes a node from the fleet: its certificate is never renewed, and its open invitations are void.
    pub fn remove_node(&self, node: &NodeName, now_ms: u64) -> Result<(), JoinError> {
        let _lock = records::lock(&self.dir)?;
        let mut records = AuthorityRecords::read(&self.dir)?;
        records.forget_expired(now_ms);
        if !records.members.remove(node) {
            return Err(JoinError::NotMember(node.clone()));
        }
        records.invitations.retain(|invitation| invitation.node.as_ref() != Some(node));
        records.removed.insert(node.clone(), now_ms.saturating_add(NODE_VALID_MS));
        Ok(records.write(&self.dir)?)
    }

    /// The nodes that were removed and whose last certificates may be valid, with the time when each has expired.
    pub fn removed(&self, now_ms: u64) -> Result<BTreeMap<NodeName, u64>, CredentialsError> {
        let mut records = AuthorityRecords::read(&self.dir)?;
        records.forget_expired(now_ms);
        Ok(records.removed)
    }

    /// The nodes that have joined and were not removed.
    pub fn members(&self) -> Result<Vec<NodeName>, CredentialsError> {
        Ok(AuthorityRecords::read(&self.dir)?.members.into_iter().collect())
    }
}

fn check_version(version: u32) -> Result<(), JoinError> {
    if version == ENROLMENT { Ok(()) } else { Err(JoinError::Version(version)) }
}

/// The invitation with this secret. The time does not depend on the secret.
fn find(invitations: &[InvitationRecord], secret: &[u8; 32]) -> Option<usize> {
    let hash = base64url(&sha256(secret));
    let mut found = None;
    for (at, invitation) in invitations.iter().enumerate() {
        let matches: bool = invitation.sha256.as_bytes().ct_eq(hash.as_bytes()).into();
        if matches {
            found = Some(at);
        }
    }
    found
}

fn may_join(
    records: &AuthorityRecords,
    invitation: &InvitationRecord,
    node: &NodeName,
) -> Result<(), JoinError> {
    if let Some(bound) = invitation.node.as_ref().filter(|bound| *bound != node) {
        return Err(JoinError::BoundTo(bound.clone()));
    }
    if records.removed.contains_key(node) {
        return Err(JoinError::Removed(node.clone()));
    }
    let is_member = records.members.contains(node);
    if is_member && invitation.node.is_none() {
        return Err(JoinError::NameTaken(node.clone()));
    }
    if !is_member && records.names() >= MEMBERS_MAX {
        return Err(JoinError::Full);
    }
    Ok(())
}

/// The time as a certificate has it. Years beyond 9999 do not exist there.
fn time_of(now_ms: u64) -> OffsetDateTime {
    let seconds = i64::try_from(now_ms / 1_000).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
