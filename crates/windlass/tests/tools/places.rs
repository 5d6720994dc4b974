//! The connection slot of a host: the host keeps it while it is attached, and gives it back.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::net::UnixStream;
use windlass_client::protocol::Owner;
use windlass_client::tools::{ToolHost, ToolScope};
use windlass_testkit::raw_http::{RawHttp, request};
use windlass_testkit::{PATIENCE, TestNode, processes, within};

use crate::socket::Socket;
use crate::{PROGRAM, start_session};

/// Number of descriptors that the node may open in addition.
const ROOM: u64 = 24;

fn leave_room(node: &TestNode) {
    let pid = Pid::from_raw(node.pid().cast_signed());
    let limit = prlimit(pid, Resource::Nofile, getrlimit(Resource::Nofile)).unwrap();
    let open = processes::descriptors(node.pid()).unwrap() as u64;
    let low = Rlimit { current: Some(open + ROOM), maximum: limit.maximum };
    prlimit(pid, Resource::Nofile, low).unwrap();
}

#[tokio::test]
async fn a_silent_host_stays_connected_when_idle_connections_are_closed() {
    let (node, _client, _session) = start_session().await;
    let socket = node.dirs().socket();
    let mut host = Socket::attach(&socket, "?owner=me").await;
    host.hear().await;
    leave_room(&node);
    let mut idle = Vec::new();
    for _ in 0..4 * ROOM {
        idle.push(UnixStream::connect(&socket).await.unwrap());
    }
    let mut last = RawHttp::connect(&socket).await.unwrap();
    last.write(&request("GET", "/v1/health", b"")).await.unwrap();
    assert_eq!(within(PATIENCE, last.answer()).await.unwrap().0, 200);
    assert!(host.is_alive().await);
}

#[tokio::test]
async fn when_hosts_have_all_slots_the_next_client_waits_until_one_leaves() {
    let (node, _client, _session) = start_session().await;
    let socket = node.dirs().socket();
    leave_room(&node);
    let mut hosts = Vec::new();
    let full = loop {
        let asking = Socket::ask(&socket, "?owner=me", "upgrade");
        // A client without a slot gets no reply, so only a timeout can show it.
        match tokio::time::timeout(Duration::from_secs(5), asking).await {
            Ok((101, host)) => hosts.push(host),
            Ok((status, _)) => panic!("{status}"),
            Err(_) => break hosts.len(),
        }
        // The node closed idle connections of other clients for some of the hosts.
        assert!(hosts.len() as u64 <= 2 * ROOM, "hosts take no places");
    };
    assert!(full > 10, "only {full} hosts fit");
    for host in &mut hosts {
        assert!(host.is_alive().await);
    }
    hosts.clear();
    let mut next = RawHttp::connect(&socket).await.unwrap();
    next.write(&request("GET", "/v1/health", b"")).await.unwrap();
    assert_eq!(within(PATIENCE, next.answer()).await.unwrap().0, 200);
}

#[tokio::test]
async fn a_node_with_an_idle_exit_stays_while_a_host_is_attached() {
    let mut node = TestNode::builder(PROGRAM).arg("--idle-exit").arg("5s").start().await.unwrap();
    let client = node.client().await.unwrap();
    let scope = ToolScope::Owner(Owner::parse("me").unwrap());
    let host = ToolHost::attach(&client, &scope).await.unwrap();
    let pid = node.pid();
    let gone = |wait| tokio::task::spawn_blocking(move || processes::wait_gone(pid, wait));
    assert!(!gone(Duration::from_secs(7)).await.unwrap(), "it went under its host");
    drop(host);
    assert!(gone(PATIENCE).await.unwrap(), "it stays for nobody");
    node.kill9();
}
