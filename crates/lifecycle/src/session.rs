//! One session's life: which turn runs, which wait, and what a stop, a death or a close costs.
//! Owns every decision about them, in [`SessionMachine::step`]; performs none, and knows no time.
//!
//! What the performer (the node) holds to:
//! - it numbers turns in the order asked and drops doubled client ids before asking;
//! - it journals a keeper's event first and then performs the effects in their order;
//! - it hears exactly one [`SessionEvent::WorkerEnded`] for each worker that the keeper started, or one
//!   [`SessionEvent::WorkerReplaced`] for one that [`SessionEffect::RestartWorker`] ended, and that before the next
//!   worker's `WorkerReady`.

use std::collections::VecDeque;

use windlass_protocol::api::{SessionState, TurnState};
use windlass_protocol::event::{EndReason, StopCause};
use windlass_protocol::limits::WAITING_TURNS_MAX;
use windlass_protocol::policy::Limit;
use windlass_protocol::worker::WorkerOutcome;
use windlass_protocol::{ErrorCode, Outcome, TurnNo};

mod events;
mod forks;
mod recover;
pub use events::{KeeperLoss, Loss, SessionEffect, SessionEvent};
pub use forks::{ForkState, PendingHold, PendingReset};
pub use recover::{FirstTurn, RecoveryFacts, WorkerFact};

/// Workers started in a row, none of which finished a turn, before the session is given up. The
/// very first worker gets one attempt only: what was never seen to start (a missing interpreter)
/// is not cured by trying again, and its author is told at once.
pub const START_ATTEMPTS_MAX: u32 = 3;

/// A session as far as decisions need it. Starts as [`SessionMachine::default`], its worker on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionMachine {
    phase: SessionPhase,
    /// Accepted and not started, oldest first; at most [`WAITING_TURNS_MAX`].
    waiting: VecDeque<TurnNo>,
    /// How often [`SessionEffect::RestartWorker`] was asked for.
    restarts: u32,
    fork: ForkState,
}

/// Where a session is. A turn in flight is named by the phase, so there is never a second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionPhase {
    /// The first worker is not up yet.
    Starting,
    Idle(WorkerHistory),
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
        history: WorkerHistory,
    },
    Ended {
        reason: EndReason,
    },
}

/// What is known of a worker between turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerHistory {
    /// Workers started since one last finished a turn: 0 when this one has, so that it holds state.
    pub starts: u32,
    pub notice: LossNotice,
}

/// Whether a client must still be told that the state is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LossNotice {
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

impl Default for SessionMachine {
    fn default() -> Self {
        Self {
            phase: SessionPhase::Starting,
            waiting: VecDeque::new(),
            restarts: 0,
            fork: ForkState::default(),
        }
    }
}

impl SessionMachine {
    /// The one decision: what follows from `event`, and what must be done about it, in order.
    #[must_use]
    pub fn step(mut self, event: SessionEvent) -> (Self, Vec<SessionEffect>) {
        let mut effects = Vec::new();
        match event {
            SessionEvent::TurnAsked { turn } => self.turn_asked(turn, &mut effects),
            SessionEvent::InterruptAsked { turn } => self.interrupt_asked(turn, &mut effects),
            SessionEvent::InputGiven { turn } => self.input_given(turn, &mut effects),
            SessionEvent::HoldAsked => self.hold_asked(&mut effects),
            // What follows asks for no answer, and a session that is over does nothing more.
            _ if self.is_ended() => {}
            SessionEvent::DeadlinePassed { turn } => self.deadline_passed(turn, &mut effects),
            SessionEvent::GracePassed { turn } => self.grace_passed(turn, &mut effects),
            SessionEvent::ResetAsked => self.reset_asked(&mut effects),
            SessionEvent::CloseAsked => {
                let waiting = (ErrorCode::SessionClosed, self.loss_of_waiting());
                self.give_up(EndReason::Closed, ErrorCode::SessionClosed, waiting, &mut effects);
            }
            SessionEvent::WorkerReady => self.worker_ready(&mut effects),
            SessionEvent::HoldReleased => self.hold_released(&mut effects),
            SessionEvent::StdinWaited { turn } => self.stdin_waited(turn),
            SessionEvent::InputTaken { turn } => self.input_taken(turn),
            SessionEvent::TurnDone { turn, outcome } => self.turn_done(turn, outcome, &mut effects),
            SessionEvent::WorkerEnded { limit } => self.worker_ended(limit, &mut effects),
            SessionEvent::WorkerReplaced { running } => self.worker_replaced(running, &mut effects),
            SessionEvent::WallTimePassed => {
                let code = ErrorCode::LimitWallTime;
                let waiting = (code, self.loss_of_waiting());
                self.give_up(EndReason::WallTime, code, waiting, &mut effects);
            }
            SessionEvent::IdlePassed => self.idle_passed(&mut effects),
            SessionEvent::ProtocolBroken => {
                let code = ErrorCode::ProtocolError;
                self.give_up(EndReason::ProtocolError, code, STATE_LOST, &mut effects);
            }
            SessionEvent::KeeperLost(loss) => {
                let reason = match loss {
                    KeeperLoss::Died => EndReason::KeeperLost,
                    KeeperLoss::NodeGone => EndReason::NodeGone,
                };
                self.give_up(reason, ErrorCode::KeeperLost, STATE_LOST, &mut effects);
            }
        }
        (self, effects)
    }

