//! The poll loop and the life of the worker process: starting, ending, starting afresh, and the
//! keeper's own end. What the node says is handled in `node_side`, what the worker says in `turn`.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_procs::{Held, memory, reap_all};
use windlass_protocol::event::{EventKind, StartedBy};
use windlass_protocol::limits::REASON_BYTES_MAX;
use windlass_protocol::link::Launch;
use windlass_protocol::text::bounded;
use windlass_protocol::worker::{FORKS, ToWorker};
use windlass_protocol::{Epoch, TurnNo};

use crate::complaint::complain;
use crate::egress::Egress;
use crate::family::Family;
use crate::fork::Forking;
use crate::joining::Joining;
use crate::node_side::NodeSide;
use crate::own::Own;
use crate::rounds::Ready;
use crate::signals::Signals;
use crate::stage::{Effect, Event, Left, Stage, Then};
use crate::starting::{self, Fresh};
use crate::watch::{self, Watch};
use crate::worker::{Filled, SaidReady};
use crate::worker_side::WorkerSide;

/// Bytes read at once from the node or the protocol socket.
const SCRATCH_BYTES: usize = 64 * 1024;

/// Time from a worker's word that it is ready until the keeper puts its own house in order: its first
/// turn comes at once, as a rule, and comes first.
const SETTLE_AFTER: Duration = Duration::from_millis(100);

/// How long a keeper without a launch waits for its first node.
const FIRST_NODE_GRACE: Duration = Duration::from_secs(30);

/// One session's keeper.
pub(crate) struct Keeper {
    pub(crate) held: Held,
    pub(crate) signals: Signals,
    pub(crate) launch: Option<Box<Launch>>,
    pub(crate) node: NodeSide,
    pub(crate) stage: Stage,
    pub(crate) worker: WorkerSide,
    pub(crate) family: Family,
    pub(crate) scratch: Vec<u8>,
    /// When the keeper gives memory back, after a worker has come up.
    settle: Option<Instant>,
}

enum Step {
    GoOn,
    Exit,
}

impl Keeper {
    pub fn new(listener: OwnedFd, held: Held, signals: Signals) -> Self {
        Self {
            held,
            signals,
            launch: None,
            node: NodeSide::new(listener),
            stage: Stage::Down,
            worker: WorkerSide::default(),
            family: Family::default(),
            scratch: vec![0; SCRATCH_BYTES],
            settle: None,
        }
    }

    pub fn run(mut self) {
        loop {
            let ready = self.wait();
            if let Step::Exit = self.serve(&ready) {
                break;
            }
            if self.node.flush().is_err() {
                self.hear_last_of_node();
                self.end_if_broken();
            }
        }
        self.held.let_go();
        // What no node has spoken to may have been replaced at its path.
        if self.node.link.epoch() > Epoch(0) || self.worker.pooled.is_some() {
            self.remove_socket();
        }
    }

    fn serve(&mut self, ready: &Ready) -> Step {
        if ready.signals {
            let heard = self.signals.hear();
            if heard.stop {
                self.family.stopped = true;
                self.family.end_all();
                self.clear(Then::Exit);
            }
            if heard.child {
                self.reap();
            }
        }
        if ready.listener {
            self.node.accept();
            // The first message is often there already.
            self.hear_callers();
        }
        if ready.node {
            self.hear_node();
        }
        if ready.callers {
            self.hear_callers();
        }
        if ready.worker {
            self.hear_worker();
        }
        if ready.pipes {
            self.worker.hear_pipes(&mut self.node);
        }
        if ready.egress {
            self.worker.egress.iter().chain(&self.family.egress).for_each(Egress::pass_on);
        }
        self.hear_family(ready);
        if ready.worker_room
            && let Some(worker) = &mut self.worker.process
        {
            worker.flush();
        }
        self.pass_deadlines();
        self.end_if_broken();
        match self.stage {
            Stage::Clearing { then: Then::Exit, .. } if self.cleared() => {
                // Nobody is left behind by a keeper that was told to stop: they end with it.
                if self.family.stopped || self.family.is_empty() {
                    return Step::Exit;
                }
                self.retire();
                Step::GoOn
            }
            _ if self.family.may_leave() => Step::Exit,
            _ => Step::GoOn,
        }
    }

    /// One decision about the worker process, and what follows from it.
    pub(crate) fn apply(&mut self, event: Event) {
        self.apply_told(event, None);
    }

