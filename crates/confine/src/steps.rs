//! The data of a plan: every step by which a process is confined, and what is tried inside. The node makes a plan,
//! the keeper and the worker perform it. This module decides nothing and imports no other module of the crate.

mod path_text;
pub(crate) mod rights;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use windlass_protocol::confinement::{Control, ControlReport, Isolation};
use windlass_protocol::policy::UnixSockets;

/// How one session's processes will be confined. Goes from the node to the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub isolation: Isolation,
    pub network: NetworkPlan,
    /// The mounts of the session's own view of the files, in order. Empty unless the level is full.
    pub view: Vec<Mount>,
    pub landlock: Option<Ruleset>,
    pub sockets: Option<Sockets>,
    pub rlimits: Vec<Rlimit>,
    /// What is tried inside before the worker starts.
    pub canaries: Vec<Canary>,
    pub controls: Vec<ControlReport>,
    pub required: Vec<Control>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkPlan {
    /// The machine's own network.
    Machine,
    /// A namespace with nothing but a loopback device.
    Own,
    /// The same, with the proxy's listener in it.
    Proxy,
}

/// One step towards the view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mount", rename_all = "snake_case")]
pub enum Mount {
    /// The machine's files as they are.
    Machine { access: Access },
    /// An empty directory as root; what can be read is bound into it.
    Empty,
    /// A part of the machine's files, at its own place.
    Bind {
        #[serde(with = "path_text")]
        path: PathBuf,
        kind: Kind,
        access: Access,
    },
    /// What is at a path inside a writable part of the view, mounted on itself, so that it can be
    /// neither replaced, renamed nor removed. A link stays a link.
    Hold {
        #[serde(with = "path_text")]
        path: PathBuf,
        access: Access,
    },
    /// A fresh directory that ends with the session.
    Private {
        #[serde(with = "path_text")]
        path: PathBuf,
        bytes: Option<u64>,
        mode: u32,
    },
    /// Nothing to see here.
    Hide {
        #[serde(with = "path_text")]
        path: PathBuf,
        kind: Kind,
    },
    /// A socket of somebody else, or a directory full of them: covered if it is still there.
    Cover {
        #[serde(with = "path_text")]
        path: PathBuf,
    },
    /// An otherwise empty place for what is bound into a hidden directory.
    Shell {
        #[serde(with = "path_text")]
        path: PathBuf,
    },
    /// A link at the root of an otherwise empty view.
    Link {
        #[serde(with = "path_text")]
        path: PathBuf,
        #[serde(with = "path_text")]
        target: PathBuf,
    },
    /// Harmless devices, terminals of its own, `/dev/shm`.
    Devices { shm_bytes: Option<u64> },
    /// The processes of the session's own pid namespace.
    Processes,
}

impl Mount {
    /// What it is mounted at, where that is not fixed.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Bind { path, .. }
            | Self::Hold { path, .. }
            | Self::Private { path, .. }
            | Self::Hide { path, .. }
            | Self::Cover { path }
            | Self::Shell { path } => Some(path),
            Self::Machine { .. }
            | Self::Empty
            | Self::Link { .. }
            | Self::Devices { .. }
            | Self::Processes => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Directory,
    File,
}

/// A Landlock ruleset: what it rules over, and what it lets through below which path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ruleset {
    pub files: u64,
    pub network: u64,
    pub scopes: u64,
    pub rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    #[serde(with = "path_text")]
    pub path: PathBuf,
    pub access: u64,
}

/// Which sockets the code can make, besides pairs of unix sockets that are connected to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    pub unix: UnixSockets,
    pub internet: Internet,
}

/// Which internet sockets the code can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Internet {
    None,
    /// In a network namespace of its own, where they lead nowhere.
    Own,
    /// In the machine's network, and the code can ask which interfaces there are.
    Machine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    pub resource: Resource,
    pub most: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Writable memory of one process.
    Data,
    Processes,
    OpenFiles,
    FileSize,
    CoreDump,
}

/// Something forbidden, tried inside the sandbox before the worker starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Canary {
    pub control: Control,
    pub attempt: Attempt,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "try", rename_all = "snake_case")]
pub enum Attempt {
    /// Open a file for reading, or list a directory.
    Read {
        #[serde(with = "path_text")]
        path: PathBuf,
    },
    /// Open a file for writing; nothing is written.
    Write {
        #[serde(with = "path_text")]
        path: PathBuf,
    },
    /// Make a file in a directory.
    Create {
        #[serde(with = "path_text")]
        directory: PathBuf,
    },
    /// Open a device.
    Open {
        #[serde(with = "path_text")]
        path: PathBuf,
    },
    /// Find a route to an address outside (no packet is sent).
    Route,
    /// Talk to the kernel's network configuration.
    Netlink,
    /// Make a unix socket that can be connected or sent from.
    UnixSocket,
    /// Look for the process that started us.
    SignalParent,
    /// Have any capability, or the way to one.
    Capability,
    /// Make a user namespace.
    UserNamespace,
    Bpf,
    Ptrace,
    Keyring,
    IoUring,
    SharedMemory,
    /// Any other call, with arguments that it refuses by itself too.
    Call {
        name: String,
        number: i64,
    },
}
