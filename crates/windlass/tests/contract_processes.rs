//! Contract lines 43 to 47, processes: which process starts and ends them, and that none is left. Lines 48
//! and 49 are in `contract_versions` and `contract_leaks`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use windlass_client::protocol::api::{CloseQuery, SessionState};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::link::Hold;
use windlass_client::protocol::{ErrorCode, Outcome};
use windlass_client::{Client, ClientError, NodeStartError, launch_node};
use windlass_testkit::escape::{ESCAPE, ESCAPES, MARK_VARIABLE, ProcessMark};
use windlass_testkit::{PATIENCE, TestNode, named_turn, processes, python, run, run_ok, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Number of clients at once, in lines 43 and 44.
const CLIENTS: usize = 20;

#[tokio::test]
async fn contract_43_clients_that_come_and_go_add_no_process_but_their_own() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "print('hello')").await;
    node.await_environments().await.unwrap();
    let before = belonging(&node);
    let descriptors = processes::descriptors(node.pid()).unwrap();

    let mut library = Vec::new();
    for _ in 0..CLIENTS {
        let one = node.client().await.unwrap();
        assert_eq!(one.node_status().await.unwrap().pid, node.pid());
        library.push(one);
    }
    let mut commands = Vec::new();
    for _ in 0..CLIENTS {
        let mut command = windlass(&node, &["logs", "-f", session.as_str()]);
        commands.push(Started(command.stdout(Stdio::piped()).spawn().unwrap()));
    }
    for command in &mut commands {
        // The client follows the session, so the node has started everything it needs.
        let mut line = String::new();
        let stdout = command.0.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "hello\n");
    }
    let own: BTreeSet<u32> = commands.iter().map(|command| command.0.id()).collect();
    let during = belonging(&node);
    assert_eq!(during, &before | &own, "20 clients brought more than themselves");

    // Killed, not asked to exit: the node has to notice it.
    drop(commands);
    drop(library);
    assert_eq!(belonging(&node), before);
    let last = node.client().await.unwrap();
    let closed = async {
        while processes::descriptors(node.pid()).unwrap() > descriptors + 1 {
            last.node_status().await.unwrap();
        }
    };
    within(PATIENCE, closed).await;
    assert_eq!(run_ok(&client, &session, "6 * 7").await, "42\n");
}

#[tokio::test]
async fn contract_44_first_clients_at_the_same_instant_give_one_node_and_each_an_answer() {
    let place = TestNode::builder(PROGRAM).prepare().unwrap();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (dirs, program) = (place.dirs().clone(), place.program().to_owned());
        clients.spawn(async move {
            let start = windlass_client::StartNode::IfAbsent { program, args: Vec::new() };
            Client::connect(dirs, start).await?.node_status().await
        });
    }
    let answers = within(PATIENCE, clients.join_all()).await;
    let pids: BTreeSet<u32> = answers.into_iter().map(|answer| answer.unwrap().pid).collect();
    assert_eq!(pids, nodes_of(&place));
    check_one_start(&place);
}

#[tokio::test]
async fn contract_44_first_commands_at_the_same_instant_give_one_node_and_each_an_answer() {
    let place = TestNode::builder(PROGRAM).prepare().unwrap();
    let python = python();
    let run = ["run", "--python", python.to_str().unwrap(), "-"];
    let mut waiting = Vec::new();
    for number in 0..CLIENTS {
        // Every fourth command also creates a session. All wait for their first line of input.
        let args = if number % 4 == 0 { &run[..] } else { &["up"] };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read _; exec \"$0\" \"$@\"", PROGRAM]).args(args);
        waiting.push(environment(&mut command, &place).spawn().unwrap());
    }
    for command in &mut waiting {
        command.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
    let mut pids = BTreeSet::new();
    for (number, mut command) in waiting.into_iter().enumerate() {
        // A command that does not read its input may have closed it already.
        let _ = command.stdin.take().unwrap().write_all(b"print(6 * 7)\n");
        let output = command.wait_with_output().unwrap();
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        if number % 4 == 0 {
            assert_eq!(said, "42\n");
        } else {
            let (_, rest) = said.split_once("(pid ").unwrap();
            pids.insert(rest.split(',').next().unwrap().parse().unwrap());
        }
    }
    assert_eq!(pids, nodes_of(&place));
    check_one_start(&place);
}

