//! What a node is told when it starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use windlass_procs::Wanted;
use windlass_protocol::SessionId;
use windlass_protocol::environments::{EnvironmentEntry, EnvironmentsFile};

/// The default idle timeout and deadline: a user who comes back the next morning finds the session, and a forgotten
/// session ends.
const A_DAY: Duration = Duration::from_secs(24 * 3600);

/// A node's settings; `Config::new` has the defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// Locks and sockets, private to the user.
    pub runtime_dir: PathBuf,
    /// The journal and worker files.
    pub state_dir: PathBuf,
    /// The program that is started as `PROGRAM keeper ...`: this one.
    pub program: PathBuf,
    pub hold: Wanted,
    /// The TCP door; shut when absent.
    pub listen: Option<Listen>,
    /// How long keepers stay without a node.
    pub node_grace: Duration,
    /// How long a node without sessions stays; forever when absent.
    pub idle_exit: Option<Duration>,
    /// How long a worker may take to say that it is ready.
    pub start_timeout: Duration,
    /// How long a keeper may take to answer a restart.
    pub keeper_patience: Duration,
    /// How long an interrupted turn may take to stop, where its session does not say.
    pub interrupt_grace: Duration,
    /// How long a session that does not say stays without a client and a turn; for ever when absent.
    pub session_idle: Option<Duration>,
    /// How long a turn may run where neither it nor its session says; for ever when absent.
    pub deadline: Option<Duration>,
    /// Output bytes the journal keeps for a session that does not say.
    pub output_quota_bytes: u64,
    /// How long an ended session is kept: its journal, and its workspace if the node made it.
    pub keep_ended: Duration,
    /// What all journals and the workspaces of ended sessions may take together; sessions that ended
    /// first go first.
    pub keep_bytes: u64,
    /// The quickest way by which workers are started.
    pub start: StartBy,
    /// For which interpreters workers are kept ready.
    pub environments: EnvironmentsConfig,
}

/// Ways to start a worker, each of which falls back on those before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StartBy {
    /// Its program is run.
    Exec,
    /// It is forked from an interpreter that has its modules already.
    Zygote,
    /// A few are forked ahead of time.
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

/// What the user's file of environments says, or why it is not used.
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

/// Where the TCP door is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// With port 0, the kernel chooses one.
    pub address: SocketAddr,
    pub reach: Reach,
}

/// From how far clients may come to the TCP door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only from this machine; any other address is refused.
    ThisMachine,
    /// From wherever the address can be reached. What is said there can be read on the way.
    Anywhere,
}

impl Config {
    pub fn new(runtime_dir: PathBuf, state_dir: PathBuf, program: PathBuf) -> Self {
        Self {
            runtime_dir,
            state_dir,
            program,
            hold: Wanted::Auto,
            listen: None,
            node_grace: Duration::from_secs(60),
            idle_exit: None,
            start_timeout: Duration::from_secs(30),
            keeper_patience: Duration::from_secs(40),
            interrupt_grace: Duration::from_secs(5),
            session_idle: Some(A_DAY),
            deadline: Some(A_DAY),
            output_quota_bytes: 256 * 1024 * 1024,
            keep_ended: Duration::from_secs(7 * 24 * 3600),
            keep_bytes: 10 * 1024 * 1024 * 1024,
            start: StartBy::default(),
            environments: EnvironmentsConfig::default(),
        }
    }

    pub(crate) fn keepers_dir(&self) -> PathBuf {
        self.runtime_dir.join("k")
    }

    /// Where a session works whose client names no directory.
    pub(crate) fn workspace_of(&self, session: &SessionId) -> PathBuf {
        self.workspaces_dir().join(session.as_str())
    }

    pub(crate) fn workspaces_dir(&self) -> PathBuf {
        self.state_dir.join("workspaces")
    }

    /// Where the journal of a session is.
    pub(crate) fn journal_of(&self, session: &SessionId) -> PathBuf {
        self.journals_dir().join(session.as_str())
    }

    pub(crate) fn journals_dir(&self) -> PathBuf {
        self.state_dir.join("sessions")
    }

    /// Where worker programs are laid out, those of other releases included.
    pub(crate) fn programs_dir(&self) -> PathBuf {
        self.state_dir.join("workers")
    }

    /// Where earlier releases made directories for pooled workers. Their sessions may still have them.
    pub(crate) fn places_dir(&self) -> PathBuf {
        self.state_dir.join("places")
    }

    pub(crate) fn rooms_dir(&self) -> PathBuf {
        self.state_dir.join("families")
    }

    /// Directories in which the node makes what sessions write to.
    pub(crate) fn written_dirs(&self) -> [PathBuf; 4] {
        [self.workspaces_dir(), self.places_dir(), self.rooms_dir(), self.tmp_dir()]
    }

    /// Interpreters that the user has named or has on PATH, by those names.
    pub(crate) fn named_interpreters(&self) -> Vec<String> {
        let usual = EnvironmentsFile::default_entries();
        let entries = self.environments.entries.iter().chain(&usual);
        entries.map(|entry| entry.interpreter.clone()).collect()
    }

    /// Where the places of a session's twins are.
    pub(crate) fn room_of(&self, session: &SessionId) -> PathBuf {
        self.rooms_dir().join(session.as_str())
    }

    /// Where a twin's directories are built before they are moved to its family. No session can
    /// write there.
    pub(crate) fn staging_dir(&self) -> PathBuf {
        self.state_dir.join("staging")
    }

    /// Which placeholders stand in workspaces, a file for each session.
    pub(crate) fn placeholders_dir(&self) -> PathBuf {
        self.state_dir.join("placeholders")
    }

    /// Empty directories that wait to become placeholders.
    pub(crate) fn placeholders_stock(&self) -> PathBuf {
        self.state_dir.join("placeholders-stock")
    }

    /// What opens the TCP door.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.state_dir.join("token")
    }

    /// Where keepers pass on connections from inside their sandboxes.
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
