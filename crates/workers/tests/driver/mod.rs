//! A tiny keeper: starts `windlass-worker`, speaks the protocol over a socket pair, and collects output.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use windlass_protocol::frame::{Decoder, encode};

/// One start at a time: another child must not inherit this one's socket.
static STARTING: Mutex<()> = Mutex::new(());

/// How long a test waits for a message.
const PATIENCE: Duration = Duration::from_secs(20);

/// A worker and the keeper's end of its socket.
pub struct Worker {
    child: Child,
    socket: UnixStream,
    decoder: Decoder,
    stdout: std::process::ChildStdout,
    stderr: std::process::ChildStderr,
    last_turn: u64,
    pub ready: Value,
}

/// What a turn has sent, up to its `idle`.
#[derive(Debug, Default)]
pub struct TurnSeen {
    pub stdout: String,
    pub stderr: String,
    pub outcome: String,
    pub error: Option<(String, String)>,
    pub took: Duration,
}

impl TurnSeen {
    /// Outcome and error in one text.
    pub fn end(&self) -> String {
        match &self.error {
            Some((name, message)) => format!("{} {name}: {message}", self.outcome),
            None => self.outcome.clone(),
        }
    }
}

impl Worker {
    pub fn start(kind: &str, environment: &[(&str, &str)]) -> Self {
        let (socket, other) = UnixStream::pair().unwrap();
        let starting = STARTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let inherited = fcntl_dupfd_cloexec(&other, 50).unwrap();
        fcntl_setfd(&inherited, FdFlags::empty()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_windlass-worker"))
            .arg(kind)
            .env("WINDLASS_FD", inherited.as_raw_fd().to_string())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        drop((inherited, other, starting));
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        fcntl_setfl(&stdout, OFlags::NONBLOCK).unwrap();
        fcntl_setfl(&stderr, OFlags::NONBLOCK).unwrap();
        let decoder = Decoder::default();
        let mut worker =
            Self { child, socket, decoder, stdout, stderr, last_turn: 0, ready: Value::Null };
        worker.ready = worker.receive().0;
        assert_eq!(worker.ready["kind"], "worker_ready");
        worker
    }

    pub fn send(&mut self, header: &Value, body: &[u8]) {
        let mut bytes = Vec::new();
        encode(&mut bytes, header, body).unwrap();
        self.socket.write_all(&bytes).unwrap();
    }

    /// The next message of the worker.
    pub fn receive(&mut self) -> (Value, Vec<u8>) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return (serde_json::from_slice(&frame.header).unwrap(), frame.body.to_vec());
            }
            match self.socket.read(&mut buffer) {
                Ok(0) => panic!("the worker closed its socket"),
                Ok(count) => self.decoder.push(&buffer[..count]),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => panic!("no message: {cause}"),
            }
        }
    }

    /// Starts a turn. Long code goes in several frames.
    pub fn begin(&mut self, code: impl AsRef<[u8]>) -> u64 {
        self.last_turn += 1;
        let turn = self.last_turn;
        let mut rest = code.as_ref();
        while rest.len() > 190_000 {
            let (part, later) = rest.split_at(190_000);
            self.send(&json!({"kind": "turn_start", "turn": turn, "more": true}), part);
            rest = later;
        }
        self.send(&json!({"kind": "turn_start", "turn": turn}), rest);
        turn
    }

    /// Runs a turn to its end. `answer` is called for each message that is not `output`.
    pub fn run_with(
        &mut self,
        code: impl AsRef<[u8]>,
        mut answer: impl FnMut(&mut Self, &Value, &[u8]),
    ) -> TurnSeen {
        let began = Instant::now();
        let turn = self.begin(code);
        let mut seen = TurnSeen::default();
        loop {
            let (header, body) = self.receive();
            self.raw(&mut seen);
            match header["kind"].as_str().unwrap() {
                "output" if header["stream"] == "stderr" => {
                    seen.stderr += &String::from_utf8_lossy(&body);
                }
                "output" => seen.stdout += &String::from_utf8_lossy(&body),
                "idle" => {
                    assert_eq!(header["turn"], turn);
                    seen.outcome = header["outcome"].as_str().unwrap().to_owned();
                    seen.error = header["error"].as_object().map(|error| {
                        let text = |name: &str| error[name].as_str().unwrap().to_owned();
                        (text("name"), text("message"))
                    });
                    seen.took = began.elapsed();
                    return seen;
                }
                _ => answer(self, &header, &body),
            }
        }
    }

    pub fn run(&mut self, code: impl AsRef<[u8]>) -> TurnSeen {
        self.run_with(code, |_, header, _| panic!("unexpected {header}"))
    }

    /// Answers a `stdin_wait` of the running turn.
    pub fn input(&mut self, bytes: &[u8], eof: bool) {
        let turn = self.last_turn;
        self.send(&json!({"kind": "turn_input", "turn": turn, "eof": eof}), bytes);
    }

    /// Interrupts the running turn as a keeper does: the frame, then one SIGINT to the process group.
    pub fn interrupt(&mut self) {
        let turn = self.last_turn;
        self.send(&json!({"kind": "interrupt", "turn": turn}), b"");
        kill_process_group(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Bytes that are in the raw pipes now.
    pub fn raw(&mut self, seen: &mut TurnSeen) {
        seen.stdout += &available(&mut self.stdout);
        seen.stderr += &available(&mut self.stderr);
    }

    /// Waits for a line of raw output in the running turn.
    pub fn wait_for_output(&mut self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = String::new();
        while !seen.contains(text) {
            assert!(Instant::now() < deadline, "no {text:?} in {seen:?}");
            let mut watched =
                [rustix::event::PollFd::new(&self.stdout, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut watched, Some(&rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 }))
                .unwrap();
            seen += &available(&mut self.stdout);
        }
    }

    /// Runs a turn that prints `go`, interrupts it then, and measures from the interrupt to `idle`.
    pub fn interrupt_at_go(&mut self, code: &str) -> TurnSeen {
        self.begin(code);
        self.wait_for_output("go");
        let began = Instant::now();
        self.interrupt();
        let mut seen = self.until_idle();
        seen.took = began.elapsed();
        seen
    }

    /// Waits for the `idle` of the running turn.
    pub fn until_idle(&mut self) -> TurnSeen {
        let mut seen = TurnSeen::default();
        loop {
            let (header, body) = self.receive();
            self.raw(&mut seen);
            if header["kind"] == "output" {
                seen.stdout += &String::from_utf8_lossy(&body);
            }
            if header["kind"] == "idle" {
                seen.error = Some((header["error"].to_string(), String::new()));
                seen.outcome = header["outcome"].as_str().unwrap().to_owned();
                return seen;
            }
        }
    }

    /// Shuts the worker down and waits for its end.
    pub fn shutdown(mut self) {
        self.send(&json!({"kind": "shutdown", "grace_ms": 2000}), b"");
        while self.receive().0["kind"] != "session_end" {}
        assert!(self.child.wait().unwrap().success());
    }

    pub fn into_parts(self) -> (Child, OwnedFd) {
        (self.child, self.socket.into())
    }
}

fn available(pipe: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = pipe.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
