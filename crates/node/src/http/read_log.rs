//! Where a request reads recorded turns and output: in the journal of this node, or in the copy of a session that was lost
//! with its node.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use windlass_journal::{EventReader, LoadError};
use windlass_protocol::{ErrorCode, SessionId, TurnId};

use super::App;
use super::reply::{Answer, internal};
use crate::failure::Failure;
use crate::fleet::CopiedLog;
use crate::session::SessionHandle;
use crate::session::turns::Turn;

/// See the module documentation.
#[derive(Debug)]
pub(super) enum ReadLog {
    Journal,
    Copy(CopiedLog),
}

impl FromRequestParts<App> for ReadLog {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Infallible> {
        let copy = parts.extensions.get::<CopiedLog>().cloned();
        Ok(copy.map_or(Self::Journal, Self::Copy))
    }
}

impl ReadLog {
    /// The session, if it lives in this node.
    pub fn live(&self, app: &App, session: &SessionId) -> Option<SessionHandle> {
        match self {
            Self::Journal => app.sessions.find(session),
            Self::Copy(_) => None,
        }
    }

    /// A turn that has ended.
    pub fn turn(&self, app: &App, session: &SessionId, turn: &TurnId) -> Answer<Turn> {
        let found = match self {
            Self::Journal => app.serving.log.turn(session, turn).map_err(internal)?,
            Self::Copy(copy) => copy.turn(turn),
        };
        match (found, self) {
            (Some(record), _) => Ok(Turn::from_record(record)),
            (None, Self::Copy(copy)) if !copy.is_complete() => {
                let message = format!(
                    "session {session} was lost with its node, and the copy of its events does not have the end of turn \
                     {turn}; GET /v1/sessions/{session}/events returns what was copied"
                );
                Err(Failure::new(ErrorCode::SessionLost, message).into())
            }
            (None, _) => {
                let message = format!("session {session} has no turn {turn}");
                Err(Failure::new(ErrorCode::TurnNotFound, message).into())
            }
        }
    }

    pub fn reader(&self, app: &App, session: &SessionId) -> Answer<Box<dyn EventReader>> {
        match self {
            Self::Journal => reader_of(app, session),
            Self::Copy(copy) => Ok(copy.reader()),
        }
    }
}

/// A reader of a session's journal, live or ended.
pub(super) fn reader_of(app: &App, session: &SessionId) -> Answer<Box<dyn EventReader>> {
    if let Some(handle) = app.sessions.find(session) {
        handle.clients.noticed();
        return Ok(Box::new(handle.reader));
    }
    match app.serving.log.reader(session) {
        Ok(reader) => Ok(reader),
        Err(LoadError::NotFound(_)) => {
            let message = format!("there is no session {session}");
            Err(Failure::new(ErrorCode::SessionNotFound, message).into())
        }
        Err(error) => Err(internal(error)),
    }
}
