//! Waits with a deadline, for what says by itself when it has happened. Never a sleep.

use std::panic::Location;
use std::time::Duration;

use anyhow::{Context, bail};
use windlass_client::Client;
use windlass_client::protocol::api::{EventItem, Turn, TurnQuery, TurnState};
use windlass_client::protocol::{Seq, SessionId, TurnId};

/// What `future` gives, or a panic at the caller's line when that takes longer than `deadline`.
#[track_caller]
pub fn within<F: Future>(deadline: Duration, future: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
    async move {
        match tokio::time::timeout(deadline, future).await {
            Ok(value) => value,
            Err(_) => panic!("{caller}: not done within {deadline:?}"),
        }
    }
}

/// The first event after `after` that is `wanted`.
pub async fn wait_for_event(
    client: &Client,
    session: &SessionId,
    after: Seq,
    deadline: Duration,
    mut wanted: impl FnMut(&EventItem) -> bool,
) -> anyhow::Result<EventItem> {
    let mut events = client.events(session, after);
    let search = async {
        while let Some(item) = events.next().await? {
            if wanted(&item) {
                return Ok(item);
            }
        }
        bail!("session {session} ended without that event")
    };
    tokio::time::timeout(deadline, search)
        .await
        .with_context(|| format!("no such event of {session} within {deadline:?}"))?
}

/// The turn once it has ended.
pub async fn turn_ended(
    client: &Client,
    session: &SessionId,
    turn: &TurnId,
    deadline: Duration,
) -> anyhow::Result<Turn> {
    let wait_ms = u64::try_from(deadline.as_millis())?;
    let query = TurnQuery { wait_ms, output_bytes_max: None };
    let seen = tokio::time::timeout(deadline, client.turn(session, turn, query))
        .await
        .with_context(|| format!("turn {turn} did not answer within {deadline:?}"))??;
    if seen.state != TurnState::Ended {
        bail!("turn {turn} of {session} has not ended within {deadline:?}: {:?}", seen.state);
    }
    Ok(seen)
}
