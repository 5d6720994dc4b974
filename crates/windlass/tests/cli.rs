//! The command line against a real node, as scripts and people see it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use windlass_testkit::{TestNode, python};

/// Private directories. The commands start the node in them.
fn place() -> TestNode {
    TestNode::builder(env!("CARGO_BIN_EXE_windlass")).prepare().unwrap()
}

fn windlass(place: &TestNode, args: &[&str], input: &str) -> Output {
    let mut child = Command::new(place.program())
        .args(args)
        .env("WINDLASS_RUNTIME_DIR", &place.dirs().runtime)
        .env("WINDLASS_STATE_DIR", &place.dirs().state)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .current_dir(place.base())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input closes it first.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Runs `code` from a file, with `input` as its standard input.
fn run(place: &TestNode, code: &str, more: &[&str], input: &str) -> Output {
    let file = place.base().join("code.py");
    std::fs::write(&file, code).unwrap();
    let python = python();
    let mut args = vec!["run", file.to_str().unwrap()];
    if !more.contains(&"--session") {
        args.extend(["--python", python.to_str().unwrap()]);
    }
    args.extend(more);
    windlass(place, &args, input)
}

#[track_caller]
fn check(output: &Output, code: i32, stdout: &str, stderr_holds: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), stdout, "{stderr}");
    assert!(stderr.contains(stderr_holds), "{stderr}");
}

#[test]
fn read_only_commands_start_no_node() {
    let place = place();
    check(&windlass(&place, &["status"], ""), 3, "no node is running\n", "");
    check(&windlass(&place, &["status", "--json"], ""), 3, "null\n", "");
    check(&windlass(&place, &["down"], ""), 0, "no node is running\n", "");
    check(&windlass(&place, &["ps", "--json"], ""), 0, "{\n  \"sessions\": []\n}\n", "");
    assert!(!place.dirs().socket().exists());
}

#[test]
fn run_starts_the_node_and_shows_result_error_and_answers() {
    let place = place();
    check(&run(&place, "print('a')\n1 + 1", &[], ""), 0, "a\n2\n", "");
    check(&run(&place, "print('a')\n1 / 0", &[], ""), 1, "a\n", "ZeroDivisionError");
    check(&run(&place, "print('got', input('name? '))", &[], "bob\n"), 0, "got bob\n", "name? ");
    check(&run(&place, "input()", &[], ""), 1, "", "EOFError");
    let python = python();
    let from_stdin = ["run", "-", "--python", python.to_str().unwrap()];
    check(&windlass(&place, &from_stdin, "40 + 2"), 0, "42\n", "");
    let left = windlass(&place, &["ps", "--json"], "");
    check(&left, 0, "{\n  \"sessions\": []\n}\n", "");
}

#[test]
fn a_deadline_ends_the_command_with_its_own_exit_code() {
    let place = place();
    let late = run(&place, "import time\ntime.sleep(60)", &["--deadline", "200ms"], "");
    check(&late, 124, "", "deadline");
}

#[test]
fn a_kept_session_continues_in_the_next_command() {
    let place = place();
    check(&run(&place, "x = 5", &["--keep"], ""), 0, "", "stays");
    let listed = windlass(&place, &["ps", "--json"], "");
    let list: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let session = list["sessions"][0]["id"].as_str().unwrap().to_owned();
    check(&run(&place, "x + 1", &["--session", &session], ""), 0, "6\n", "");
    let typed = "def f():\n    return x\n\nf()\nx = input('new? ')\nseven\nx\n";
    let repl = windlass(&place, &["repl", "--session", &session], typed);
    check(&repl, 0, "5\n'seven'\n", "stays");
    let logs = windlass(&place, &["logs", &session], "");
    check(&logs, 0, "6\n5\n'seven'\n", "");
    let closed = format!("session {session} is closed\n");
    check(&windlass(&place, &["kill", &session], ""), 0, &closed, "");
    let ended = run(&place, "x", &["--session", &session], "");
    check(&ended, 1, "", "code: session_ended\nhelp: ");
}

#[test]
fn large_output_is_complete() {
    let place = place();
    let output = run(&place, "for i in range(300000):\n    print(i, 'x' * 9)", &[], "");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let whole = text.lines().enumerate().all(|(at, line)| line == format!("{at} xxxxxxxxx"));
    assert!(whole && text.lines().count() == 300_000, "{} lines", text.lines().count());
}

#[test]
fn up_and_down_start_and_stop_the_node() {
    let place = place();
    let up = windlass(&place, &["up"], "");
    assert_eq!(up.status.code(), Some(0), "{}", String::from_utf8_lossy(&up.stderr));
    assert_eq!(windlass(&place, &["status"], "").status.code(), Some(0));
    check(&windlass(&place, &["down"], ""), 0, "the node is down\n", "");
    assert_eq!(windlass(&place, &["status"], "").status.code(), Some(3));
}
