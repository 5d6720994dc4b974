//! One session's life: which turn runs, which wait, and what a stop, a death or a close costs.
//! Owns every decision about them, in [`Session::step`]; performs none, and knows no time.
//!
//! What the performer (the node) holds to:
//! - it numbers turns in the order asked and drops doubled client ids before asking;
//! - it journals a keeper's event first and then performs the effects in their order;
//! - it hears exactly one [`Event::WorkerEnded`] for each worker that the keeper started, or one
//!   [`Event::WorkerReplaced`] for one that [`Effect::RestartWorker`] ended, and that before the next
//!   worker's `WorkerReady`.

use std::collections::VecDeque;

use windlass_protocol::api::{SessionState, TurnState};
use windlass_protocol::event::{EndReason, StopCause};
use windlass_protocol::limits::WAITING_TURNS_MAX;
use windlass_protocol::policy::Limit;
use windlass_protocol::worker::WorkerOutcome;
use windlass_protocol::{ErrorCode, Outcome, TurnNo};

mod forks;
mod recover;
mod words;
pub use forks::{Fork, HoldWish, ResetWish};
pub use recover::{Facts, FirstTurn, WorkerFact};
pub use words::{Effect, Event, KeeperLoss, Loss};

/// Workers started in a row, none of which finished a turn, before the session is given up. The
/// very first worker gets one attempt only: what was never seen to start (a missing interpreter)
/// is not cured by trying again, and its author is told at once.
pub const START_ATTEMPTS_MAX: u32 = 3;

/// A session as far as decisions need it. Starts as [`Session::default`], its worker on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    phase: Phase,
    /// Accepted and not started, oldest first; at most [`WAITING_TURNS_MAX`].
    waiting: VecDeque<TurnNo>,
    /// How often [`Effect::RestartWorker`] was asked for.
    restarts: u32,
    fork: Fork,
}

/// Where a session is. A turn in flight is named by the phase, so there is never a second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The first worker is not up yet.
    Starting,
    Idle(Fresh),
    Busy {
        turn: TurnNo,
    },
    AwaitingInput {
        turn: TurnNo,
    },
    Interrupting {
        turn: TurnNo,
        cause: StopCause,
    },
    Restarting {
        old: OldWorker,
        fresh: Fresh,
    },
    Ended {
        reason: EndReason,
    },
}

/// What is known of a worker between turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fresh {
    /// Workers started since one last finished a turn: 0 when this one has, so that it holds state.
    pub starts: u32,
    pub notice: Notice,
}

/// Whether a client must still be told that the state is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Notice {
    #[default]
    Given,
    /// The worker died between turns: whoever asks next cannot know.
    Owed,
}

/// What has become of the worker that is being replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldWorker {
    /// It was told to go: its end is still to come, and is no failed start of the next.
    Leaving,
    Gone,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            phase: Phase::Starting,
            waiting: VecDeque::new(),
            restarts: 0,
            fork: Fork::default(),
        }
    }
}

