//! The settings of a node, and the paths that follow from them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use windlass_audit::AuditOptions;
use windlass_journal::RetentionOptions;
use windlass_lifecycle::fleet::LeaseTiming;
use windlass_procs::HoldMode;
use windlass_protocol::enrolment::{FleetSettings, without_password};
use windlass_protocol::environments::{EnvironmentEntry, EnvironmentsFile};
use windlass_protocol::kinds;
use windlass_protocol::{NodeName, SessionId};
use windlass_telemetry::TelemetrySetting;

use crate::quotas::TenantQuotas;
use crate::user_ids::UidRange;
use crate::worker_config::WorkersConfig;

/// The default idle timeout and deadline. A user who comes back the next morning finds the session, and a
/// forgotten session ends.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A node's settings; `Config::new` has the defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// Locks and sockets, private to the user.
    pub runtime_dir: PathBuf,
    /// The journal and worker files.
    pub state_dir: PathBuf,
    /// The program that is started as `PROGRAM keeper ...`: this executable.
    pub program: PathBuf,
    pub hold: HoldMode,
    /// The TCP door; closed when absent.
    pub listen: Option<Listen>,
    /// Idle timeout of a node without sessions; none when absent.
    pub idle_exit: Option<Duration>,
    pub keepers: KeeperTimeouts,
    pub defaults: SessionDefaults,
    pub retention: RetentionOptions,
    /// Whether the audit log is kept, and for how long.
    pub audit: AuditOptions,
    /// The fastest way in which workers may be started.
    pub start: StartBy,
    /// The interpreters for which pooled workers are kept.
    pub environments: EnvironmentsConfig,
    /// Further kinds of worker, and settings of the built-in kinds.
    pub workers: WorkersConfig,
    /// The user ids of sessions. Without it sessions have the node's user id.
    pub session_uids: Option<UidRange>,
    /// The fleet of the node; absent for a node on its own.
    pub fleet: Option<FleetConfig>,
    /// What the sessions of each tenant may hold on this node.
    pub tenants: TenantQuotas,
    /// Where spans go.
    pub telemetry: TelemetrySetting,
}

/// What makes the node part of a fleet.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetConfig {
    pub node: NodeName,
    /// URLs of the servers of the store. A URL may carry a user and a password.
    pub servers: Vec<String>,
    /// The authorities that may sign the servers' certificates; absent: those that the machine trusts.
    pub store_ca: Option<PathBuf>,
    pub replicas: usize,
    /// Where other nodes connect.
    pub listen: SocketAddr,
    /// HOST:PORT where other nodes reach this node.
    pub address: String,
    /// The directory of the node's key and certificate.
    pub credentials: PathBuf,
    pub timing: LeaseTiming,
    /// Names and values that a placement can ask for.
    pub labels: BTreeMap<String, String>,
    /// How many sessions the node has at most when others send it new ones; by its memory when absent.
    pub max_sessions: Option<u64>,
}

impl FleetConfig {
    /// What all nodes of the fleet have in common, for a node that joins.
    pub fn settings(&self) -> FleetSettings {
        FleetSettings {
            servers: self.servers.clone(),
            replicas: self.replicas,
            lease_ms: self.timing.ttl_ms,
            lost_after_ms: self.timing.lost_after_ms,
        }
    }
}

impl fmt::Debug for FleetConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self.servers.iter().map(|url| without_password(url)).collect();
        f.debug_struct("FleetConfig")
            .field("node", &self.node)
            .field("servers", &servers)
            .field("store_ca", &self.store_ca)
            .field("replicas", &self.replicas)
            .field("listen", &self.listen)
            .field("address", &self.address)
            .field("credentials", &self.credentials)
            .field("timing", &self.timing)
            .field("labels", &self.labels)
            .field("max_sessions", &self.max_sessions)
            .finish()
    }
}

/// Time limits of keepers and their workers.
#[derive(Debug, Clone, Copy)]
pub struct KeeperTimeouts {
    /// How long a keeper stays alive without a node.
    pub node_grace: Duration,
    /// Maximum time until a new worker reports that it is ready.
    pub start_timeout: Duration,
    /// Maximum time until a keeper answers a restart.
    pub patience: Duration,
}

