//! Reads the running turn of a session whose events are followed from then on.

use windlass_client::{Client, ClientError};
use windlass_protocol::api::{Session, SessionState, Turn, TurnQuery};

/// The turn that was running when `session` was read. It has the question that the turn asked before then; a later question
/// arrives as an event.
pub async fn running_turn(client: &Client, session: &Session) -> Result<Option<Turn>, ClientError> {
    let Some(id) = &session.turn else { return Ok(None) };
    let mut turn = client.turn(&session.id, id, TurnQuery::default()).await?;
    if session.state != SessionState::AwaitingInput {
        turn.stdin_wait = None;
    }
    Ok(Some(turn))
}