impl Session {
    /// The one decision: what follows from `event`, and what must be done about it, in order.
    #[must_use]
    pub fn step(mut self, event: Event) -> (Self, Vec<Effect>) {
        let mut todo = Vec::new();
        match event {
            Event::TurnAsked { turn } => self.turn_asked(turn, &mut todo),
            Event::InterruptAsked { turn } => self.interrupt_asked(turn, &mut todo),
            Event::InputGiven { turn } => self.input_given(turn, &mut todo),
            Event::HoldAsked => self.hold_asked(&mut todo),
            // What follows asks for no answer, and a session that is over does nothing more.
            _ if self.is_ended() => {}
            Event::DeadlinePassed { turn } => self.deadline_passed(turn, &mut todo),
            Event::GracePassed { turn } => self.grace_passed(turn, &mut todo),
            Event::ResetAsked => self.reset_asked(&mut todo),
            Event::CloseAsked => {
                let waiting = (ErrorCode::SessionClosed, self.loss_of_waiting());
                self.give_up(EndReason::Closed, ErrorCode::SessionClosed, waiting, &mut todo);
            }
            Event::WorkerReady => self.worker_ready(&mut todo),
            Event::HoldReleased => self.hold_released(&mut todo),
            Event::StdinWaited { turn } => self.stdin_waited(turn),
            Event::InputTaken { turn } => self.input_taken(turn),
            Event::TurnDone { turn, outcome } => self.turn_done(turn, outcome, &mut todo),
            Event::WorkerEnded { limit } => self.worker_ended(limit, &mut todo),
            Event::WorkerReplaced { running } => self.worker_replaced(running, &mut todo),
            Event::WallTimePassed => {
                let code = ErrorCode::LimitWallTime;
                let waiting = (code, self.loss_of_waiting());
                self.give_up(EndReason::WallTime, code, waiting, &mut todo);
            }
            Event::IdlePassed => self.idle_passed(&mut todo),
            Event::ProtocolBroken => {
                let code = ErrorCode::ProtocolError;
                self.give_up(EndReason::ProtocolError, code, STATE_LOST, &mut todo);
            }
            Event::KeeperLost(loss) => {
                let reason = match loss {
                    KeeperLoss::Died => EndReason::KeeperLost,
                    KeeperLoss::NodeGone => EndReason::NodeGone,
                };
                self.give_up(reason, ErrorCode::KeeperLost, STATE_LOST, &mut todo);
            }
        }
        (self, todo)
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn fork(&self) -> Fork {
        self.fork
    }

    /// The turn in flight.
    pub fn current(&self) -> Option<TurnNo> {
        match self.phase {
            Phase::Busy { turn }
            | Phase::AwaitingInput { turn }
            | Phase::Interrupting { turn, .. } => Some(turn),
            Phase::Starting | Phase::Idle(_) | Phase::Restarting { .. } | Phase::Ended { .. } => {
                None
            }
        }
    }

    /// The turns that wait, oldest first.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = TurnNo> + '_ {
        self.waiting.iter().copied()
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended { .. })
    }

    /// Workers asked for after the first.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// The phase as clients see it.
    pub fn state(&self) -> SessionState {
        match self.phase {
            Phase::Starting => SessionState::Starting,
            Phase::Idle(_) => SessionState::Idle,
            Phase::Busy { .. } => SessionState::Busy,
            Phase::AwaitingInput { .. } => SessionState::AwaitingInput,
            Phase::Interrupting { .. } => SessionState::Interrupting,
            Phase::Restarting { .. } => SessionState::Restarting,
            Phase::Ended { .. } => SessionState::Ended,
        }
    }

    /// Why the session is over, once it is.
    pub fn end_reason(&self) -> Option<EndReason> {
        match self.phase {
            Phase::Ended { reason } => Some(reason),
            _ => None,
        }
    }

    /// A turn as clients see it. One that was accepted and is not open any more has ended.
    pub fn turn_state(&self, turn: TurnNo) -> TurnState {
        match self.phase {
            Phase::Busy { turn: current } if current == turn => TurnState::Running,
            Phase::AwaitingInput { turn: current } if current == turn => TurnState::AwaitingInput,
            Phase::Interrupting { turn: current, .. } if current == turn => TurnState::Interrupting,
            _ if self.waiting.contains(&turn) => TurnState::Waiting,
            _ => TurnState::Ended,
        }
    }
}

/// How a turn ends that never ran, on a state that its author did not expect.
const STATE_LOST: (ErrorCode, Loss) = (ErrorCode::StateLost, Loss::State);

/// What clients and clocks ask for.
impl Session {
    fn turn_asked(&mut self, turn: TurnNo, todo: &mut Vec<Effect>) {
        match &mut self.phase {
            Phase::Ended { .. } => {
                todo.push(Effect::Refuse { turn, code: ErrorCode::SessionEnded });
            }
            Phase::Idle(fresh) | Phase::Restarting { fresh, .. }
                if fresh.notice == Notice::Owed =>
            {
                fresh.notice = Notice::Given;
                todo.push(Effect::Accept { turn });
                todo.push(lost_unrun(turn, STATE_LOST));
            }
            Phase::Idle(_) if !matches!(self.fork, Fork::Held { .. }) => {
                self.phase = Phase::Busy { turn };
                todo.extend([Effect::Accept { turn }, Effect::Start { turn }]);
            }
            _ if self.waiting.len() >= WAITING_TURNS_MAX => {
                todo.push(Effect::Refuse { turn, code: ErrorCode::Overloaded });
            }
            _ => {
                self.waiting.push_back(turn);
                todo.push(Effect::Accept { turn });
            }
        }
    }

