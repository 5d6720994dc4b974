//! `windlass top` at a terminal: what its screen shows, what its keys do, and that the terminal is restored whatever
//! ends the command.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use serde_json::{Value, json};
use windlass_client::Client;
use windlass_client::protocol::api::{Session, SessionState, Turn, TurnState};
use windlass_client::protocol::{Outcome, SessionId};
use windlass_testkit::{PATIENCE, TestNode, python, run, turn, turn_ended};

/// The terminal that runs the command.
const TERMINAL: &str = include_str!("terminal.py");

/// Prints without an end, and tries to set the title of the terminal and to clear it.
const PRINTS: &str = "\
import time
for number in range(1_000_000):
    print('\\x1b]0;title\\x07\\x1b[2Jtick', number, flush=True)
    time.sleep(0.01)
";

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGTERM: i32 = 15;

async fn node() -> (TestNode, Client) {
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let client = node.client().await.unwrap();
    (node, client)
}

fn with_environment(mut command: Command, node: &TestNode) -> Command {
    command
        .env("WINDLASS_RUNTIME_DIR", &node.dirs().runtime)
        .env("WINDLASS_STATE_DIR", &node.dirs().state)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR")
        .env_remove("WINDLASS_URL")
        .env_remove("WINDLASS_TOKEN")
        .current_dir(node.base());
    command
}

/// `windlass top` without a terminal.
fn top(node: &TestNode, args: &[&str]) -> Output {
    let mut command = with_environment(Command::new(node.program()), node);
    command.arg("top").args(args).stdin(Stdio::null()).output().unwrap()
}