    /// The same. `ended` is what the node is told of a worker's end, where it is told.
    fn apply_told(&mut self, event: Event, mut ended: Option<(Option<TurnNo>, EventKind)>) {
        let (stage, effects) = self.stage.step(event);
        self.stage = stage;
        for effect in effects {
            match effect {
                Effect::TellReady => self.tell_ready(),
                Effect::TellLate => {
                    self.node.note(b"windlass: the worker did not say worker_ready in time\n");
                }
                Effect::TellEnded => {
                    if let Some((turn, kind)) = ended.take() {
                        self.node.tell(turn, kind, Bytes::new());
                    }
                }
                Effect::AskToFinish { until } => self.ask_to_finish(until),
                Effect::Kill => {
                    self.drop_fork("its worker was ended");
                    self.family.kill_own(&self.held);
                    self.reap();
                }
                Effect::KillOrphans => self.family.kill_own(&self.held),
                Effect::Start => self.start_worker(),
            }
        }
    }

    /// Kills everything below; `then` follows once it is reaped.
    pub(crate) fn clear(&mut self, then: Then) {
        self.apply(Event::ClearAsked { then });
    }

    /// Ends the session if an event could not be told, or the worker not be sent a message.
    pub(crate) fn end_if_broken(&mut self) {
        let (failure, broken) = (self.node.take_failure(), self.worker.take_broken());
        if let Some(why) = failure.or(broken) {
            self.break_off(&why);
        }
    }

    /// Ends the session: worker and keeper cannot understand each other, or the node cannot be told.
    pub(crate) fn break_off(&mut self, why: &str) {
        let message = bounded(why, REASON_BYTES_MAX);
        let told = self.node.link.push(None, EventKind::ProtocolBroken { message }, Bytes::new());
        if let Err(error) = told {
            complain!("keeper: the end of the session cannot be told: {error}");
        }
        self.clear(Then::StayDown);
    }

    /// The session's cgroups.
    pub(crate) fn cgroups(&self) -> Vec<PathBuf> {
        self.launch.as_ref().map(|launch| launch.cgroups.clone()).unwrap_or_default()
    }

