//! One-line helpers for the usual requests of a test, with a timeout that only a fault can reach.

use std::time::Duration;

use windlass_client::Client;
use windlass_client::protocol::api::{EventItem, EventsQuery, SubmitTurn, Turn};
use windlass_client::protocol::{Outcome, SessionId, TurnId};

use crate::within;

/// Timeout for everything that the contract gives no time limit.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// A turn that runs `code`. The test may change it.
pub fn turn(code: impl Into<String>) -> SubmitTurn {
    SubmitTurn { code: code.into(), ..SubmitTurn::default() }
}

/// A turn that runs `code` with the given id.
///
/// # Panics
/// When `id` is not a valid turn id.
pub fn named_turn(id: &str, code: impl Into<String>) -> SubmitTurn {
    SubmitTurn { id: Some(TurnId::chosen(id).expect("a turn id")), ..turn(code) }
}

/// Runs `code` until it ends or reads input.
///
/// # Panics
/// When the node refuses it, or after [`PATIENCE`].
pub async fn run(client: &Client, session: &SessionId, code: &str) -> Turn {
    let ran = within(PATIENCE, client.run_turn(session, turn(code))).await;
    ran.unwrap_or_else(|error| panic!("session {session} refused {code:?}: {error}"))
}

/// Runs `code`, which must end `ok`, and returns its output.
///
/// # Panics
/// As [`run`], and when the turn does not end `ok`.
pub async fn run_ok(client: &Client, session: &SessionId, code: &str) -> String {
    let turn = run(client, session, code).await;
    assert_eq!(turn.outcome, Some(Outcome::Ok), "{turn:?}");
    turn.output.text
}

/// Every event of the session so far.
///
/// # Panics
/// When the node refuses, or after [`PATIENCE`].
pub async fn all_events(client: &Client, session: &SessionId) -> Vec<EventItem> {
    let mut events = Vec::new();
    let mut query = EventsQuery::default();
    loop {
        let page = within(PATIENCE, client.events_page(session, query)).await;
        let page = page.unwrap_or_else(|error| panic!("no events of {session}: {error}"));
        if page.events.is_empty() {
            return events;
        }
        query.after = page.after.0;
        events.extend(page.events);
    }
}