/// `windlass top` at a terminal of 24 lines and 80 columns.
struct TopTerminal {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl TopTerminal {
    fn start(node: &TestNode, args: &[&str]) -> Self {
        let mut command = with_environment(Command::new(python()), node);
        command.args(["-c", TERMINAL]).arg(node.program()).arg("top").args(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { orders: child.stdin.take(), answers, child }
    }

    fn order(&mut self, order: &Value) -> Value {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    #[track_caller]
    fn expect(&mut self, order: &Value) {
        let answer = self.order(order);
        assert_eq!(answer["ok"], true, "{order}: {answer:#}");
    }

    /// Waits until a line of the screen contains the text.
    #[track_caller]
    fn see(&mut self, text: &str) {
        self.expect(&json!({ "see": text }));
    }

    /// Waits until no line of the screen contains the text.
    #[track_caller]
    fn see_gone(&mut self, text: &str) {
        self.expect(&json!({ "gone": text }));
    }

    fn press(&mut self, keys: &str) {
        self.order(&json!({ "type": keys }));
    }

    /// Waits until the command has ended with this code, and checks that the terminal is restored.
    #[track_caller]
    fn check_end(&mut self, code: i32) {
        let end = self.order(&json!({ "end": true }));
        assert_eq!(end["code"], code, "{end:#}");
        let restored = [&end["has_same_modes"], &end["is_cursor_shown"], &end["was_alternate"]];
        assert_eq!(restored, [true, true, true], "{end:#}");
        assert_eq!(end["is_alternate"], false, "{end:#}");
        assert_eq!(end["foreign"], json!([]), "a sequence of the session reached the terminal");
    }
}

impl Drop for TopTerminal {
    fn drop(&mut self) {
        // At the end of its orders it kills the command and exits.
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

async fn running(node: &TestNode, client: &Client, code: &str) -> (Session, Turn) {
    let session = node.session(client).await.unwrap();
    let turn = client.submit_turn(&session.id, &turn(code)).await.unwrap();
    (session, turn)
}

async fn state(client: &Client, session: &SessionId) -> SessionState {
    client.session(session).await.unwrap().state
}

#[tokio::test]
async fn the_screen_shows_output_and_keys_interrupt_and_kill() {
    let (node, client) = node().await;
    let (session, turn) = running(&node, &client, PRINTS).await;
    let mut top = TopTerminal::start(&node, &[]);
    top.see(&format!(">{}", session.id));
    top.see("1 session: 1 busy");
    top.see("tick");
    top.press("?");
    top.see("interrupt the running turn");
    top.press("?");
    top.see("tick");
    top.press("i");
    top.see("ended: interrupted");
    let ended = turn_ended(&client, &session.id, &turn.id, PATIENCE).await.unwrap();
    assert_eq!(ended.outcome, Some(Outcome::Interrupted));
    top.see("1 session: 1 idle");
    // Any other key than `y` keeps the session.
    top.press("K");
    top.see("kill session");
    top.press("x");
    top.see("stays");
    assert_eq!(state(&client, &session.id).await, SessionState::Idle);
    top.press("K");
    top.see("kill session");
    top.press("y");
    top.see("there are no sessions");
    assert_eq!(state(&client, &session.id).await, SessionState::Ended);
    top.press("q");
    top.check_end(0);
}

#[tokio::test]
async fn a_user_attaches_answers_and_comes_back() {
    let (node, client) = node().await;
    let (session, turn) = running(&node, &client, "print('got', input('name? '))").await;
    let mut top = TopTerminal::start(&node, &[]);
    top.see("1 awaiting input");
    top.see("waits for input: name?");
    top.press("a");
    top.expect(&json!({ "alternate": false }));
    top.see("name?");
    top.press("bob\r");
    top.see("got bob");
    let ended = turn_ended(&client, &session.id, &turn.id, PATIENCE).await.unwrap();
    assert_eq!(ended.outcome, Some(Outcome::Ok));
    // Ctrl-C ends only the attachment.
    top.press("\x03");
    top.expect(&json!({ "alternate": true }));
    top.see("1 session: 1 idle");
    top.see("got bob");
    top.press("\x03");
    top.check_end(0);
}

#[tokio::test]
async fn what_was_asked_before_the_command_began_is_shown() {
    let (node, client) = node().await;
    let session = node.session(&client).await.unwrap();
    let asking = run(&client, &session.id, "input('name? ')").await;
    assert_eq!(asking.state, TurnState::AwaitingInput);
    let mut top = TopTerminal::start(&node, &[]);
    top.see("turn 1 waits for input: name?");
    top.press("q");
    top.check_end(0);
}

#[tokio::test]
async fn every_way_out_restores_the_terminal() {
    let (node, _client) = node().await;
    for (signal, code) in [(SIGTERM, 143), (SIGHUP, 129), (SIGINT, 130), (SIGQUIT, 131)] {
        let mut top = TopTerminal::start(&node, &[]);
        top.see("there are no sessions");
        top.order(&json!({ "signal": signal }));
        top.check_end(code);
    }
    // A terminal that is gone cannot be restored, and ends the command.
    let mut top = TopTerminal::start(&node, &[]);
    top.see("there are no sessions");
    top.order(&json!({ "hang_up": true }));
    let end = top.order(&json!({ "end": true }));
    assert_eq!(end["code"], 129, "{end:#}");
}

#[tokio::test]
async fn the_screen_says_that_the_node_is_away_and_goes_on_when_it_is_back() {
    let (mut node, client) = node().await;
    let session = node.session(&client).await.unwrap();
    let mut top = TopTerminal::start(&node, &[]);
    top.see("1 session");
    node.kill9();
    top.see("the node does not answer");
    top.see(session.id.as_str());
    node.restart().await.unwrap();
    top.see_gone("the node does not answer");
    top.see("1 session: 1 idle");
    // Output is followed again.
    let client = node.client().await.unwrap();
    client.submit_turn(&session.id, &turn("print('again')")).await.unwrap();
    top.see("again");
    // A resized terminal gets a whole new frame.
    top.order(&json!({ "resize": [10, 40] }));
    top.see_gone("TURNS");
    top.see(">");
    top.see("again");
    top.press("q");
    top.check_end(0);
}

#[tokio::test]
async fn without_a_terminal_the_sessions_are_printed_once() {
    let (node, client) = node().await;
    let (session, _) = running(&node, &client, "input()").await;
    let refused = top(&node, &[]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("`windlass ps --json`"), "{said}");
    assert!(refused.stdout.is_empty());

    let printed = top(&node, &["--once"]);
    assert!(printed.status.success(), "{printed:?}");
    let text = String::from_utf8(printed.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].contains("1 session"), "{text}");
    assert!(lines[1].starts_with("SESSION"), "{text}");
    assert!(lines[2].starts_with(session.id.as_str()), "{text}");
    assert!(!text.contains('\x1b'));

    let printed = top(&node, &["--once", "--json"]);
    let list: Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(list["sessions"][0]["id"], session.id.as_str());
    assert_eq!(list["sessions"].as_array().unwrap().len(), 1);
}

#[test]
fn without_a_node_nothing_is_started() {
    let place = TestNode::builder(env!("CARGO_BIN_EXE_windlass")).prepare().unwrap();
    let printed = top(&place, &["--once"]);
    assert_eq!(printed.status.code(), Some(3));
    assert_eq!(printed.stdout, b"no node is running\n");
    assert!(!place.dirs().socket().exists());
}
