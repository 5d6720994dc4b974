//! The credentials of a fleet's nodes: the authority that signs their certificates, invitations to join, and TLS
//! between nodes. Never knows the store, or what nodes say to each other.
//!
//! One directory has all files. It and they are private to their user.
//!
//! | file | what it is | where |
//! |---|---|---|
//! | `node.pem`, `node.key` | the certificate and the key of the node | each node |
//! | `fleet-ca.pem` | the certificate of the fleet's authority | each node |
//! | `authority-site.json` | which node has the authority | each node |
//! | `authority.pem`, `authority.key` | the certificate and the key of the authority | the first node |
//! | `authority.json` | invitations (hashes), members, removed names | the first node |
//!
//! There are no revocation lists. A removed node gets no new certificate, and its last one is valid for 30 days at
//! most. The other nodes refuse it by its name ([`FleetAuthority::removed`]).

mod authority;
mod certificate;
mod enrol;
mod enrolment;
mod error;
mod files;
mod names;
mod node_files;
mod random;
mod records;
mod request;
#[cfg(test)]
mod tests;
mod tls;
mod token;

pub use authority::{FleetAuthority, NODE_VALID_MS};
pub use enrol::{EnrolError, join, renew};
pub use enrolment::{IssuedCertificates, JoinError, NewInvitation};
pub use error::CredentialsError;
pub use node_files::{AuthoritySite, NodeCredentialFiles};
pub use random::Fingerprint;
pub use records::{INVITATIONS_MAX, MEMBERS_MAX};
pub use tls::{NodeTls, join_connector};
pub use token::{JoinToken, JoinTokenError};
