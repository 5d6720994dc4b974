//! Drives the R worker as a keeper does: a socket, two pipes, one signal.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};
use windlass_protocol::frame::{Decoder, encode};

const DEADLINE: Duration = Duration::from_secs(60);

/// An interrupt has to end a turn within this time, on a busy machine too.
const INTERRUPT_TIME: Duration = Duration::from_secs(5);

struct Worker {
    child: Child,
    socket: UnixStream,
    stdout: ChildStdout,
    stderr: ChildStderr,
    decoder: Decoder,
    frames: Vec<(Value, Vec<u8>)>,
    out: Vec<u8>,
    err: Vec<u8>,
    turn: u64,
}

/// A turn as a client sees it.
#[derive(Debug)]
struct Done {
    outcome: String,
    error: String,
    out: String,
    err: String,
    result: String,
    traceback: String,
    displays: Vec<Value>,
}

fn has_r() -> bool {
    let found = Command::new("R").arg("RHOME").output().is_ok_and(|answer| answer.status.success());
    if !found {
        println!("skipped: R is not installed");
    }
    found
}

impl Worker {
    fn start(directory: &Path) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_windlass-worker"))
            .arg("r")
            .env("WINDLASS_FD", theirs.as_raw_fd().to_string())
            .env("HOME", directory)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let mut worker = Self {
            child,
            socket,
            stdout,
            stderr,
            decoder: Decoder::default(),
            frames: Vec::new(),
            out: Vec::new(),
            err: Vec::new(),
            turn: 0,
        };
        let ready = worker.wait("worker_ready");
        assert!(ready.0["worker"].as_str().unwrap().starts_with("R 4."), "{ready:?}");
        worker
    }

    fn send(&mut self, header: &Value, body: &[u8]) {
        let mut bytes = Vec::new();
        encode(&mut bytes, header, body).unwrap();
        self.socket.write_all(&bytes).unwrap();
    }

    /// Reads what is there. Returns whether anything was.
    fn pump(&mut self, wait: Duration) -> bool {
        let mut watched = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(&self.stdout, PollFlags::IN),
            PollFd::new(&self.stderr, PollFlags::IN),
        ];
        poll(&mut watched, Some(&Timespec::try_from(wait).unwrap())).unwrap();
        let ready = [0, 1, 2].map(|at: usize| watched[at].revents().contains(PollFlags::IN));
        let mut bytes = [0; 64 * 1024];
        if ready[1] {
            let count = self.stdout.read(&mut bytes).unwrap();
            self.out.extend(&bytes[..count]);
        }
        if ready[2] {
            let count = self.stderr.read(&mut bytes).unwrap();
            self.err.extend(&bytes[..count]);
        }
        if ready[0] {
            let count = self.socket.read(&mut bytes).unwrap();
            assert!(count > 0, "the worker is gone: {}", String::from_utf8_lossy(&self.err));
            self.decoder.push(&bytes[..count]);
            while let Some(frame) = self.decoder.next_frame().unwrap() {
                let header = serde_json::from_slice(&frame.header).unwrap();
                self.frames.push((header, frame.body.to_vec()));
            }
        }
        ready.contains(&true)
    }

    fn wait(&mut self, kind: &str) -> (Value, Vec<u8>) {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(at) = self.frames.iter().position(|(header, _)| header["kind"] == kind) {
                return self.frames.remove(at);
            }
            assert!(Instant::now() < end, "no {kind}: {:?}", self.frames);
            self.pump(Duration::from_secs(1));
        }
    }

    fn begin(&mut self, code: &str) {
        self.turn += 1;
        self.frames.clear();
        self.out.clear();
        self.err.clear();
        let parts: Vec<&[u8]> = code.as_bytes().chunks(100_000).collect();
        for (index, part) in parts.iter().enumerate() {
            let more = index + 1 < parts.len();
            self.send(&json!({"kind": "turn_start", "turn": self.turn, "more": more}), part);
        }
        if parts.is_empty() {
            self.send(&json!({"kind": "turn_start", "turn": self.turn}), b"");
        }
    }

    fn done(&mut self) -> Done {
        let (idle, _) = self.wait("idle");
        assert_eq!(idle["turn"], self.turn);
        while self.pump(Duration::ZERO) {}
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let stream = |name: &str| {
            let parts = self.frames.iter().filter(|(header, _)| header["stream"] == name);
            text(&parts.flat_map(|(_, body)| body.clone()).collect::<Vec<u8>>())
        };
        let displays = self.frames.iter().filter(|(header, _)| header["kind"] == "display");
        Done {
            outcome: idle["outcome"].as_str().unwrap().to_owned(),
            error: idle["error"]["name"].as_str().unwrap_or_default().to_owned(),
            out: text(&self.out),
            err: text(&self.err),
            result: stream("result"),
            traceback: stream("traceback"),
            displays: displays.map(|(header, _)| header.clone()).collect(),
        }
    }

    fn run(&mut self, code: &str) -> Done {
        self.begin(code);
        self.done()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Interrupts the running turn as a keeper does, and returns how it ended.
    fn interrupt(&mut self) -> Done {
        self.send(&json!({"kind": "interrupt", "turn": self.turn}), b"");
        kill_process_group(self.pid(), Signal::INT).unwrap();
        let start = Instant::now();
        while !self.frames.iter().any(|(header, _)| header["kind"] == "idle") {
            assert!(start.elapsed() < INTERRUPT_TIME, "the turn was not interrupted");
            if !self.pump(Duration::from_millis(20)) {
                kill_process(self.pid(), Signal::URG).unwrap();
            }
        }
        self.done()
    }

    fn answer(&mut self, prompt: &str, input: &str, eof: bool) {
        let (wait, _) = self.wait("stdin_wait");
        assert_eq!(wait["prompt"], prompt);
        self.send(&json!({"kind": "turn_input", "turn": self.turn, "eof": eof}), input.as_bytes());
    }

    fn shut_down(mut self) {
        self.send(&json!({"kind": "shutdown", "grace_ms": 2000}), b"");
        self.wait("session_end");
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs each code and compares outcome, error name, standard output and result.
fn check(cases: &[(&str, [&str; 4])]) {
    if !has_r() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(directory.path());
    for (code, expected) in cases {
        let done = worker.run(code);
        let found = [&done.outcome, &done.error, &done.out, &done.result].map(String::as_str);
        assert_eq!(found, *expected, "{code}\n{done:?}");
    }
    worker.shut_down();
}

#[test]
fn values_and_output_are_told_apart() {
    check(&[
        ("1+1", ["ok", "", "", "[1] 2\n"]),
        ("cat('a\\n'); 1:2; x <- 5", ["ok", "", "a\n[1] 1 2\n", ""]),
        ("print(x)", ["ok", "", "[1] 5\n", ""]),
        ("invisible(x)", ["ok", "", "", ""]),
        (".Last.value", ["ok", "", "", "[1] 5\n"]),
        ("cat('a'); system('echo b'); cat('c')", ["ok", "", "ab\nc", ""]),
        ("", ["ok", "", "", ""]),
        ("# nothing", ["ok", "", "", ""]),
        ("Sys.getenv('WINDLASS_FD')", ["ok", "", "", "[1] \"\"\n"]),
    ]);
}

#[test]
fn errors_and_exits_end_the_turn_and_not_the_session() {
    check(&[
        ("1; stop('no'); 2", ["error", "simpleError", "[1] 1\n", ""]),
        ("x <- 1; a b", ["error", "ParseError", "", ""]),
        ("exists('x')", ["ok", "", "", "[1] FALSE\n"]),
        ("f(", ["error", "IncompleteCode", "", ""]),
        ("q()", ["ok", "", "", ""]),
        ("q(status = 3)", ["error", "quit", "", ""]),
        ("invokeRestart('abort')", ["error", "Abort", "", ""]),
        ("f <- function(n) f(n + 1); f(1)", ["error", "simpleError", "", ""]),
        ("tryCatch(stop('a'), error = function(e) 'b')", ["ok", "", "", "[1] \"b\"\n"]),
        (
            "f <- function() { on.exit(cat('bye\\n')); stop('x') }; f()",
            ["error", "simpleError", "bye\n", ""],
        ),
        (
            "stop(structure(class = c('mine', 'error', 'condition'), list(message = 'm', call = NULL)))",
            ["error", "mine", "", ""],
        ),
        ("options(warn = 2); as.integer('a')", ["error", "simpleError", "", ""]),
        ("cat('a\0b')", ["error", "ParseError", "", ""]),
    ]);
}

#[test]
fn a_traceback_has_the_calls_and_messages_go_to_the_error_stream() {
    if !has_r() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(directory.path());
    let done = worker.run("f <- function(x) stop('boom'); g <- function() f(1); g()");
    assert_eq!(
        done.traceback,
        "Error in f(1) : boom\nCalls:\n  1: g()\n  2: f(1)\n  3: stop(\"boom\")\n"
    );
    assert_eq!(done.err, "");
    let done = worker.run("message('m'); log(-1)");
    assert_eq!(done.err, "m\nWarning message:\nIn log(-1) : NaNs produced\n");
    let text = format!("x <- '{}'; nchar(x)", "y".repeat(1_000_000));
    assert_eq!(worker.run(&text).result, "[1] 1000000\n");
    worker.shut_down();
}

#[test]
fn everything_that_waits_or_runs_is_interrupted() {
    if !has_r() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(directory.path());
    worker.run("x <- 42");
    for code in [
        "cat('go\\n'); while (TRUE) {}",
        "cat('go\\n'); Sys.sleep(100)",
        "cat('go\\n'); system('sleep 100')",
        "cat('go\\n'); system('sleep 100'); cat('after')",
        "cat('go\\n'); readline('? ')",
        "cat('go\\n'); tools$slow()",
    ] {
        worker.begin(code);
        while !worker.out.starts_with(b"go\n") {
            worker.pump(Duration::from_secs(1));
        }
        let done = worker.interrupt();
        assert_eq!((done.outcome.as_str(), done.out.as_str()), ("interrupted", "go\n"), "{code}");
    }
    worker.begin("tryCatch({cat('go\\n'); Sys.sleep(100)}, interrupt = function(e) 0); x");
    while !worker.out.starts_with(b"go\n") {
        worker.pump(Duration::from_secs(1));
    }
    let done = worker.interrupt();
    assert_eq!((done.outcome.as_str(), done.result.as_str()), ("ok", "[1] 42\n"));
    worker.shut_down();
}

#[test]
fn a_signal_does_not_cut_the_output_of_a_child() {
    // The shell's parent is the worker.
    let code = "cat(system('kill -URG $PPID; sleep 0.2; echo whole', intern = TRUE))";
    check(&[(code, ["ok", "", "whole", ""])]);
}

#[test]
fn input_is_asked_for_and_leftovers_do_not_reach_the_next_turn() {
    if !has_r() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(directory.path());
    worker.begin("a <- readline('name? '); b <- readLines(stdin(), n = 1); paste(a, b)");
    worker.answer("name? ", "ada", false);
    worker.answer("", "one\ntwo\n", false);
    assert_eq!(worker.done().result, "[1] \"ada one\"\n");
    worker.begin("readline('again? ')");
    worker.answer("again? ", "", true);
    assert_eq!(worker.done().result, "[1] \"\"\n");
    worker.begin("f <- function() { y <- 3; browser(); y }; f()");
    worker.answer("Browse[1]> ", "y + 1\n", false);
    worker.answer("Browse[1]> ", "c\n", false);
    assert_eq!(worker.done().result, "[1] 3\n");
    worker.shut_down();
}

#[test]
fn tools_take_and_return_values_and_raise_conditions() {
    if !has_r() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(directory.path());
    worker.begin("tools$search(q = 'x', n = c(1L, NA), f = data.frame(a = 1:2), l = list())");
    let (call, body) = worker.wait("tool_call");
    assert_eq!(call["name"], "search");
    let arguments: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(arguments, json!({"q": "x", "n": [1, null], "f": [{"a": 1}, {"a": 2}], "l": []}));
    let answer =
        json!({"kind": "tool_result", "turn": worker.turn, "call": call["call"], "ok": true});
    worker.send(&answer, br#"[{"a":1,"b":"x"},{"a":null,"b":"y"}]"#);
    assert_eq!(worker.done().result, "   a b\n1  1 x\n2 NA y\n");
    worker.begin("tryCatch(tools$files.read(p = 1), tool_error = function(e) e$code)");
    let (call, _) = worker.wait("tool_call");
    let answer =
        json!({"kind": "tool_result", "turn": worker.turn, "call": call["call"], "ok": false});
    worker.send(&answer, br#"{"message":"gone","code":"tool_host_gone"}"#);
    assert_eq!(worker.done().result, "[1] \"tool_host_gone\"\n");
    worker.shut_down();
}

#[test]
fn a_page_is_one_display_and_later_lines_update_it() {
    if !has_r() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(directory.path());
    let first = worker.run("plot(1:3)").displays;
    assert_eq!((first.len(), &first[0]["mime"]), (1, &json!("image/png")), "{first:?}");
    let second = worker.run("lines(1:3)").displays;
    assert_eq!((&second[0]["id"], &second[0]["update"]), (&first[0]["id"], &json!(true)));
    assert!(worker.run("1").displays.is_empty());
    assert_eq!(worker.run("plot(1); plot(2)").displays.len(), 2);
    assert_eq!(worker.run("par(mfrow = c(1, 2)); plot(1); plot(2)").displays.len(), 1);
    worker.shut_down();
}

#[test]
fn forked_children_have_no_socket_and_end_alone() {
    if !has_r() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(directory.path());
    let done = worker.run("parallel::mclapply(1:2, function(i) i * 2)");
    assert_eq!(done.result, "[[1]]\n[1] 2\n\n[[2]]\n[1] 4\n\n");
    let fork = "p <- parallel:::mcfork(); if (inherits(p, 'masterProcess')) quit(status = 5); 8";
    assert_eq!(worker.run(fork).result, "[1] 8\n");
    worker.shut_down();
}

#[test]
fn a_profile_prints_after_the_worker_is_ready_and_cannot_ask() {
    if !has_r() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let profile = "cat('hello\\n'); x <- readline('? '); y <- 5; stop('bad')\n";
    std::fs::write(directory.path().join(".Rprofile"), profile).unwrap();
    let mut worker = Worker::start(directory.path());
    while !worker.out.starts_with(b"hello\n") {
        worker.pump(Duration::from_secs(1));
    }
    assert_eq!(worker.run("y").result, "[1] 5\n");
    worker.shut_down();
}

#[test]
fn the_end_of_the_keeper_ends_a_busy_worker_and_its_directory() {
    if !has_r() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(directory.path());
    let temporary = worker.run("cat(tempdir())").out;
    assert!(Path::new(&temporary).is_dir());
    worker.begin("while (TRUE) {}");
    rustix::net::shutdown(worker.socket.as_fd(), rustix::net::Shutdown::Both).unwrap();
    worker.child.wait().unwrap();
    assert!(!Path::new(&temporary).exists());
}