    pub fn phase(&self) -> SessionPhase {
        self.phase
    }

    pub fn fork(&self) -> ForkState {
        self.fork
    }

    /// The turn in flight.
    pub fn current(&self) -> Option<TurnNo> {
        match self.phase {
            SessionPhase::Busy { turn }
            | SessionPhase::AwaitingInput { turn }
            | SessionPhase::Interrupting { turn, .. } => Some(turn),
            SessionPhase::Starting
            | SessionPhase::Idle(_)
            | SessionPhase::Restarting { .. }
            | SessionPhase::Ended { .. } => None,
        }
    }

    /// The turns that wait, oldest first.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = TurnNo> + '_ {
        self.waiting.iter().copied()
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.phase, SessionPhase::Ended { .. })
    }

    /// Workers asked for after the first.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// The phase as clients see it.
    pub fn state(&self) -> SessionState {
        match self.phase {
            SessionPhase::Starting => SessionState::Starting,
            SessionPhase::Idle(_) => SessionState::Idle,
            SessionPhase::Busy { .. } => SessionState::Busy,
            SessionPhase::AwaitingInput { .. } => SessionState::AwaitingInput,
            SessionPhase::Interrupting { .. } => SessionState::Interrupting,
            SessionPhase::Restarting { .. } => SessionState::Restarting,
            SessionPhase::Ended { .. } => SessionState::Ended,
        }
    }

    /// Why the session is over, once it is.
    pub fn end_reason(&self) -> Option<EndReason> {
        match self.phase {
            SessionPhase::Ended { reason } => Some(reason),
            _ => None,
        }
    }

    /// A turn as clients see it. One that was accepted and is not open any more has ended.
    pub fn turn_state(&self, turn: TurnNo) -> TurnState {
        match self.phase {
            SessionPhase::Busy { turn: current } if current == turn => TurnState::Running,
            SessionPhase::AwaitingInput { turn: current } if current == turn => {
                TurnState::AwaitingInput
            }
            SessionPhase::Interrupting { turn: current, .. } if current == turn => {
                TurnState::Interrupting
            }
            _ if self.waiting.contains(&turn) => TurnState::Waiting,
            _ => TurnState::Ended,
        }
    }
}

/// How a turn ends that never ran, on a state that its author did not expect.
const STATE_LOST: (ErrorCode, Loss) = (ErrorCode::StateLost, Loss::State);

/// What clients and clocks ask for.
impl SessionMachine {
    fn turn_asked(&mut self, turn: TurnNo, effects: &mut Vec<SessionEffect>) {
        match &mut self.phase {
            SessionPhase::Ended { .. } => {
                effects.push(SessionEffect::Refuse { turn, code: ErrorCode::SessionEnded });
            }
            SessionPhase::Idle(history) | SessionPhase::Restarting { history, .. }
                if history.notice == LossNotice::Owed =>
            {
                history.notice = LossNotice::Given;
                effects.push(SessionEffect::Accept { turn });
                effects.push(lost_unrun(turn, STATE_LOST));
            }
            SessionPhase::Idle(_) if !matches!(self.fork, ForkState::Held { .. }) => {
                self.phase = SessionPhase::Busy { turn };
                effects.extend([SessionEffect::Accept { turn }, SessionEffect::Start { turn }]);
            }
            _ if self.waiting.len() >= WAITING_TURNS_MAX => {
                effects.push(SessionEffect::Refuse { turn, code: ErrorCode::Overloaded });
            }
            _ => {
                self.waiting.push_back(turn);
                effects.push(SessionEffect::Accept { turn });
            }
        }
    }

