//! Waits with a deadline, on events and futures. Only [`eventually`] polls: no event tells when a fleet's store
//! answers again, or when a node is declared lost.

use std::fmt::Debug;
use std::panic::Location;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use windlass_client::Client;
use windlass_client::protocol::api::{EventItem, Turn, TurnQuery, TurnState};
use windlass_client::protocol::{Seq, SessionId, TurnId};

/// The output of `future`. Panics with the caller's line if the future takes longer than `deadline`.
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

/// The pause between two attempts of [`eventually`].
const ATTEMPT_EVERY: Duration = Duration::from_millis(50);

/// The value of the first attempt that succeeds. Panics with the caller's line and the last error if none does
/// before `deadline`.
#[track_caller]
pub fn eventually<T, E: Debug>(
    deadline: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let until = Instant::now() + deadline;
        let mut ticks = interval(ATTEMPT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        loop {
            ticks.tick().await;
            match timeout_at(until, attempt()).await {
                Ok(Ok(value)) => return value,
                Ok(Err(error)) if Instant::now() < until => last = Some(error),
                Ok(Err(error)) => panic!("{caller}: not done within {deadline:?}: {error:?}"),
                Err(_) => panic!("{caller}: not done within {deadline:?}; before: {last:?}"),
            }
        }
    }
}

/// The first event after `after` that satisfies `wanted`.
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
        bail!("session {session} ended without the expected event")
    };
    tokio::time::timeout(deadline, search)
        .await
        .with_context(|| format!("no expected event of {session} within {deadline:?}"))?
}

/// Waits until the turn has ended, and returns it.
pub async fn turn_ended(
    client: &Client,
    session: &SessionId,
    turn: &TurnId,
    deadline: Duration,
) -> anyhow::Result<Turn> {
    let wait_ms = u64::try_from(deadline.as_millis())?;
    let query = TurnQuery { wait_ms, output_bytes_max: None, ..TurnQuery::default() };
    let seen = tokio::time::timeout(deadline, client.turn(session, turn, query))
        .await
        .with_context(|| format!("no reply about turn {turn} within {deadline:?}"))??;
    if seen.state != TurnState::Ended {
        bail!("turn {turn} of {session} did not end within {deadline:?}: {:?}", seen.state);
    }
    Ok(seen)
}
