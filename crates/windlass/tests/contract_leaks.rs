//! Contract line 49, what sessions leave in the node: descriptors, children, memory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use tokio::task::JoinSet;
use windlass_client::Client;
use windlass_client::protocol::api::CloseQuery;
use windlass_testkit::{PATIENCE, TestNode, processes, run_ok, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Number of sessions to open and close; `WINDLASS_CONTRACT_SESSIONS` overrides it.
const SESSIONS: usize = 1000;

/// Sessions before the first measurement. Afterwards allocator, caches and pools have their final size.
const WARM_UP: usize = 200;

/// Number of clients that open and close sessions at once.
const CLIENTS: usize = 4;

/// Memory that the allocator and the page cache of the index may keep. A leak of 4 KiB per session would
/// exceed it.
const RSS_SLACK_BYTES: u64 = 4 * 1024 * 1024;

#[tokio::test]
async fn contract_49_a_thousand_sessions_leave_descriptors_children_and_memory_as_they_were() {
    let sessions = std::env::var("WINDLASS_CONTRACT_SESSIONS")
        .map_or(SESSIONS, |number| number.parse().unwrap());
    let node = TestNode::start(PROGRAM).await.unwrap();
    open_and_close(&node, WARM_UP).await;
    let before = Held::by(&node).await;
    open_and_close(&node, sessions).await;
    // The journal closes the last segments when it has synced them.
    let settled = async {
        loop {
            let held = Held::by(&node).await;
            if held.descriptors <= before.descriptors {
                return held;
            }
        }
    };
    let after = within(PATIENCE, settled).await;
    eprintln!("before {before:?}, after {sessions} sessions {after:?}");
    assert_eq!((after.children, before.children), (0, 0));
    assert_eq!(after.sockets, 0, "keepers' sockets are left");
    assert_eq!(after.sessions, 0);
    let grown = after.rss_bytes.saturating_sub(before.rss_bytes);
    assert!(grown <= RSS_SLACK_BYTES, "the node has grown by {grown} bytes");
}

async fn open_and_close(node: &TestNode, sessions: usize) {
    let mut clients = JoinSet::new();
    for place in 0..CLIENTS {
        let client = node.client().await.unwrap();
        let share = sessions / CLIENTS + usize::from(place < sessions % CLIENTS);
        clients.spawn(async move {
            for number in 0..share {
                open_use_close(&client, number).await;
            }
        });
    }
    clients.join_all().await;
}

/// Some sessions are used first, some are closed while their worker still starts.
async fn open_use_close(client: &Client, number: usize) {
    let created = within(PATIENCE, client.create_session(&TestNode::create())).await.unwrap();
    let session = created.session.id;
    if number.is_multiple_of(4) {
        assert_eq!(run_ok(client, &session, "6 * 7").await, "42\n");
    }
    let close = CloseQuery { grace_ms: Some(if number.is_multiple_of(8) { 1000 } else { 0 }) };
    within(PATIENCE, client.close_session(&session, close)).await.unwrap();
}

/// The resources of an unused node.
#[derive(Debug)]
struct Held {
    descriptors: usize,
    /// Children including zombies, without the processes that the node keeps ready.
    children: usize,
    rss_bytes: u64,
    sockets: usize,
    sessions: usize,
}

impl Held {
    async fn by(node: &TestNode) -> Self {
        let client = node.client().await.unwrap();
        node.await_environments().await.unwrap();
        let mut held = Self::now(node, &client).await;
        // The node closes connections and reaps children after it has replied. Each request gives it time to
        // do so.
        let settled = async {
            loop {
                let next = Self::now(node, &client).await;
                let same = (next.descriptors, next.children) == (held.descriptors, 0);
                held = next;
                if same {
                    return held;
                }
            }
        };
        within(PATIENCE, settled).await
    }

    async fn now(node: &TestNode, client: &Client) -> Self {
        let sessions = client.node_status().await.unwrap().sessions;
        let pid = node.pid();
        let sockets = std::fs::read_dir(node.dirs().runtime.join("k")).unwrap();
        let sockets = sockets.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        Self {
            descriptors: processes::descriptors(pid).unwrap(),
            children: processes::children(pid).len()
                - processes::nurseries(pid).len()
                - processes::pooled_keepers(pid).len(),
            rss_bytes: processes::rss_bytes(pid).unwrap(),
            sockets: sockets.filter(|name| !name.starts_with("waiting-")).count(),
            sessions,
        }
    }
}