    fn interrupt_asked(&mut self, turn: TurnNo, effects: &mut Vec<SessionEffect>) {
        match self.phase {
            SessionPhase::Busy { turn: current }
            | SessionPhase::AwaitingInput { turn: current }
                if current == turn =>
            {
                self.interrupt(turn, StopCause::Client, effects);
            }
            // Whoever stopped it first stays the cause. Sent again, because code can swallow one
            // SIGINT and heed the next.
            SessionPhase::Interrupting { turn: current, .. } if current == turn => {
                effects.push(SessionEffect::InterruptAgain { turn });
            }
            _ if self.waiting.contains(&turn) => {
                self.forget_waiting(turn);
                let outcome = Outcome::Interrupted;
                effects.push(SessionEffect::Finish { turn, outcome, code: None, loss: Loss::None });
            }
            _ => effects
                .push(SessionEffect::RefuseInterrupt { turn, code: ErrorCode::TurnNotRunning }),
        }
    }

    fn deadline_passed(&mut self, turn: TurnNo, effects: &mut Vec<SessionEffect>) {
        match self.phase {
            SessionPhase::Busy { turn: current }
            | SessionPhase::AwaitingInput { turn: current }
                if current == turn =>
            {
                self.interrupt(turn, StopCause::Deadline, effects);
            }
            // It is being stopped already, or it is over.
            _ => {}
        }
    }

    /// A turn that runs, waits, or asks for input is in use. A worker that is on its way was asked for a
    /// moment ago.
    fn idle_passed(&mut self, effects: &mut Vec<SessionEffect>) {
        if let (SessionPhase::Idle(_), ForkState::None) = (self.phase, self.fork) {
            effects.extend([SessionEffect::StopKeeper, self.end(EndReason::Idle)]);
        }
    }

    fn interrupt(&mut self, turn: TurnNo, cause: StopCause, effects: &mut Vec<SessionEffect>) {
        self.phase = SessionPhase::Interrupting { turn, cause };
        effects.push(SessionEffect::Interrupt { turn, cause });
    }

    fn grace_passed(&mut self, turn: TurnNo, effects: &mut Vec<SessionEffect>) {
        match self.phase {
            SessionPhase::Interrupting { turn: current, cause } if current == turn => {
                let code = Some(ErrorCode::Unstoppable);
                let outcome = stopped(cause);
                effects.push(SessionEffect::Finish { turn, outcome, code, loss: Loss::State });
                self.fail_waiting(STATE_LOST, effects);
                self.restart(OldWorker::Leaving, FIRST_START, effects);
            }
            _ => {}
        }
    }

    fn input_given(&mut self, turn: TurnNo, effects: &mut Vec<SessionEffect>) {
        match self.phase {
            SessionPhase::Busy { turn: current }
            | SessionPhase::AwaitingInput { turn: current }
                if current == turn =>
            {
                effects.push(SessionEffect::GiveInput { turn });
            }
            _ => effects.push(SessionEffect::RefuseInput { turn, code: ErrorCode::TurnNotRunning }),
        }
    }

    /// A reset is an interrupt that does not wait: the running turn ends as one that was stopped.
    fn reset_asked(&mut self, effects: &mut Vec<SessionEffect>) {
        match self.phase {
            SessionPhase::Busy { turn } | SessionPhase::AwaitingInput { turn } => {
                effects.push(finish_stopped(turn, StopCause::Client, Loss::State));
            }
            SessionPhase::Interrupting { turn, cause } => {
                effects.push(finish_stopped(turn, cause, Loss::State));
            }
            _ => {}
        }
        // They were asked before the reset: what is asked after it must find a fresh worker.
        self.fail_waiting(STATE_LOST, effects);
        if self.defer_reset() {
            return;
        }
        match &mut self.phase {
            // A fresh worker is on its way, and nothing has run on it.
            SessionPhase::Starting => {}
            SessionPhase::Restarting { history, .. } => history.notice = LossNotice::Given,
            _ => self.restart(OldWorker::Leaving, FIRST_START, effects),
        }
    }
}

/// What the keeper tells. A word about a turn that is not in flight changes nothing.
impl SessionMachine {
    fn worker_ready(&mut self, effects: &mut Vec<SessionEffect>) {
        match (self.phase, self.fork) {
            (SessionPhase::Starting, ForkState::Arriving { hold, reset }) => {
                self.twin_ready(hold, reset, effects)
            }
            (SessionPhase::Starting, _) => self.start_next(FIRST_START, effects),
            (SessionPhase::Restarting { history, .. }, _) => self.start_next(history, effects),
            _ => {}
        }
    }

