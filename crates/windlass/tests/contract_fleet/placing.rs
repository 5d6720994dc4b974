//! Line 107: no session is made on a node without room, and draining a node ends none of its sessions.

use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};
use std::time::Duration;

use tokio::task::JoinSet;
use windlass_client::protocol::api::{CloseQuery, CreateSession};
use windlass_client::protocol::fleet_view::{PlacementRule, SetCordon};
use windlass_client::protocol::{NodeName, SessionId};
use windlass_client::{Client, ClientError};
use windlass_testkit::{
    PATIENCE, TestFleet, TestFleetPlan, TestNode, eventually, named_turn, run_ok, within,
};

use crate::{SEEN_WITHIN, command, create, id, named, start};

const AT_ONCE: CloseQuery = CloseQuery { grace_ms: Some(0) };

/// How long `windlass fleet drain` may take to see that the last session has ended. It looks once in a second.
const DRAINED_WITHIN: Duration = Duration::from_secs(10);

/// Number of sessions that are created at the same time.
const AT_THE_SAME_TIME: usize = 12;

/// Adds lines to `[fleet]` in the configuration of a node, and starts the node with them.
async fn configure(fleet: &mut TestFleet, number: usize, lines: &str) {
    let path = fleet.node(number).config_file();
    let text = fs::read_to_string(&path).unwrap();
    let changed = text.replacen("[fleet]\n", &format!("[fleet]\n{lines}\n"), 1);
    assert_ne!(changed, text, "no table [fleet]");
    fs::write(&path, changed).unwrap();
    fleet.restart(number).await.unwrap();
    fleet.joined(number).await.unwrap();
}

fn node_named(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

/// The request for a session that any node can make, because it names nothing of a machine.
fn anywhere(name: &str) -> CreateSession {
    CreateSession { id: Some(id(name)), ..CreateSession::default() }
}

fn placed_on(name: &str, node: &str) -> CreateSession {
    let rule = PlacementRule { node: Some(node_named(node)), ..PlacementRule::default() };
    CreateSession { placement: Some(rule), ..anywhere(name) }
}

fn labelled(name: &str, zone: &str) -> CreateSession {
    let labels = [("zone".to_owned(), zone.to_owned())].into();
    let rule = PlacementRule { labels, ..PlacementRule::default() };
    CreateSession { placement: Some(rule), ..anywhere(name) }
}

/// Creates a session as soon as a node has room, and returns the node's name. Both nodes answer slowly at times, and then
/// count as full.
async fn made_on(client: &Client, create: &CreateSession) -> String {
    let made = eventually(SEEN_WITHIN, async || client.create_session(create).await).await;
    made.session.node.map(|node| node.to_string()).unwrap_or_default()
}

async fn refused(client: &Client, create: &CreateSession) -> ClientError {
    within(PATIENCE, client.create_session(create)).await.unwrap_err()
}

/// The session is refused with this code. A node that answers slowly at times counts as unreachable then.
async fn is_refused(client: &Client, wanted: &CreateSession, code: &str) {
    eventually(SEEN_WITHIN, async || match client.create_session(wanted).await {
        Ok(created) => panic!("{wanted:?} was made: {created:?}"),
        Err(error) if error.code() == code => Ok(()),
        Err(error) => Err(error),
    })
    .await;
}

async fn close(client: &Client, session: &str) {
    client.close_session(&id(session), AT_ONCE).await.unwrap();
}

/// Number of live sessions of a node.
async fn live(client: &Client, node: &str) -> Option<u64> {
    let nodes = client.fleet_nodes().await.unwrap().nodes;
    let found = nodes.into_iter().find(|found| found.node.as_str() == node)?;
    Some(found.load?.sessions.live)
}

#[tokio::test]
async fn contract_107_a_session_is_made_on_a_node_with_room() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    configure(&mut fleet, 0, "max_sessions = 1\nlabels = { zone = \"a\" }").await;
    configure(&mut fleet, 1, "max_sessions = 1\nlabels = { zone = \"b\" }").await;
    let clients = fleet.clients().await.unwrap();
    // It names an interpreter, so the node that is asked makes it.
    let own = clients[0].create_session(&named("own")).await.unwrap().session;
    assert_eq!(own.node, Some(node_named("n1")));

    assert_eq!(made_on(&clients[0], &anywhere("moved")).await, "n2");
    for (count, client) in clients.iter().enumerate() {
        let said = run_ok(client, &id("moved"), "n = globals().get('n', 0) + 1; n").await;
        assert_eq!(said, format!("{}\n", count + 1));
        let found = client.session(&id("moved")).await.unwrap();
        assert_eq!(found.node, Some(node_named("n2")));
    }
    let counted = clients[1].node_status().await.unwrap().sessions;
    assert_eq!(counted, 1, "the session is the other node's");

    // Both are full, and the refusal says so of each.
    for client in &clients {
        let error = refused(client, &anywhere("none")).await;
        assert_eq!(error.code(), "overloaded", "{error:?}");
        let message = error.to_string();
        assert!(message.contains("n1") && message.contains("n2"), "{message}");
    }
    stays_where_its_files_are(&clients).await;
    close(&clients[0], "moved").await;
    follows_its_rule(&clients).await;
}

