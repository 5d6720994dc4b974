//! Tests of the helpers themselves: no process that they start is left behind.

use std::process::{Command, Stdio};
use std::time::Duration;

use windlass_testkit::{Load, TestNode, processes, within};

#[test]
fn load_ends_when_it_is_dropped() {
    let load = Load::start().unwrap();
    let pids = load.pids();
    assert!(pids.iter().all(|pid| processes::alive(*pid)));
    drop(load);
    assert!(!pids.iter().any(|pid| processes::alive(*pid)));
}

#[test]
fn whatever_belongs_to_a_test_node_ends_with_it() {
    let node = TestNode::builder("/bin/true").prepare().unwrap();
    let place = node.base().to_owned();
    // An orphaned grandchild. Only its working directory shows that it belongs to the node.
    let mut parent = Command::new("/bin/sh")
        .args(["-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"])
        .current_dir(&place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::Read::read_to_string(parent.stdout.as_mut().unwrap(), &mut line).unwrap();
    parent.wait().unwrap();
    let orphan: u32 = line.trim().parse().unwrap();
    assert!(processes::alive(orphan));
    drop(node);
    assert!(!processes::alive(orphan));
    assert!(!place.exists());
}

#[test]
fn facts_about_processes_are_read() {
    let own = std::process::id();
    let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    assert!(processes::descendants(own).contains(&child.id()));
    assert!(processes::rss_bytes(own).unwrap() > 100_000);
    assert!(processes::descriptors(own).unwrap() >= 3);
    processes::kill(child.id());
    assert!(processes::wait_gone(child.id(), Duration::from_secs(10)));
    assert!(!processes::alive(child.id()));
    child.wait().unwrap();
}

#[tokio::test]
#[should_panic(expected = "not done within")]
async fn a_wait_ends_at_its_deadline() {
    within(Duration::from_millis(5), std::future::pending::<()>()).await;
}
