//! The life of one session: which turn runs, which turns wait, and what is lost when a turn is stopped, a
//! worker dies or the session is closed. [`SessionMachine::step`] makes every decision. This module performs
//! no effect and has no clock.
//!
//! Rules for the performer of the effects (the node):
//! - It numbers turns in the order of the requests, and it drops a repeated client id before the request.
//! - It journals a keeper's event first, and then performs the effects in their order.
//! - For each worker that the keeper started, it passes on exactly one end: [`SessionEvent::WorkerEnded`], or
//!   [`SessionEvent::WorkerReplaced`] if [`SessionEffect::RestartWorker`] ended the worker. The end comes
//!   before the `WorkerReady` of the next worker.

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

/// Maximum number of workers started in a row without a finished turn; then the session ends. The first
/// worker of a session gets only one attempt: a retry does not repair a missing interpreter, and the client
/// gets the error at once.
pub const START_ATTEMPTS_MAX: u32 = 3;

/// The part of a session that decisions need. [`SessionMachine::default`] is a new session whose worker is
/// starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionMachine {
    phase: SessionPhase,
    /// Accepted turns that have not started, oldest first; at most [`WAITING_TURNS_MAX`].
    waiting: VecDeque<TurnNo>,
    /// Number of [`SessionEffect::RestartWorker`] effects so far.
    restarts: u32,
    fork: ForkState,
}

/// The phase of a session. The phase names the turn in flight, so there is at most one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionPhase {
    /// The first worker is not ready yet.
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

/// The history of a worker that runs no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerHistory {
    /// Workers started since the last finished turn. 0 means that this worker has finished a turn, so it
    /// holds state that a client expects.
    pub starts: u32,
    pub notice: LossNotice,
}

/// Whether a client must still be told that the state is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LossNotice {
    #[default]
    Given,
    /// The worker died between turns, and no client knows it yet. The next turn fails with `state_lost`.
    Owed,
}

/// The worker that is being replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldWorker {
    /// The worker was told to stop. Its end event is still to come and is not a failed start of the next
    /// worker.
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
    /// Decides what follows from `event`. Returns the next state and the effects to perform, in order.
    #[must_use]
    pub fn step(mut self, event: SessionEvent) -> (Self, Vec<SessionEffect>) {
        let mut effects = Vec::new();
        match event {
            SessionEvent::TurnAsked { turn } => self.turn_asked(turn, &mut effects),
            SessionEvent::InterruptAsked { turn } => self.interrupt_asked(turn, &mut effects),
            SessionEvent::InputGiven { turn } => self.input_given(turn, &mut effects),
            SessionEvent::HoldAsked => self.hold_asked(&mut effects),
            // The remaining events need no reply, and an ended session ignores them.
            _ if self.is_ended() => {}
            SessionEvent::DeadlinePassed { turn } => self.deadline_passed(turn, &mut effects),
            SessionEvent::GracePassed { turn } => self.grace_passed(turn, &mut effects),
            SessionEvent::ResetAsked => self.reset_asked(&mut effects),
            SessionEvent::CloseAsked => self.end_all(EndReason::Closed, &mut effects),
            SessionEvent::WorkerReady => self.worker_ready(&mut effects),
            SessionEvent::HoldReleased => self.hold_released(&mut effects),
            SessionEvent::StdinWaited { turn } => self.stdin_waited(turn),
            SessionEvent::InputTaken { turn } => self.input_taken(turn),
            SessionEvent::TurnDone { turn, outcome } => self.turn_done(turn, outcome, &mut effects),
            SessionEvent::WorkerEnded { limit } => self.worker_ended(limit, &mut effects),
            SessionEvent::WorkerReplaced { running } => self.worker_replaced(running, &mut effects),
            SessionEvent::WallTimePassed => self.end_all(EndReason::WallTime, &mut effects),
            SessionEvent::DiskPassed => self.end_all(EndReason::Disk, &mut effects),
            SessionEvent::IdlePassed => self.idle_passed(&mut effects),
            SessionEvent::ProtocolBroken => {
                let (reason, code) = (EndReason::ProtocolError, ErrorCode::ProtocolError);
                self.give_up(reason, code, STATE_LOST, &mut effects);
            }
            SessionEvent::FencePassed => self.end_all(EndReason::Fenced, &mut effects),
            SessionEvent::KeeperLost(loss) => {
                let code = ErrorCode::KeeperLost;
                self.give_up(loss.end_reason(), code, STATE_LOST, &mut effects);
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

    /// The waiting turns, oldest first.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = TurnNo> + '_ {
        self.waiting.iter().copied()
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.phase, SessionPhase::Ended { .. })
    }

    /// Number of restarts: workers requested after the first.
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

    /// Why the session ended, if it has ended.
    pub fn end_reason(&self) -> Option<EndReason> {
        match self.phase {
            SessionPhase::Ended { reason } => Some(reason),
            _ => None,
        }
    }

    /// The state of an accepted turn as clients see it. A turn that neither runs nor waits has ended.
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

/// How a turn ends that never ran because the state that its author expected is lost.
const STATE_LOST: (ErrorCode, Loss) = (ErrorCode::StateLost, Loss::State);

/// Requests of clients, and timers that expire.
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
            // The first stop request stays the cause. The interrupt is sent again, because code can swallow
            // one SIGINT and stop at the next.
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
            // The turn is already being stopped, or has ended.
            _ => {}
        }
    }

    /// Ends the session only if it is idle. A session with a turn that runs, waits or asks for input is in
    /// use. A session whose worker is starting was used a moment ago.
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

    /// A reset is an interrupt without a grace period: the running turn ends as a stopped turn.
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
        // The waiting turns were requested before the reset. Turns requested after the reset must run on a
        // fresh worker.
        self.fail_waiting(STATE_LOST, effects);
        if self.defer_reset() {
            return;
        }
        match &mut self.phase {
            // A fresh worker is starting, and no turn has run on it.
            SessionPhase::Starting => {}
            SessionPhase::Restarting { history, .. } => history.notice = LossNotice::Given,
            _ => self.restart(OldWorker::Leaving, FIRST_START, effects),
        }
    }
}