/// A session that names something of the first machine is made there, although the node is full.
async fn stays_where_its_files_are(clients: &[Client]) {
    let directory = tempfile::tempdir().unwrap();
    let workspace = Some(directory.path().to_string_lossy().into_owned());
    let wanted = CreateSession { workspace, ..anywhere("stays") };
    assert_eq!(made_on(&clients[0], &wanted).await, "n1");
    assert_eq!(run_ok(&clients[1], &id("stays"), "open('a', 'w').write('b')").await, "1\n");
    assert_eq!(fs::read_to_string(directory.path().join("a")).unwrap(), "b");
    close(&clients[1], "stays").await;
}

/// The first node is full, the second one is not.
async fn follows_its_rule(clients: &[Client]) {
    assert_eq!(made_on(&clients[0], &placed_on("on-n2", "n2")).await, "n2");
    close(&clients[0], "on-n2").await;
    for (number, client) in clients.iter().enumerate() {
        let name = format!("in-b-{number}");
        assert_eq!(made_on(client, &labelled(&name, "b")).await, "n2");
        close(client, &name).await;
    }
    for client in clients {
        for (wanted, code) in [
            (placed_on("x", "n1"), "overloaded"),
            (labelled("x", "a"), "overloaded"),
            (placed_on("x", "n9"), "bad_request"),
            (labelled("x", "none"), "bad_request"),
        ] {
            is_refused(client, &wanted, code).await;
        }
    }
}

/// Clients that create sessions at the same time do not fill a node beyond its limit.
#[tokio::test]
async fn contract_107_a_node_takes_no_more_sessions_than_its_limit() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    for number in [0, 1] {
        configure(&mut fleet, number, "max_sessions = 2").await;
    }
    let clients = fleet.clients().await.unwrap();
    let mut creating = JoinSet::new();
    for number in 0..AT_THE_SAME_TIME {
        let client = clients[number % clients.len()].clone();
        creating.spawn(async move {
            let made = client.create_session(&anywhere(&format!("at-once-{number}"))).await;
            made.map(|created| created.session.id).map_err(|error| error.code())
        });
    }
    let made = within(PATIENCE, creating.join_all()).await;
    let sessions: Vec<&SessionId> = made.iter().flatten().collect();
    assert!((1..=4).contains(&sessions.len()), "{made:?}");
    for error in made.iter().filter_map(|made| made.as_ref().err()) {
        assert_eq!(*error, "overloaded");
    }
    for (client, node) in clients.iter().zip(["n1", "n2"]) {
        let count = live(client, node).await.unwrap();
        assert!(count <= 2, "{node} has {count} sessions of at most 2");
    }
    for session in sessions {
        for client in &clients {
            assert_eq!(run_ok(client, session, "6 * 7").await, "42\n");
        }
    }
}

/// `windlass fleet drain`, which runs until the node has no sessions. It ends with this value.
struct RunningDrain(Child);

impl RunningDrain {
    fn start(door: &TestNode, node: &str) -> Self {
        let mut command = door.command(&["fleet", "drain", node]);
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Waits until the command has ended. Returns whether it succeeded, and what it wrote.
    async fn ended(mut self) -> (bool, String) {
        let status = eventually(DRAINED_WITHIN, async || match self.0.try_wait().unwrap() {
            Some(status) => Ok(status),
            None => Err("the command runs"),
        })
        .await;
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status.success(), text)
    }
}