    fn interrupt_asked(&mut self, turn: TurnNo, todo: &mut Vec<Effect>) {
        match self.phase {
            Phase::Busy { turn: current } | Phase::AwaitingInput { turn: current }
                if current == turn =>
            {
                self.interrupt(turn, StopCause::Client, todo);
            }
            // Whoever stopped it first stays the cause. Sent again, because code can swallow one
            // SIGINT and heed the next.
            Phase::Interrupting { turn: current, .. } if current == turn => {
                todo.push(Effect::InterruptAgain { turn });
            }
            _ if self.waiting.contains(&turn) => {
                self.forget_waiting(turn);
                let outcome = Outcome::Interrupted;
                todo.push(Effect::Finish { turn, outcome, code: None, loss: Loss::None });
            }
            _ => todo.push(Effect::RefuseInterrupt { turn, code: ErrorCode::TurnNotRunning }),
        }
    }

    fn deadline_passed(&mut self, turn: TurnNo, todo: &mut Vec<Effect>) {
        match self.phase {
            Phase::Busy { turn: current } | Phase::AwaitingInput { turn: current }
                if current == turn =>
            {
                self.interrupt(turn, StopCause::Deadline, todo);
            }
            // It is being stopped already, or it is over.
            _ => {}
        }
    }

    /// A turn that runs, waits, or asks for input is in use. A worker that is on its way was asked for a
    /// moment ago.
    fn idle_passed(&mut self, todo: &mut Vec<Effect>) {
        if let (Phase::Idle(_), Fork::None) = (self.phase, self.fork) {
            todo.extend([Effect::StopKeeper, self.end(EndReason::Idle)]);
        }
    }

    fn interrupt(&mut self, turn: TurnNo, cause: StopCause, todo: &mut Vec<Effect>) {
        self.phase = Phase::Interrupting { turn, cause };
        todo.push(Effect::Interrupt { turn, cause });
    }

    fn grace_passed(&mut self, turn: TurnNo, todo: &mut Vec<Effect>) {
        match self.phase {
            Phase::Interrupting { turn: current, cause } if current == turn => {
                let code = Some(ErrorCode::Unstoppable);
                let outcome = stopped(cause);
                todo.push(Effect::Finish { turn, outcome, code, loss: Loss::State });
                self.fail_waiting(STATE_LOST, todo);
                self.restart(OldWorker::Leaving, FIRST_OF_ROW, todo);
            }
            _ => {}
        }
    }

    fn input_given(&mut self, turn: TurnNo, todo: &mut Vec<Effect>) {
        match self.phase {
            Phase::Busy { turn: current } | Phase::AwaitingInput { turn: current }
                if current == turn =>
            {
                todo.push(Effect::GiveInput { turn });
            }
            _ => todo.push(Effect::RefuseInput { turn, code: ErrorCode::TurnNotRunning }),
        }
    }

    /// A reset is an interrupt that does not wait: the running turn ends as one that was stopped.
    fn reset_asked(&mut self, todo: &mut Vec<Effect>) {
        match self.phase {
            Phase::Busy { turn } | Phase::AwaitingInput { turn } => {
                todo.push(finish_stopped(turn, StopCause::Client, Loss::State));
            }
            Phase::Interrupting { turn, cause } => {
                todo.push(finish_stopped(turn, cause, Loss::State));
            }
            _ => {}
        }
        // They were asked before the reset: what is asked after it must find a fresh worker.
        self.fail_waiting(STATE_LOST, todo);
        if self.resets_later() {
            return;
        }
        match &mut self.phase {
            // A fresh worker is on its way, and nothing has run on it.
            Phase::Starting => {}
            Phase::Restarting { fresh, .. } => fresh.notice = Notice::Given,
            _ => self.restart(OldWorker::Leaving, FIRST_OF_ROW, todo),
        }
    }
}

/// What the keeper tells. A word about a turn that is not in flight changes nothing.
impl Session {
    fn worker_ready(&mut self, todo: &mut Vec<Effect>) {
        match (self.phase, self.fork) {
            (Phase::Starting, Fork::Arriving { hold, reset }) => self.twin_ready(hold, reset, todo),
            (Phase::Starting, _) => self.start_next(FIRST_OF_ROW, todo),
            (Phase::Restarting { fresh, .. }, _) => self.start_next(fresh, todo),
            _ => {}
        }
    }

    fn stdin_waited(&mut self, turn: TurnNo) {
        if self.phase == (Phase::Busy { turn }) {
            self.phase = Phase::AwaitingInput { turn };
        }
    }

    fn input_taken(&mut self, turn: TurnNo) {
        if self.phase == (Phase::AwaitingInput { turn }) {
            self.phase = Phase::Busy { turn };
        }
    }

