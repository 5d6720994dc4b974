//! The report of a session's confinement: each control by name, whether it is enforced, and by which
//! mechanism.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How strongly a session is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Namespaces, a private view of the file system, Landlock and seccomp.
    Full,
    /// Landlock and seccomp, for machines that refuse namespaces.
    Landlock,
    /// No confinement; the keeper only holds the processes together. Used only if requested by name.
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

/// One restriction that a policy can request.
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
    /// Only the hosts that the policy names can be reached over the network.
    Network,
    /// Unix sockets of the machine, of the node and of other sessions cannot be reached.
    Sockets,
    /// Processes of other sessions, of the keeper and of the node cannot be seen, signalled or traced.
    Processes,
    /// Shared memory and message queues of other processes cannot be reached.
    Ipc,
    /// The code has no capability and cannot gain one.
    Privileges,
    /// System calls that reach deep into the kernel are refused.
    Syscalls,
    /// Only harmless devices are available.
    Devices,
    /// Only the variables of the allow-list are set.
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

    /// The controls that every preset requires.
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

/// The state of a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ControlState {
    Enforced,
    NotEnforced,
    /// The policy does not request the control.
    NotAsked,
}

/// A control of one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct ControlReport {
    pub control: Control,
    pub state: ControlState,
    /// The mechanism that enforces the control, or the reason why it is not enforced.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mechanism: String,
    /// A self-test inside the sandbox tried the forbidden operation and was refused.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tested: bool,
    /// What the user can do so that the control is enforced on this machine.
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
