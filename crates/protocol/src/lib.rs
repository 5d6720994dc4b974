//! The messages between processes, and the frame codec that carries them. This crate has no I/O, no clock and
//! no decisions.
//!
//! Five protocols use this crate:
//! - [`worker`]: keeper and worker, the public worker protocol (`docs/protocol.md`);
//! - [`link`]: node and keeper, private to one release line, but versioned;
//! - [`nursery`]: node and nursery, private to one release line;
//! - [`api`]: clients and node, the JSON of the HTTP door (`docs/openapi.json`);
//! - [`host`]: node and tool host, the frames of the WebSocket (`docs/tools.md`).
//!
//! The records that nodes of a fleet share are in [`fleet`], what they tell of themselves in [`fleet_view`]. The shared types are in [`ids`], [`event`], [`agent`], [`policy`], [`refusal`],
//! [`confinement`] and [`frame`].

pub mod agent;
pub mod api;
pub mod confinement;
pub mod disk;
pub mod enrolment;
pub mod environments;
pub mod error;
pub mod event;
pub mod family;
pub mod fleet;
pub mod fleet_view;
pub mod frame;
pub mod host;
pub mod ids;
pub mod kinds;
pub mod limits;
pub mod link;
pub mod nursery;
pub mod packages;
pub mod parts;
pub mod policy;
pub mod refusal;
pub mod server_holder;
pub mod storage;
pub mod text;
pub mod turn;
pub mod variables;
pub mod worker;

pub use error::ErrorCode;
pub use event::{Event, EventKind, Outcome, Stream};
pub use ids::{
    CallNo, ClientName, Epoch, Generation, LinkSeq, NodeName, Owner, Revision, Seq, SessionId,
    TenantName, TokenName, TurnId, TurnNo,
};
