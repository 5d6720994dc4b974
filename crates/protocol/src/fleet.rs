//! The records that the nodes of a fleet keep in the store that they share (`docs/fleet-records.md`). The decisions
//! about them are in `windlass_lifecycle::fleet`.

use serde::{Deserialize, Serialize};

use crate::{Generation, NodeName, Revision, Seq, SessionId};

/// The header of a request that a node passes on: the rights of the client's token at the first node, `SCOPE` or
/// `SCOPE@TENANT`.
pub const PASSED_ON_HEADER: &str = "windlass-passed-on";

/// The header of a client that finds its sessions again in the list of one node: with the value [`PLACED_HERE`], the
/// node that is asked makes the session itself. A node without a fleet ignores it.
pub const PLACEMENT_HEADER: &str = "windlass-placement";
pub const PLACED_HERE: &str = "here";

/// The version of all records of this module.
pub const FLEET_RECORDS: u32 = 1;

/// One start of one node: a random number that no other start of any node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootNonce(pub u64);

/// One installation of a node: a random number in its state directory, which no other installation has. Two processes of
/// one installation never run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstallationId(pub u64);

/// Tells the writes of all nodes apart. A node whose write has no answer reads the record, and knows its own write by
/// the stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WriteStamp {
    pub boot: BootNonce,
    /// Counts the writes of this start of the node.
    pub write: u64,
}

/// A record of which nodes recognize their own write.
pub trait Stamped {
    fn stamp(&self) -> WriteStamp;
}

/// The lease of a node: while the record is there, the node lives. The store removes the record when the node has not
/// renewed it for its time to live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    pub version: u32,
    pub node: NodeName,
    pub installation: InstallationId,
    pub stamp: WriteStamp,
    /// Where other nodes reach this node.
    pub address: String,
}

/// What the fleet has decided about a node. Unlike the lease, this record never expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    pub version: u32,
    pub node: NodeName,
    /// The installation that has confirmed the generation. A node that declares another node lost leaves it alone.
    pub installation: InstallationId,
    pub stamp: WriteStamp,
    pub generation: Generation,
    /// True: all sessions of this generation and of earlier ones are lost. The node never accepts a turn for them again.
    pub lost: bool,
}

/// A node was removed from the fleet: other nodes refuse it. The store forgets the record when the last certificate of the
/// node has expired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalRecord {
    pub version: u32,
    pub node: NodeName,
    /// When the last certificate has expired, in milliseconds since 1970.
    pub until_ms: u64,
}

/// Who owns a session, and how the session ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionEntry {
    pub version: u32,
    pub session: SessionId,
    pub owner: NodeName,
    /// The generation of the owner that made the session.
    pub generation: Generation,
    pub stamp: WriteStamp,
    pub state: EntryState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum EntryState {
    /// The owner has the session, unless the owner's generation is lost.
    Live,
    /// The owner has ended the session. The batches of its copy have this incarnation. Earlier releases do not write it.
    Ended {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incarnation: Option<Revision>,
    },
    /// The owner was lost. Events up to `copied` can be read from the fleet's copy. Without an incarnation, the revision of
    /// this record is the session's incarnation.
    Lost {
        copied: Seq,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incarnation: Option<Revision>,
    },
}

impl Stamped for LeaseRecord {
    fn stamp(&self) -> WriteStamp {
        self.stamp
    }
}

impl Stamped for MemberRecord {
    fn stamp(&self) -> WriteStamp {
        self.stamp
    }
}

impl Stamped for SessionEntry {
    fn stamp(&self) -> WriteStamp {
        self.stamp
    }
}
