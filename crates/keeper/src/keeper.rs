//! The poll loop, and the life of the worker process: start, end, restart, and the keeper's own end. Messages
//! of the node are handled in `commands`, messages of the worker in `turn`.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_procs::{HeldTree, exit_code_of, memory, reap_all};
use windlass_protocol::event::{EventKind, StartFigures, StartedBy};
use windlass_protocol::limits::REASON_BYTES_MAX;
use windlass_protocol::link::Launch;
use windlass_protocol::text::bounded;
use windlass_protocol::worker::{FORKS, ToWorker};
use windlass_protocol::{Epoch, TurnNo};

use crate::complaint::complain;
use crate::egress::Egress;
use crate::family::Family;
use crate::fork::PendingFork;
use crate::joining::CgroupJoin;
use crate::node_side::NodeSide;
use crate::process_scope::ProcessScope;
use crate::rounds::WakeReasons;
use crate::signals::Signals;
use crate::stage::{AfterClear, StageEffect, StageEvent, ToReap, WorkerStage};
use crate::starting::{self, StartedWorker};
use crate::watch::{self, LimitWatch};
use crate::worker::{ReadyMessage, SocketRead};
use crate::worker_side::WorkerSide;

/// Bytes that one read takes from the node or the protocol socket.
const SCRATCH_BYTES: usize = 64 * 1024;

/// Time from `worker_ready` until the keeper trims its heap. The first turn usually follows at once and must
/// not wait for that.
const SETTLE_AFTER: Duration = Duration::from_millis(100);

/// How long a keeper without a launch waits for a node.
const FIRST_NODE_GRACE: Duration = Duration::from_secs(30);

/// One session's keeper.
pub(crate) struct Keeper {
    pub(crate) held: HeldTree,
    pub(crate) signals: Signals,
    pub(crate) launch: Option<Box<Launch>>,
    pub(crate) node: NodeSide,
    pub(crate) stage: WorkerStage,
    pub(crate) worker: WorkerSide,
    pub(crate) family: Family,
    /// The fork in progress.
    pub(crate) forking: Option<PendingFork>,
    pub(crate) scratch: Vec<u8>,
    /// When the keeper trims its heap, after a worker is ready.
    settle: Option<Instant>,
}

enum LoopStep {
    GoOn,
    Exit,
}

impl Keeper {
    pub fn new(listener: OwnedFd, held: HeldTree, signals: Signals) -> Self {
        Self {
            held,
            signals,
            launch: None,
            node: NodeSide::new(listener),
            stage: WorkerStage::Down,
            worker: WorkerSide::default(),
            family: Family::default(),
            forking: None,
            scratch: vec![0; SCRATCH_BYTES],
            settle: None,
        }
    }

    pub fn run(mut self) {
        loop {
            let ready = self.wait();
            if let LoopStep::Exit = self.serve(&ready) {
                break;
            }
            if self.node.flush().is_err() {
                self.read_remaining_commands();
                self.end_if_broken();
            }
        }
        self.held.release();
        // If no node ever attached, another keeper's socket may be at the path by now.
        if self.node.link.epoch() > Epoch(0) || self.worker.pooled.is_some() {
            self.remove_socket();
        }
    }

    fn serve(&mut self, ready: &WakeReasons) -> LoopStep {
        if ready.signals {
            let received = self.signals.read();
            if received.stop {
                self.family.stopped = true;
                self.family.end_all();
                self.clear(AfterClear::Exit);
            }
            if received.child {
                self.reap();
            }
        }
        if ready.listener {
            self.node.accept();
            // The first message has often arrived already.
            self.read_callers();
        }
        if ready.node {
            self.read_node();
        }
        if ready.callers {
            self.read_callers();
        }
        if ready.worker {
            self.read_worker();
        }
        if ready.pipes {
            self.worker.read_pipes(&mut self.node);
        }
        if ready.egress {
            self.worker.egress.iter().chain(&self.family.egress).for_each(Egress::pass_on);
        }
        self.handle_family(ready);
        if ready.worker_room
            && let Some(worker) = &mut self.worker.process
        {
            worker.flush();
        }
        self.pass_deadlines();
        self.end_if_broken();
        match self.stage {
            WorkerStage::Clearing { then: AfterClear::Exit, .. } if self.cleared() => {
                // A keeper that was told to stop does not stay for its twins: they end with it.
                if self.family.stopped || self.family.is_empty() {
                    return LoopStep::Exit;
                }
                self.retire();
                LoopStep::GoOn
            }
            _ if self.family.may_exit() => LoopStep::Exit,
            _ => LoopStep::GoOn,
        }
    }