impl KeeperTimeouts {
    /// Maximum time until a keeper answers whose worker may take this long to be ready, or the default time. The
    /// keeper answers once its worker is ready or has failed.
    pub(crate) fn patience_with(&self, ready: Option<Duration>) -> Duration {
        let longer = ready.unwrap_or_default().saturating_sub(self.start_timeout);
        self.patience + longer
    }
}

/// What holds for a session that names no value of its own.
#[derive(Debug, Clone, Copy)]
pub struct SessionDefaults {
    /// Time that an interrupted turn has to stop.
    pub interrupt_grace: Duration,
    /// Idle timeout of a session without a client and a turn; none when absent.
    pub idle: Option<Duration>,
    /// Deadline of a turn; none when absent. A turn can override it too.
    pub deadline: Option<Duration>,
    /// Output bytes that the journal keeps for a session.
    pub output_quota_bytes: u64,
}

/// Ways to start a worker, slowest first. Each falls back to the ones before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StartBy {
    /// Run the worker's program.
    Exec,
    /// Fork the worker from a zygote.
    Zygote,
    /// Take a pooled worker.
    #[default]
    Pool,
}

impl StartBy {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "exec" => Some(Self::Exec),
            "zygote" => Some(Self::Zygote),
            "pool" => Some(Self::Pool),
            _ => None,
        }
    }
}

/// The entries of the user's environments file, or why the file is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentsConfig {
    pub entries: Vec<EnvironmentEntry>,
    pub error: Option<String>,
}

impl Default for EnvironmentsConfig {
    fn default() -> Self {
        Self { entries: EnvironmentsFile::default_entries(), error: None }
    }
}

/// Where the TCP door listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// With port 0, the kernel chooses a port.
    pub address: SocketAddr,
    pub reach: Reach,
    /// The files with which the door is encrypted; it is not encrypted when absent.
    pub tls: Option<TlsFiles>,
}

/// The PEM files with which the TCP door is encrypted. The node reads them again when they change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the door, and those between it and the authority that clients trust.
    pub certificate: PathBuf,
    /// The private key. Only the user of the node may read it.
    pub key: PathBuf,
}

/// From which machines clients may reach the TCP door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only from this machine; any other address is refused.
    ThisMachine,
    /// From every machine that can reach the address. The traffic is encrypted only if `Listen::tls` is set.
    Anywhere,
}

impl Config {
    pub fn new(runtime_dir: PathBuf, state_dir: PathBuf, program: PathBuf) -> Self {
        Self {
            runtime_dir,
            state_dir,
            program,
            hold: HoldMode::Auto,
            listen: None,
            idle_exit: None,
            keepers: KeeperTimeouts {
                node_grace: Duration::from_secs(60),
                start_timeout: Duration::from_secs(30),
                patience: Duration::from_secs(40),
            },
            defaults: SessionDefaults {
                interrupt_grace: Duration::from_secs(5),
                idle: Some(DAY),
                deadline: Some(DAY),
                output_quota_bytes: 256 * 1024 * 1024,
            },
            retention: RetentionOptions {
                max_age: 7 * DAY,
                max_total_bytes: 10 * 1024 * 1024 * 1024,
            },
            audit: AuditOptions::default(),
            start: StartBy::default(),
            environments: EnvironmentsConfig::default(),
            workers: WorkersConfig::default(),
            session_uids: None,
            fleet: None,
            tenants: TenantQuotas::default(),
            telemetry: TelemetrySetting::Off,
        }
    }

    pub(crate) fn keepers_dir(&self) -> PathBuf {
        self.runtime_dir.join("k")
    }

    /// The workspace of a session whose client names no directory.
    pub(crate) fn workspace_of(&self, session: &SessionId) -> PathBuf {
        self.workspaces_dir().join(session.as_str())
    }

    pub(crate) fn workspaces_dir(&self) -> PathBuf {
        self.state_dir.join("workspaces")
    }

    /// The directory of a session's journal.
    pub(crate) fn journal_of(&self, session: &SessionId) -> PathBuf {
        self.journals_dir().join(session.as_str())
    }

    pub(crate) fn journals_dir(&self) -> PathBuf {
        self.state_dir.join("sessions")
    }

