//! Line 103: a node that dies is noticed within its lease. Its sessions are told as unreachable, then as lost with a
//! receipt. Any node has the events that were copied.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use windlass_client::Client;
use windlass_client::protocol::api::{
    CloseQuery, CreateSession, Durability, EventItem, EventsQuery, Session, SessionState,
    SubmitTurn, TurnQuery, TurnState,
};
use windlass_client::protocol::event::{DropReason, EndReason};
use windlass_client::protocol::fleet_view::FleetNodeStatus;
use windlass_client::protocol::{EventKind, Outcome, Seq, SessionId, TurnId, TurnNo};
use windlass_testkit::fleet::{JOIN_WAIT, create_patiently};
use windlass_testkit::{
    Gate, PATIENCE, TestFleet, TestFleetPlan, TestNode, all_events, eventually, named_turn, run,
    run_ok, turn, wait_for_event, within,
};

use crate::http::{HttpAsk, ask_with};
use crate::{PROGRAM, SEEN_WITHIN, command, listed, named, start};

/// Others notice a dead node with short leases within 3 s. The rest is a margin for a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(6);

/// Others have declared a node with short leases lost after this time.
const LOST_WITHIN: Duration = Duration::from_secs(25);

/// The copy and the directory have the end of a session after this time.
const END_COPIED_WITHIN: Duration = Duration::from_secs(4);

/// How long the store is stopped. A node with short leases is not fenced by then.
const STOPPED_FOR: Duration = Duration::from_millis(2_500);

/// The turns of a session whose events are compared one by one, and what they print.
const TURNS: [(&str, &str); 3] = [("print('one')", "one\n"), ("6 * 7", "42\n"), ("x = 1", "")];

/// Number of turns that a session has run when its node is killed.
const TURNS_BEFORE_KILL: u64 = 30;

/// A turn that prints 100 MiB, and how long it may take.
const FLOOD: &str = "for _ in range(1600): print('x' * 65535)";
const FLOOD_BYTES: u64 = 1600 * 65536;
const FLOOD_WITHIN: Duration = Duration::from_secs(40);

/// What the copy has of a turn's output at most, besides one event.
const COPIED_BYTES: u64 = 128 * 1024;

/// Number of displays of a turn that runs for some seconds.
const SHOWN: usize = 600;

/// The request for a session whose turns are told as ended when the fleet has a copy of that.
fn replicated(name: &str) -> CreateSession {
    CreateSession { durability: Durability::Replicated, ..named(name) }
}

async fn create_replicated(client: &Client, name: &str) -> SessionId {
    create_patiently(client, &replicated(name), JOIN_WAIT).await.unwrap().id
}

fn is_output(item: &EventItem) -> bool {
    matches!(item.event.kind, EventKind::Output { .. } | EventKind::OutputDropped { .. })
}

fn without_output(events: &[EventItem]) -> Vec<EventItem> {
    events.iter().filter(|item| !is_output(item)).cloned().collect()
}

fn output_bytes(events: &[EventItem]) -> u64 {
    let output = events.iter().filter(|item| matches!(item.event.kind, EventKind::Output { .. }));
    output.map(|item| item.bytes).sum()
}

/// Output bytes that the copy leaves out.
fn left_out_bytes(events: &[EventItem]) -> u64 {
    let left_out = events.iter().filter_map(|item| match item.event.kind {
        EventKind::OutputDropped { bytes, reason: DropReason::NotCopied } => Some(bytes),
        _ => None,
    });
    left_out.sum()
}

/// Compares event by event, so that a difference names its event.
#[track_caller]
fn are_equal(copied: &[EventItem], seen: &[EventItem]) {
    for (copied, seen) in copied.iter().zip(seen) {
        assert_eq!(copied, seen, "the copied event, and that of the owner");
    }
    assert_eq!(copied.len(), seen.len(), "number of copied events, and of those of the owner");
}