    pub(crate) fn start_worker(&mut self) {
        self.family.inherit(self.worker.egress.take());
        let Some(launch) = &self.launch else { return };
        let (hold, pooled) = (self.held.hold(), self.worker.pooled.take());
        let (room, zygote) = (self.family.room.as_deref(), self.worker.zygote.take());
        match self.held.around(|| starting::start(launch, room, hold, pooled, zygote)) {
            Ok(Fresh { mut worker, confinement, listener }) => {
                if worker.start != StartedBy::Exec {
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
                self.apply(Event::Started { until });
                self.family.claim_own(pid, init, &self.cgroups());
                self.worker.confinement = Some(confinement.clone());
                self.node.tell(None, EventKind::Confined(confinement), Bytes::new());
            }
            Err(error) => {
                let program = launch.argv.first().map_or("", String::as_str);
                let cause = bounded(&format!("cannot start {program}: {error}"), REASON_BYTES_MAX);
                self.apply(Event::NotStarted);
                let ended = EventKind::WorkerEnded { cause, limit: None, replaced: false };
                self.node.tell(None, ended, Bytes::new());
            }
        }
    }

    /// The worker said that it can take turns. It gets none before it is in its cgroups.
    pub(crate) fn worker_is_ready(&mut self, ready: SaidReady) {
        if let (Stage::Starting { .. }, Some(worker)) = (self.stage, &mut self.worker.process) {
            let is_joining = !worker.joining.is_empty();
            worker.said_ready = Some(ready);
            if !is_joining {
                self.apply(Event::Ready);
            }
        }
    }

    fn tell_ready(&mut self) {
        let Some(worker) = &mut self.worker.process else { return };
        let Some(SaidReady { worker: name, capabilities }) = worker.said_ready.take() else {
            return;
        };
        worker.forks = capabilities.iter().any(|capability| capability == FORKS);
        self.worker.watch.quicken(worker.pid, watch::Worker::Fresh);
        let (pid, start, restarts) = (worker.pid, worker.start, self.worker.restarts);
        let capabilities = Some(capabilities);
        let ready = EventKind::WorkerReady { worker: name, pid, restarts, start, capabilities };
        self.node.tell(None, ready, Bytes::new());
        self.settle = Some(Instant::now() + SETTLE_AFTER);
    }

    /// The worker's program is asked to finish; everything is killed after the grace.
    pub(crate) fn finish(&mut self, grace: Duration) {
        let may_finish = !grace.is_zero() && self.family.forking.is_none();
        let until = may_finish.then(|| Instant::now() + grace);
        self.apply(Event::FinishAsked { until });
    }

    fn ask_to_finish(&mut self, until: Instant) {
        // Whose children they are cannot be told once the worker has ended.
        if let Some(part) = self.family.own.part() {
            part.members();
        }
        let grace = until.saturating_duration_since(Instant::now());
        let grace_ms = u64::try_from(grace.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        if let Some(worker) = &mut self.worker.process {
            let sent = worker.send(ToWorker::Shutdown { grace_ms }, &Bytes::new());
            self.worker.sent(sent);
        }
    }

    fn cleared(&self) -> bool {
        matches!(self.stage, Stage::Clearing { left: Left::Others, .. })
            && self.family.none_left(reap_all().none_left)
    }

    pub(crate) fn reap(&mut self) {
        let reaped = reap_all();
        self.note_joined(&reaped.ended);
        self.note_pooled(&reaped.ended);
        self.family.note_twins(self.worker.init());
        let pid = self.worker.who().map(|(pid, _)| pid);
        if let Some((_, how)) = reaped.ended.iter().find(|(ended, _)| Some(*ended) == pid) {
            self.worker_ended(how.clone());
        }
        if matches!(self.stage, Stage::Clearing { left: Left::Others, .. }) {
            let none_left = self.family.none_left(reaped.none_left);
            self.apply(if none_left { Event::NoneLeft } else { Event::OthersLeft });
        }
    }

    /// Looks whether the worker has come into its cgroups, and lets a worker that is ready begin.
    fn note_joined(&mut self, ended: &[(u32, String)]) {
        let groups = self.cgroups();
        match self.worker.note_joined(ended, &groups, &self.family) {
            Joining::GoesOn | Joining::Done(None) => {}
            Joining::Done(Some(ready)) => self.worker_is_ready(ready),
            Joining::Failed => {
                if let Stage::Starting { .. } = self.stage {
                    let line = b"windlass: the worker could not be moved into its cgroups\n";
                    self.node.note(line);
                    self.clear(Then::StayDown);
                }
            }
        }
    }

    /// The worker process is reaped: what it had said and printed comes first.
    pub(crate) fn worker_ended(&mut self, how: String) {
        self.drop_fork("its worker has ended");
        if !self.stage.is_clearing() {
            while self.fill_from_worker() == Filled::Some {}
        }
        self.worker.drain_pipes(&mut self.node);
        let (limit, untold) = self.worker.limit_of_end(&how);
        if let Some(reached) = untold {
            self.node.tell(self.worker.running.turn(), reached, Bytes::new());
        }
        let replaced = matches!(self.stage, Stage::Clearing { then: Then::StartAfresh, .. });
        let ended = EventKind::WorkerEnded { cause: how, limit, replaced };
        // The next node must know on which worker a turn ran, should the node before it die untold.
        let turn = self.worker.running.turn().filter(|_| replaced);
        self.worker.process = None;
        self.worker.running.end();
        self.apply_told(Event::WorkerEnded, Some((turn, ended)));
    }

    fn pass_deadlines(&mut self) {
        let now = Instant::now();
        self.apply(Event::TimePassed { now });
        if self.node.alone_since.is_some_and(|since| now >= since + self.node_grace()) {
            self.clear(Then::Exit);
        }
        if self.settle.is_some_and(|at| now >= at) {
            self.settle = None;
            memory::give_back();
        }
        self.pass_fork_deadline(now);
        self.worker.nudge(now);
        self.watch_limits(now);
    }

    fn node_grace(&self) -> Duration {
        match &self.launch {
            Some(launch) => Duration::from_millis(launch.node_grace_ms),
            // A worker that waits is nobody's without its node, unless somebody is claiming it.
            None if self.worker.pooled.is_some() && self.node.callers.is_empty() => Duration::ZERO,
            None => FIRST_NODE_GRACE,
        }
    }

    /// The nearest moment at which something must be done without a descriptor's word.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let exiting = matches!(self.stage, Stage::Clearing { then: Then::Exit, .. });
        let alone =
            self.node.alone_since.filter(|_| !exiting).map(|since| since + self.node_grace());
        let turn = self.worker.running.next_nudge();
        let turn = turn.into_iter().chain(self.worker.watch.next_look());
        let fork = self.family.forking.as_ref().map(Forking::until);
        self.stage.due().into_iter().chain(alone).chain(turn).chain(fork).chain(self.settle).min()
    }

    /// Our socket's file, so that nobody takes it for a living keeper.
    pub(crate) fn remove_socket(&self) {
        // A retired keeper has removed it, and another may have taken its name.
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

    /// The session is over and twins live: nothing is left of it but this process, which holds them.
    fn retire(&mut self) {
        if self.family.retired {
            return;
        }
        self.family.retired = true;
        self.family.inherit(self.worker.egress.take());
        self.remove_socket();
        self.node.retire();
        self.stage = Stage::Down;
        self.family.own = Own::Everything;
        self.worker.watch = Watch::default();
    }
}
