//! The data of a plan: the steps that confine a process, and the canaries. The node makes a plan; the keeper
//! and the worker perform it. This module decides nothing and imports no other module of the crate.
//!
//! Plans go as JSON to keepers of earlier releases: field names and variant names are part of that format.

mod path_text;
pub(crate) mod rights;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use windlass_protocol::confinement::{Control, ControlReport, Isolation};
use windlass_protocol::policy::UnixSockets;

/// How the processes of one session are confined. The node sends it to the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub isolation: Isolation,
    pub network: NetworkPlan,
    /// The mounts of the session's view of the files, in order. Empty unless the level is `full`.
    pub view: Vec<Mount>,
    pub landlock: Option<Ruleset>,
    pub sockets: Option<Sockets>,
    pub rlimits: Vec<Rlimit>,
    /// Forbidden operations that the confined process tries before the worker starts.
    pub canaries: Vec<Canary>,
    pub controls: Vec<ControlReport>,
    pub required: Vec<Control>,
    /// The user and group id that the session has outside of its user namespace, if it has one of its own. Without it
    /// the session has the ids of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_uid: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkPlan {
    /// The machine's network namespace.
    Machine,
    /// A new network namespace with only a loopback device.
    Own,
    /// A new network namespace with a loopback device and the proxy's listener.
    Proxy,
}

/// One step that builds the view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mount", rename_all = "snake_case")]
pub enum Mount {
    /// The whole machine as the root of the view.
    Machine { access: MountAccess },
    /// An empty directory as the root of the view. Later steps bind the readable paths into it.
    Empty,
    /// A path of the machine, bound at the same path.
    Bind {
        #[serde(with = "path_text")]
        path: PathBuf,
        kind: PathKind,
        access: MountAccess,
    },
    /// A file, directory or symlink in a writable part of the view, mounted on itself: the session cannot
    /// replace, rename or remove it. A symlink is not followed.
    Hold {
        #[serde(with = "path_text")]
        path: PathBuf,
        access: MountAccess,
    },
    /// A new, empty directory that exists only in the session.
    Private {
        #[serde(with = "path_text")]
        path: PathBuf,
        bytes: Option<u64>,
        mode: u32,
    },
    /// An empty, unreadable file or directory in place of a hidden path.
    Hide {
        #[serde(with = "path_text")]
        path: PathBuf,
        kind: PathKind,
    },
    /// The same for a socket of another program, or a directory full of such sockets. Skipped if it has been
    /// removed.
    Cover {
        #[serde(with = "path_text")]
        path: PathBuf,
    },
    /// An empty directory in place of a hidden one, into which later steps bind visible paths.
    Shell {
        #[serde(with = "path_text")]
        path: PathBuf,
    },
    /// A symlink in a directory that the view has built itself.
    Link {
        #[serde(with = "path_text")]
        path: PathBuf,
        #[serde(with = "path_text")]
        target: PathBuf,
    },
    /// A private `/dev`: harmless devices, private terminals and `/dev/shm`.
    Devices { shm_bytes: Option<u64> },
    /// A `/proc` of the session's pid namespace.
    Processes,
}

impl Mount {
    /// The path that the step mounts at; `None` for steps with a fixed path.
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
pub enum MountAccess {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    Directory,
    File,
}

/// A Landlock ruleset. It forbids the rights that it handles, except where a rule allows them. The bits are
/// those of `steps::rights`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ruleset {
    /// The handled file rights.
    pub files: u64,
    /// The handled network rights.
    pub network: u64,
    pub scopes: u64,
    pub rules: Vec<LandlockRule>,
}

/// Allows these file rights at and below a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandlockRule {
    #[serde(with = "path_text")]
    pub path: PathBuf,
    pub access: u64,
}

/// Which sockets the session can make, besides connected pairs of unix sockets (`socketpair`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    pub unix: UnixSockets,
    pub internet: Internet,
}

/// Which internet sockets the session can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Internet {
    None,
    /// Sockets in the session's network namespace, which has no route out.
    Own,
    /// Sockets in the machine's network namespace. The session can also list the network interfaces.
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

/// A forbidden operation that the confined process tries before the worker starts.
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
    /// Create a file in a directory.
    Create {
        #[serde(with = "path_text")]
        directory: PathBuf,
    },
    /// Open a device.
    Open {
        #[serde(with = "path_text")]
        path: PathBuf,
    },
    /// Find a route to an external address; no packet is sent.
    Route,
    /// Open a netlink socket.
    Netlink,
    /// Make a unix socket that can connect, or send to any path.
    UnixSocket,
    /// Signal the process that started this one.
    SignalParent,
    /// Have a capability, or be able to gain one.
    Capability,
    /// Make a user namespace.
    UserNamespace,
    /// Have another user id outside of the user namespace than this one.
    OtherUser {
        uid: u32,
    },
    Bpf,
    Ptrace,
    Keyring,
    IoUring,
    SharedMemory,
    /// Any other system call, with arguments that make it fail without a filter too.
    Call {
        name: String,
        number: i64,
    },
}