/// Submits short turns until the node dies. Returns those that the client was told as ended.
fn submit_until_cut(client: &Client, session: &SessionId) -> JoinHandle<Vec<TurnNo>> {
    let (client, session) = (client.with_retry_for(Duration::ZERO), session.clone());
    tokio::spawn(async move {
        let mut told = Vec::new();
        for number in 0_u32.. {
            let named = named_turn(&format!("turn-{number}"), format!("print({number})"));
            let submit = SubmitTurn { wait_ms: 10_000, ..named };
            match client.submit_turn(&session, &submit).await {
                Ok(turn) if turn.state == TurnState::Ended => told.push(turn.number),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        told
    })
}

/// Follows the events of a session until the node dies. Returns what the client saw.
fn follow_until_cut(client: &Client, session: &SessionId) -> JoinHandle<Vec<EventItem>> {
    let mut events = client.with_retry_for(Duration::ZERO).events(session, Seq(0));
    tokio::spawn(async move {
        let mut seen = Vec::new();
        while let Ok(Some(item)) = events.next().await {
            seen.push(item);
        }
        seen
    })
}

/// The first node is dead. Others tell it and its session as unreachable within its lease.
async fn is_noticed(other: &Client, session: &SessionId) {
    eventually(NOTICED_WITHIN, async || {
        let nodes = other.fleet_nodes().await.unwrap().nodes;
        match nodes.iter().find(|node| node.node.as_str() == "n1").map(|node| node.status) {
            Some(FleetNodeStatus::Unreachable) => Ok(()),
            status => Err(status),
        }
    })
    .await;
    let refused = within(NOTICED_WITHIN, other.session(session)).await.unwrap_err();
    assert_eq!(refused.code(), "node_unreachable", "{refused:?}");
    assert!(refused.to_string().contains("n1"), "{refused}");
    let listed = listed(other).await;
    let expected = ("n1".to_owned(), SessionState::Unreachable);
    assert_eq!(listed.get(session.as_str()), Some(&expected), "{listed:?}");
}

/// Waits until a session of a dead node is lost. The first answer that is not about an unreachable node is the session.
async fn becomes_lost(other: &Client, session: &SessionId) -> Session {
    eventually(LOST_WITHIN, async || {
        let looked = other.session(session).await;
        if let Err(error) = &looked {
            assert_ne!(error.code(), "session_lost", "a lost session can be looked at: {error}");
        }
        looked
    })
    .await
}

/// The lost session says why it ended, and up to which event there is a copy.
#[track_caller]
fn says_what_is_left(lost: &Session, node: &str, last: Seq) {
    assert_eq!((lost.state, lost.seq), (SessionState::Ended, last));
    let ended = lost.ended.as_ref().unwrap();
    assert_eq!(ended.reason, EndReason::Lost);
    let message = ended.message.as_deref().unwrap_or_default();
    assert!(message.contains(node) && message.contains(&last.to_string()), "{message}");
    let receipt = ended.receipt.as_ref().unwrap();
    assert!(receipt.lost.contains(&format!("events after event {last}")), "{receipt:?}");
    let up_to = format!("event {last},");
    assert!(receipt.kept.iter().any(|kept| kept.contains(&up_to)), "{receipt:?}");
}

/// The events of a lost session in pages. Only the last page says that none follows.
async fn in_pages(other: &Client, session: &SessionId, after: u64, limit: usize) -> Vec<EventItem> {
    let mut query = EventsQuery { after, limit: Some(limit), ..EventsQuery::default() };
    let mut events = Vec::new();
    loop {
        let page = within(PATIENCE, other.events_page(session, query)).await.unwrap();
        assert!(page.events.len() <= limit, "{} events", page.events.len());
        assert!(page.ended || !page.events.is_empty(), "an empty page that is not the last");
        query.after = page.after.0;
        events.extend(page.events);
        if page.ended {
            return events;
        }
    }
}

/// The events of a lost session as a stream, which must end.
async fn streamed(
    socket: &Path,
    session: &SessionId,
    query: &str,
    headers: &str,
) -> Vec<EventItem> {
    let path = format!("/v1/sessions/{session}/events{query}");
    let request = HttpAsk { accept: "text/event-stream", ..HttpAsk::get(&path) };
    let said = ask_with(socket, request, headers).await;
    assert_eq!(said.status, 200, "{said:?}");
    assert_eq!(said.headers["content-type"], "text/event-stream");
    let text = String::from_utf8(said.body).unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Each way to read the events of a lost session gives the same.
async fn can_be_read(fleet: &TestFleet, number: usize, session: &SessionId, seen: &[EventItem]) {
    let client = fleet.client(number).await.unwrap();
    let socket = fleet.node(number).dirs().socket();
    let last = seen.last().unwrap().event.seq;
    for limit in [1, 4, 1000] {
        are_equal(&in_pages(&client, session, 0, limit).await, seen);
    }
    are_equal(&streamed(&socket, session, "", "").await, seen);
    let mut events = client.events(session, Seq(0));
    let mut followed = Vec::new();
    while let Some(item) = within(PATIENCE, events.next()).await.unwrap() {
        followed.push(item);
    }
    are_equal(&followed, seen);
    // The events have no gaps, so an event's number is also its place.
    for after in [1, 5, last.0 - 1, last.0, last.0 + 10] {
        let rest = seen.get(usize::try_from(after).unwrap()..).unwrap_or_default();
        are_equal(&in_pages(&client, session, after, 3).await, rest);
        are_equal(&streamed(&socket, session, &format!("?after={after}"), "").await, rest);
        // A client that connects again says in the header what it has.
        let header = format!("last-event-id: {after}\r\n");
        are_equal(&streamed(&socket, session, "?after=0", &header).await, rest);
    }
}

/// The turns of a lost session and its output, read from the copy of its events.
async fn turns_are_told(fleet: &TestFleet, number: usize, session: &SessionId, seen: &[EventItem]) {
    let client = fleet.client(number).await.unwrap();
    let ids = seen.iter().filter_map(|item| match &item.event.kind {
        EventKind::TurnAccepted { id, .. } => Some(id.clone()),
        _ => None,
    });
    for (id, (code, output)) in ids.zip(TURNS) {
        let query = TurnQuery::default();
        let told = within(PATIENCE, client.turn(session, &id, query)).await.unwrap();
        assert_eq!((told.state, told.outcome), (TurnState::Ended, Some(Outcome::Ok)), "{code}");
        assert_eq!(told.output.text, output, "{code}");
    }
    let path = format!("/v1/sessions/{session}/output");
    let said = ask_with(&fleet.node(number).dirs().socket(), HttpAsk::get(&path), "").await;
    let all: String = TURNS.iter().map(|(_, output)| *output).collect();
    assert_eq!((said.status, String::from_utf8_lossy(&said.body).into_owned()), (200, all));
}

/// What needs the session itself is refused with the last event of the copy.
async fn is_refused(other: &Client, session: &SessionId, last: Seq) {
    let refused = other.submit_turn(session, &turn("1")).await.unwrap_err();
    assert_eq!(refused.code(), "session_lost", "{refused:?}");
    let said = format!("events up to {last} were copied");
    assert!(refused.to_string().contains(&said), "{refused}");
}

/// `windlass logs` through a node prints the output of a lost session.
async fn logs_print(node: &TestNode, session: &SessionId, expected: &str) {
    let said = command(node, &["logs", session.as_str()]).await;
    assert!(said.status.success(), "{said:?}");
    assert_eq!(String::from_utf8_lossy(&said.stdout), expected);
}

/// The copy of a session that ran turns when its node died: no gap, nothing else than a client saw, and each turn that a
/// client was told as ended.
fn has_what_was_told(copied: &[EventItem], seen: &[EventItem], told: &[TurnNo]) {
    let numbers: Vec<u64> = copied.iter().map(|item| item.event.seq.0).collect();
    assert!(numbers.iter().copied().eq(1..=copied.len() as u64), "{numbers:?}");
    // The client may have seen more than was copied, or the other way round.
    let shared = seen.len().min(copied.len());
    are_equal(&copied[..shared], &seen[..shared]);
    let is_end = |item: &&EventItem| matches!(item.event.kind, EventKind::TurnEnded { .. });
    let ended: BTreeSet<TurnNo> =
        copied.iter().filter(is_end).filter_map(|item| item.event.turn).collect();
    assert!(told.len() as u64 >= TURNS_BEFORE_KILL / 2, "{} turns were told as ended", told.len());
    for turn in told {
        assert!(ended.contains(turn), "turn {turn} was told as ended and is not copied");
    }
}

#[tokio::test]
async fn contract_103_the_sessions_of_a_dead_node_are_lost_and_their_copies_can_be_read() {
    let Some(mut fleet) = start(TestFleetPlan::short(3)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let steady = create_replicated(&clients[0], "steady").await;
    for (code, output) in TURNS {
        assert_eq!(run_ok(&clients[0], &steady, code).await, output);
    }
    let seen = all_events(&clients[2], &steady).await;
    let last = seen.last().unwrap().event.seq;
    let busy = create_replicated(&clients[0], "busy").await;
    let followed = follow_until_cut(&clients[0], &busy);
    let told = submit_until_cut(&clients[0], &busy);
    eventually(PATIENCE, async || match clients[0].session(&busy).await.unwrap().turns {
        TURNS_BEFORE_KILL.. => Ok(()),
        turns => Err(turns),
    })
    .await;

    fleet.kill9(0);
    is_noticed(&clients[1], &steady).await;
    let told = within(PATIENCE, told).await.unwrap();
    let followed = within(PATIENCE, followed).await.unwrap();
    let lost = becomes_lost(&clients[1], &steady).await;
    says_what_is_left(&lost, "n1", last);
    assert_eq!(lost.turns, TURNS.len() as u64);
    for number in [1, 2] {
        can_be_read(&fleet, number, &steady, &seen).await;
        turns_are_told(&fleet, number, &steady, &seen).await;
        is_refused(&clients[number], &steady, last).await;
        let output: String = TURNS.iter().map(|(_, output)| *output).collect();
        logs_print(fleet.node(number), &steady, &output).await;
        let expected = ("n1".to_owned(), SessionState::Lost);
        assert_eq!(listed(&clients[number]).await.get("steady"), Some(&expected));
        has_what_was_told(&all_events(&clients[number], &busy).await, &followed, &told);
    }

    // The name is free. The copy of the later session has nothing of the earlier one.
    let steady = create_replicated(&clients[1], "steady").await;
    assert_eq!(run_ok(&clients[2], &steady, "print('later')").await, "later\n");
    let seen = all_events(&clients[2], &steady).await;
    // The worker may be ready before or after the turn is accepted.
    let accepted = seen.iter().find(|item| item.event.turn.is_some()).unwrap();
    assert_eq!(accepted.text.as_deref(), Some("print('later')"), "{accepted:?}");
    fleet.kill9(1);
    let lost = becomes_lost(&clients[2], &steady).await;
    says_what_is_left(&lost, "n2", seen.last().unwrap().event.seq);
    assert_eq!(lost.turns, 1);
    are_equal(&all_events(&clients[2], &steady).await, &seen);
    logs_print(fleet.node(2), &steady, "later\n").await;
}

/// Waits until the turn of a session has shown so many displays.
async fn has_shown(client: &Client, session: &SessionId, count: usize) {
    let text = (count - 1).to_string();
    let is_it = |item: &EventItem| {
        let is_display = matches!(item.event.kind, EventKind::Display { .. });
        is_display && item.text.as_deref() == Some(text.as_str())
    };
    wait_for_event(client, session, Seq(0), PATIENCE, is_it).await.unwrap();
}

/// A turn of the first node that makes events for some seconds, over a stop of the store and a restart of the node.
async fn shows_over_faults(fleet: &mut TestFleet) -> SessionId {
    let clients = fleet.clients().await.unwrap();
    let session = create_replicated(&clients[0], "shows").await;
    // The gate keeps the turn running, however long the restart takes.
    let gate = Gate::new("shows").unwrap();
    let half = SHOWN / 2;
    let code = format!(
        "import time\n\
         def show(numbers):\n    \
             for number in numbers:\n        \
                 _ = display(str(number), mime='text/plain')\n        \
                 print(number)\n        \
                 time.sleep(0.01)\n\
         show(range({half}))\n\
         {}show(range({half}, {SHOWN}))\n",
        gate.python()
    );
    let submitted = clients[1].submit_turn(&session, &named_turn("shows", code)).await.unwrap();
    has_shown(&clients[0], &session, 20).await;
    fleet.stop_servers();
    let stopped = Instant::now();
    eventually(PATIENCE, async || match stopped.elapsed() >= STOPPED_FOR {
        true => Ok(()),
        false => Err("the store is stopped for a while"),
    })
    .await;
    fleet.resume_servers();
    fleet.restart(0).await.unwrap();
    let looked = fleet.client(0).await.unwrap().session(&session).await.unwrap();
    assert!(looked.turn.is_some(), "the turn goes on over the restart: {looked:?}");
    within(PATIENCE, gate.reached()).await.unwrap().open().await.unwrap();
    assert_eq!(ends(&clients[1], &session, &submitted.id).await, Some(Outcome::Ok));
    session
}

/// Waits until a turn is told as ended.
async fn ends(client: &Client, session: &SessionId, id: &TurnId) -> Option<Outcome> {
    eventually(PATIENCE, async || {
        let query = TurnQuery { wait_ms: 5_000, ..TurnQuery::default() };
        let looked = client.turn(session, id, query).await.map_err(|error| error.to_string())?;
        match looked.state {
            TurnState::Ended => Ok(looked.outcome),
            state => Err(format!("{state:?}")),
        }
    })
    .await
}

/// A turn of 100 MiB of output in a session of its own. Returns the events before the output, and the one after it.
async fn flood(client: &Client) -> (SessionId, Vec<EventItem>) {
    let session = create_replicated(client, "flood").await;
    let ran = within(FLOOD_WITHIN, client.run_turn(&session, turn(FLOOD))).await.unwrap();
    assert_eq!((ran.outcome, ran.output.bytes), (Some(Outcome::Ok), FLOOD_BYTES));
    let last = client.session(&session).await.unwrap().seq;
    let mut seen = Vec::new();
    for (after, limit) in [(0, Some(6)), (last.0 - 1, None)] {
        let query = EventsQuery { after, limit, ..EventsQuery::default() };
        seen.extend(client.events_page(&session, query).await.unwrap().events);
    }
    (session, without_output(&seen))
}

/// Of a flood, the copy has the beginning and the end, and says how much it leaves out.
fn has_beginning_and_end(copied: &[EventItem], seen: &[EventItem]) {
    are_equal(&without_output(copied), seen);
    let outputs: Vec<&EventItem> = copied.iter().filter(|item| is_output(item)).collect();
    let largest = outputs.iter().map(|item| item.bytes).max().unwrap();
    let kept = output_bytes(copied);
    assert!(kept <= COPIED_BYTES + largest, "{kept} bytes of output, events of {largest} bytes");
    assert_eq!(kept + left_out_bytes(copied), FLOOD_BYTES);
    let is_kept = |item: &EventItem| matches!(item.event.kind, EventKind::Output { .. });
    let (first, last) = (outputs[0], outputs[outputs.len() - 1]);
    assert!(is_kept(first) && is_kept(last), "{:?} {:?}", first.event, last.event);
    let numbers: Vec<Seq> = copied.iter().map(|item| item.event.seq).collect();
    assert!(numbers.is_sorted_by(|one, other| one < other), "{numbers:?}");
}

/// The end of the session is told before the fleet has a copy of it.
#[tokio::test]
async fn contract_103_a_closed_session_of_a_dead_node_is_answered_from_its_copy() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let closed = create_replicated(&clients[0], "closed").await;
    for (code, output) in TURNS {
        assert_eq!(run_ok(&clients[0], &closed, code).await, output);
    }
    clients[0].close_session(&closed, CloseQuery::default()).await.unwrap();
    let seen = all_events(&clients[1], &closed).await;
    tokio::time::sleep(END_COPIED_WITHIN).await;

    fleet.kill9(0);
    let looked = within(NOTICED_WITHIN, clients[1].session(&closed)).await.unwrap();
    let last = seen.last().unwrap().event.seq;
    assert_eq!((looked.state, looked.seq), (SessionState::Ended, last));
    assert_eq!(looked.ended.map(|ended| ended.reason), Some(EndReason::Closed));
    can_be_read(&fleet, 1, &closed, &seen).await;
    let refused = clients[1].submit_turn(&closed, &turn("1")).await.unwrap_err();
    assert_eq!(refused.code(), "node_unreachable", "{refused:?}");
}

/// The store is away when the session ends, and its node starts again before the store is back.
#[tokio::test]
async fn contract_103_a_session_that_ended_before_a_restart_is_copied_to_its_end() {
    let Some(mut fleet) = start(TestFleetPlan::patient(2)).await else { return };
    let client = fleet.client(0).await.unwrap();
    let closed = client.create_session(&named("closed")).await.unwrap().session.id;
    fleet.stop_servers();
    for (code, output) in TURNS {
        assert_eq!(run_ok(&client, &closed, code).await, output);
    }
    client.close_session(&closed, CloseQuery::default()).await.unwrap();
    fleet.restart(0).await.unwrap();
    fleet.resume_servers();
    fleet.joined(0).await.unwrap();
    let seen = all_events(&fleet.client(0).await.unwrap(), &closed).await;
    tokio::time::sleep(END_COPIED_WITHIN).await;

    fleet.kill9(0);
    let other = fleet.client(1).await.unwrap();
    let looked = within(NOTICED_WITHIN, other.session(&closed)).await.unwrap();
    assert_eq!(looked.ended.map(|ended| ended.reason), Some(EndReason::Closed));
    can_be_read(&fleet, 1, &closed, &seen).await;
}

/// Gives a node an empty disk. It keeps the credentials, as a machine does that joins again under its name.
fn replace_disk(node: &TestNode) {
    let state = &node.dirs().state;
    let old = node.base().join("old-state");
    fs::rename(state, &old).unwrap();
    DirBuilder::new().mode(0o700).create(state).unwrap();
    fs::rename(old.join("fleet"), state.join("fleet")).unwrap();
}

/// The node has neither the session nor its journal. It and the others answer from the copy.
#[tokio::test]
async fn contract_103_a_lost_session_can_be_read_when_its_node_is_back_with_a_new_disk() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let steady = create_replicated(&clients[0], "steady").await;
    for (code, output) in TURNS {
        assert_eq!(run_ok(&clients[0], &steady, code).await, output);
    }
    let seen = all_events(&clients[1], &steady).await;
    let last = seen.last().unwrap().event.seq;

    fleet.kill9(0);
    becomes_lost(&clients[1], &steady).await;
    replace_disk(fleet.node(0));
    fleet.restart(0).await.unwrap();
    fleet.joined(0).await.unwrap();
    for number in [0, 1] {
        let client = fleet.client(number).await.unwrap();
        says_what_is_left(&client.session(&steady).await.unwrap(), "n1", last);
        can_be_read(&fleet, number, &steady, &seen).await;
        is_refused(&client, &steady, last).await;
    }
}

#[tokio::test]
async fn contract_103_every_event_but_bulk_output_is_copied_once_over_faults() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let client = fleet.client(0).await.unwrap();
    let (flood, seen_flood) = flood(&client).await;
    let shows = shows_over_faults(&mut fleet).await;
    let seen = all_events(&fleet.client(0).await.unwrap(), &shows).await;
    fleet.kill9(0);
    let other = fleet.client(1).await.unwrap();
    let lost = becomes_lost(&other, &shows).await;
    says_what_is_left(&lost, "n1", seen.last().unwrap().event.seq);
    let copied = all_events(&other, &shows).await;
    are_equal(&without_output(&copied), &without_output(&seen));
    let is_display = |item: &&EventItem| matches!(item.event.kind, EventKind::Display { .. });
    let shown: Vec<&str> =
        copied.iter().filter(is_display).filter_map(|item| item.text.as_deref()).collect();
    let expected: Vec<String> = (0..SHOWN).map(|number| number.to_string()).collect();
    assert_eq!(shown, expected);
    assert_eq!(output_bytes(&copied) + left_out_bytes(&copied), output_bytes(&seen));
    let lost = becomes_lost(&other, &flood).await;
    assert_eq!(lost.output_bytes, FLOOD_BYTES);
    has_beginning_and_end(&all_events(&other, &flood).await, &seen_flood);
}

#[tokio::test]
async fn contract_103_a_replicated_turn_is_told_as_ended_only_when_it_is_copied() {
    let Some(fleet) = start(TestFleetPlan::patient(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let session = create_replicated(&clients[0], "late").await;
    for client in &clients {
        assert_eq!(run_ok(client, &session, "6 * 7").await, "42\n");
    }
    let before = clients[0].session(&session).await.unwrap().seq;

    fleet.stop_servers();
    let submit = SubmitTurn { wait_ms: 500, ..named_turn("late", "print('late')") };
    let told = within(PATIENCE, clients[0].submit_turn(&session, &submit)).await.unwrap();
    assert_eq!((told.state, told.outcome), (TurnState::Running, None));
    // The turn has ended, and its node says so to those who follow its events.
    let is_end = |item: &EventItem| matches!(item.event.kind, EventKind::TurnEnded { .. });
    wait_for_event(&clients[0], &session, before, PATIENCE, is_end).await.unwrap();
    for client in &clients {
        let looked = client.turn(&session, &told.id, TurnQuery::default());
        let looked = within(PATIENCE, looked).await.unwrap();
        assert_eq!((looked.state, looked.outcome), (TurnState::Running, None));
    }
    fleet.resume_servers();
    for client in &clients {
        assert_eq!(ends(client, &session, &told.id).await, Some(Outcome::Ok));
    }
    let ran = eventually(SEEN_WITHIN, async || clients[1].run_turn(&session, turn("1 + 1")).await);
    assert_eq!(ran.await.output.text, "2\n");
}

#[tokio::test]
async fn contract_103_replicated_durability_needs_a_fleet() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let refused = client.create_session(&replicated("alone")).await.unwrap_err();
    assert_eq!(refused.code(), "bad_request", "{refused:?}");
    assert!(refused.to_string().contains("fleet"), "{refused}");
    let session = node.session(&client).await.unwrap().id;
    let ran = run(&client, &session, "1 + 1").await;
    assert_eq!(ran.output.text, "2\n");
}