    /// Where worker programs are installed, including those of other releases.
    pub(crate) fn programs_dir(&self) -> PathBuf {
        self.state_dir.join("workers")
    }

    /// Where earlier releases made directories for pooled workers. Sessions of those releases may still
    /// use them.
    pub(crate) fn legacy_pool_dir(&self) -> PathBuf {
        self.state_dir.join("places")
    }

    pub(crate) fn families_dir(&self) -> PathBuf {
        self.state_dir.join("families")
    }

    /// The directories of the node in which sessions can write.
    pub(crate) fn written_dirs(&self) -> [PathBuf; 6] {
        let (workspaces, families) = (self.workspaces_dir(), self.families_dir());
        let (agents, packages) = (self.agents_dir(), self.packages_dir());
        [workspaces, self.legacy_pool_dir(), families, self.tmp_dir(), agents, packages]
    }

    /// Names of the Python interpreters in the user's environments file and of the usual ones on PATH.
    pub(crate) fn named_interpreters(&self) -> Vec<String> {
        let usual = EnvironmentsFile::default_entries();
        let entries = self.environments.entries.iter().chain(&usual);
        let entries = entries.filter(|entry| entry.worker == kinds::python::KIND.name);
        entries.map(|entry| entry.interpreter.clone()).collect()
    }

    /// The family directory of a session, which holds the directories of its twins.
    pub(crate) fn family_dir_of(&self, session: &SessionId) -> PathBuf {
        self.families_dir().join(session.as_str())
    }

    /// The homes of agents, and which conversations are in them.
    pub(crate) fn agents_dir(&self) -> PathBuf {
        self.state_dir.join("agents")
    }

    /// The package environments, and the caches of the installers that build them.
    pub(crate) fn packages_dir(&self) -> PathBuf {
        self.state_dir.join("packages")
    }

    /// Where the directories of a twin are built before they are moved to its family. No session can write
    /// there.
    pub(crate) fn staging_dir(&self) -> PathBuf {
        self.state_dir.join("staging")
    }

    /// The records of placeholders in workspaces, one file per session.
    pub(crate) fn placeholders_dir(&self) -> PathBuf {
        self.state_dir.join("placeholders")
    }

    /// The stock of empty directories for placeholders.
    pub(crate) fn placeholders_stock(&self) -> PathBuf {
        self.state_dir.join("placeholders-stock")
    }

    /// The records of the user ids of live sessions.
    pub(crate) fn user_ids_dir(&self) -> PathBuf {
        self.state_dir.join("user-ids")
    }

    /// The token of the TCP door.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.state_dir.join("token")
    }

    pub(crate) fn named_tokens_file(&self) -> PathBuf {
        self.state_dir.join("tokens")
    }

    /// The audit log.
    pub(crate) fn audit_dir(&self) -> PathBuf {
        self.state_dir.join(windlass_audit::DIRECTORY)
    }

    /// The logins of the console.
    pub(crate) fn console_file(&self) -> PathBuf {
        self.state_dir.join("console.json")
    }

    /// The socket at which keepers hand over egress connections of their sessions.
    pub(crate) fn egress_socket(&self) -> PathBuf {
        self.runtime_dir.join("egress.sock")
    }

    /// The temporary directory of a session that has no private `/tmp` or installs packages. Its twins use it too.
    pub(crate) fn tmp_of(&self, session: &SessionId) -> PathBuf {
        self.tmp_dir().join(session.as_str())
    }

    pub(crate) fn tmp_dir(&self) -> PathBuf {
        self.state_dir.join("tmp")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.runtime_dir.join("node.sock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_waits_for_a_keeper_longer_than_the_keeper_for_its_worker() {
        let [node_grace, start_timeout, patience] = [60, 30, 40].map(Duration::from_secs);
        let timeouts = KeeperTimeouts { node_grace, start_timeout, patience };
        for ready_s in [1, 30, 31, 120, 600] {
            let ready = Duration::from_secs(ready_s);
            assert!(timeouts.patience_with(Some(ready)) >= ready + Duration::from_secs(10));
        }
        assert_eq!(timeouts.patience_with(None), patience);
    }
}
