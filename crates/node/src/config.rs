//! The settings of a node, and the paths that follow from them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use windlass_journal::RetentionOptions;
use windlass_procs::HoldMode;
use windlass_protocol::SessionId;
use windlass_protocol::environments::{EnvironmentEntry, EnvironmentsFile};
use windlass_protocol::kinds;

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
    /// The fastest way in which workers may be started.
    pub start: StartBy,
    /// The interpreters for which pooled workers are kept.
    pub environments: EnvironmentsConfig,
    /// Further kinds of worker, and settings of the built-in kinds.
    pub workers: WorkersConfig,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// With port 0, the kernel chooses a port.
    pub address: SocketAddr,
    pub reach: Reach,
}

/// From which machines clients may reach the TCP door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only from this machine; any other address is refused.
    ThisMachine,
    /// From every machine that can reach the address. The traffic is not encrypted.
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
            start: StartBy::default(),
            environments: EnvironmentsConfig::default(),
            workers: WorkersConfig::default(),
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

    /// The token of the TCP door.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.state_dir.join("token")
    }

    pub(crate) fn named_tokens_file(&self) -> PathBuf {
        self.state_dir.join("tokens")
    }

    /// The socket at which keepers hand over egress connections of their sessions.
    pub(crate) fn egress_socket(&self) -> PathBuf {
        self.runtime_dir.join("egress.sock")
    }

    /// Temporary files of a session that has no private `/tmp`.
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
