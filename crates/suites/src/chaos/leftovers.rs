//! Looks for processes, cgroups, mounts and sockets that a node leaves behind, after its sessions are closed
//! and after the node has ended.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use windlass_testkit::{TestNode, processes};

use crate::machine;

/// How long the last processes and cgroups may take to disappear.
const SETTLE_WAIT: Duration = Duration::from_secs(20);

/// The time between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Files that an ended node leaves in its runtime directory by design.
const STAYING: [&str; 2] = ["node.lock", "start.lock"];

/// Waits until no process of a session is left. Returns what is left after [`SETTLE_WAIT`]. The node itself
/// still runs.
pub async fn of_sessions(node: &TestNode) -> Option<String> {
    settle(|| {
        let left = processes::of_sessions(node.pid());
        let names: Vec<_> = left.iter().map(|pid| described(*pid)).collect();
        (!names.is_empty()).then(|| format!("processes of sessions: {names:?}"))
    })
    .await
}

/// Waits until nothing of an ended node is left. Returns what is left after [`SETTLE_WAIT`].
pub async fn of_node(node: &TestNode, state: &Path) -> Option<String> {
    settle(|| {
        let belonging = processes::belonging(node.base());
        let names: Vec<_> = belonging.iter().map(|pid| described(*pid)).collect();
        let cgroups = machine::cgroups(&node.cgroup_prefix());
        let files = runtime_files(&node.dirs().runtime);
        let mounts = mounts_below(&[node.base(), state]);
        let mut left = Vec::new();
        if !names.is_empty() {
            left.push(format!("processes: {names:?}"));
        }
        if cgroups > 0 {
            left.push(format!("cgroups: {cgroups}"));
        }
        if !files.is_empty() {
            left.push(format!("files: {files:?}"));
        }
        if !mounts.is_empty() {
            left.push(format!("mounts: {mounts:?}"));
        }
        (!left.is_empty()).then(|| left.join("; "))
    })
    .await
}

/// A process's arguments, state and the kernel function in which it waits, for diagnosis.
fn described(pid: u32) -> String {
    let of_kernel = |name: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    let status = of_kernel("status");
    let wanted = ["Name:", "State:", "PPid:", "NSpid:"];
    let status: Vec<_> = status
        .lines()
        .filter(|line| wanted.iter().any(|name| line.starts_with(name)))
        .map(|line| line.replace('\t', " "))
        .collect();
    let (arguments, waits) = (processes::arguments(pid), of_kernel("wchan"));
    format!("{pid} {arguments:?} {} waits in {waits:?}", status.join(" "))
}

async fn settle(look: impl Fn() -> Option<String>) -> Option<String> {
    let until = Instant::now() + SETTLE_WAIT;
    loop {
        let left = look();
        if left.is_none() || Instant::now() > until {
            return left;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn runtime_files(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(runtime_files(&entry.path())),
            _ if STAYING.contains(&name.as_str()) => {}
            _ => found.push(name),
        }
    }
    found
}

/// Mounts below one of the directories, in the namespace of this process.
fn mounts_below(directories: &[&Path]) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let below = |point: &&str| directories.iter().any(|dir| Path::new(point).starts_with(dir));
    points.filter(below).map(str::to_owned).collect()
}
