//! The zygote: a process with a warm interpreter that forks workers. Owns the steps between a keeper's request and
//! the worker's own life. Knows nothing about the interpreter, which is a [`WarmInterpreter`].
//!
//! Descriptor 3 is the socket to the node. On it the zygote receives the directories that sessions can write to,
//! reports once that it is ready, and receives connections: one for each worker that a keeper needs. A connection
//! carries one request with the descriptors that the worker needs. The forked worker reports to the keeper on a
//! separate channel. `workers/python/windlass_worker/zygote.py` is the same for Python.

use std::collections::VecDeque;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use windlass_confine::zygote_side::{self, ForkedSide, WorkerStreams, leave};
use windlass_procs::inherited::take_inherited;

const NODE: RawFd = 3;
const REQUEST_VERSION: u32 = 2;
const REQUEST_BYTES: usize = 12;
const DESCRIPTORS_MAX: usize = 6;

/// Maximum number of connections that wait for their request. Beyond that the oldest is closed; its keeper then
/// starts the program instead.
const CONNECTIONS_MAX: usize = 256;

/// Maximum bytes of a job, a plan or the list of roots.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Maximum bytes of the report to the node.
const REPORT_BYTES_MAX: usize = 60_000;

/// `CLONE_NEWPID` and `CLONE_NEWNET`.
const NEW_PIDS: i32 = 0x2000_0000;
const NEW_NETWORK: i32 = 0x4000_0000;

/// The status of a worker that could not be confined.
const NOT_CONFINED: i32 = 126;

/// An interpreter that is started before its sessions are known.
pub trait WarmInterpreter {
    /// Loads what sessions will need, but nothing below `roots`, where sessions can write. `None`: unknown.
    fn prepare(&mut self, roots: Option<&[OsString]>) -> PreparedReport;

    /// Runs the steps of a turn once, so that their pages are written before the first turn.
    fn rehearse(&mut self);

    /// In a forked worker that is confined: takes the session's environment and the protocol socket. The worker
    /// serves when [`run`] has returned.
    fn serve(&mut self, environment: Vec<(OsString, OsString)>, socket: OwnedFd);
}

/// What the node learns about a zygote.
#[derive(Debug, Default)]
pub struct PreparedReport {
    /// One line for each package that could not be loaded.
    pub missing: Vec<String>,
    /// The directories from which packages are loaded.
    pub paths: Vec<String>,
}

/// Why a zygote cannot work.
#[derive(Debug, thiserror::Error)]
pub enum ForkServerError {
    #[error("descriptor {NODE} is not the node's socket: {0}")]
    NoNode(io::Error),
    #[error("the node did not send the directories that sessions can write to")]
    NoRoots,
    #[error("the interpreter cannot be forked: {0}")]
    Threads(io::Error),
}

/// Why [`run`] has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZygoteEnd {
    /// This process is a forked worker.
    Worker,
    /// The node has closed its socket.
    NodeGone,
}

/// The zygote's life.
pub fn run(interpreter: &mut impl WarmInterpreter) -> Result<ZygoteEnd, ForkServerError> {
    let node = take_inherited(NODE).map_err(ForkServerError::NoNode)?;
    let roots = receive_roots(&node)?;
    let report = interpreter.prepare(roots.as_deref());
    interpreter.rehearse();
    zygote_side::warm();
    zygote_side::stop_threads().map_err(ForkServerError::Threads)?;
    zygote_side::fill_gaps();
    send_report(&node, &report);
    let mut connections = Connections { node, open: VecDeque::new() };
    loop {
        let Some(request) = connections.next_request() else {
            return Ok(ZygoteEnd::NodeGone);
        };
        if let Some(channel) = fork(&request) {
            drop(connections);
            become_worker(interpreter, request, channel);
            return Ok(ZygoteEnd::Worker);
        }
    }
}

/// A request for one worker.
#[derive(Debug)]
struct ForkRequest {
    descriptors: VecDeque<OwnedFd>,
    of_keeper: i32,
    of_worker: i32,
}