    /// Steps the stage machine and performs the effects.
    pub(crate) fn apply(&mut self, event: StageEvent) {
        self.apply_told(event, None);
    }

    /// Like [`Self::apply`]. `ended` is the event that [`StageEffect::TellEnded`] sends to the node.
    fn apply_told(&mut self, event: StageEvent, mut ended: Option<(Option<TurnNo>, EventKind)>) {
        let (stage, effects) = self.stage.step(event);
        self.stage = stage;
        for effect in effects {
            match effect {
                StageEffect::TellReady => self.tell_ready(),
                StageEffect::TellLate => {
                    self.node
                        .print_line(b"windlass: the worker did not send worker_ready in time\n");
                }
                StageEffect::TellEnded => {
                    if let Some((turn, kind)) = ended.take() {
                        self.node.tell(turn, kind, Bytes::new());
                    }
                }
                StageEffect::AskToFinish { until } => self.ask_to_finish(until),
                StageEffect::Kill => {
                    self.drop_fork("the worker was killed");
                    self.family.kill_session(&self.held);
                    self.reap();
                }
                StageEffect::KillOrphans => self.family.kill_session(&self.held),
                StageEffect::Start => self.start_worker(),
            }
        }
    }

    /// Kills all processes of the session; `then` follows when they are reaped.
    pub(crate) fn clear(&mut self, then: AfterClear) {
        self.apply(StageEvent::ClearAsked { then });
    }

    /// Ends the session if an event for the node or a message for the worker could not be encoded.
    pub(crate) fn end_if_broken(&mut self) {
        let (failure, broken) = (self.node.take_failure(), self.worker.take_broken());
        if let Some(why) = failure.or(broken) {
            self.break_off(&why);
        }
    }

    /// Ends the session with `ProtocolBroken`: the worker sent an invalid message, or a message of the keeper
    /// could not be encoded.
    pub(crate) fn break_off(&mut self, why: &str) {
        let message = bounded(why, REASON_BYTES_MAX);
        let told = self.node.link.push(None, EventKind::ProtocolBroken { message }, Bytes::new());
        if let Err(error) = told {
            complain!("keeper: cannot tell the node that the session ends: {error}");
        }
        self.clear(AfterClear::StayDown);
    }

    /// The session's cgroups.
    pub(crate) fn cgroups(&self) -> Vec<PathBuf> {
        self.launch.as_ref().map(|launch| launch.cgroups.clone()).unwrap_or_default()
    }

    pub(crate) fn start_worker(&mut self) {
        self.family.inherit(self.worker.egress.take());
        let Some(launch) = &self.launch else { return };
        if self.worker.restarts > 0 {
            self.worker.watch.measure_left();
        }
        let (hold, pooled) = (self.held.hold(), self.worker.pooled.take());
        let (room, zygote) = (self.family.room.as_deref(), self.worker.zygote.take());
        match self.held.start_held(|| starting::start(launch, room, hold, pooled, zygote)) {
            Ok(StartedWorker { mut worker, confinement, listener }) => {
                if worker.origin.start != StartedBy::Exec {
                    // A forked worker is already warm, so metering starts now.
                    worker.meter.begin();
                }
                let until = Instant::now() + Duration::from_millis(launch.start_timeout_ms);
                let way_out = listener.zip(launch.egress.clone());
                self.worker.egress = way_out.and_then(|(listener, node)| {
                    Egress::new(listener, node, launch.session.clone()).ok()
                });
                let (pid, init) = (worker.pid, worker.init);
                self.worker.process = Some(worker);
                self.apply(StageEvent::Started { until });
                self.family.scope_new_worker(pid, init, &self.cgroups());
                self.worker.confinement = Some(confinement.clone());
                self.node.tell(None, EventKind::Confined(confinement), Bytes::new());
            }
            Err(error) => {
                let program = launch.argv.first().map_or("", String::as_str);
                let cause = bounded(&format!("cannot start {program}: {error}"), REASON_BYTES_MAX);
                self.apply(StageEvent::NotStarted);
                let (limit, replaced, exit_code, stderr) = (None, false, None, String::new());
                let ended = EventKind::WorkerEnded { cause, limit, replaced, exit_code, stderr };
                self.node.tell(None, ended, Bytes::new());
            }
        }
    }

