//! What stands between a session and the machine, as it is reported: each control by name, whether
//! it is enforced, and by what.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How strongly a session is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Namespaces, a file view of its own, Landlock and seccomp.
    Full,
    /// Landlock and seccomp, where namespaces are refused.
    Landlock,
    /// Nothing but the holding of its processes. Only when asked for by name.
    None,
}

impl Isolation {
    pub const ALL: [Self; 3] = [Self::Full, Self::Landlock, Self::None];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Landlock => "landlock",
            Self::None => "none",
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing that a policy can ask for.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// Only readable roots can be read.
    Read,
    /// Only writable roots can be written.
    Write,
    /// Hidden paths cannot be read.
    Hidden,
    /// Protected names in writable roots cannot be written.
    Protected,
    /// Only what the policy names can be reached over a network.
    Network,
    /// Unix sockets of the machine, of the node and of other sessions cannot be reached.
    Sockets,
    /// Other sessions, the keeper and the node can be neither seen, signalled nor traced.
    Processes,
    /// Shared memory and message queues of others cannot be reached.
    Ipc,
    /// No capability, and no way to gain one.
    Privileges,
    /// Calls that reach deep into the kernel are refused.
    Syscalls,
    /// No device but the harmless ones.
    Devices,
    /// Only the variables of the allow-list are there.
    Environment,
    Memory,
    Cpu,
    ProcessCount,
    OpenFiles,
    FileSize,
    Disk,
    WallTime,
}

impl Control {
    pub const ALL: [Self; 19] = [
        Self::Read,
        Self::Write,
        Self::Hidden,
        Self::Protected,
        Self::Network,
        Self::Sockets,
        Self::Processes,
        Self::Ipc,
        Self::Privileges,
        Self::Syscalls,
        Self::Devices,
        Self::Environment,
        Self::Memory,
        Self::Cpu,
        Self::ProcessCount,
        Self::OpenFiles,
        Self::FileSize,
        Self::Disk,
        Self::WallTime,
    ];

    /// What every preset insists on.
    pub const REQUIRED: [Self; 6] =
        [Self::Write, Self::Hidden, Self::Network, Self::Privileges, Self::Syscalls, Self::Devices];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Hidden => "hidden",
            Self::Protected => "protected",
            Self::Network => "network",
            Self::Sockets => "sockets",
            Self::Processes => "processes",
            Self::Ipc => "ipc",
            Self::Privileges => "privileges",
            Self::Syscalls => "syscalls",
            Self::Devices => "devices",
            Self::Environment => "environment",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::ProcessCount => "process_count",
            Self::OpenFiles => "open_files",
            Self::FileSize => "file_size",
            Self::Disk => "disk",
            Self::WallTime => "wall_time",
        }
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What became of a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ControlState {
    Enforced,
    NotEnforced,
    /// The policy does not ask for it.
    NotAsked,
}

/// A control of one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct ControlReport {
    pub control: Control,
    pub state: ControlState,
    /// By what it is enforced, or why it is not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mechanism: String,
    /// A canary inside the sandbox tried what is forbidden, and was refused.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tested: bool,
    /// What would make it enforced here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// How a session is confined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct Confinement {
    pub isolation: Isolation,
    pub controls: Vec<ControlReport>,
}

impl Confinement {
    pub fn state(&self, control: Control) -> Option<ControlState> {
        self.controls.iter().find(|report| report.control == control).map(|report| report.state)
    }
}

fn is_false(value: &bool) -> bool {
    !value
}