    fn turn_done(&mut self, turn: TurnNo, said: WorkerOutcome, todo: &mut Vec<Effect>) {
        if self.current() != Some(turn) {
            return;
        }
        todo.push(match (self.phase, said) {
            (Phase::Interrupting { cause, .. }, WorkerOutcome::Interrupted) => {
                finish_stopped(turn, cause, Loss::None)
            }
            // An error at the deadline is most likely how the code took the interrupt (a failed
            // system call, a half-read file). Work that was completed all the same stays `ok`.
            (Phase::Interrupting { cause: StopCause::Deadline, .. }, WorkerOutcome::Error) => {
                finish_stopped(turn, StopCause::Deadline, Loss::None)
            }
            _ => Effect::Finish { turn, outcome: said.into(), code: None, loss: Loss::None },
        });
        self.start_next(Fresh::default(), todo);
    }

    fn worker_ended(&mut self, limit: Option<Limit>, todo: &mut Vec<Effect>) {
        let code = limit.map_or(ErrorCode::WorkerDied, code_of);
        match self.phase {
            Phase::Starting => self.start_failed(todo),
            Phase::Idle(fresh) => self.worker_ended_idle(fresh, todo),
            Phase::Busy { turn } | Phase::AwaitingInput { turn } => {
                self.worker_ended_in_turn(turn, Outcome::Lost, code, todo);
            }
            Phase::Interrupting { turn, cause } => {
                self.worker_ended_in_turn(turn, stopped(cause), code, todo);
            }
            Phase::Restarting { old: OldWorker::Leaving, fresh } => {
                self.phase = Phase::Restarting { old: OldWorker::Gone, fresh };
            }
            Phase::Restarting { old: OldWorker::Gone, fresh } => match fresh.again() {
                Some(fresh) => self.restart(OldWorker::Gone, fresh, todo),
                None => self.start_failed(todo),
            },
            Phase::Ended { .. } => {}
        }
    }

    /// Where nobody is known to have asked for it, a node before did, and was killed while its disk was too
    /// full to record why.
    fn worker_replaced(&mut self, running: Option<TurnNo>, todo: &mut Vec<Effect>) {
        match self.phase {
            Phase::Idle(_) => {}
            Phase::Busy { turn } | Phase::AwaitingInput { turn } if running != Some(turn) => {
                // It was accepted for the worker after this one.
                self.waiting.push_front(turn);
            }
            Phase::Busy { turn } | Phase::AwaitingInput { turn } => {
                todo.push(finish_stopped(turn, StopCause::Client, Loss::State));
                self.fail_waiting(STATE_LOST, todo);
            }
            Phase::Interrupting { turn, cause } => {
                let (outcome, code) = (stopped(cause), Some(ErrorCode::Unstoppable));
                todo.push(Effect::Finish { turn, outcome, code, loss: Loss::State });
                self.fail_waiting(STATE_LOST, todo);
            }
            Phase::Starting | Phase::Restarting { .. } | Phase::Ended { .. } => {
                return self.worker_ended(None, todo);
            }
        }
        self.restarts += 1;
        self.phase = Phase::Restarting { old: OldWorker::Gone, fresh: FIRST_OF_ROW };
    }

    fn worker_ended_in_turn(
        &mut self,
        turn: TurnNo,
        outcome: Outcome,
        code: ErrorCode,
        todo: &mut Vec<Effect>,
    ) {
        todo.push(Effect::Finish { turn, outcome, code: Some(code), loss: Loss::State });
        self.fail_waiting(STATE_LOST, todo);
        self.restart(OldWorker::Gone, FIRST_OF_ROW, todo);
    }

    fn worker_ended_idle(&mut self, fresh: Fresh, todo: &mut Vec<Effect>) {
        if let Fork::Held { reset: reset @ ResetWish::Asked } = &mut self.fork {
            // The fresh worker that was asked for is this one; turns that wait were asked after it.
            *reset = ResetWish::None;
            self.restart(OldWorker::Gone, FIRST_OF_ROW, todo);
        } else if fresh.starts == 0 {
            // Turns that wait behind a hold are told by their ends.
            let notice = if self.waiting.is_empty() { Notice::Owed } else { Notice::Given };
            self.fail_waiting(STATE_LOST, todo);
            let fresh = Fresh { notice, ..FIRST_OF_ROW };
            self.restart(OldWorker::Gone, fresh, todo);
        } else if let Some(fresh) = fresh.again() {
            // Nothing has run on it: nothing to tell of, but what was to be told before.
            self.restart(OldWorker::Gone, fresh, todo);
        } else {
            self.fail_waiting((ErrorCode::WorkerFailed, self.loss_of_waiting()), todo);
            todo.extend([Effect::StopKeeper, self.end(EndReason::WorkerExited)]);
        }
    }
}

