//! How a session was made, as the journal records it.

use std::path::PathBuf;

use windlass_journal::{NewSession, SessionFacts};
use windlass_protocol::api::{Durability, TerminalSize};
use windlass_protocol::policy::{HostRules, Network, Policy};
use windlass_protocol::{ClientName, Owner, SessionId, kinds};
use windlass_telemetry::TraceParent;
use windlass_tools::Caller;

use crate::failure::Failure;

/// How a session was made, as the journal records it. The next node needs it to take the session over.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Spec {
    #[serde(default = "default_interrupt_grace_ms")]
    pub interrupt_grace_ms: u64,
    /// Absent in records of releases without policies.
    #[serde(default)]
    pub policy: Option<Policy>,
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
    /// The session's temporary directory, if it has no private `/tmp` or installs packages.
    #[serde(default)]
    pub tmp: Option<PathBuf>,
    /// The program that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientName>,
    #[serde(default)]
    pub owner: Option<Owner>,
    /// The session that it was forked from, and the first session of its family.
    #[serde(default)]
    pub forked_from: Option<SessionId>,
    #[serde(default)]
    pub family: Option<SessionId>,
    /// The session whose child it is, and the first session of the parent's family. The child follows that family's
    /// rules for secrets.
    #[serde(default)]
    pub parent: Option<SessionId>,
    #[serde(default)]
    pub parent_family: Option<SessionId>,
    /// The directory that its workspace is a copy of.
    #[serde(default)]
    pub copied_from: Option<String>,
    /// The session's first room, in which its twins' directories are made (`windlass_protocol::family`).
    #[serde(default)]
    pub room: Option<PathBuf>,
    /// The package environment that its worker runs in.
    #[serde(default)]
    pub environment: Option<String>,
    /// The size of the terminal that its code has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// The home of the session's agent.
    #[serde(default)]
    pub agent_home: Option<PathBuf>,
    /// The interpreter whose zygote its workers are forked from.
    #[serde(default)]
    pub zygote_of: Option<PathBuf>,
    /// Its idle timeout in seconds, 0 for none. Absent: the node's timeout.
    #[serde(default)]
    pub idle_s: Option<u64>,
    /// The default deadline of its turns. Absent: the node's default.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Durability::is_local")]
    pub durability: Durability,
    /// The span of the client that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceParent>,
    /// Whether its environment sets `TRACEPARENT`. The journal has no values of variables.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub env_has_traceparent: bool,
}

/// The grace of a session whose record has none.
fn default_interrupt_grace_ms() -> u64 {
    5000
}

/// The session that a twin was forked from, according to its record.
pub(crate) fn original_of(facts: &SessionFacts) -> Option<SessionId> {
    Spec::of(&facts.created).ok()?.forked_from
}

/// The session whose child a session is, according to its record.
pub(crate) fn parent_of(facts: &SessionFacts) -> Option<SessionId> {
    Spec::of(&facts.created).ok()?.parent
}

impl Spec {
    /// Reads a session's record. Missing fields get their defaults. A record that cannot be parsed is an
    /// error, because its policy would be lost.
    pub(super) fn of(created: &NewSession) -> Result<Self, Failure> {
        serde_json::from_value(created.spec.clone()).map_err(|error| {
            Failure::internal(&format!("cannot read the record of session {}: {error}", created.id))
        })
    }

    /// The JSON value for the journal.
    pub(super) fn record(&self) -> Result<serde_json::Value, Failure> {
        serde_json::to_value(self).map_err(|error| {
            Failure::internal(&format!("cannot encode a session's record: {error}"))
        })
    }

    /// The limit on the session's wall time.
    pub(super) fn wall_s(&self) -> Option<u64> {
        self.policy.as_ref()?.limits.wall_s
    }

    /// The session as tool hosts know it.
    pub(super) fn caller(&self, created: &NewSession) -> Caller {
        let rules = self.policy.as_ref().map_or_else(Vec::new, |policy| policy.tools.clone());
        let words = kinds::terms_of(&created.worker_kind);
        let (session, parent) = (created.id.clone(), self.parent.clone());
        Caller { session, parent, owner: self.owner.clone(), rules, words }
    }

    /// The hosts that the session may reach, if its policy is a list of hosts.
    pub(super) fn hosts(&self) -> Option<HostRules> {
        match &self.policy.as_ref()?.network {
            Network::Hosts(rules) => Some(rules.clone()),
            Network::None | Network::Open => None,
        }
    }
}