/// Forks a worker. Returns its channel in the worker, and nothing in the zygote.
fn fork(request: &ForkRequest) -> Option<RawFd> {
    let [keeper, channel] = [&request.descriptors[0], &request.descriptors[1]];
    // Only children enter a pid namespace, and every child forked here is for a keeper.
    zygote_side::join(keeper.as_fd(), NEW_PIDS).ok()?;
    let (of, spaces) = match request.of_worker {
        0 => (keeper, request.of_keeper & !NEW_PIDS),
        spaces => (request.descriptors.get(5)?, spaces),
    };
    match zygote_side::fork_worker(of.as_fd(), spaces, channel.as_fd()) {
        Ok(ForkedSide::Worker) => return Some(channel.as_raw_fd()),
        Ok(ForkedSide::Zygote { child }) => zygote_side::wait_for(child),
        // The keeper sees the closed channel and starts the program instead.
        Err(_) => {}
    }
    leave_pid_namespace();
    None
}

/// Leaves the keeper's pid namespace, which may end. An ordinary user's zygote cannot, and keeps it until the next
/// fork.
fn leave_pid_namespace() {
    if let Ok(own) = File::open("/proc/self/ns/pid") {
        let _ = zygote_side::join(own.as_fd(), NEW_PIDS);
    }
}

/// In the worker: waits for the job and enters the confinement.
fn become_worker(interpreter: &mut impl WarmInterpreter, request: ForkRequest, channel: RawFd) {
    let mut descriptors = request.descriptors.into_iter();
    let (_keeper, channel_fd) = (descriptors.next(), descriptors.next());
    let (kept, stdout, stderr) = (descriptors.next(), descriptors.next(), descriptors.next());
    drop((_keeper, descriptors));
    let (Some(channel_fd), Some(kept), Some(stdout), Some(stderr)) =
        (channel_fd, kept, stdout, stderr)
    else {
        leave(NOT_CONFINED);
    };
    debug_assert_eq!(channel_fd.as_raw_fd(), channel);
    let job = receive_job(interpreter, channel_fd.as_fd());
    let streams =
        WorkerStreams { kept: kept.as_fd(), stdout: stdout.as_fd(), stderr: stderr.as_fd() };
    if zygote_side::become_worker(&job.plan, &job.cwd, channel_fd.as_fd(), &streams).is_err() {
        leave(NOT_CONFINED);
    }
    // The confinement has closed all descriptors but `kept`.
    for closed in [channel_fd, stdout, stderr] {
        let _ = closed.into_raw_fd();
    }
    interpreter.serve(job.environment, kept);
}

/// What a worker needs to become the worker of a session.
#[derive(Debug)]
struct WorkerJob {
    plan: Vec<u8>,
    cwd: CString,
    environment: Vec<(OsString, OsString)>,
}

/// Waits for the job. The network namespace and a plan for building the view in advance may come first.
fn receive_job(interpreter: &mut impl WarmInterpreter, channel: BorrowedFd<'_>) -> WorkerJob {
    loop {
        let Ok((kind, mut descriptors)) = receive(channel, RecvFlags::empty()) else { leave(0) };
        let (Some(descriptor), true) = (descriptors.pop(), descriptors.is_empty()) else {
            // The keeper is gone, or no longer needs this worker.
            leave(0)
        };
        if kind == b"N" {
            if zygote_side::join(descriptor.as_fd(), NEW_NETWORK).is_err() {
                leave(NOT_CONFINED);
            }
            continue;
        }
        let Ok(content) = read_whole(descriptor) else { leave(NOT_CONFINED) };
        if kind == b"J" {
            return parse_job(&content).unwrap_or_else(|| leave(NOT_CONFINED));
        }
        if zygote_side::build_view(&content, channel).is_err() {
            leave(NOT_CONFINED);
        }
        interpreter.rehearse();
        zygote_side::prefault();
        let _ = send(channel, b"B", SendFlags::NOSIGNAL);
    }
}

/// The length of the plan, the plan, the directory, and each variable after a NUL byte.
fn parse_job(content: &[u8]) -> Option<WorkerJob> {
    let (length, rest) = content.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (plan, rest) = rest.split_at_checked(length)?;
    let mut parts = rest.split(|byte| *byte == 0);
    let cwd = CString::new(parts.next()?).ok()?;
    let environment = parts.filter_map(|variable| {
        let at = variable.iter().position(|byte| *byte == b'=')?;
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((text(&variable[..at]), text(&variable[at + 1..])))
    });
    Some(WorkerJob { plan: plan.to_vec(), cwd, environment: environment.collect() })
}

