//! The nursery: keepers are forked from it and survive it, and it ends with its node, whatever ends the node.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::{CloseQuery, StopSessions};
use windlass_testkit::{PATIENCE, TestNode, processes, python, run_ok, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// An ordinary user that exists on every machine.
const NOBODY: u32 = 65534;

async fn keeper_of(client: &Client, session: &SessionId) -> u32 {
    client.session(session).await.unwrap().keeper_pid.unwrap()
}

fn nursery_of(node: &TestNode) -> u32 {
    let nurseries = processes::nurseries(node.pid());
    assert_eq!(nurseries.len(), 1, "{nurseries:?}");
    nurseries[0]
}

/// Kills the nursery of the node, and waits until it has exited.
fn kill_nursery(node: &TestNode) -> u32 {
    let nursery = nursery_of(node);
    processes::kill(nursery);
    assert!(processes::wait_gone(nursery, PATIENCE));
    nursery
}

#[tokio::test]
async fn keepers_are_forked_and_have_nothing_of_their_nursery_open() {
    for hold in ["auto", "subreaper"] {
        let node = TestNode::builder(PROGRAM).arg("--hold").arg(hold).start().await.unwrap();
        let client = node.client().await.unwrap();
        let mut descriptors = Vec::new();
        for _ in 0..3 {
            let session = node.session(&client).await.unwrap().id;
            assert_eq!(run_ok(&client, &session, "6 * 7").await, "42\n");
            let keeper = keeper_of(&client, &session).await;
            // The keeper was forked without exec, so it has the arguments of its nursery.
            assert_eq!(processes::arguments(keeper)[1], "nursery");
            assert_eq!(processes::name(keeper).unwrap(), "windlass-keeper");
            descriptors.push(processes::descriptors(keeper).unwrap());
            let links = fs::read_dir(format!("/proc/{keeper}/fd")).unwrap();
            let logs = links.filter(|link| {
                let target = fs::read_link(link.as_ref().unwrap().path()).unwrap_or_default();
                target.ends_with("keepers.log")
            });
            assert_eq!(logs.count(), 1, "more than its own log");
        }
        assert_eq!(processes::nurseries(node.pid()).len(), 1);
        assert!(descriptors.iter().all(|count| *count == descriptors[0]), "{descriptors:?}");
        let blocked = status_of(nursery_of(&node), "SigBlk:");
        assert_ne!(blocked, "0000000000000000", "it takes signals by their descriptor");
    }
}

fn status_of(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().to_owned()
}

#[tokio::test]
async fn sessions_live_on_without_their_nursery_and_the_next_one_has_another() {
    for hold in ["auto", "subreaper"] {
        let node = TestNode::builder(PROGRAM).arg("--hold").arg(hold).start().await.unwrap();
        let client = node.client().await.unwrap();
        let old = node.session(&client).await.unwrap().id;
        run_ok(&client, &old, "x = 5").await;
        let killed = kill_nursery(&node);
        assert_eq!(run_ok(&client, &old, "print(x)").await, "5\n");

        let new = node.session(&client).await.unwrap().id;
        assert_eq!(run_ok(&client, &new, "6 * 7").await, "42\n");
        assert_ne!(nursery_of(&node), killed);
        assert_eq!(processes::arguments(keeper_of(&client, &new).await)[1], "nursery");
        for session in [old, new] {
            let close = CloseQuery { grace_ms: Some(0) };
            within(PATIENCE, client.close_session(&session, close)).await.unwrap();
        }
        for pid in processes::of_sessions(node.pid()) {
            assert!(processes::wait_gone(pid, PATIENCE), "process {pid} is left");
        }
    }
}

#[tokio::test]
async fn a_node_whose_nursery_keeps_dying_starts_keepers_as_programs() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    // Deaths that are far apart count as separate accidents. On a slow machine they may be far apart, so this
    // tries many times.
    let mut how = String::new();
    for _ in 0..20 {
        let session = node.session(&client).await.unwrap().id;
        assert_eq!(run_ok(&client, &session, "6 * 7").await, "42\n");
        how = processes::arguments(keeper_of(&client, &session).await)[1].clone();
        let close = CloseQuery { grace_ms: Some(0) };
        within(PATIENCE, client.close_session(&session, close)).await.unwrap();
        if how == "keeper" {
            break;
        }
        kill_nursery(&node);
    }
    assert_eq!(how, "keeper");
    assert_eq!(processes::nurseries(node.pid()), [0; 0]);
}

#[tokio::test]
async fn a_node_that_ends_leaves_no_nursery() {
    let mut node = TestNode::start(PROGRAM).await.unwrap();
    for killed in [false, true] {
        let client = node.client().await.unwrap();
        let session = node.session(&client).await.unwrap().id;
        run_ok(&client, &session, "x = 5").await;
        let nursery = nursery_of(&node);
        if killed {
            node.kill9();
        } else {
            node.stop(StopSessions::Keep).await.unwrap();
        }
        assert!(processes::wait_gone(nursery, PATIENCE), "killed: {killed}");
        // The nursery does not end its keepers.
        node.restart().await.unwrap();
        let client = node.client().await.unwrap();
        assert_eq!(run_ok(&client, &session, "print(x)").await, "5\n");
    }
}

#[test]
fn an_ordinary_users_keepers_share_the_user_namespace_of_their_nursery() {
    let place = Place::new();
    let code = place.path().join("code.py");
    fs::write(&code, "print('on', flush=True)\nimport threading\nthreading.Event().wait()")
        .unwrap();
    let python = python();
    let mut command = place.windlass(&["run", "--python"]);
    // Without a pool: the node would make pooled keepers while this test looks at its processes, some of which end at once.
    command.env("WINDLASS_START", "exec");
    let mut running =
        Running(command.arg(python).arg(code).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(running.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "on\n");

    let node = *processes::nodes(place.path()).first().unwrap();
    let [nursery] = processes::nurseries(node)[..] else { panic!("there is not one nursery") };
    let (outer, inner) = (user_namespace(node), user_namespace(nursery));
    if outer == inner {
        windlass_testkit::skip("this machine refuses user namespaces");
    } else {
        let mut keepers = processes::of_sessions(node);
        keepers.retain(|pid| processes::name(*pid).unwrap() == "windlass-keeper");
        assert!(!keepers.is_empty());
        for keeper in keepers {
            assert_eq!(processes::arguments(keeper)[1], "nursery");
            assert_eq!(user_namespace(keeper), inner);
        }
    }
    drop(running);
    assert!(place.windlass(&["down"]).status().unwrap().success());
    assert!(processes::wait_gone(nursery, PATIENCE));
}

fn user_namespace(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/user")).unwrap()
}

/// The directories of the node of an ordinary user.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("wl-").tempdir_in("/tmp").unwrap();
        if is_root() {
            chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn windlass(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(args)
            .env_clear()
            .env("HOME", self.path())
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("WINDLASS_MCP_CONFIG", "/dev/null")
            .env("WINDLASS_RUNTIME_DIR", self.path().join("r"))
            .env("WINDLASS_STATE_DIR", self.path().join("s"))
            .current_dir(self.path())
            .stdin(Stdio::null());
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        processes::end_all(&[], self.path());
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command that is killed at the latest when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