    fn stdin_waited(&mut self, turn: TurnNo) {
        if self.phase == (SessionPhase::Busy { turn }) {
            self.phase = SessionPhase::AwaitingInput { turn };
        }
    }

    fn input_taken(&mut self, turn: TurnNo) {
        if self.phase == (SessionPhase::AwaitingInput { turn }) {
            self.phase = SessionPhase::Busy { turn };
        }
    }

    fn turn_done(&mut self, turn: TurnNo, said: WorkerOutcome, effects: &mut Vec<SessionEffect>) {
        if self.current() != Some(turn) {
            return;
        }
        effects.push(match (self.phase, said) {
            (SessionPhase::Interrupting { cause, .. }, WorkerOutcome::Interrupted) => {
                finish_stopped(turn, cause, Loss::None)
            }
            // An error at the deadline is most likely how the code took the interrupt (a failed
            // system call, a half-read file). Work that was completed all the same stays `ok`.
            (
                SessionPhase::Interrupting { cause: StopCause::Deadline, .. },
                WorkerOutcome::Error,
            ) => finish_stopped(turn, StopCause::Deadline, Loss::None),
            _ => SessionEffect::Finish { turn, outcome: said.into(), code: None, loss: Loss::None },
        });
        self.start_next(WorkerHistory::default(), effects);
    }

    fn worker_ended(&mut self, limit: Option<Limit>, effects: &mut Vec<SessionEffect>) {
        let code = limit.map_or(ErrorCode::WorkerDied, code_of);
        match self.phase {
            SessionPhase::Starting => self.start_failed(effects),
            SessionPhase::Idle(history) => self.worker_ended_idle(history, effects),
            SessionPhase::Busy { turn } | SessionPhase::AwaitingInput { turn } => {
                self.worker_ended_in_turn(turn, Outcome::Lost, code, effects);
            }
            SessionPhase::Interrupting { turn, cause } => {
                self.worker_ended_in_turn(turn, stopped(cause), code, effects);
            }
            SessionPhase::Restarting { old: OldWorker::Leaving, history } => {
                self.phase = SessionPhase::Restarting { old: OldWorker::Gone, history };
            }
            SessionPhase::Restarting { old: OldWorker::Gone, history } => {
                match history.next_attempt() {
                    Some(history) => self.restart(OldWorker::Gone, history, effects),
                    None => self.start_failed(effects),
                }
            }
            SessionPhase::Ended { .. } => {}
        }
    }

    /// Where nobody is known to have asked for it, a node before did, and was killed while its disk was too
    /// full to record why.
    fn worker_replaced(&mut self, running: Option<TurnNo>, effects: &mut Vec<SessionEffect>) {
        match self.phase {
            SessionPhase::Idle(_) => {}
            SessionPhase::Busy { turn } | SessionPhase::AwaitingInput { turn }
                if running != Some(turn) =>
            {
                // It was accepted for the worker after this one.
                self.waiting.push_front(turn);
            }
            SessionPhase::Busy { turn } | SessionPhase::AwaitingInput { turn } => {
                effects.push(finish_stopped(turn, StopCause::Client, Loss::State));
                self.fail_waiting(STATE_LOST, effects);
            }
            SessionPhase::Interrupting { turn, cause } => {
                let (outcome, code) = (stopped(cause), Some(ErrorCode::Unstoppable));
                effects.push(SessionEffect::Finish { turn, outcome, code, loss: Loss::State });
                self.fail_waiting(STATE_LOST, effects);
            }
            SessionPhase::Starting
            | SessionPhase::Restarting { .. }
            | SessionPhase::Ended { .. } => {
                return self.worker_ended(None, effects);
            }
        }
        self.restarts += 1;
        self.phase = SessionPhase::Restarting { old: OldWorker::Gone, history: FIRST_START };
    }

    fn worker_ended_in_turn(
        &mut self,
        turn: TurnNo,
        outcome: Outcome,
        code: ErrorCode,
        effects: &mut Vec<SessionEffect>,
    ) {
        effects.push(SessionEffect::Finish { turn, outcome, code: Some(code), loss: Loss::State });
        self.fail_waiting(STATE_LOST, effects);
        self.restart(OldWorker::Gone, FIRST_START, effects);
    }

