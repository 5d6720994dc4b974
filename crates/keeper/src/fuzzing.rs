//! Entry points for the fuzz targets in `fuzz/`: they feed bytes that another process could send. Only the
//! fuzz targets use this module; it is no public API.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sys::signal::SigSet;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use windlass_procs::HeldTree;
use windlass_protocol::link::{FromKeeper, Hold};
use windlass_protocol::worker::FromWorker;
use windlass_protocol::{LinkSeq, TurnNo, frame};

use crate::keeper::Keeper;
use crate::nursery::socket::{NurserySocket, Received};
use crate::signals::Signals;
use crate::stage::WorkerStage;
use crate::worker::{KeeperEnds, Worker};

/// A process id that the kernel never assigns.
const NOBODY: u32 = 0x3fff_ffff;

/// The start timeout of the worker: longer than any fuzz run.
const FOREVER: Duration = Duration::from_secs(3600);

/// Bytes per write; a socket's buffer holds that many.
const PORTION_BYTES: usize = 16 * 1024;

/// The state of the keeper when the worker's bytes arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// The worker was just started.
    Starting,
    /// The worker is ready and runs its first turn.
    InTurn,
}

/// Feeds the bytes of a worker to a keeper, and checks that each resulting event is a valid message for the
/// node. Returns the number of events.
///
/// # Panics
/// If an event is not a valid message.
pub fn worker_bytes(begin: Begin, bytes: &[u8]) -> usize {
    let Some((mut keeper, worker)) = keeper() else { return 0 };
    if begin == Begin::InTurn {
        let ready = FromWorker::WorkerReady {
            protocol: windlass_protocol::worker::PROTOCOL,
            worker: "fuzz".to_owned(),
            capabilities: vec![windlass_protocol::worker::FORKS.to_owned()],
            startup: None,
        };
        let mut first = Vec::new();
        if frame::encode(&mut first, &ready, &[]).is_ok() {
            let _ = rustix::io::write(&worker, &first);
            keeper.read_worker();
        }
        let stage = keeper.stage;
        keeper.worker.start_turn(TurnNo(1), None, &Bytes::from_static(b"1"), stage);
    }
    for portion in bytes.chunks(PORTION_BYTES) {
        if rustix::io::write(&worker, portion).is_err() {
            break;
        }
        keeper.read_worker();
    }
    let mut events = 0;
    keeper.end_if_broken();
    for event in keeper.node.link.held_after(LinkSeq(0)) {
        let whole = [&event.head[..], &event.body[..]].concat();
        let frame = frame::decode(whole.into()).expect("an event is one frame");
        let _: FromKeeper = serde_json::from_slice(&frame.header).expect("an event is a message");
        events += 1;
    }
    events
}

/// A keeper, and the worker's end of its protocol socket.
fn keeper() -> Option<(Keeper, OwnedFd)> {
    let (lines, theirs) = KeeperEnds::make().ok()?;
    let signals = Signals::take(Hold::Subreaper).ok()?;
    // The user must be able to stop the fuzz target by a signal.
    let _ = SigSet::all().thread_unblock();
    let listener = std::fs::File::open("/dev/null").ok()?;
    let mut keeper = Keeper::new(listener.into(), HeldTree::empty(), signals);
    let worker = Worker::of_twin(NOBODY, None, None, lines);
    keeper.worker.process = Some(worker);
    keeper.stage = WorkerStage::Starting { until: Instant::now() + FOREVER };
    rustix::io::ioctl_fionbio(&theirs.socket, true).ok()?;
    Some((keeper, theirs.socket))
}

/// Feeds a message of a node to a nursery's socket, with a file if there is one. If the message is a request,
/// returns its number of descriptors.
pub fn nursery_message(message: &[u8], file: Option<&OwnedFd>) -> Option<usize> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = file.into_iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() {
        rights.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(&theirs, &[IoSlice::new(message)], &mut rights, flags).ok()?;
    match NurserySocket::new(ours).receive().ok()? {
        Received::Nothing | Received::Closed => None,
        Received::Request { descriptors, .. } => Some(descriptors.len()),
    }
}