/// What several decisions share.
impl Session {
    /// The worker is idle: gives it the oldest waiting turn, unless the session is held.
    fn start_next(&mut self, fresh: Fresh, todo: &mut Vec<Effect>) {
        let next = match self.fork {
            Fork::Held { .. } => None,
            Fork::None | Fork::Arriving { .. } => self.waiting.pop_front(),
        };
        self.phase = match next {
            Some(turn) => {
                todo.push(Effect::Start { turn });
                Phase::Busy { turn }
            }
            None => Phase::Idle(fresh),
        };
    }

    fn restart(&mut self, old: OldWorker, fresh: Fresh, todo: &mut Vec<Effect>) {
        self.phase = Phase::Restarting { old, fresh };
        self.restarts += 1;
        todo.push(Effect::RestartWorker);
    }

    fn start_failed(&mut self, todo: &mut Vec<Effect>) {
        self.fail_waiting((ErrorCode::WorkerFailed, self.loss_of_waiting()), todo);
        todo.extend([Effect::StopKeeper, self.end(EndReason::StartFailed)]);
    }

    /// What those lose who wait when the session ends: before the first worker was up there was nothing to lose.
    fn loss_of_waiting(&self) -> Loss {
        if self.phase == Phase::Starting { Loss::None } else { Loss::State }
    }

    /// Ends the session with whatever runs and waits in it.
    fn give_up(
        &mut self,
        reason: EndReason,
        running: ErrorCode,
        waiting: (ErrorCode, Loss),
        todo: &mut Vec<Effect>,
    ) {
        if let Some(turn) = self.current() {
            let (outcome, code) = (Outcome::Lost, Some(running));
            todo.push(Effect::Finish { turn, outcome, code, loss: Loss::State });
        }
        self.fail_waiting(waiting, todo);
        // A keeper that is gone cannot be stopped.
        if !matches!(reason, EndReason::KeeperLost | EndReason::NodeGone) {
            todo.push(Effect::StopKeeper);
        }
        todo.push(self.end(reason));
    }

    fn end(&mut self, reason: EndReason) -> Effect {
        self.phase = Phase::Ended { reason };
        Effect::End { reason }
    }

    fn fail_waiting(&mut self, why: (ErrorCode, Loss), todo: &mut Vec<Effect>) {
        todo.extend(self.waiting.drain(..).map(|turn| lost_unrun(turn, why)));
    }

    fn forget_waiting(&mut self, turn: TurnNo) {
        self.waiting.retain(|&waiting| waiting != turn);
    }
}

/// A worker that is the first of its row.
const FIRST_OF_ROW: Fresh = Fresh { starts: 1, notice: Notice::Given };

impl Fresh {
    /// One more worker in the row, if it may have one.
    fn again(self) -> Option<Self> {
        (self.starts < START_ATTEMPTS_MAX).then(|| Self { starts: self.starts + 1, ..self })
    }
}

/// How a turn's end names the limit.
fn code_of(limit: Limit) -> ErrorCode {
    match limit {
        Limit::Memory => ErrorCode::LimitMemory,
        Limit::Processes => ErrorCode::LimitProcesses,
        Limit::Disk => ErrorCode::LimitDisk,
        Limit::WallTime => ErrorCode::LimitWallTime,
    }
}

fn stopped(cause: StopCause) -> Outcome {
    match cause {
        StopCause::Client => Outcome::Interrupted,
        StopCause::Deadline => Outcome::TimedOut,
    }
}

fn finish_stopped(turn: TurnNo, cause: StopCause, loss: Loss) -> Effect {
    let code = match cause {
        StopCause::Client => None,
        StopCause::Deadline => Some(ErrorCode::DeadlinePassed),
    };
    Effect::Finish { turn, outcome: stopped(cause), code, loss }
}

fn lost_unrun(turn: TurnNo, (code, loss): (ErrorCode, Loss)) -> Effect {
    Effect::Finish { turn, outcome: Outcome::Lost, code: Some(code), loss }
}