    fn worker_ended_idle(&mut self, history: WorkerHistory, effects: &mut Vec<SessionEffect>) {
        if let ForkState::Held { reset: reset @ PendingReset::Requested } = &mut self.fork {
            // The fresh worker that was asked for is this one; turns that wait were asked after it.
            *reset = PendingReset::None;
            self.restart(OldWorker::Gone, FIRST_START, effects);
        } else if history.starts == 0 {
            // Turns that wait behind a hold are told by their ends.
            let notice = if self.waiting.is_empty() { LossNotice::Owed } else { LossNotice::Given };
            self.fail_waiting(STATE_LOST, effects);
            let history = WorkerHistory { notice, ..FIRST_START };
            self.restart(OldWorker::Gone, history, effects);
        } else if let Some(history) = history.next_attempt() {
            // Nothing has run on it: nothing to tell of, but what was to be told before.
            self.restart(OldWorker::Gone, history, effects);
        } else {
            self.fail_waiting((ErrorCode::WorkerFailed, self.loss_of_waiting()), effects);
            effects.extend([SessionEffect::StopKeeper, self.end(EndReason::WorkerExited)]);
        }
    }
}

/// What several decisions share.
impl SessionMachine {
    /// The worker is idle: gives it the oldest waiting turn, unless the session is held.
    fn start_next(&mut self, history: WorkerHistory, effects: &mut Vec<SessionEffect>) {
        let next = match self.fork {
            ForkState::Held { .. } => None,
            ForkState::None | ForkState::Arriving { .. } => self.waiting.pop_front(),
        };
        self.phase = match next {
            Some(turn) => {
                effects.push(SessionEffect::Start { turn });
                SessionPhase::Busy { turn }
            }
            None => SessionPhase::Idle(history),
        };
    }

    fn restart(
        &mut self,
        old: OldWorker,
        history: WorkerHistory,
        effects: &mut Vec<SessionEffect>,
    ) {
        self.phase = SessionPhase::Restarting { old, history };
        self.restarts += 1;
        effects.push(SessionEffect::RestartWorker);
    }

    fn start_failed(&mut self, effects: &mut Vec<SessionEffect>) {
        self.fail_waiting((ErrorCode::WorkerFailed, self.loss_of_waiting()), effects);
        effects.extend([SessionEffect::StopKeeper, self.end(EndReason::StartFailed)]);
    }

    /// What those lose who wait when the session ends: before the first worker was up there was nothing to lose.
    fn loss_of_waiting(&self) -> Loss {
        if self.phase == SessionPhase::Starting { Loss::None } else { Loss::State }
    }

    /// Ends the session with whatever runs and waits in it.
    fn give_up(
        &mut self,
        reason: EndReason,
        running: ErrorCode,
        waiting: (ErrorCode, Loss),
        effects: &mut Vec<SessionEffect>,
    ) {
        if let Some(turn) = self.current() {
            let (outcome, code) = (Outcome::Lost, Some(running));
            effects.push(SessionEffect::Finish { turn, outcome, code, loss: Loss::State });
        }
        self.fail_waiting(waiting, effects);
        // A keeper that is gone cannot be stopped.
        if !matches!(reason, EndReason::KeeperLost | EndReason::NodeGone) {
            effects.push(SessionEffect::StopKeeper);
        }
        effects.push(self.end(reason));
    }

    fn end(&mut self, reason: EndReason) -> SessionEffect {
        self.phase = SessionPhase::Ended { reason };
        SessionEffect::End { reason }
    }

    fn fail_waiting(&mut self, why: (ErrorCode, Loss), effects: &mut Vec<SessionEffect>) {
        effects.extend(self.waiting.drain(..).map(|turn| lost_unrun(turn, why)));
    }

    fn forget_waiting(&mut self, turn: TurnNo) {
        self.waiting.retain(|&waiting| waiting != turn);
    }
}

/// A worker that is the first of its row.
const FIRST_START: WorkerHistory = WorkerHistory { starts: 1, notice: LossNotice::Given };

impl WorkerHistory {
    /// One more worker in the row, if it may have one.
    fn next_attempt(self) -> Option<Self> {
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

fn finish_stopped(turn: TurnNo, cause: StopCause, loss: Loss) -> SessionEffect {
    let code = match cause {
        StopCause::Client => None,
        StopCause::Deadline => Some(ErrorCode::DeadlinePassed),
    };
    SessionEffect::Finish { turn, outcome: stopped(cause), code, loss }
}

fn lost_unrun(turn: TurnNo, (code, loss): (ErrorCode, Loss)) -> SessionEffect {
    SessionEffect::Finish { turn, outcome: Outcome::Lost, code: Some(code), loss }
}
