//! Line 109: a node without a fleet opens no port, connects to no store, and runs nothing for one.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_testkit::{TestFleetPlan, TestNode, processes, run_ok};

use crate::{PROGRAM, start};

/// The threads of a node: the one that serves all sessions, the one that writes the audit log, two of the journal, and those
/// that do what blocks.
const THREADS: [&str; 5] =
    ["windlass", "audit", "journal-index", "journal-sync", "tokio-rt-worker"];

/// Tables of the sockets of a network namespace, and the column of the inode.
const SOCKET_TABLES: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];
const INODE_COLUMN: usize = 9;

/// The names of the threads of a process.
fn threads(pid: u32) -> BTreeSet<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread that has ended meanwhile has no name.
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

/// The sockets of a process, by inode.
fn sockets(pid: u32) -> BTreeSet<u64> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
    let inode = |target: &Path| -> Option<u64> {
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    targets.filter_map(|target| inode(&target)).collect()
}

/// The TCP and UDP sockets of a process, as lines of the kernel's tables: listening and connected ones.
fn network_sockets(pid: u32) -> Vec<String> {
    let own = sockets(pid);
    let is_own = |line: &str| {
        let inode = line.split_ascii_whitespace().nth(INODE_COLUMN);
        inode.and_then(|inode| inode.parse::<u64>().ok()).is_some_and(|inode| own.contains(&inode))
    };
    let mut found = Vec::new();
    for table in SOCKET_TABLES {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        found
            .extend(text.lines().filter(|line| is_own(line)).map(|line| format!("{table} {line}")));
    }
    found
}

/// The children of a node that belong to none of its sessions, and that it does not keep ready for one.
fn further_children(pid: u32, session: Option<&SessionId>) -> Vec<Vec<String>> {
    let nurseries = processes::nurseries(pid);
    let kept_ready = processes::kept_ready(pid);
    let of_none = |child: &u32| {
        let arguments = processes::arguments(*child);
        let of_session = session.is_some_and(|_| {
            arguments.get(1).is_some_and(|argument| argument == "keeper" || argument == "nursery")
        });
        !nurseries.contains(child) && !kept_ready.contains(child) && !of_session
    };
    let children: Vec<u32> = processes::children(pid).into_iter().filter(of_none).collect();
    children.into_iter().map(processes::arguments).collect()
}

async fn runs_nothing_for_a_fleet(node: &TestNode, client: &Client) {
    let pid = node.pid();
    let is_bare = |session: Option<&SessionId>| {
        assert_eq!(network_sockets(pid), [""; 0], "sockets of a network");
        let threads = threads(pid);
        assert!(threads.iter().all(|name| THREADS.contains(&name.as_str())), "{threads:?}");
        let children = further_children(pid, session);
        assert!(children.is_empty(), "{children:?}");
    };
    is_bare(None);
    let session = node.session(client).await.unwrap().id;
    assert_eq!(run_ok(client, &session, "6 * 7").await, "42\n");
    is_bare(Some(&session));
    assert_eq!(client.node_status().await.unwrap().listen, None);
    let state = &node.dirs().state;
    assert!(!state.join("fleet").exists(), "a node without a fleet has no credentials");
}

#[tokio::test]
async fn contract_109_a_node_without_a_fleet_has_no_port_no_store_and_no_helper() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    runs_nothing_for_a_fleet(&node, &client).await;
    // The same with a configuration file that has other tables.
    let config = "start_figures = true\n[node]\nlog = \"info\"\n";
    let node = TestNode::builder(PROGRAM).config(config).start().await.unwrap();
    let client = node.client().await.unwrap();
    runs_nothing_for_a_fleet(&node, &client).await;
}

/// What the test above looks for is there when a node has a fleet.
#[tokio::test]
async fn contract_109_the_sockets_of_a_node_with_a_fleet_are_seen() {
    let Some(fleet) = start(TestFleetPlan::short(1)).await else { return };
    let found = network_sockets(fleet.node(0).pid());
    let listens = |line: &&String| line.split_ascii_whitespace().nth(4) == Some("0A");
    assert_eq!(found.iter().filter(listens).count(), 1, "one door for other nodes: {found:?}");
    assert!(found.iter().any(|line| !listens(&line)), "a connection to the store: {found:?}");
    let about = fs::metadata(fleet.node(0).dirs().state.join("fleet")).unwrap();
    assert_eq!(about.mode() & 0o777, 0o700, "only the user may read the credentials");
}

/// A client of a node without a fleet is told so by each answer about a session that the node does not have.
#[tokio::test]
async fn contract_109_an_unknown_session_is_refused_without_a_lookup_elsewhere() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let refused = client.session(&crate::id("elsewhere")).await.unwrap_err();
    assert_eq!(refused.code(), "session_not_found", "{refused:?}");
}