/// The processes of a node, without those that it keeps ready.
fn belonging(node: &TestNode) -> BTreeSet<u32> {
    &processes::belonging(node.base()) - &processes::kept_ready(node.pid())
}

/// The node processes of this directory.
fn nodes_of(place: &TestNode) -> BTreeSet<u32> {
    processes::nodes(place.base())
}

/// No second node was even tried.
fn check_one_start(place: &TestNode) {
    assert_eq!(nodes_of(place).len(), 1);
    let log = fs::read_to_string(place.dirs().log()).unwrap();
    assert_eq!(log.matches("the node serves").count(), 1, "{log}");
    assert_eq!(log.matches("the node cannot run").count(), 0, "{log}");
}

#[tokio::test]
async fn contract_45_nothing_survives_its_session_in_a_pid_namespace() {
    nothing_survives_its_session("auto", Hold::PidNamespace).await;
}

#[tokio::test]
async fn contract_45_nothing_survives_its_session_below_a_subreaper() {
    nothing_survives_its_session("subreaper", Hold::Subreaper).await;
}

async fn nothing_survives_its_session(hold: &str, wanted: Hold) {
    let node = TestNode::builder(PROGRAM).arg("--hold").arg(hold).start().await.unwrap();
    let client = node.client().await.unwrap();
    let ways = [(Some(0), None), (None, None), (Some(100), Some("stay()"))];
    for level in Isolation::ALL {
        for (grace_ms, after) in ways {
            let mut mark = ProcessMark::new("close");
            let mut create = TestNode::create();
            create.env.insert(MARK_VARIABLE.to_owned(), mark.as_str().to_owned());
            create.policy.get_or_insert_default().isolation = Some(level);
            let session = match client.create_session(&create).await {
                Err(ClientError::Api(error)) if error.code == ErrorCode::NotEnforceable => {
                    windlass_testkit::skip(format_args!("{error:?}"));
                    break;
                }
                created => created.unwrap().session.id,
            };
            let escaped = run(&client, &session, ESCAPE).await;
            assert_eq!(escaped.outcome, Some(Outcome::Ok), "at level {level}: {escaped:?}");
            let found = client.session(&session).await.unwrap();
            assert_eq!(found.confinement.unwrap().isolation, level);
            if found.hold != Some(wanted) {
                windlass_testkit::skip(format_args!(
                    "this machine refuses {wanted:?} and gives {:?}",
                    found.hold
                ));
                return;
            }
            mark.follow(found.keeper_pid.unwrap());
            if let Some(code) = after {
                client.submit_turn(&session, &named_turn("running", code)).await.unwrap();
            }
            let alive = mark.alive().len();
            assert!(alive > ESCAPES, "only {alive} processes run at level {level}");
            let closing = client.close_session(&session, CloseQuery { grace_ms });
            let closed = within(PATIENCE, closing).await.unwrap();
            let left = mark.alive();
            assert_eq!(left, [0; 0], "these live on, closed with {grace_ms:?} at level {level}");
            assert_eq!(closed.state, SessionState::Ended);
        }
    }
    // The guard processes above the keepers have exited too.
    for pid in node.session_processes().await.unwrap() {
        assert!(processes::wait_gone(pid, PATIENCE), "process {pid} is left");
    }
}