impl Drop for RunningDrain {
    fn drop(&mut self) {
        // It has ended, or nobody waits for it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a node is cordoned, or is not.
async fn is_cordoned(client: &Client, expected: bool) {
    eventually(SEEN_WITHIN, async || match client.fleet_status().await {
        Ok(status) if status.cordoned == expected => Ok(()),
        other => Err(other),
    })
    .await;
}

/// The first node takes no new session, wherever the request arrives. The other one does.
async fn takes_no_sessions(clients: &[Client], round: &str) {
    let moved = format!("moved-{round}");
    assert_eq!(made_on(&clients[0], &anywhere(&moved)).await, "n2");
    close(&clients[0], &moved).await;
    for (client, wanted) in [
        (&clients[0], named("refused")),
        (&clients[0], placed_on("refused", "n1")),
        (&clients[1], placed_on("refused", "n1")),
    ] {
        is_refused(client, &wanted, "cordoned").await;
    }
}

/// The sessions count on, through both nodes.
async fn count_on(clients: &[Client], sessions: &[&SessionId], count: &mut u32) {
    for client in clients {
        *count += 1;
        for session in sessions {
            let ran = eventually(SEEN_WITHIN, async || {
                let turn = named_turn(&format!("count-{count}"), "n += 1; n");
                client.run_turn(session, turn).await
            });
            assert_eq!(ran.await.output.text, format!("{count}\n"));
        }
    }
}

#[tokio::test]
async fn contract_107_draining_a_node_ends_no_session() {
    let Some(mut fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    let (first, second) = (create(&clients[0], "first").await, create(&clients[0], "second").await);
    let sessions = [&first, &second];
    for session in sessions {
        run_ok(&clients[1], session, "n = 0").await;
    }
    let mut count = 0;
    let mut drain = RunningDrain::start(fleet.node(1), "n1");
    is_cordoned(&clients[0], true).await;
    takes_no_sessions(&clients, "drain").await;
    count_on(&clients, &sessions, &mut count).await;
    assert!(drain.is_running(), "the node has two sessions");

    // The cordon outlives the node, and so do the sessions.
    fleet.restart(0).await.unwrap();
    let clients = fleet.clients().await.unwrap();
    assert!(clients[0].fleet_status().await.unwrap().cordoned);
    count_on(&clients, &sessions, &mut count).await;
    takes_no_sessions(&clients, "restart").await;
    assert!(drain.is_running(), "the node has two sessions");
    close(&clients[1], "first").await;
    count_on(&clients, &sessions[1..], &mut count).await;
    assert!(drain.is_running(), "the node has a session");
    close(&clients[0], "second").await;
    let (success, text) = drain.ended().await;
    assert!(success && text.contains("node n1 has no sessions"), "{text}");

    fleet.restart(0).await.unwrap();
    let clients = fleet.clients().await.unwrap();
    eventually(SEEN_WITHIN, async || clients[0].fleet_status().await.map(drop)).await;
    takes_no_sessions(&clients, "drained").await;
    let said = command(fleet.node(1), &["fleet", "uncordon", "n1"]).await;
    assert!(said.status.success(), "{said:?}");
    is_cordoned(&clients[0], false).await;
    assert_eq!(made_on(&clients[0], &named("again")).await, "n1");
    assert_eq!(run_ok(&clients[1], &id("again"), "6 * 7").await, "42\n");
}

/// The cordon is set and lifted through each node.
#[tokio::test]
async fn contract_107_a_cordoned_node_gets_no_sessions_until_its_cordon_is_lifted() {
    let Some(fleet) = start(TestFleetPlan::short(2)).await else { return };
    let clients = fleet.clients().await.unwrap();
    for (number, door) in clients.iter().enumerate() {
        for (on, expected) in [(true, "n2"), (false, "n1")] {
            let state = door.set_cordon(&node_named("n1"), SetCordon { on }).await.unwrap();
            assert_eq!((state.node.as_str(), state.cordoned), ("n1", on));
            let name = format!("placed-{number}-{on}");
            assert_eq!(made_on(&clients[0], &anywhere(&name)).await, expected);
            close(&clients[1], &name).await;
        }
    }
    let unknown = clients[0].set_cordon(&node_named("n9"), SetCordon { on: true }).await;
    assert_eq!(unknown.unwrap_err().code(), "bad_request");
}
