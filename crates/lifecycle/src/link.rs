//! The link between a node and a keeper, as two pure halves: numbering, acknowledging, holding,
//! doing once, fencing. They take messages and give messages; sockets are elsewhere.
//!
//! What the two halves promise together, whatever is cut or killed in between:
//! - every event of the keeper reaches the journal once, in order ([`LinkSeq`] is consecutive);
//! - every command of a node is done at most once, in order, and exactly once if the node lives;
//! - of two nodes that claim one keeper, only the one with the higher epoch is heard.
//!
//! [`LinkSeq`]: windlass_protocol::LinkSeq

mod keeper_half;
mod node_half;

pub use keeper_half::{CommandProgress, KeeperHalf, OutgoingEvent};
pub use node_half::{Arrival, LocalCommandSeq, NodeHalf};
