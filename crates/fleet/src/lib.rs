//! What the nodes of a fleet share: leases, the directory of sessions, and a copy of their events. The decisions are
//! those of `windlass_lifecycle::fleet`; this crate asks the store and the clock, and acts.
//!
//! - [`store`]: the records and copies, on NATS JetStream. No other module knows NATS;
//! - [`membership`]: keeps this node's lease and judges the other nodes;
//! - [`directory`]: creates and ends the entries of sessions, and compares them with this node;
//! - [`copies`]: copies the events of sessions, and reads them;
//! - [`credentials`]: certificates of the nodes, invitations to join, and TLS between nodes.
//!
//! This crate never knows a session's life, the HTTP door or the journal: the node gives it entries and bytes.

pub mod clock;
pub mod copies;
pub mod credentials;
pub mod directory;
pub mod membership;
pub mod store;

pub use clock::FleetClock;
pub use membership::{Membership, MembershipSettings};
pub use store::{FleetStore, FleetStoreError, StoreSettings};
