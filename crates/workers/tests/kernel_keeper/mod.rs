//! A keeper for tests of the Jupyter worker: starts the worker with a kernel, sends and receives frames.

#![expect(clippy::unwrap_used, reason = "a test ends where its keeper fails")]

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// How long any answer of a worker may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One worker starts at a time, so that no worker inherits the socket of another.
pub static STARTING: Mutex<()> = Mutex::new(());

pub struct KernelKeeper {
    pub worker: Child,
    pub socket: UnixStream,
    pub turn: u64,
    pub ready: Value,
    directory: tempfile::TempDir,
}

#[derive(Debug)]
pub struct KeeperFrame {
    pub header: Value,
    pub body: Vec<u8>,
}

impl KernelKeeper {
    pub fn start(kernel: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kernel.json");
        fs::write(&file, kernel.to_string()).unwrap();
        let temporary = directory.path().join("t");
        fs::create_dir(&temporary).unwrap();
        let guard = STARTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (socket, of_worker) = UnixStream::pair().unwrap();
        fcntl_setfd(&of_worker, FdFlags::empty()).unwrap();
        let worker = Command::new(env!("CARGO_BIN_EXE_windlass-worker"))
            .args(["jupyter", "--kernel-json"])
            .arg(&file)
            .env("WINDLASS_FD", of_worker.as_raw_fd().to_string())
            .env("TMPDIR", &temporary)
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        drop(of_worker);
        drop(guard);
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut keeper = Self { worker, socket, turn: 0, ready: Value::Null, directory };
        keeper.ready = keeper.receive().expect("the worker is ready").header;
        assert_eq!(keeper.ready["kind"], "worker_ready");
        keeper
    }

    pub fn send(&mut self, header: &Value, body: &[u8]) {
        let header = header.to_string();
        let rest = 4 + header.len() + body.len();
        let mut frame = (rest as u32).to_be_bytes().to_vec();
        frame.extend((header.len() as u32).to_be_bytes());
        frame.extend(header.as_bytes());
        frame.extend(body);
        self.socket.write_all(&frame).unwrap();
    }

    /// The next frame. `None` at the end of the socket.
    pub fn receive(&mut self) -> Option<KeeperFrame> {
        let mut lengths = [0; 8];
        match self.socket.read_exact(&mut lengths) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return None,
            read => read.unwrap(),
        }
        let word = |at: usize| u32::from_be_bytes(lengths[at..at + 4].try_into().unwrap()) as usize;
        let mut rest = vec![0; word(0) - 4];
        self.socket.read_exact(&mut rest).unwrap();
        let body = rest.split_off(word(4));
        Some(KeeperFrame { header: serde_json::from_slice(&rest).unwrap(), body })
    }

    pub fn begin(&mut self, code: &str) {
        self.turn += 1;
        self.send(&json!({"kind": "turn_start", "turn": self.turn}), code.as_bytes());
    }

    /// All frames until the turn is over, without its `idle`, and the `idle`.
    pub fn finish(&mut self) -> (Vec<KeeperFrame>, Value) {
        let mut frames = Vec::new();
        loop {
            let frame = self.receive().expect("the worker lives");
            if frame.header["kind"] == "idle" {
                assert_eq!(frame.header["turn"], self.turn);
                return (frames, frame.header);
            }
            frames.push(frame);
        }
    }

    pub fn run(&mut self, code: &str) -> (Vec<KeeperFrame>, Value) {
        self.begin(code);
        self.finish()
    }

    pub fn result(&mut self, code: &str) -> String {
        let (frames, idle) = self.run(code);
        assert_eq!(idle["outcome"], "ok", "{code}: {frames:?} {idle}");
        text_of(&frames, "result")
    }

    pub fn interrupt(&mut self, turn: u64) {
        self.send(&json!({"kind": "interrupt", "turn": turn}), b"");
        let group = Pid::from_child(&self.worker);
        kill_process_group(group, Signal::INT).unwrap();
    }

    /// Reads frames until one of this kind.
    pub fn wait_for(&mut self, kind: &str) -> KeeperFrame {
        loop {
            let frame = self.receive().expect("the worker lives");
            if frame.header["kind"] == kind {
                return frame;
            }
        }
    }

    /// The exit code, standard error, and the files that are left.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.worker.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = self.worker.wait().unwrap();
        let left = fs::read_dir(self.directory.path().join("t")).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().contains("windlass")), "{left:?}");
        (status.code(), said)
    }

    pub fn shut_down(mut self) {
        self.send(&json!({"kind": "shutdown", "grace_ms": 4000}), b"");
        assert_eq!(self.wait_for("session_end").header["reason"], "shutdown");
        assert_eq!(self.end().0, Some(0));
    }
}

/// The text of one stream, foreground only.
pub fn text_of(frames: &[KeeperFrame], stream: &str) -> String {
    let of_stream = frames.iter().filter(|frame| {
        frame.header["stream"] == stream && frame.header["background"] != json!(true)
    });
    String::from_utf8(of_stream.flat_map(|frame| frame.body.clone()).collect()).unwrap()
}
