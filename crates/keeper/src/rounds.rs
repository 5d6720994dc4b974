//! One round of the poll loop: what is waited for, and for what it woke.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass_protocol::Stream;

use crate::fork::Forking;
use crate::keeper::Keeper;
use crate::stage::{Stage, Then};
use crate::worker::Filled;

/// What the loop woke for.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    pub signals: bool,
    pub listener: bool,
    pub node: bool,
    pub callers: bool,
    pub worker: bool,
    pub pipes: bool,
    pub egress: bool,
    pub worker_room: bool,
    /// The handle of a process that ended, in some way or other.
    pub twin: bool,
    pub waited: bool,
    pub ending: bool,
    pub forking: bool,
}

impl Keeper {
    pub(crate) fn wait(&mut self) -> Ready {
        // A full link stops the reading of the worker, and nothing else.
        let take_output = !self.link.full();
        let timeout = self.next_deadline().map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 60, tv_nsec: 0 })
        });
        let worker = self.worker.as_ref().filter(|_| !self.stage.is_clearing());
        let mut sources = Vec::with_capacity(8);
        let mut fds = Vec::with_capacity(8);
        let mut watch = |source, fd, flags| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        watch(Source::Signals, self.signals.as_fd(), PollFlags::IN);
        if let Some(listener) = &self.listener {
            watch(Source::Listener, listener.as_fd(), PollFlags::IN);
        }
        if let Some(node) = &self.node {
            let room = if node.blocked() { PollFlags::OUT } else { PollFlags::empty() };
            watch(Source::Node, node.as_fd(), PollFlags::IN | room);
        }
        for caller in &self.callers {
            watch(Source::Caller, caller.as_fd(), PollFlags::IN);
        }
        for egress in self.egress.iter().chain(&self.family.egress) {
            watch(Source::Egress, egress.as_fd(), PollFlags::IN);
        }
        for (source, descriptor) in self.of_family() {
            watch(source, descriptor, PollFlags::IN);
        }
        if let Some(worker) = worker {
            if worker.blocked() {
                watch(Source::WorkerRoom, worker.socket(), PollFlags::OUT);
            }
            if take_output {
                watch(Source::Worker, worker.socket(), PollFlags::IN);
                for stream in [Stream::Stdout, Stream::Stderr] {
                    if let Some(pipe) = worker.pipe(stream) {
                        watch(Source::Pipe, pipe, PollFlags::IN);
                    }
                }
            }
        }
        // EINTR cannot happen with every signal taken as a descriptor; a spurious wake is harmless.
        let _ = poll(&mut fds, timeout.as_ref());
        let woke = |source| {
            sources.iter().zip(&fds).any(|(of, fd)| *of == source && !fd.revents().is_empty())
        };
        Ready {
            signals: woke(Source::Signals),
            listener: woke(Source::Listener),
            node: woke(Source::Node),
            callers: woke(Source::Caller),
            worker: woke(Source::Worker),
            pipes: woke(Source::Pipe),
            egress: woke(Source::Egress),
            worker_room: woke(Source::WorkerRoom),
            twin: woke(Source::Twin),
            waited: woke(Source::Waited),
            ending: woke(Source::Ending),
            forking: woke(Source::Forking),
        }
    }

    /// What tells of twins, and of processes that are no children of ours.
    fn of_family(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>)> {
        let twin = self.twin_handle().map(|handle| (Source::Twin, handle));
        let waited = self.waited_handle().map(|handle| (Source::Waited, handle));
        let ending = self.family.waited().map(|handle| (Source::Ending, handle));
        let forking = self.family.forking.as_ref().and_then(Forking::awaited);
        let forking = forking.map(|socket| (Source::Forking, socket));
        twin.into_iter().chain(waited).chain(ending).chain(forking)
    }

    /// What concerns twins.
    pub(crate) fn hear_family(&mut self, ready: &Ready) {
        if ready.forking {
            self.hear_twin();
        }
        if ready.twin {
            self.twin_ended();
        }
        if ready.waited {
            self.waited = None;
            self.reap();
        }
        if ready.ending {
            self.look_at_ending();
        }
    }

    /// Takes what has come on the protocol socket. A worker that closed it can be given no turn,
    /// so it is ended.
    pub(crate) fn hear_worker(&mut self) {
        let closed = self.fill_from_worker() == Filled::Closed;
        if closed && matches!(self.stage, Stage::Starting { .. } | Stage::Up) {
            self.clear(Then::StayDown);
        }
    }

    pub(crate) fn fill_from_worker(&mut self) -> Filled {
        let mut scratch = std::mem::take(&mut self.scratch);
        let filled = self.worker().map_or(Filled::Nothing, |worker| worker.fill(&mut scratch));
        self.scratch = scratch;
        if filled == Filled::Some {
            self.take_frames();
        }
        filled
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Signals,
    Listener,
    Node,
    Caller,
    Worker,
    WorkerRoom,
    Pipe,
    Egress,
    Twin,
    Waited,
    Ending,
    Forking,
}
