//! The usual requests of a test, in one line each, with a deadline that only a fault can reach.

use std::time::Duration;

use windlass_client::Client;
use windlass_client::protocol::api::{EventItem, EventsQuery, SubmitTurn, Turn};
use windlass_client::protocol::{Outcome, SessionId, TurnId};

use crate::within;

/// How long anything may take that the contract gives no time.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A turn that runs `code`, to be changed by the test.
pub fn turn(code: impl Into<String>) -> SubmitTurn {
    SubmitTurn { code: code.into(), ..SubmitTurn::default() }
}

/// A turn that runs `code` under an id of the test's choice.
///
/// # Panics
/// When `id` cannot be one.
pub fn named_turn(id: &str, code: impl Into<String>) -> SubmitTurn {
    SubmitTurn { id: Some(TurnId::chosen(id).expect("a turn id")), ..turn(code) }
}

/// Runs `code` until it ends or asks for input.
///
/// # Panics
/// When the node refuses it or [`PATIENCE`] ends.
pub async fn run(client: &Client, session: &SessionId, code: &str) -> Turn {
    let ran = within(PATIENCE, client.run_turn(session, turn(code))).await;
    ran.unwrap_or_else(|error| panic!("session {session} refused {code:?}: {error}"))
}

/// What `code` printed; it must end well.
///
/// # Panics
/// As [`run`] does, and when the turn does not end `ok`.
pub async fn run_ok(client: &Client, session: &SessionId, code: &str) -> String {
    let turn = run(client, session, code).await;
    assert_eq!(turn.outcome, Some(Outcome::Ok), "{turn:?}");
    turn.output.text
}

/// Every event of the session so far.
///
/// # Panics
/// When the node refuses, or [`PATIENCE`] ends.
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
