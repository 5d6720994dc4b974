//! Ways in for the fuzz targets in `fuzz/`: what another process can send, without that process.
//! Nothing else uses this module, and nothing here is promised to anybody.

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
use windlass_procs::Held;
use windlass_protocol::link::{FromKeeper, Hold};
use windlass_protocol::worker::FromWorker;
use windlass_protocol::{LinkSeq, TurnNo, frame};

use crate::keeper::Keeper;
use crate::nursery::mail::{Mail, Received};
use crate::signals::Signals;
use crate::stage::Stage;
use crate::worker::{Lines, Worker};

/// More than the kernel ever gives to a process.
const NOBODY: u32 = 0x3fff_ffff;

/// How long a worker may take to get ready: no run is as long.
const FOREVER: Duration = Duration::from_secs(3600);

/// Bytes written at once; a socket takes that many.
const PORTION_BYTES: usize = 16 * 1024;

/// How the worker's bytes find the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// The worker was just started.
    Starting,
    /// The worker is ready, and has the first turn.
    InTurn,
}

/// Takes the bytes of a worker, and sees that the node could read all that comes of them. Returns how
/// many events that was.
///
/// # Panics
/// When an event is no message to the node.
pub fn worker_bytes(begin: Begin, bytes: &[u8]) -> usize {
    let Some((mut keeper, worker)) = keeper() else { return 0 };
    if begin == Begin::InTurn {
        let ready = FromWorker::WorkerReady {
            protocol: windlass_protocol::worker::PROTOCOL,
            worker: "fuzz".to_owned(),
            capabilities: vec![windlass_protocol::worker::FORKS.to_owned()],
        };
        let mut first = Vec::new();
        if frame::encode(&mut first, &ready, &[]).is_ok() {
            let _ = rustix::io::write(&worker, &first);
            keeper.hear_worker();
        }
        let stage = keeper.stage;
        keeper.worker.start_turn(TurnNo(1), &Bytes::from_static(b"1"), stage);
    }
    for portion in bytes.chunks(PORTION_BYTES) {
        if rustix::io::write(&worker, portion).is_err() {
            break;
        }
        keeper.hear_worker();
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

/// A keeper whose worker is this socket.
fn keeper() -> Option<(Keeper, OwnedFd)> {
    let (lines, theirs) = Lines::make().ok()?;
    let signals = Signals::take(Hold::Subreaper).ok()?;
    // Whoever runs this must be able to stop it.
    let _ = SigSet::all().thread_unblock();
    let listener = std::fs::File::open("/dev/null").ok()?;
    let mut keeper = Keeper::new(listener.into(), Held::of_nothing(), signals);
    let worker = Worker::of_twin(NOBODY, None, None, lines);
    keeper.worker.process = Some(worker);
    keeper.stage = Stage::Starting { until: Instant::now() + FOREVER };
    rustix::io::ioctl_fionbio(&theirs.socket, true).ok()?;
    Some((keeper, theirs.socket))
}

/// Takes a message of a node to its nursery, with a file if there is one. Whether it is a request, and
/// with how many descriptors.
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
    match Mail::new(ours).receive().ok()? {
        Received::Nothing | Received::Closed => None,
        Received::Asked { descriptors, .. } => Some(descriptors.len()),
    }
}
