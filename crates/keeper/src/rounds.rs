//! One round of the poll loop: the descriptors that it waits for, and which of them woke it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass_protocol::Stream;
use windlass_protocol::event::EventKind;
use windlass_protocol::policy::Limit;

use crate::fork::PendingFork;
use crate::keeper::Keeper;
use crate::stage::{AfterClear, WorkerStage};
use crate::watch::Finding;
use crate::worker::SocketRead;
use crate::worker_side::turn::WorkerNotice;

/// The sources that woke the poll loop.
#[derive(Debug, Default)]
pub(crate) struct WakeReasons {
    pub signals: bool,
    pub listener: bool,
    pub node: bool,
    pub callers: bool,
    pub worker: bool,
    pub pipes: bool,
    pub egress: bool,
    /// The worker's socket is writable again.
    pub worker_room: bool,
    /// The worker, which is a twin, has ended.
    pub twin: bool,
    /// A killed process of the session has ended.
    pub waited: bool,
    /// A twin's keeper, or a killed process of a twin without a keeper, has ended.
    pub ending: bool,
    /// The twin of the fork in progress has sent its first message.
    pub forking: bool,
}

impl Keeper {
    pub(crate) fn wait(&mut self) -> WakeReasons {
        // While the link is full, the keeper does not read from the worker; everything else goes on.
        let take_output = !self.node.link.full();
        let timeout = self.next_deadline().map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 60, tv_nsec: 0 })
        });
        let worker = self.worker.process.as_ref().filter(|_| !self.stage.is_clearing());
        let mut sources = Vec::with_capacity(8);
        let mut fds = Vec::with_capacity(8);
        let mut watch = |source, fd, flags| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        watch(WakeSource::Signals, self.signals.as_fd(), PollFlags::IN);
        if let Some(listener) = &self.node.listener {
            watch(WakeSource::Listener, listener.as_fd(), PollFlags::IN);
        }
        if let Some(node) = &self.node.connection {
            let room = if node.blocked() { PollFlags::OUT } else { PollFlags::empty() };
            watch(WakeSource::Node, node.as_fd(), PollFlags::IN | room);
        }
        for caller in &self.node.callers {
            watch(WakeSource::Caller, caller.as_fd(), PollFlags::IN);
        }
        for egress in self.worker.egress.iter().chain(&self.family.egress) {
            watch(WakeSource::Egress, egress.as_fd(), PollFlags::IN);
        }
        for (source, descriptor) in self.of_family() {
            watch(source, descriptor, PollFlags::IN);
        }
        if let Some(worker) = worker {
            if worker.blocked() {
                watch(WakeSource::WorkerRoom, worker.socket(), PollFlags::OUT);
            }
            if take_output {
                watch(WakeSource::Worker, worker.socket(), PollFlags::IN);
                for stream in [Stream::Stdout, Stream::Stderr] {
                    if let Some(pipe) = worker.pipe(stream) {
                        watch(WakeSource::Pipe, pipe, PollFlags::IN);
                    }
                }
            }
        }
        // EINTR cannot happen, because all signals arrive by descriptor; a spurious wake-up is harmless.
        let _ = poll(&mut fds, timeout.as_ref());
        let woke = |source| {
            sources.iter().zip(&fds).any(|(of, fd)| *of == source && !fd.revents().is_empty())
        };
        WakeReasons {
            signals: woke(WakeSource::Signals),
            listener: woke(WakeSource::Listener),
            node: woke(WakeSource::Node),
            callers: woke(WakeSource::Caller),
            worker: woke(WakeSource::Worker),
            pipes: woke(WakeSource::Pipe),
            egress: woke(WakeSource::Egress),
            worker_room: woke(WakeSource::WorkerRoom),
            twin: woke(WakeSource::Twin),
            waited: woke(WakeSource::Waited),
            ending: woke(WakeSource::Ending),
            forking: woke(WakeSource::Forking),
        }
    }

    /// The descriptors for twins and for processes that are not children of this keeper.
    fn of_family(&self) -> impl Iterator<Item = (WakeSource, BorrowedFd<'_>)> {
        let twin = self.worker.pids().and_then(|(worker, _)| self.family.twin_handle(worker));
        let twin = twin.map(|handle| (WakeSource::Twin, handle));
        let waited = self.family.killed_handle().map(|handle| (WakeSource::Waited, handle));
        let ending = self.family.end_handles().map(|handle| (WakeSource::Ending, handle));
        let forking = self.forking.as_ref().and_then(PendingFork::awaited);
        let forking = forking.map(|socket| (WakeSource::Forking, socket));
        twin.into_iter().chain(waited).chain(ending).chain(forking)
    }

    /// Handles wake-ups that concern twins.
    pub(crate) fn handle_family(&mut self, ready: &WakeReasons) {
        if ready.forking {
            self.handle_twin();
        }
        if ready.twin {
            // Only the twin's parent can read its exit status.
            self.worker_ended("its process has ended".to_owned());
            self.reap();
        }
        if ready.waited {
            self.family.killed = None;
            self.reap();
        }
        if ready.ending {
            self.family.continue_ending(self.worker.init());
        }
    }

    /// Handles input on the protocol socket. A worker that has closed the socket can run no turn, so it is
    /// killed.
    pub(crate) fn read_worker(&mut self) {
        let closed = self.fill_from_worker() == SocketRead::Closed;
        if closed && matches!(self.stage, WorkerStage::Starting { .. } | WorkerStage::Up) {
            self.clear(AfterClear::StayDown);
        }
    }

    pub(crate) fn fill_from_worker(&mut self) -> SocketRead {
        let worker = self.worker.process.as_mut();
        let filled = worker.map_or(SocketRead::Nothing, |worker| worker.fill(&mut self.scratch));
        if filled == SocketRead::Data {
            self.take_frames();
        }
        filled
    }

    /// Handles the complete frames that have arrived. Bytes in the raw pipes were written before the frames,
    /// so they are forwarded first. The pipes are drained only once per call, so that a flood cannot block
    /// the loop.
    fn take_frames(&mut self) {
        self.worker.drain_pipes(&mut self.node);
        while let Some(said) = self.worker.take_frames(self.stage, &mut self.node) {
            match said {
                WorkerNotice::Ready(ready) => self.worker_is_ready(ready),
                WorkerNotice::ForkWait => self.worker_waits_for_ends(),
                WorkerNotice::Forked { ok, reason, limit, body } => {
                    self.worker_forked(ok, reason, limit, &body);
                }
                WorkerNotice::Invalid(message) => return self.break_off(&message),
            }
        }
        self.end_if_broken();
    }

    /// Checks the session's limits if a check is due, and kills the session's processes if a limit is
    /// exceeded.
    pub(crate) fn watch_limits(&mut self, now: Instant) {
        let turn = self.worker.running.turn();
        match self.worker.check_limits(now, self.stage, &self.family) {
            Finding::Good => {}
            Finding::Killed { message } => {
                let line = format!("windlass: {message}\n");
                let limit = Limit::Memory;
                let reached = EventKind::LimitReached { limit, message, ends_session: false };
                self.node.tell(turn, reached, Bytes::new());
                let kind = EventKind::Output { stream: Stream::Stderr, background: turn.is_none() };
                self.node.tell(turn, kind, Bytes::from(line));
            }
            Finding::Over { limit, message } => {
                let reached = EventKind::LimitReached { limit, message, ends_session: false };
                self.node.tell(turn, reached, Bytes::new());
                self.clear(AfterClear::StayDown);
            }
            Finding::FarOver { limit, message } => {
                // The node ends the session, and with it this keeper.
                let reached = EventKind::LimitReached { limit, message, ends_session: true };
                self.node.tell(turn, reached, Bytes::new());
                self.clear(AfterClear::StayDown);
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WakeSource {
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
