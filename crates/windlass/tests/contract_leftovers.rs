//! The contract lines on leftovers: sessions of commands that ended in any way, unused sessions, and turns
//! without their own deadline.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use windlass_client::protocol::api::{
    CloseQuery, CreateSession, Ended, EventItem, ForkSession, Session, SessionState, SubmitTurn,
    Turn, TurnState,
};
use windlass_client::protocol::event::EndReason;
use windlass_client::protocol::{ErrorCode, Outcome, Owner, Seq, SessionId};
use windlass_client::tools::ToolScope;
use windlass_client::{Client, WhichSessions};
use windlass_testkit::{
    Gate, PATIENCE, TestNode, TestToolHost, processes, python, run, run_ok, turn, turn_ended,
    wait_for_event, within,
};

/// Prints that it runs, then nothing for longer than any test takes.
const SILENT: &str = "import time\nprint('begun', flush=True)\ntime.sleep(600)";

/// Prints that it runs, then more than any pipe buffer holds.
const FLOOD: &str = "print('begun', flush=True)\nwhile True:\n    print('x' * 1000)";

/// Runs a program in a terminal, waits until it shows a text, and ends it by closing the terminal or by a
/// signal. Arguments: the typed input, the text, `close` or a signal number, the program with its arguments.
/// Prints how the program ended.
const IN_A_TERMINAL: &str = r#"
import os, pty, select, sys, time
typed, awaited, how, *command = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(command[0], command)
shown, until = b"", time.monotonic() + 30
while awaited.encode() not in shown:
    assert select.select([terminal], [], [], until - time.monotonic())[0], shown
    shown += os.read(terminal, 4096)
    if typed and b">>> " in shown:
        os.write(terminal, typed.encode() + b"\r")
        typed = ""
if how == "close":
    os.close(terminal)
else:
    os.kill(pid, int(how))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

async fn node() -> (TestNode, Client) {
    started(TestNode::builder(env!("CARGO_BIN_EXE_windlass")).start().await.unwrap()).await
}

async fn node_with(option: &str, value: &str) -> (TestNode, Client) {
    let builder = TestNode::builder(env!("CARGO_BIN_EXE_windlass")).arg(option).arg(value);
    started(builder.start().await.unwrap()).await
}

async fn started(node: TestNode) -> (TestNode, Client) {
    let client = node.client().await.unwrap();
    (node, client)
}

/// A command that runs `windlass ARGS` as a user of this node.
fn windlass(node: &TestNode, args: &[&str]) -> Command {
    let mut command = Command::new(node.program());
    for (name, value) in environment(node) {
        command.env(name, value);
    }
    command.args(args).current_dir(node.base()).stdin(Stdio::null());
    command
}

