//! What nodes of a fleet tell each other and their clients about the fleet: the load of a node, a cordon, the list of
//! nodes. The records of the store are in [`crate::fleet`]. This module decides nothing about placement.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Generation, NodeName};

/// The version of [`NodeLoad`]. A node ignores the load of a node that has another version.
pub const NODE_LOAD: u32 = 1;

/// Maximum number of labels of a node or of a request, and maximum length of each name and value.
pub const LABELS_MAX: usize = 32;
pub const LABEL_CHARS_MAX: usize = 64;

/// Why labels cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error("there are {0} labels, more than the limit of {LABELS_MAX}")]
    TooMany(usize),
    #[error(
        "{0:?} is not a label: a name and a value have 1 to {LABEL_CHARS_MAX} letters, digits, '-', '_', '.' or '/'"
    )]
    Form(String),
}

/// Checks the labels of a node, or those that a request asks for.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), LabelError> {
    if labels.len() > LABELS_MAX {
        return Err(LabelError::TooMany(labels.len()));
    }
    let is_good = |text: &String| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        (1..=LABEL_CHARS_MAX).contains(&text.len()) && text.bytes().all(allowed)
    };
    match labels.iter().find(|(name, value)| !is_good(name) || !is_good(value)) {
        Some((name, value)) => Err(LabelError::Form(format!("{name}={value}"))),
        None => Ok(()),
    }
}

/// On which node a new session is wanted. Without it, the node that is asked chooses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlacementRule {
    /// The node of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// A node that has all these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// The load of a node, as the node itself measures it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeLoad {
    pub version: u32,
    pub node: NodeName,
    /// The version of Windlass that the node runs.
    pub release: String,
    /// The node's clock when it answered, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    pub standing: NodeStanding,
    /// Whether the node takes no new sessions because a user wants so.
    pub cordoned: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    pub sessions: SessionCapacity,
    pub memory: MemoryCapacity,
    pub processors: ProcessorCapacity,
    /// Pooled workers that are ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ready: Vec<ReadyWorkers>,
}

impl NodeLoad {
    /// Whether the node is cordoned and still has sessions.
    pub fn is_draining(&self) -> bool {
        self.cordoned && self.sessions.live > 0
    }

    /// Whether the node has all these labels.
    pub fn has_labels(&self, wanted: &BTreeMap<String, String>) -> bool {
        wanted.iter().all(|(name, value)| self.labels.get(name) == Some(value))
    }
}

/// What a node may do in its fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeStanding {
    /// The node has not joined the fleet yet.
    Joining,
    /// The node serves its sessions and takes new ones.
    Serving,
    /// The node has not renewed its lease for a while: it serves its sessions and takes no new ones.
    Closed,
    /// The node has lost its lease: it accepts no turns and ends its sessions.
    Fenced,
}

impl NodeStanding {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Serving => "serving",
            Self::Closed => "closed",
            Self::Fenced => "fenced",
        }
    }
}

/// How many sessions a node has, and how many it takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionCapacity {
    pub live: u64,
    pub max: u64,
}

/// The memory of a node. The limit of the node's cgroup counts, if it is tighter than the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryCapacity {
    pub total_bytes: u64,
    pub available_bytes: u64,
    /// What must stay available: below it, the node takes no new sessions.
    pub reserve_bytes: u64,
}

impl MemoryCapacity {
    /// Bytes for new sessions.
    pub fn free_bytes(&self) -> u64 {
        self.available_bytes.saturating_sub(self.reserve_bytes)
    }
}

/// The processors of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessorCapacity {
    pub count: u64,
    /// The machine's load average over one minute, in hundredths.
    pub load_hundredths: u64,
}

/// The pooled workers of one environment that are ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadyWorkers {
    /// The kind of worker.
    pub worker: String,
    /// The interpreter, as the node's configuration names it.
    pub interpreter: String,
    pub ready: u64,
}

/// The request to cordon a node, or to let it take sessions again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetCordon {
    pub on: bool,
}

