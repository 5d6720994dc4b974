//! Which node a new session is made on. Pure: the node measures, asks and passes the request on.
//!
//! The node that is asked compares its own load with that of a few random nodes. Nodes without room, cordoned ones and
//! those without the wanted labels are left out. The others are tried from the best to the worst.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use windlass_protocol::NodeName;
use windlass_protocol::fleet_view::{NodeLoad, NodeStanding};

/// Number of random nodes that are asked besides the own one.
pub const ASKED_NODES: usize = 3;

/// The score of a node without any load.
const SCORE_MAX: u64 = 1_000_000;

/// A node with this much free memory has half of the score for memory. More memory counts less and less.
const HALF_SCORE_BYTES: u64 = 4 << 30;

/// So many sessions count as one busy processor: most sessions are idle.
const SESSIONS_PER_PROCESSOR: u64 = 16;

/// How much a ready worker of the wanted kind adds to the score, in per cent.
const READY_BONUS: u64 = 10;

/// The own node is chosen unless another one is better by more than this, in per cent: a local start is cheaper.
const OWN_BONUS: u64 = 20;

/// What a session needs of its node.
#[derive(Debug, Clone, Copy)]
pub struct PlacementWish<'a> {
    /// The kind of worker.
    pub kind: &'a str,
    pub labels: &'a BTreeMap<String, String>,
}

/// A node that was asked for its load; without a load if it did not answer in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedNode {
    pub node: NodeName,
    pub load: Option<NodeLoad>,
}

/// Why a node does not get a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlacementRefusal {
    NoAnswer,
    Cordoned,
    NotServing(NodeStanding),
    NoMemory {
        available_bytes: u64,
        reserve_bytes: u64,
    },
    Full {
        sessions: u64,
        max: u64,
    },
    OtherLabels,
    /// The node refused the request itself, with this message.
    Refused(String),
}

impl PlacementRefusal {
    /// Why a node with this load takes no new session; `None` if it takes one.
    pub fn of(load: &NodeLoad) -> Option<Self> {
        let (memory, sessions) = (load.memory, load.sessions);
        if load.cordoned {
            return Some(Self::Cordoned);
        }
        if load.standing != NodeStanding::Serving {
            return Some(Self::NotServing(load.standing));
        }
        if sessions.live >= sessions.max {
            return Some(Self::Full { sessions: sessions.live, max: sessions.max });
        }
        (memory.free_bytes() == 0).then_some(Self::NoMemory {
            available_bytes: memory.available_bytes,
            reserve_bytes: memory.reserve_bytes,
        })
    }
}

impl fmt::Display for PlacementRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer => f.write_str("did not answer in time"),
            Self::Cordoned => f.write_str("is cordoned"),
            Self::NotServing(standing) => {
                write!(f, "takes no sessions, its standing is {}", standing.as_str())
            }
            Self::NoMemory { available_bytes, reserve_bytes } => {
                let (available, reserve) = (available_bytes >> 20, reserve_bytes >> 20);
                write!(f, "has {available} MiB of memory left and keeps {reserve} MiB in reserve")
            }
            Self::Full { sessions, max } => write!(f, "has {sessions} sessions of at most {max}"),
            Self::OtherLabels => f.write_str("has other labels"),
            Self::Refused(message) => write!(f, "refused: {message}"),
        }
    }
}

/// The nodes for one session, from the best to the worst. A node that refuses is not tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    candidates: VecDeque<NodeName>,
    refusals: Vec<(NodeName, PlacementRefusal)>,
}

impl Placement {
    /// `asked` has the own node too, and each node once.
    pub fn of(wish: PlacementWish<'_>, own: &NodeName, asked: Vec<AskedNode>) -> Self {
        let (mut scored, mut refusals) = (Vec::new(), Vec::new());
        for AskedNode { node, load } in asked {
            let refusal = match &load {
                None => Some(PlacementRefusal::NoAnswer),
                Some(load) if !load.has_labels(wish.labels) => Some(PlacementRefusal::OtherLabels),
                Some(load) => PlacementRefusal::of(load),
            };
            match (refusal, load) {
                (None, Some(load)) => {
                    let bonus = if node == *own { OWN_BONUS } else { 0 };
                    scored.push((score(&load, wish.kind) * (100 + bonus), node));
                }
                (refusal, _) => {
                    refusals.push((node, refusal.unwrap_or(PlacementRefusal::NoAnswer)));
                }
            }
        }
        // Of two equal nodes the own one is first, then the name decides.
        scored.sort_by_key(|(score, node)| (Reverse(*score), node != own, node.clone()));
        let candidates = scored.into_iter().map(|(_, node)| node).collect();
        Self { candidates, refusals }
    }

    /// The best node that was not tried yet.
    pub fn try_best(&mut self) -> Option<NodeName> {
        self.candidates.pop_front()
    }

    /// A node of [`Self::try_best`] has no room after all.
    pub fn refused(&mut self, node: NodeName, message: String) {
        self.refusals.push((node, PlacementRefusal::Refused(message)));
    }

    /// The nodes that refused so far, and why.
    pub fn refusals(&self) -> &[(NodeName, PlacementRefusal)] {
        &self.refusals
    }
}

/// How well a node suits a session, up to [`SCORE_MAX`] and the bonus.
fn score(load: &NodeLoad, kind: &str) -> u64 {
    let free = u128::from(load.memory.free_bytes());
    let memory = 1_000 * free / (free + u128::from(HALF_SCORE_BYTES));
    let memory = u64::try_from(memory).unwrap_or(1_000);
    // In hundredths of a processor. Each value is from another node: nothing may overflow.
    let processors = load.processors.count.clamp(1, 1 << 20) * 100;
    let by_sessions = load.sessions.live.min(1 << 40) * 100 / SESSIONS_PER_PROCESSOR;
    let busy = by_sessions + load.processors.load_hundredths.min(1 << 40);
    let idle = 1_000 * processors / (processors + busy);
    let is_ready = load.ready.iter().any(|workers| workers.worker == kind && workers.ready > 0);
    let bonus = if is_ready { READY_BONUS } else { 0 };
    (memory * idle).min(SCORE_MAX) * (100 + bonus) / 100
}
