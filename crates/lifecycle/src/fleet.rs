//! The decisions of a fleet: who lives, who owns a session, and how far its events are copied.
//!
//! All machines work on one store that they share with the other nodes. The store has one operation that decides:
//! write a record if its revision is the expected one. Answers can be late, lost or doubled, so a machine whose write
//! has no answer reads the record and knows its own write by its stamp.
//!
//! - [`lease`]: a node keeps its lease, and knows how long it may accept turns;
//! - [`peers`]: a node judges another node, and declares it lost;
//! - [`entries`]: who owns a session, and what a node repairs when it comes back;
//! - [`copy`]: how far a session's events are in the fleet's copy;
//! - [`placement`]: which node a new session is made on;
//! - [`write`]: one conditional write whose answer may be lost.
//!
//! Times are readings of the node's own monotonic clock, which counts while the machine sleeps.

pub mod copy;
pub mod entries;
pub mod lease;
pub mod peers;
pub mod placement;
pub mod timing;
pub mod write;

pub use copy::{CopyHead, CopyRequest, EventCopy};
pub use entries::{EntryRepair, LocalSession, NameClaim, SessionFate};
pub use lease::{FenceCause, LeaseHolder, LeaseKeeper, LeaseRequest, LeaseStanding};
pub use peers::{PeerRequest, PeerStatus, PeerWatch};
pub use placement::{AskedNode, Placement, PlacementRefusal, PlacementWish};
pub use timing::{ClockMs, LeaseTiming};
pub use write::{ConditionalWrite, Current, WriteAnswer, WriteEnd, WriteStep};