    /// Handles `worker_ready`. The worker gets no turn before it is in its cgroups.
    pub(crate) fn worker_is_ready(&mut self, ready: ReadyMessage) {
        if let (WorkerStage::Starting { .. }, Some(worker)) = (self.stage, &mut self.worker.process)
        {
            let is_joining = !worker.joining.is_empty();
            worker.said_ready = Some(ready);
            if !is_joining {
                self.apply(StageEvent::Ready);
            }
        }
    }

    fn tell_ready(&mut self) {
        let Some(worker) = &mut self.worker.process else { return };
        let Some(ready) = worker.said_ready.take() else { return };
        let ReadyMessage { worker: name, capabilities, startup } = ready;
        worker.forks = capabilities.iter().any(|capability| capability == FORKS);
        self.worker.watch.use_short_slices(worker.pid, watch::WorkerAge::New);
        let (pid, origin, restarts) = (worker.pid, worker.origin, self.worker.restarts);
        let start = origin.start;
        let capabilities = Some(capabilities);
        let startup_ms = u32::try_from(origin.since.elapsed().as_millis()).unwrap_or(u32::MAX);
        let figures = Some(StartFigures::new(startup_ms, start, startup));
        let ready =
            EventKind::WorkerReady { worker: name, pid, restarts, start, capabilities, figures };
        self.node.tell(None, ready, Bytes::new());
        self.settle = Some(Instant::now() + SETTLE_AFTER);
    }

    /// Asks the worker's program to finish. After the grace, all processes of the session are killed.
    pub(crate) fn finish(&mut self, grace: Duration) {
        let may_finish = !grace.is_zero() && self.forking.is_none();
        let until = may_finish.then(|| Instant::now() + grace);
        self.apply(StageEvent::FinishAsked { until });
    }