/// The node's socket, and the connections received over it in order of arrival.
#[derive(Debug)]
struct Connections {
    node: OwnedFd,
    open: VecDeque<OwnedFd>,
}

impl Connections {
    /// Waits for a request. `None` if the node is gone.
    fn next_request(&mut self) -> Option<ForkRequest> {
        loop {
            let all = std::iter::once(&self.node).chain(&self.open);
            let mut watched: Vec<PollFd<'_>> =
                all.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
            let _ = poll(&mut watched, None);
            let ready: Vec<bool> = watched.iter().map(|poll| !poll.revents().is_empty()).collect();
            // From the last to the first, so that the numbers of the others stay.
            for index in (0..self.open.len()).rev().filter(|index| ready[index + 1]) {
                let connection = self.open.remove(index)?;
                if let Some(request) = receive_request(&connection) {
                    return Some(request);
                }
            }
            if ready[0] {
                self.accept()?;
            }
        }
    }

    fn accept(&mut self) -> Option<()> {
        let (kind, mut descriptors) = receive(self.node.as_fd(), RecvFlags::empty()).ok()?;
        if kind.is_empty() {
            return None;
        }
        if kind == b"C" && descriptors.len() == 1 {
            if self.open.len() == CONNECTIONS_MAX {
                self.open.pop_front();
            }
            self.open.extend(descriptors.pop());
        }
        Some(())
    }
}

/// The only request of a connection; `None` if the keeper is gone.
fn receive_request(connection: &OwnedFd) -> Option<ForkRequest> {
    let (data, descriptors) = receive(connection.as_fd(), RecvFlags::DONTWAIT).ok()?;
    let words: [u8; REQUEST_BYTES] = data.try_into().ok()?;
    let word = |at: usize| [words[at], words[at + 1], words[at + 2], words[at + 3]];
    let (of_keeper, of_worker) = (i32::from_le_bytes(word(4)), i32::from_le_bytes(word(8)));
    let needed = if of_worker == 0 { 5 } else { DESCRIPTORS_MAX };
    let known = u32::from_le_bytes(word(0)) == REQUEST_VERSION && descriptors.len() >= needed;
    known.then(|| ForkRequest { descriptors: descriptors.into(), of_keeper, of_worker })
}

/// Directories that sessions can write to; `None` if the node does not know them.
fn receive_roots(node: &OwnedFd) -> Result<Option<Vec<OsString>>, ForkServerError> {
    let received = receive(node.as_fd(), RecvFlags::empty()).ok();
    let content = received
        .filter(|(kind, descriptors)| kind == b"R" && descriptors.len() == 1)
        .and_then(|(_, mut descriptors)| read_whole(descriptors.pop()?).ok())
        .ok_or(ForkServerError::NoRoots)?;
    let mut parts = content.split(|byte| *byte == 0);
    let known = parts.next() == Some(b"known");
    Ok(known.then(|| parts.map(|root| OsString::from_vec(root.to_vec())).collect()))
}

fn read_whole(descriptor: OwnedFd) -> io::Result<Vec<u8>> {
    let file = File::from(descriptor);
    let length = file.metadata()?.len();
    if length > FILE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut content = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read_exact_at(&mut content, 0)?;
    Ok(content)
}

fn receive(from: BorrowedFd<'_>, flags: RecvFlags) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut data = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut data)];
        match recvmsg(from, &mut parts, &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok((data[..received.bytes].to_vec(), descriptors))
}

/// Reports to the node: one line for each missing package, then the directories of packages.
fn send_report(node: &OwnedFd, report: &PreparedReport) {
    let missing = report.missing.iter().map(|line| format!("missing {line}"));
    let paths = report.paths.iter().map(|path| format!("path {path}"));
    let lines: Vec<String> = missing.chain(paths).collect();
    let text = format!("ready\n{}", lines.join("\n"));
    let end = text.floor_char_boundary(REPORT_BYTES_MAX);
    let _ = send(node, &text.as_bytes()[..end], SendFlags::NOSIGNAL);
}