/// Events that the keeper reports. An event about a turn that is not in flight changes nothing.
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
            // An error after the deadline is most likely the effect of the interrupt on the code (a failed
            // system call, a half-read file). A turn that completed nevertheless stays `ok`.
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

    /// The keeper replaced the worker. If this machine did not request the restart, an earlier node did, and
    /// that node was killed while its disk was too full to record the reason.
    fn worker_replaced(&mut self, running: Option<TurnNo>, effects: &mut Vec<SessionEffect>) {
        match self.phase {
            SessionPhase::Idle(_) => {}
            SessionPhase::Busy { turn } | SessionPhase::AwaitingInput { turn }
                if running != Some(turn) =>
            {
                // The turn did not run on the replaced worker, so it runs on the next one.
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
            // This restart is also the requested reset. The waiting turns were requested after the reset.
            *reset = PendingReset::None;
            self.restart(OldWorker::Gone, FIRST_START, effects);
        } else if history.starts == 0 {
            // If turns wait behind a hold, their ends tell clients of the loss.
            let notice = if self.waiting.is_empty() { LossNotice::Owed } else { LossNotice::Given };
            self.fail_waiting(STATE_LOST, effects);
            let history = WorkerHistory { notice, ..FIRST_START };
            self.restart(OldWorker::Gone, history, effects);
        } else if let Some(history) = history.next_attempt() {
            // No turn has finished on this worker, so no new state is lost. A notice that was owed before
            // stays owed.
            self.restart(OldWorker::Gone, history, effects);
        } else {
            self.fail_waiting((ErrorCode::WorkerFailed, self.loss_of_waiting()), effects);
            effects.extend([SessionEffect::StopKeeper, self.end(EndReason::WorkerExited)]);
        }
    }
}

/// Helpers that several decisions use.
impl SessionMachine {
    /// Gives the idle worker the oldest waiting turn, unless the session is held.
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

    /// What the waiting turns lose when the session ends. Before the first worker is ready there is no state
    /// to lose.
    fn loss_of_waiting(&self) -> Loss {
        if self.phase == SessionPhase::Starting { Loss::None } else { Loss::State }
    }

    fn end_all(&mut self, reason: EndReason, effects: &mut Vec<SessionEffect>) {
        let code = events::code_of_turns_at(reason);
        self.give_up(reason, code, (code, self.loss_of_waiting()), effects);
    }

    /// Ends the session, and with it the running and the waiting turns.
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
        // A keeper that has exited cannot be stopped.
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

/// The first of several attempts to start a worker.
const FIRST_START: WorkerHistory = WorkerHistory { starts: 1, notice: LossNotice::Given };

impl WorkerHistory {
    /// The history of the next attempt, unless the limit is reached.
    fn next_attempt(self) -> Option<Self> {
        (self.starts < START_ATTEMPTS_MAX).then(|| Self { starts: self.starts + 1, ..self })
    }
}

/// The error code of a turn that this limit ended.
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
