//! The findings of the doctor, as they are printed and as JSON.

use serde::Serialize;
use windlass_protocol::confinement::{Control, ControlReport, ControlState, Isolation};

#[derive(Debug, Serialize)]
pub struct DoctorReport {
    pub version: &'static str,
    pub kernel: String,
    pub uid: u32,
    /// The level at which the default policy is enforced here; null if it is not.
    pub confined: Option<Isolation>,
    pub levels: Vec<CheckItem>,
    pub mechanisms: Vec<CheckItem>,
    /// The user ids of sessions. Empty for an ordinary user who has not set them.
    pub user_ids: Vec<CheckItem>,
    /// One for each available level, the strongest first.
    pub tests: Vec<LevelTest>,
    /// The real session, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionTest>,
    pub programs: Vec<ProgramCheck>,
    pub node: Vec<CheckItem>,
    pub disk: Vec<CheckItem>,
}

impl DoctorReport {
    /// Whether the default policy is enforced, sessions get the user ids that are set, and the real session worked if it
    /// was requested.
    pub fn is_well(&self) -> bool {
        let session = self.session.as_ref().is_none_or(|session| session.error.is_none());
        self.confined.is_some() && self.has_user_ids() && session
    }

    /// Whether sessions get user ids of their own, if the node is set to give them any.
    pub fn has_user_ids(&self) -> bool {
        !self.user_ids.iter().any(|item| item.state == CheckState::Bad)
    }
}

/// One check and its result.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct CheckItem {
    pub name: String,
    pub state: CheckState,
    pub says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    Good,
    /// Something optional is missing, or another mechanism replaces it.
    Lacking,
    Bad,
}

impl CheckItem {
    pub fn good(name: impl Into<String>, says: impl Into<String>) -> Self {
        Self { name: name.into(), state: CheckState::Good, says: says.into(), help: None }
    }

    pub fn lacking(name: impl Into<String>, says: impl Into<String>) -> Self {
        Self { state: CheckState::Lacking, ..Self::good(name, says) }
    }

    pub fn bad(name: impl Into<String>, says: impl Into<String>, help: impl Into<String>) -> Self {
        Self { state: CheckState::Bad, help: Some(help.into()), ..Self::good(name, says) }
    }

    pub fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

/// The result of a throwaway process at one level.
#[derive(Debug, Serialize)]
pub struct LevelTest {
    pub level: Isolation,
    /// Number of forbidden actions that were tried inside.
    pub attempts: usize,
    /// Time from the fork until the program ran, including the attempts.
    pub took_ms: f64,
    /// The program that ran inside.
    pub program: String,
    pub controls: Vec<ControlReport>,
    /// Why the program did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl LevelTest {
    /// Whether the process ran with every control enforced that the presets require.
    pub fn holds(&self) -> bool {
        let broken = |report: &ControlReport| {
            report.state == ControlState::NotEnforced && Control::REQUIRED.contains(&report.control)
        };
        self.error.is_none() && !self.controls.iter().any(broken)
    }
}

/// The result of a real session.
#[derive(Debug, Serialize)]
pub struct SessionTest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Time from the request to the result of the first turn.
    pub took_ms: f64,
    pub controls: Vec<ControlReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A program that sessions may use.
#[derive(Debug, Serialize)]
pub struct ProgramCheck {
    pub name: &'static str,
    /// The path of the program; null if it is not on PATH.
    pub path: Option<std::path::PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The hidden directory that contains the program, so that sessions cannot read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_by: Option<std::path::PathBuf>,
    /// Whether sessions need the program to start.
    pub needed: bool,
}
