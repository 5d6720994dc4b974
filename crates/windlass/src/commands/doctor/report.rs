//! What the doctor found, as it is printed and as JSON.

use serde::Serialize;
use windlass_protocol::confinement::{Control, ControlReport, ControlState, Isolation};

#[derive(Debug, Serialize)]
pub struct Report {
    pub version: &'static str,
    pub kernel: String,
    pub uid: u32,
    /// The level at which the default policy holds here; null if it does not.
    pub confined: Option<Isolation>,
    pub levels: Vec<Item>,
    pub mechanisms: Vec<Item>,
    /// One for each level that is there, the strongest first.
    pub tests: Vec<LevelTest>,
    /// A real session, where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionTest>,
    pub programs: Vec<Program>,
    pub node: Vec<Item>,
    pub disk: Vec<Item>,
}

impl Report {
    /// Whether the default policy holds, and the real session did if there was one.
    pub fn is_well(&self) -> bool {
        let session = self.session.as_ref().is_none_or(|session| session.error.is_none());
        self.confined.is_some() && session
    }
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    pub name: String,
    pub state: State,
    pub says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Good,
    /// Something is missing that others make up for, or that nobody may want.
    Lacking,
    Bad,
}

impl Item {
    pub fn good(name: impl Into<String>, says: impl Into<String>) -> Self {
        Self { name: name.into(), state: State::Good, says: says.into(), help: None }
    }

    pub fn lacking(name: impl Into<String>, says: impl Into<String>) -> Self {
        Self { state: State::Lacking, ..Self::good(name, says) }
    }

    pub fn bad(name: impl Into<String>, says: impl Into<String>, help: impl Into<String>) -> Self {
        Self { state: State::Bad, help: Some(help.into()), ..Self::good(name, says) }
    }

    pub fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

/// What came of a throwaway process at one level.
#[derive(Debug, Serialize)]
pub struct LevelTest {
    pub level: Isolation,
    /// Forbidden things that were tried inside.
    pub attempts: usize,
    /// From the fork until the program ran, the attempts included.
    pub took_ms: f64,
    /// What ran inside.
    pub program: String,
    pub controls: Vec<ControlReport>,
    /// Why it did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl LevelTest {
    /// Whether the process ran and everything that presets require was enforced.
    pub fn holds(&self) -> bool {
        let broken = |report: &ControlReport| {
            report.state == ControlState::NotEnforced && Control::REQUIRED.contains(&report.control)
        };
        self.error.is_none() && !self.controls.iter().any(broken)
    }
}

/// What came of a real session.
#[derive(Debug, Serialize)]
pub struct SessionTest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// From the request to the first turn's answer.
    pub took_ms: f64,
    pub controls: Vec<ControlReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A program that sessions may want.
#[derive(Debug, Serialize)]
pub struct Program {
    pub name: &'static str,
    /// As PATH has it; null where it does not.
    pub path: Option<std::path::PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The hidden path that keeps sessions from reading it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_by: Option<std::path::PathBuf>,
    /// Without it no session starts.
    pub needed: bool,
}