    fn ask_to_finish(&mut self, until: Instant) {
        // This call tracks the worker's descendants. Once the worker has ended, they cannot be found any
        // more.
        if let Some(processes) = self.family.scope.subset() {
            processes.members();
        }
        let grace = until.saturating_duration_since(Instant::now());
        let grace_ms = u64::try_from(grace.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        if let Some(worker) = &mut self.worker.process {
            let sent = worker.send(ToWorker::Shutdown { grace_ms }, &Bytes::new());
            self.worker.sent(sent);
        }
    }

    fn cleared(&self) -> bool {
        matches!(self.stage, WorkerStage::Clearing { left: ToReap::Others, .. })
            && self.family.none_left(reap_all().none_left)
    }

    pub(crate) fn reap(&mut self) {
        let reaped = reap_all();
        self.check_joined(&reaped.ended);
        self.check_pooled(&reaped.ended);
        self.family.check_twin_keepers(self.worker.init());
        let pid = self.worker.pids().map(|(pid, _)| pid);
        if let Some((_, how)) = reaped.ended.iter().find(|(ended, _)| Some(*ended) == pid) {
            self.worker_ended(how.clone());
        }
        if matches!(self.stage, WorkerStage::Clearing { left: ToReap::Others, .. }) {
            let none_left = self.family.none_left(reaped.none_left);
            self.apply(if none_left { StageEvent::NoneLeft } else { StageEvent::OthersLeft });
        }
    }

    /// Checks whether the worker is in its cgroups. If the worker has said `worker_ready` already, it becomes
    /// ready now.
    fn check_joined(&mut self, ended: &[(u32, String)]) {
        let groups = self.cgroups();
        let Some(worker) = &mut self.worker.process else { return };
        match CgroupJoin::check(worker, ended, &groups, &self.family.scope) {
            CgroupJoin::Pending | CgroupJoin::Done(None) => {}
            CgroupJoin::Done(Some(ready)) => self.worker_is_ready(ready),
            CgroupJoin::Failed => {
                if let WorkerStage::Starting { .. } = self.stage {
                    let line = b"windlass: the worker could not be moved into its cgroups\n";
                    self.node.print_line(line);
                    self.clear(AfterClear::StayDown);
                }
            }
        }
    }

    /// Handles the end of the worker process, after the messages and output that it has left.
    pub(crate) fn worker_ended(&mut self, how: String) {
        self.drop_fork("the worker has ended");
        if !self.stage.is_clearing() {
            while self.fill_from_worker() == SocketRead::Data {}
        }
        self.worker.drain_pipes(&mut self.node);
        let (limit, untold) = self.worker.watch.limit_of_end(&how);
        if let Some(reached) = untold {
            self.node.tell(self.worker.running.turn(), reached, Bytes::new());
        }
        let replaced =
            matches!(self.stage, WorkerStage::Clearing { then: AfterClear::StartAfresh, .. });
        let (exit_code, stderr) = (exit_code_of(&how), self.worker.running.last_stderr());
        let ended = EventKind::WorkerEnded { cause: how, limit, replaced, exit_code, stderr };
        // If the node dies before it gets this event, the next node must know that the turn ran on the old
        // worker.
        let turn = self.worker.running.turn().filter(|_| replaced);
        self.worker.process = None;
        self.worker.running.end();
        self.apply_told(StageEvent::WorkerEnded, Some((turn, ended)));
    }

    fn pass_deadlines(&mut self) {
        let now = Instant::now();
        self.apply(StageEvent::TimePassed { now });
        if self.node.alone_since.is_some_and(|since| now >= since + self.node_grace()) {
            self.clear(AfterClear::Exit);
        }
        if self.settle.is_some_and(|at| now >= at) {
            self.settle = None;
            memory::trim_heap();
        }
        self.pass_fork_deadline(now);
        self.worker.nudge(now);
        self.watch_limits(now);
    }

    fn node_grace(&self) -> Duration {
        match &self.launch {
            Some(launch) => Duration::from_millis(launch.node_grace_ms),
            // A pooled worker has no use without the node that prepared it, unless a new connection may claim
            // it.
            None if self.worker.pooled.is_some() && self.node.callers.is_empty() => Duration::ZERO,
            None => FIRST_NODE_GRACE,
        }
    }

    /// The nearest deadline of the poll loop.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let exiting = matches!(self.stage, WorkerStage::Clearing { then: AfterClear::Exit, .. });
        let alone =
            self.node.alone_since.filter(|_| !exiting).map(|since| since + self.node_grace());
        let turn = self.worker.running.next_nudge();
        let turn = turn.into_iter().chain(self.worker.watch.next_check());
        let fork = self.forking.as_ref().map(PendingFork::until);
        self.stage.due().into_iter().chain(alone).chain(turn).chain(fork).chain(self.settle).min()
    }

    /// Removes the file of the keeper's socket, so that no node takes it for a live keeper.
    pub(crate) fn remove_socket(&self) {
        // A retired keeper has removed its socket, and another keeper's socket may have the name now.
        let Some(listener) = &self.node.listener else { return };
        if let Some(path) = self.launch.as_ref().and_then(|launch| launch.socket.as_ref()) {
            let _ = rustix::fs::unlink(path);
        }
        if let Ok(address) = rustix::net::getsockname(listener)
            && let Ok(unix) = rustix::net::SocketAddrUnix::try_from(address)
            && let Some(path) = unix.path()
        {
            let _ = rustix::fs::unlink(path.as_ref());
        }
    }

    /// The session is over, but twins live: this process stays only to hold them.
    fn retire(&mut self) {
        if self.family.retired {
            return;
        }
        self.family.retired = true;
        self.family.inherit(self.worker.egress.take());
        self.remove_socket();
        self.node.retire();
        self.stage = WorkerStage::Down;
        self.family.scope = ProcessScope::AllBelow;
        self.worker.watch = LimitWatch::default();
    }
}