/// Whether a node is cordoned, and how many sessions it still has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CordonState {
    pub node: NodeName,
    pub cordoned: bool,
    pub sessions: u64,
}

/// What the fleet knows of a node's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FleetNodeStatus {
    Alive,
    /// The lease is gone. The sessions may come back.
    Unreachable,
    /// The sessions of this node are lost.
    Lost,
}

impl FleetNodeStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Unreachable => "unreachable",
            Self::Lost => "lost",
        }
    }
}

/// A node of the fleet, as the node that answers knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetNodeView {
    pub node: NodeName,
    pub status: FleetNodeStatus,
    /// Whether this is the node that answers.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_self: bool,
    /// Where other nodes reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Its load. Absent if it did not answer in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<NodeLoad>,
    /// Why there is no load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long its answer took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_ms: Option<u64>,
    /// How far its clock is ahead of the clock of the node that answers. Exact to `answer_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ahead_ms: Option<i64>,
}

/// The nodes of a fleet, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetNodeList {
    pub nodes: Vec<FleetNodeView>,
}

/// How a node stands in its fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetStatus {
    pub node: NodeName,
    pub release: String,
    pub standing: NodeStanding,
    pub cordoned: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Time since the last acknowledged renewal of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_age_ms: Option<u64>,
    /// From this age on the node takes no new sessions.
    pub lease_close_ms: u64,
    /// From this age on the node ends its sessions.
    pub lease_fence_ms: u64,
    pub store: FleetStoreStatus,
    /// When the node's certificate expires, in milliseconds since the Unix epoch.
    pub certificate_expires_at_ms: u64,
    pub nodes: FleetNodeCounts,
    /// Live sessions of the nodes that answered.
    pub sessions: u64,
}

/// Whether the store of the fleet answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetStoreStatus {
    pub reachable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_ms: Option<u64>,
    /// Why the store cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Number of nodes by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetNodeCounts {
    pub alive: u64,
    pub unreachable: u64,
    pub lost: u64,
    /// Nodes that are alive and did not answer in time.
    pub silent: u64,
}

impl FleetNodeCounts {
    pub fn of(list: &FleetNodeList) -> Self {
        let mut counts = Self::default();
        for node in &list.nodes {
            match node.status {
                FleetNodeStatus::Alive if node.load.is_none() => {
                    counts.alive += 1;
                    counts.silent += 1;
                }
                FleetNodeStatus::Alive => counts.alive += 1,
                FleetNodeStatus::Unreachable => counts.unreachable += 1,
                FleetNodeStatus::Lost => counts.lost += 1,
            }
        }
        counts
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn labels_are_few_and_short() {
        assert_eq!(check_labels(&labels(&[("zone", "eu-1/a"), ("gpu", "yes")])), Ok(()));
        for (name, value) in
            [("", "a"), ("a", ""), ("a b", "c"), ("a", "ü"), ("a", &*"x".repeat(65))]
        {
            let refused = check_labels(&labels(&[(name, value)]));
            assert_eq!(refused, Err(LabelError::Form(format!("{name}={value}"))));
        }
        let many = (0..=LABELS_MAX).map(|number| (format!("l{number}"), "x".to_owned())).collect();
        assert_eq!(check_labels(&many), Err(LabelError::TooMany(LABELS_MAX + 1)));
    }

    #[test]
    fn a_rule_is_written_as_the_documentation_says() {
        for (text, node, zone) in [
            (r#"{"node":"n2"}"#, Some("n2"), None),
            (r#"{"labels":{"zone":"a"}}"#, None, Some("a")),
            ("{}", None, None),
        ] {
            let rule: PlacementRule = serde_json::from_str(text).unwrap();
            assert_eq!(rule.node.as_ref().map(NodeName::as_str), node);
            assert_eq!(rule.labels.get("zone").map(String::as_str), zone);
            assert_eq!(serde_json::to_string(&rule).unwrap(), text);
        }
        assert!(serde_json::from_str::<PlacementRule>(r#"{"nod":"n2"}"#).is_err());
    }
}
