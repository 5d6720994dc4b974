//! The link between a node and a keeper, as two pure halves. They number, acknowledge, hold and
//! deduplicate messages, and fence off old nodes. They take and return messages; the sockets are elsewhere.
//!
//! Guarantees of the two halves together, whichever connection breaks and whichever node dies:
//! - Every event of the keeper reaches the journal once, in order ([`LinkSeq`] is consecutive).
//! - The keeper executes every command of a node at most once, in order. If the node lives, exactly once.
//! - If two nodes claim one keeper, the keeper obeys only the node with the higher epoch.
//!
//! [`LinkSeq`]: windlass_protocol::LinkSeq

mod keeper_half;
mod node_half;

pub use keeper_half::{CommandProgress, KeeperHalf, OutgoingEvent};
pub use node_half::{Arrival, LocalCommandSeq, NodeHalf};