#[tokio::test]
async fn contract_45_a_subreapers_cgroup_goes_with_its_session() {
    let node = TestNode::builder(PROGRAM).arg("--hold").arg("subreaper").start().await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "import subprocess; p = subprocess.Popen(['sleep', '60'])").await;
    let keeper = client.session(&session).await.unwrap().keeper_pid.unwrap();
    let groups: BTreeSet<String> =
        processes::descendants(keeper).into_iter().map(|pid| cgroup_of(pid).unwrap()).collect();
    assert_eq!(groups.len(), 1, "the worker and its child are not together: {groups:?}");
    let group = groups.first().unwrap();
    let own = cgroup_of(keeper).unwrap();
    if *group == own {
        windlass_testkit::skip(format_args!("no cgroup can be made in {own:?} here"));
        return;
    }
    let before = cgroup_dirs(group);
    assert_eq!(before.len(), 1, "{group} is at {before:?}");
    within(PATIENCE, client.close_session(&session, CloseQuery { grace_ms: Some(0) }))
        .await
        .unwrap();
    // The guard removes the cgroup, and is the last process of the session to exit.
    for pid in node.session_processes().await.unwrap() {
        assert!(processes::wait_gone(pid, PATIENCE), "process {pid} is left");
    }
    assert!(cgroup_dirs(group).is_empty(), "{group} is left");
}

/// The cgroup v2 path of a process.
fn cgroup_of(pid: u32) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The mount point of cgroup v2, if it is mounted.
fn cgroup_dirs(group: &str) -> Vec<std::path::PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts
        .lines()
        .filter(|line| line.split(' ').nth(2) == Some("cgroup2"))
        .filter_map(|line| line.split(' ').nth(1))
        .map(|mount| Path::new(mount).join(group.trim_start_matches('/')))
        .filter(|dir| dir.exists())
        .collect()
}

#[tokio::test]
async fn contract_45_a_session_closed_before_its_keeper_is_up_leaves_nothing() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    for grace_ms in [Some(0), None, Some(0)] {
        let session = node.session(&client).await.unwrap().id;
        // This must be faster than the node's timeout for a keeper that does not exit.
        let closing = client.close_session(&session, CloseQuery { grace_ms });
        within(Duration::from_secs(4), closing).await.unwrap();
        for pid in node.session_processes().await.unwrap() {
            assert!(processes::wait_gone(pid, PATIENCE), "process {pid} is left");
        }
    }
}

#[tokio::test]
async fn contract_46_the_lock_and_socket_of_a_dead_node_are_taken_over() {
    let mut node = TestNode::start(PROGRAM).await.unwrap();
    let (socket, lock) = (node.dirs().socket(), node.dirs().runtime.join("node.lock"));
    node.kill9();
    assert!(socket.exists() && lock.exists(), "a crash leaves both");
    // A pid in the lock file is not a lock, even if that process lives: this process does.
    fs::write(&lock, format!("{}\n", std::process::id())).unwrap();
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    assert_eq!(client.node_status().await.unwrap().pid, node.pid());
}

#[tokio::test]
async fn contract_46_the_lock_of_a_living_node_is_respected() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let socket = fs::metadata(node.dirs().socket()).unwrap().ino();
    check_refused(&node, "another node holds").await;
    assert_eq!(fs::metadata(node.dirs().socket()).unwrap().ino(), socket);
    assert_eq!(client.node_status().await.unwrap().pid, node.pid());
    assert_eq!(run_ok(&client, &session, "6 * 7").await, "42\n");

    // The lock counts, not the socket. Without the socket file no client reaches the node, and still no other
    // node may start.
    fs::remove_file(node.dirs().socket()).unwrap();
    check_refused(&node, "another node holds").await;
    assert!(!node.dirs().socket().exists());
}

#[tokio::test]
async fn contract_46_a_socket_goes_only_when_nobody_listens() {
    let mut place = TestNode::builder(PROGRAM).prepare().unwrap();
    let socket = place.dirs().socket();
    let listener = UnixListener::bind(&socket).unwrap();
    let bound = fs::metadata(&socket).unwrap().ino();
    check_refused(&place, "somebody else listens").await;
    assert_eq!(fs::metadata(&socket).unwrap().ino(), bound, "it was replaced");
    UnixStream::connect(&socket).unwrap();

    drop(listener);
    assert!(socket.exists(), "a closed listener leaves its file");
    place.restart().await.unwrap();
    let client = place.client().await.unwrap();
    assert_eq!(client.node_status().await.unwrap().pid, place.pid());
}

