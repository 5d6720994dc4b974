//! Why a call failed, with a remedy for the model.

use rmcp::model::{CallToolResult, ContentBlock};
use windlass_client::ClientError;
use windlass_protocol::{ErrorCode, SessionId, TurnId};

use crate::codex::BadSandbox;

/// Why a call failed. The model reads this message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Arguments(String),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Sandbox(#[from] BadSandbox),
    #[error("session {0} does not belong to this client in this directory")]
    Foreign(SessionId),
    #[error("there is no session {0}")]
    NoSession(String),
    #[error("session {session} runs {kind}, not {language}")]
    Language { session: SessionId, kind: String, language: String },
    #[error("{language:?} is not a language of this tool; use one of: {}", known.join(", "))]
    NoLanguage { language: String, known: Vec<String> },
    #[error("session {0} exists without these packages")]
    Packages(SessionId),
    #[error("the packages are still being installed")]
    Installing,
    #[error("the packages cannot be installed: {0}")]
    NotInstalled(String),
    #[error("session {0} has run nothing yet")]
    NothingRan(SessionId),
    #[error("the code waits for a secret, and secrets must not pass through an agent")]
    Secret(SessionId),
    #[error("an agent asks for a permission, and a person must answer")]
    Permission(SessionId),
    /// The code of this call ran before, in a session that has ended.
    #[error("the code ran as turn {turn} of session {session}, which has ended")]
    AlreadyRan { session: SessionId, turn: TurnId },
    /// The client no longer waits, so no one reads this message.
    #[error("the call was cancelled")]
    Cancelled,
    #[error("the client is gone")]
    Gone,
}

impl Fault {
    fn remedy(&self) -> Option<String> {
        match self {
            // Of these codes, the node's remedy is about the HTTP API, and the message says what is wrong.
            Self::Client(error) => match error.api_code() {
                Some(ErrorCode::BadRequest | ErrorCode::NotFound) => None,
                _ => Some(error.remedy()),
            },
            Self::Foreign(_) => Some("leave `session` out, or give a short name".to_owned()),
            Self::NoSession(_) => Some("call sessions to see which there are".to_owned()),
            Self::Language { .. } => {
                Some("name another session, or leave `session` out".to_owned())
            }
            Self::Packages(_) => Some("name another session, which is then new".to_owned()),
            Self::Installing => Some("call run again later".to_owned()),
            Self::NotInstalled(_) => Some("check the names and versions".to_owned()),
            Self::NothingRan(_) => Some("call run first".to_owned()),
            Self::Secret(session) => Some(ask_in_terminal(session)),
            Self::Permission(session) => Some(decide_in_terminal(session)),
            Self::AlreadyRan { .. }
            | Self::Arguments(_)
            | Self::NoLanguage { .. }
            | Self::Sandbox(_)
            | Self::Cancelled
            | Self::Gone => None,
        }
    }

    fn code(&self) -> &str {
        match self {
            Self::Arguments(_)
            | Self::Language { .. }
            | Self::NoLanguage { .. }
            | Self::Packages(_) => "bad_request",
            Self::Installing => "overloaded",
            Self::NotInstalled(_) => "worker_failed",
            Self::Client(error) => error.code(),
            Self::Sandbox(_) => "bad_sandbox",
            Self::Foreign(_) => "unauthorized",
            Self::NoSession(_) => "session_not_found",
            Self::NothingRan(_) => "turn_not_found",
            Self::AlreadyRan { .. } => "session_ended",
            Self::Secret(_) => "secret",
            Self::Permission(_) => "permission",
            Self::Cancelled | Self::Gone => "cancelled",
        }
    }

    pub fn into_result(self) -> CallToolResult {
        let remedy = self.remedy().map(|remedy| format!("\n{remedy}")).unwrap_or_default();
        let text = format!("{}: {self}{remedy}", self.code());
        CallToolResult::error(vec![ContentBlock::text(text)])
    }
}

pub(crate) fn decide_in_terminal(session: &SessionId) -> String {
    format!("Let the user answer in a terminal: windlass attach {session} - then call continue")
}

pub(crate) fn ask_in_terminal(session: &SessionId) -> String {
    format!(
        "Do not ask for it or pass it on. Let the user type it in a terminal: \
         windlass attach {session} - then call continue"
    )
}