fn environment(node: &TestNode) -> [(&'static str, std::ffi::OsString); 3] {
    [
        ("WINDLASS_RUNTIME_DIR", node.dirs().runtime.clone().into()),
        ("WINDLASS_STATE_DIR", node.dirs().state.clone().into()),
        ("PATH", "/usr/local/bin:/usr/bin:/bin".into()),
    ]
}

/// `windlass run` with this code, after it has printed its first line.
struct Running {
    child: Child,
    /// Its output, which is not read any further.
    stdout: Option<BufReader<ChildStdout>>,
    session: Session,
}

impl Running {
    async fn start(node: &TestNode, client: &Client, code: &str, more: &[&str]) -> Self {
        let file = node.base().join("code.py");
        std::fs::write(&file, code).unwrap();
        let python = python();
        let mut args = vec!["run", "--python", python.to_str().unwrap()];
        args.extend(more);
        args.push(file.to_str().unwrap());
        let mut command = windlass(node, &args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let first = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            stdout.read_line(&mut line).map(|_| (line, stdout))
        });
        let (line, stdout) = within(PATIENCE, first).await.unwrap().unwrap();
        assert_eq!(line, "begun\n");
        let session = only(client).await;
        Self { child, stdout: Some(stdout), session }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The exit code of the command as a shell reports it, and its standard error.
    async fn ended(mut self) -> (i32, String, Session) {
        let ended = tokio::task::spawn_blocking(move || {
            let status = self.child.wait().unwrap();
            let mut said = String::new();
            self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap();
            drop(self.stdout);
            (code, said, self.session)
        });
        within(PATIENCE, ended).await.unwrap()
    }
}

/// The only live session.
async fn only(client: &Client) -> Session {
    let mut live = client.sessions(WhichSessions::Live).await.unwrap().sessions;
    live.retain(|session| session.state != SessionState::Ended);
    assert_eq!(live.len(), 1, "{live:?}");
    live.remove(0)
}

/// Waits for the end of the session without being a client of it: its keeper exits at the same time.
async fn ended(client: &Client, session: &Session, patience: Duration) -> Ended {
    let now = client.session(&session.id).await.unwrap();
    if let Some(keeper) = now.keeper_pid.filter(|_| now.state != SessionState::Ended) {
        let gone = tokio::task::spawn_blocking(move || processes::wait_gone(keeper, patience));
        assert!(gone.await.unwrap(), "session {} is still there after {patience:?}", session.id);
    }
    let ended = client.session(&session.id).await.unwrap();
    assert_eq!(ended.state, SessionState::Ended, "{ended:?}");
    ended.ended.unwrap()
}

async fn left_by_command(client: &Client, session: &Session) {
    let ended = ended(client, session, PATIENCE).await;
    assert_eq!(ended.reason, EndReason::Closed);
    let listed = client.sessions(WhichSessions::Live).await.unwrap().sessions;
    // A session whose keeper is gone is listed until its files and cgroups are removed.
    let live: Vec<_> =
        listed.iter().filter(|session| session.state != SessionState::Ended).collect();
    assert!(live.is_empty(), "{live:?}");
}

#[tokio::test]
async fn contract_73_a_closed_pipe_ends_the_session_of_run_also_when_nothing_more_is_printed() {
    let (node, client) = node().await;
    for code in [SILENT, FLOOD] {
        let mut running = Running::start(&node, &client, code, &[]).await;
        running.stdout = None;
        let (status, said, session) = running.ended().await;
        assert_eq!((status, said.as_str()), (141, ""), "{code}");
        left_by_command(&client, &session).await;
    }
}

#[tokio::test]
async fn contract_73_a_signal_ends_the_session_of_run() {
    let (node, client) = node().await;
    for (signal, expected) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let running = Running::start(&node, &client, SILENT, &[]).await;
        // Twice, as `timeout` does: to the command, and to its process group.
        running.signal(signal);
        running.signal(signal);
        let (status, _, session) = running.ended().await;
        assert_eq!(status, expected);
        left_by_command(&client, &session).await;
    }
}

#[tokio::test]
async fn contract_73_a_command_that_cannot_write_is_ended_by_a_signal_too() {
    let (node, client) = node().await;
    let running = Running::start(&node, &client, FLOOD, &[]).await;
    // More output than its pipe and all buffers hold: the command blocks on a reader that does not read.
    let mut printed = 0;
    let much = |item: &EventItem| {
        printed += item.bytes;
        printed > 4 * 1024 * 1024
    };
    wait_for_event(&client, &running.session.id, Seq(0), PATIENCE, much).await.unwrap();
    running.signal(Signal::TERM);
    let (status, _, session) = running.ended().await;
    assert_eq!(status, 143);
    left_by_command(&client, &session).await;
}