/// A second `windlass node` prints why it does not start, and exits.
async fn check_refused(place: &TestNode, why: &str) {
    let none: [OsString; 0] = [];
    let refused = within(PATIENCE, launch_node(place.program(), place.dirs(), &none, &[])).await;
    let Err(NodeStartError::Refused(error)) = refused else {
        panic!("it did not say why: {refused:?}")
    };
    assert_eq!(error.code, ErrorCode::AlreadyRunning);
    assert!(error.message.contains(why), "{error:?}");
    assert!(error.remedy.contains("windlass down"), "{error:?}");
}

#[tokio::test]
async fn contract_47_the_end_of_the_client_that_started_it_never_stops_the_node() {
    let place = TestNode::builder(PROGRAM).prepare().unwrap();
    let code = place.base().join("code.py");
    fs::write(&code, "print('on', flush=True)\nimport threading\nthreading.Event().wait()")
        .unwrap();
    let python = python();
    let args = ["run", "--python", python.to_str().unwrap(), code.to_str().unwrap()];
    let mut nodes = BTreeSet::new();
    for _ in 0..2 {
        let mut command = windlass(&place, &args);
        let mut starter = Started(command.process_group(0).stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(starter.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "on\n");
        nodes.extend(nodes_of(&place));
        // Like a closed terminal: the signal goes to the whole process group of the client.
        let group = rustix::process::Pid::from_child(&starter.0);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        starter.0.wait().unwrap();
    }
    assert_eq!(nodes.len(), 1, "each client had a node of its own");
    let client = place.client().await.unwrap();
    let status = client.node_status().await.unwrap();
    assert_eq!((BTreeSet::from([status.pid]), status.sessions), (nodes, 2));
}

#[tokio::test]
async fn contract_47_an_idle_node_exits_and_the_next_client_starts_it_again() {
    let idle = Duration::from_secs(2);
    let node = TestNode::builder(PROGRAM).arg("--idle-exit").arg("2s").start().await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    // A session counts as use, even without requests for longer than the idle time.
    let began = Instant::now();
    assert_eq!(run_ok(&client, &session, "import time\ntime.sleep(4.2)\n6 * 7").await, "42\n");
    assert!(began.elapsed() > 2 * idle);
    assert_eq!(client.node_status().await.unwrap().pid, node.pid());
    let unused = Instant::now();
    client.close_session(&session, CloseQuery { grace_ms: Some(0) }).await.unwrap();
    let pid = node.pid();
    let gone = tokio::task::spawn_blocking(move || processes::wait_gone(pid, PATIENCE));
    assert!(gone.await.unwrap(), "the idle node stays");
    assert!(unused.elapsed() >= idle, "it went too early");
    assert!(!node.dirs().socket().exists(), "it left its socket");

    let next = within(PATIENCE, node.starting_client()).await.unwrap();
    let status = next.node_status().await.unwrap();
    assert_ne!(status.pid, pid);
    let again = node.session(&next).await.unwrap().id;
    assert_eq!(run_ok(&next, &again, "6 * 7").await, "42\n");
}

/// A windlass command with the directories of this test, with pipes if the caller requests them.
fn windlass(place: &TestNode, args: &[&str]) -> Command {
    let mut command = Command::new(place.program());
    command.args(args);
    environment(&mut command, place).stdin(Stdio::null());
    command
}

fn environment<'a>(command: &'a mut Command, place: &TestNode) -> &'a mut Command {
    let base: &Path = place.base();
    command
        .env("WINDLASS_RUNTIME_DIR", &place.dirs().runtime)
        .env("WINDLASS_STATE_DIR", &place.dirs().state)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .current_dir(base)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A command that is killed at the latest when the test ends.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
