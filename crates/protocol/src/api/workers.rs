//! The kinds of worker of a node, as `GET /v1/workers` lists them, and the size of a session's terminal.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::event::StartedBy;
use crate::limits::TERMINAL_SIZE_MAX;

/// The reply of `GET /v1/workers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerList {
    pub workers: Vec<WorkerInfo>,
    /// Why the workers of the user's configuration file are not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One kind of worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerInfo {
    /// The name by which a session requests this kind.
    pub name: String,
    /// The name of the language.
    pub language: String,
    pub source: WorkerSource,
    /// The file name extensions of the language.
    #[serde(default)]
    pub extensions: Vec<String>,
    /// The program that runs the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
    /// How workers of this kind can be started.
    #[serde(default)]
    pub starts: Vec<StartedBy>,
    /// What is missing on this machine, and how to get it. Absent if sessions of this kind can start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Where a kind of worker comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerSource {
    BuiltIn,
    /// The user's configuration file.
    Configured,
}

/// The size of a session's terminal, in characters. Each is from 1 to 1000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

impl TerminalSize {
    /// Whether a program can draw it. A client could otherwise make every page that shows the terminal draw too much.
    pub fn is_usable(self) -> bool {
        [self.columns, self.rows].iter().all(|size| (1..=TERMINAL_SIZE_MAX).contains(size))
    }
}