/// How a command in a terminal ended, in the notation of Python.
async fn in_a_terminal(node: &TestNode, typed: &str, how: &str, args: &[&str]) -> String {
    let mut command = Command::new(python());
    command.arg("-c").arg(IN_A_TERMINAL).args([typed, "begun", how]).arg(node.program());
    command.args(args).envs(environment(node)).env("TERM", "dumb").current_dir(node.base());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = within(PATIENCE * 2, output).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn contract_73_a_closed_terminal_ends_the_session_of_run_and_of_repl() {
    let (node, client) = node().await;
    let python = python();
    let python = python.to_str().unwrap();
    std::fs::write(node.base().join("code.py"), SILENT).unwrap();
    let term = Signal::TERM.as_raw().to_string();
    let typed = "print('be' + 'gun')";
    for (args, typed, how, expected) in [
        (["run", "--python", python, "code.py"].as_slice(), "", "close", Some("129")),
        // The command may notice the closed terminal before the signal. Then it exits as after Ctrl-D.
        (["repl", "--python", python].as_slice(), typed, "close", None),
        (["repl", "--python", python].as_slice(), typed, &term, Some("143")),
    ] {
        let before = client.sessions(WhichSessions::EndedToo).await.unwrap().sessions.len();
        let status = in_a_terminal(&node, typed, how, args).await;
        assert!(expected.is_none_or(|expected| status == expected), "{args:?} {how}: {status}");
        let all = client.sessions(WhichSessions::EndedToo).await.unwrap().sessions;
        assert_eq!(all.len(), before + 1, "it made one session");
        left_by_command(&client, &all[0]).await;
    }
}

#[tokio::test]
async fn contract_73_a_kept_session_stays_whatever_ends_its_command() {
    let (node, client) = node().await;
    for signal in [Signal::TERM, Signal::HUP] {
        let more = ["--keep", "--idle", "never"];
        let running = Running::start(&node, &client, SILENT, &more).await;
        running.signal(signal);
        let (status, _, session) = running.ended().await;
        assert_eq!(status, 128 + signal.as_raw());
        let there = client.session(&session.id).await.unwrap();
        assert_eq!((there.state, there.idle_s), (SessionState::Busy, Some(0)));
        client.close_session(&session.id, CloseQuery::default()).await.unwrap();
    }
}

#[tokio::test]
async fn contract_73_a_command_that_is_killed_leaves_a_session_with_a_short_idle_timeout() {
    let (node, client) = node().await;
    let running = Running::start(&node, &client, SILENT, &[]).await;
    running.signal(Signal::KILL);
    let (status, _, session) = running.ended().await;
    assert_eq!(status, 137);
    let left = client.session(&session.id).await.unwrap();
    // A session with a running turn is not idle: its deadline ends the turn, then the idle timeout ends the
    // session.
    assert_eq!((left.state, left.idle_s), (SessionState::Busy, Some(60)));
}

/// A session with an idle timeout of this many seconds.
async fn idle_after(client: &Client, idle_s: u64) -> Session {
    let create = CreateSession { idle_s: Some(idle_s), ..TestNode::create() };
    let session = client.create_session(&create).await.unwrap().session;
    run_ok(client, &session.id, "x = 1").await;
    session
}

/// Waits until a session with an idle timeout of `idle_s` has ended. By then a session with a shorter timeout
/// has ended too, unless it was in use.
async fn others_are_over(client: &Client, idle_s: u64) {
    let other = idle_after(client, idle_s).await;
    assert_eq!(ended(client, &other, PATIENCE).await.reason, EndReason::Idle);
}

#[tokio::test]
async fn contract_73_a_session_without_client_and_turn_ends_after_its_idle_timeout() {
    let (_node, client) = node_with("--session-idle", "2s").await;
    let never = idle_after(&client, 0).await;
    let session = client.create_session(&TestNode::create()).await.unwrap().session;
    run_ok(&client, &session.id, "x = 1").await;
    let used = Instant::now();
    let end = ended(&client, &session, PATIENCE).await;
    assert!(used.elapsed() > Duration::from_millis(1900), "after {:?}", used.elapsed());
    assert_eq!(end.reason, EndReason::Idle);
    let message = end.message.unwrap();
    assert!(message.contains("2 s, its idle timeout"), "{message}");
    let receipt = end.receipt.unwrap();
    assert!(receipt.lost.iter().any(|lost| lost.contains("variables")), "{receipt:?}");
    let late = client.submit_turn(&session.id, &turn("x")).await.unwrap_err();
    assert_eq!(late.api_code(), Some(ErrorCode::SessionEnded));
    assert!(late.to_string().contains(&message), "{late}");
    assert_eq!(client.session(&never.id).await.unwrap().state, SessionState::Idle);
}

#[tokio::test]
async fn contract_73_a_session_with_a_turn_that_runs_or_asks_is_not_idle() {
    let (_node, client) = node().await;
    let gate = Gate::new("g").unwrap();
    // Each session gets its turn before the next session is made, which may take as long as the idle timeout.
    let running = idle_after(&client, 3).await;
    let code = format!("{}print(x)", gate.python());
    let begun = client.submit_turn(&running.id, &turn(code)).await.unwrap();
    let at_gate = within(PATIENCE, gate.reached()).await.unwrap();
    let asking = idle_after(&client, 3).await;
    let asked = run(&client, &asking.id, "input()").await;
    assert_eq!(asked.state, TurnState::AwaitingInput);
    others_are_over(&client, 5).await;
    at_gate.open().await.unwrap();
    let done = turn_ended(&client, &running.id, &begun.id, PATIENCE).await.unwrap();
    assert_eq!((done.outcome, done.output.text.as_str()), (Some(Outcome::Ok), "1\n"));
    assert_eq!(ended(&client, &running, PATIENCE).await.reason, EndReason::Idle);
    assert_eq!(client.session(&asking.id).await.unwrap().state, SessionState::AwaitingInput);
}

#[tokio::test]
async fn contract_73_a_follower_and_a_tool_host_are_clients_until_they_go() {
    let (node, client) = node().await;
    // The command may take a while to attach on a busy machine.
    let followed = idle_after(&client, 3).await;
    let mut attach = windlass(&node, &["attach", followed.id.as_str()]);
    let mut attach = attach.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let served = idle_after(&client, 3).await;
    let scope = ToolScope::Session(served.id.clone());
    let host = TestToolHost::offer_to(&client, &scope, &["t"], |_| async { Ok(json!(1)) });
    let host = host.await.unwrap();
    let owner = Owner::parse("me").unwrap();
    let of_owner = CreateSession { owner: Some(owner.clone()), ..TestNode::create() };
    let of_owner = CreateSession { idle_s: Some(3), ..of_owner };
    let owned = client.create_session(&of_owner).await.unwrap().session;
    let scope = ToolScope::Owner(owner);
    let owners = TestToolHost::offer_to(&client, &scope, &["t"], |_| async { Ok(json!(1)) });
    let owners = owners.await.unwrap();
    others_are_over(&client, 5).await;
    for session in [&followed, &served, &owned] {
        assert_eq!(client.session(&session.id).await.unwrap().state, SessionState::Idle);
    }
    // However the client ends.
    attach.kill().unwrap();
    attach.wait().unwrap();
    drop((host, owners));
    for session in [&followed, &served, &owned] {
        assert_eq!(ended(&client, session, PATIENCE).await.reason, EndReason::Idle);
    }
}

#[tokio::test]
async fn contract_73_an_idle_timeout_outlives_the_node_and_is_a_twins_too() {
    let (mut node, client) = node().await;
    let session = idle_after(&client, 2).await;
    let twin = client.fork_session(&session.id, &ForkSession::default()).await.unwrap().session;
    assert_eq!(twin.idle_s, Some(2));
    // The test waits for the exit of its keeper, which is known after the first reply.
    assert_eq!(run_ok(&client, &twin.id, "x").await, "1\n");
    assert_eq!(ended(&client, &twin, PATIENCE).await.reason, EndReason::Idle);
    let session = idle_after(&client, 10).await;
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    assert_eq!(run_ok(&client, &session.id, "x").await, "1\n");
    let end = ended(&client, &session, PATIENCE).await;
    assert_eq!((end.reason, end.message.is_some()), (EndReason::Idle, true));
}

/// Sleeps, and returns how the turn ended.
async fn late(client: &Client, session: &SessionId, deadline_ms: Option<u64>) -> Turn {
    let wait_ms = u64::try_from(PATIENCE.as_millis()).unwrap();
    let submit = SubmitTurn { deadline_ms, wait_ms, ..turn("import time\ntime.sleep(60)") };
    let late = within(PATIENCE, client.submit_turn(session, &submit)).await.unwrap();
    assert_eq!(late.outcome, Some(Outcome::TimedOut), "{late:?}");
    late
}

#[track_caller]
fn check_names(late: &Turn, deadline: &str) {
    let error = late.error.as_ref().unwrap();
    assert_eq!(error.code, Some(ErrorCode::DeadlinePassed));
    let expected = format!("the turn ran longer than its deadline of {deadline};");
    assert!(error.message.starts_with(&expected), "{}", error.message);
}

#[tokio::test]
async fn contract_79_a_turn_without_a_deadline_ends_by_that_of_its_session_or_node() {
    let (_node, client) = node_with("--deadline", "1500ms").await;
    let nodes = client.create_session(&TestNode::create()).await.unwrap().session;
    let create = CreateSession { deadline_ms: Some(1000), ..TestNode::create() };
    let sessions = client.create_session(&create).await.unwrap().session;
    assert_eq!((nodes.deadline_ms, sessions.deadline_ms), (None, Some(1000)));
    let began = Instant::now();
    check_names(&late(&client, &nodes.id, None).await, "1500 ms (the default of the node)");
    assert!(began.elapsed() >= Duration::from_millis(1500), "after {:?}", began.elapsed());
    check_names(&late(&client, &sessions.id, None).await, "1 s (the default of its session)");
    check_names(&late(&client, &sessions.id, Some(700)).await, "700 ms");
    // A longer deadline of the turn overrides both.
    let slow = SubmitTurn { deadline_ms: Some(60_000), ..turn("import time\ntime.sleep(2)") };
    let done = within(PATIENCE, client.run_turn(&sessions.id, slow)).await.unwrap();
    assert_eq!(done.outcome, Some(Outcome::Ok), "{done:?}");
    let too_long = CreateSession { deadline_ms: Some(u64::MAX), ..TestNode::create() };
    let refused = client.create_session(&too_long).await.unwrap_err();
    assert_eq!(refused.api_code(), Some(ErrorCode::BadRequest));
}

#[tokio::test]
async fn contract_79_a_default_deadline_outlives_the_node_and_is_a_twins_too() {
    let (mut node, client) = node().await;
    let create = CreateSession { deadline_ms: Some(3000), ..TestNode::create() };
    let session = client.create_session(&create).await.unwrap().session.id;
    let code = "import time\nprint('begun')\ntime.sleep(60)";
    let begun = client.submit_turn(&session, &turn(code)).await.unwrap();
    wait_for_event(&client, &session, Seq(0), PATIENCE, |item| item.text.is_some()).await.unwrap();
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    let late_one = turn_ended(&client, &session, &begun.id, PATIENCE).await.unwrap();
    check_names(&late_one, "3 s (the default of its session)");
    let twin = client.fork_session(&session, &ForkSession::default()).await.unwrap().session;
    check_names(&late(&client, &twin.id, None).await, "3 s (the default of its session)");
}

#[tokio::test]
async fn contract_79_run_and_repl_say_which_deadline_ended_a_turn() {
    let (node, _client) = node_with("--deadline", "1s").await;
    std::fs::write(node.base().join("code.py"), "import time\ntime.sleep(60)").unwrap();
    let python = python();
    let python = python.to_str().unwrap();
    for (args, expected) in [
        (["run", "--python", python, "code.py"].as_slice(), "of 1 s (the default of the node)"),
        (["run", "--python", python, "--deadline", "500ms", "code.py"].as_slice(), "of 500 ms;"),
        (["repl", "--python", python, "--deadline", "500ms"].as_slice(), "of 500 ms;"),
    ] {
        let mut command = windlass(&node, args);
        let input = std::fs::File::open(node.base().join("code.py")).unwrap();
        command.stdin(input).stdout(Stdio::null());
        let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
        let ended = within(PATIENCE, ended).await.unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
}
