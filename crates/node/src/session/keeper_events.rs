//! Handles what the keeper sends: its answer to an attach, its events, a closed link. Events that only
//! carry bytes go to the journal unchanged. Events that change the session's state also step the lifecycle.

use bytes::Bytes;
use windlass_lifecycle::link::Arrival;
use windlass_lifecycle::session::KeeperLoss;
use windlass_lifecycle::{SessionEffect, SessionEvent};
use windlass_protocol::api::{DisplayRef, SessionState, StdinWait, TurnState};
use windlass_protocol::event::EventKind;
use windlass_protocol::host::CancelReason;
use windlass_protocol::link::{AttachReply, FromKeeper, RefuseReason};
use windlass_protocol::worker::WorkerOutcome;
use windlass_protocol::{LinkSeq, Outcome, Seq, TurnNo};

use super::actor::{Actor, LeaveReason};
use super::answer;
use super::calls::{CallPart, ToolCalls};
use super::round::{SessionAct, TurnEndReport};
use crate::keepers;

/// How often the node reconnects after the link is cut, before it takes the keeper as lost.
const REOPEN_MAX: u32 = 3;

impl Actor {
    /// Handles all complete messages in the read buffer, as one round.
    pub(super) fn take_messages(&mut self) -> Option<LeaveReason> {
        let mut leave = None;
        loop {
            match self.keeper.link.next_message() {
                Ok(None) => break,
                Ok(Some((message, body))) => leave = leave.or(self.take_message(message, body)),
                Err(error) => {
                    tracing::error!(session = %self.id, %error, "the keeper sent a malformed message");
                    self.lose_keeper("the keeper sent a malformed message");
                    break;
                }
            }
        }
        self.commit();
        self.keeper.link.acknowledge_some();
        self.keeper.flush();
        for confirmed in self.keeper.take_confirmed() {
            answer(confirmed.reply, self.snapshot(confirmed.turn));
        }
        leave
    }

    fn take_message(&mut self, message: FromKeeper, body: Bytes) -> Option<LeaveReason> {
        match message {
            FromKeeper::Attached(attached) => self.take_attached(*attached),
            FromKeeper::Refused { epoch, reason } => {
                tracing::warn!(session = %self.id, %epoch, ?reason, "the keeper refused this node");
                match reason {
                    RefuseReason::StaleEpoch => return Some(LeaveReason::Released(None)),
                    RefuseReason::BadAttach | RefuseReason::NotLaunched => {
                        self.lose_keeper("the keeper refused the attach");
                    }
                }
            }
            FromKeeper::Seen { command } => self.keeper.link.half.seen(command),
            // A keeper sends this only before it has a session, to the code that fills the pool.
            FromKeeper::Prepared { .. } => {}
            FromKeeper::Forked { session, end } => self.fork.fork_done(&self.id, &session, end),
            FromKeeper::Event { link, command, turn, event } => {
                self.keeper.link.half.seen(command);
                match self.keeper.link.half.arrived(link) {
                    Arrival::Again => {}
                    Arrival::Next => self.take_event(link, turn, event, body),
                    Arrival::Gap { missing } => {
                        self.record_gap(missing);
                        self.take_event(link, turn, event, body);
                    }
                }
                if self.keeper.attached.as_ref().is_some_and(|attached| link >= attached.last) {
                    self.caught_up();
                }
            }
        }
        None
    }

    fn take_attached(&mut self, attached: AttachReply) {
        self.greet(&attached);
        if !self.queue.has_deadline() {
            self.queue.rearm(&attached, self.machine.current());
        }
        let held = attached.last > self.keeper.link.half.after();
        self.keeper.attached = Some(attached);
        if !held {
            self.caught_up();
        }
    }

    /// The keeper accepted the attach: send it the commands that waited for this.
    pub(super) fn greet(&mut self, attached: &AttachReply) {
        {
            let mut info = self.view.info();
            let pid = Some(attached.pid).filter(|pid| *pid != 0);
            info.keeper_pid = pid.or_else(|| self.keeper.link.peer_pid());
            info.hold = Some(attached.hold);
        }
        self.keeper.takes_context = Some(attached.takes_context);
        self.fork.keeper_said(attached);
        self.journal.keeper_said(attached);
        self.context.host.keepers.processes.answered(&self.id);
        if let Err(error) = self.keeper.link.attached(attached) {
            tracing::warn!(session = %self.id, %error, "the keeper's link broke");
        }
    }

    /// The node has taken in all events that the keeper held. Now send the commands that the keeper lacks,
    /// and stop a turn that should not run.
    fn caught_up(&mut self) {
        let Some(attached) = self.keeper.attached.take() else { return };
        self.keeper.has_answered();
        self.drop_unended(&attached);
        for effect in self.machine.resume(attached.last_turn, attached.restarts) {
            if let SessionEffect::Start { turn } = effect
                && (!self.keeper.link.half.lacks(&attached, turn) || self.round.starts(turn))
            {
                continue;
            }
            self.plan(effect, &mut None);
        }
        if matches!(self.machine.state(), SessionState::Starting | SessionState::Restarting) {
            self.keeper.expect_answer();
        }
        if let Some(turn) = attached.running.filter(|_| !attached.calls.is_empty()) {
            let (node, round) = (&self.context, &mut self.round);
            self.calls.fail_unknown(turn, &attached.calls, node, round);
        }
        if attached.running.is_some() && attached.running != self.machine.current() {
            // The keeper runs a turn that has ended according to the journal. Only a fresh worker is safe.
            self.apply(SessionEvent::ResetAsked);
        }
    }

    /// Ends a turn that the keeper has ended although its end is not in the journal: the disk was full
    /// when the earlier node died. The session would wait for this turn forever.
    fn drop_unended(&mut self, attached: &AttachReply) {
        if let Some(turn) = self.machine.current()
            && turn <= attached.last_turn
            && attached.running.is_none()
            && attached.last <= self.keeper.link.half.after()
        {
            self.journal.cut(turn);
            self.apply(SessionEvent::TurnDone { turn, outcome: WorkerOutcome::Error });
        }
    }

    /// Records that `missing` events are lost: an earlier node was killed while the disk was full and could
    /// not write them. The running turn is incomplete and fails with `disk_full`, as that node had reported.
    fn record_gap(&mut self, missing: u64) {
        tracing::warn!(session = %self.id, missing, "events are missing, because the disk was full");
        if let Some(turn) = self.machine.current() {
            self.journal.cut(turn);
        }
        let kind = dropped(missing, "the disk was full");
        self.round.record(None, kind, Bytes::new());
    }

    fn take_event(
        &mut self,
        link: LinkSeq,
        turn: Option<TurnNo>,
        mut kind: EventKind,
        body: Bytes,
    ) {
        if let EventKind::TurnEnded { outcome, error, usage, exit_code, value, .. } = kind {
            let turn = turn.unwrap_or_default();
            let (link, usage) = (Some(link), Some(usage));
            let reported = TurnEndReport { turn, link, error, usage, exit_code, value };
            return self.turn_done(turn, outcome, reported);
        }
        if let EventKind::ToolCall { call, name, deadline_ms, offset, more, .. } = kind {
            let turn = turn.unwrap_or_default();
            let part = CallPart { turn, call, name, deadline_ms, offset, more, body };
            return ToolCalls::take_call(link, part, &mut self.round);
        }
        if let EventKind::Confined(confinement) = &kind {
            self.view.info().confinement = Some(confinement.clone());
        }
        if let EventKind::Output { background, .. } = &mut kind {
            // The node ended the turn before the keeper had sent all its output, and has reported the output
            // as complete. So the rest is background output.
            *background |= turn
                .and_then(|turn| self.queue.turns.get(turn))
                .is_some_and(|turn| turn.end.is_some());
        }
        self.note(turn, &kind, &body);
        self.queue.limits.note(&kind);
        if let EventKind::WorkerReady { start, figures, .. } = &mut kind {
            // A restart is over.
            self.keeper.has_answered();
            let is_recorded = self.context.config.workers.start_figures;
            if let Some(measured) = figures {
                let (kind, metrics) =
                    (&self.journal.facts().created.worker_kind, &self.context.metrics);
                metrics.worker_ready(kind, *start, measured);
                if is_recorded {
                    metrics.worker_started(kind, *start, measured);
                }
            }
            if !is_recorded {
                *figures = None;
            }
        }
        let event = lifecycle_event(turn, &kind);
        let waits = matches!(kind, EventKind::StdinWait { .. });
        let given_up = match kind {
            EventKind::ToolCancel { call } => turn.zip(Some(call)),
            _ => None,
        };
        self.round.record_from_keeper(Some(link), turn, kind, body);
        if let Some(event) = event {
            self.apply(event);
        }
        if let Some((turn, call)) = given_up {
            let reason = match self.machine.turn_state(turn) {
                TurnState::Interrupting => CancelReason::Interrupted,
                _ => CancelReason::GivenUp,
            };
            // After the act that passes the call on: both may come at once.
            self.round.acts.push(SessionAct::CancelCall { turn, call, reason });
        }
        if let Some(turn) = turn.filter(|_| waits) {
            self.round.acts.push(SessionAct::Settle { turn });
        }
    }

    /// The keeper reports the end of a turn. The lifecycle decides the outcome.
    fn turn_done(&mut self, turn: TurnNo, outcome: Outcome, reported: TurnEndReport) {
        let outcome = match outcome {
            Outcome::Ok => WorkerOutcome::Ok,
            Outcome::Interrupted => WorkerOutcome::Interrupted,
            Outcome::Error | Outcome::TimedOut | Outcome::Lost => WorkerOutcome::Error,
        };
        // The keeper held an event of an interrupted turn, and the journal has no interrupt for it. Only a
        // node with a full disk interrupts without a record, and it told its clients `disk_full`.
        let is_asked = self.machine.turn_state(turn) == TurnState::Interrupting;
        if outcome == WorkerOutcome::Interrupted && self.keeper.attached.is_some() && !is_asked {
            self.journal.cut(turn);
        }
        let mut reported = Some(reported);
        self.apply_reported(SessionEvent::TurnDone { turn, outcome }, &mut reported);
        if let Some(TurnEndReport { link, .. }) = reported {
            // Late: the node had ended the turn without the keeper. Record the event's number all the same,
            // because numbers must have no gap.
            let kind = dropped(1, "the late end of a turn");
            self.round.record_from_keeper(link, None, kind, Bytes::new());
        }
    }

    /// Updates the turn as replies show it.
    fn note(&mut self, turn: Option<TurnNo>, kind: &EventKind, body: &Bytes) {
        let next_seq = self.journal.facts().last_seq.0 + self.round.records.len() as u64 + 1;
        let Some(turn) = turn.and_then(|turn| self.queue.turns.get_mut(turn)) else { return };
        match kind {
            EventKind::Output { background: false, .. } => {
                turn.output.push(body);
                self.context.metrics.output(body.len());
            }
            EventKind::Display { mime, id, update, more } => {
                turn.display_bytes += body.len() as u64;
                if !more {
                    let bytes = std::mem::take(&mut turn.display_bytes);
                    let (mime, id) = (mime.clone(), id.clone());
                    turn.show(DisplayRef { seq: Seq(next_seq), mime, id, bytes }, *update);
                }
            }
            EventKind::StdinWait { prompt, secret } => {
                turn.stdin_wait = Some(StdinWait { prompt: prompt.clone(), secret: *secret });
            }
            EventKind::InputTaken { bytes } => {
                turn.stdin_wait = None;
                turn.input_bytes = turn.input_bytes.saturating_sub(*bytes as usize);
            }
            _ => {}
        }
    }

    /// The link is cut. Reconnect if the keeper lives; otherwise the keeper is lost.
    pub(super) fn keeper_hung_up(&mut self) {
        for _ in 0..REOPEN_MAX {
            if self.keeper.link.reopen().is_ok() {
                return;
            }
        }
        self.apply(SessionEvent::KeeperLost(KeeperLoss::Died));
        self.commit();
    }

    /// Ends a keeper that does not answer or sends malformed messages.
    pub(super) fn lose_keeper(&mut self, why: &str) {
        tracing::warn!(session = %self.id, why, "ending the keeper");
        self.end_keeper();
        self.apply(SessionEvent::KeeperLost(KeeperLoss::Died));
    }

    pub(super) fn end_keeper(&self) {
        let pid = self.view.info().keeper_pid;
        match pid {
            Some(pid) => keepers::end(pid),
            None => {
                let keepers = self.context.host.keepers.clone();
                if let Some(unanswered) = keepers.processes.take(&self.id) {
                    // Ending it may block for a moment, so it runs on another thread, and nothing waits for
                    // it.
                    drop(tokio::task::spawn_blocking(move || {
                        keepers.processes.end_taken(unanswered);
                    }));
                }
            }
        }
    }
}

fn dropped(count: u64, reason: &str) -> EventKind {
    EventKind::MessagesDropped { count, reason: reason.to_owned() }
}

/// The lifecycle event that follows from a keeper's event, if any.
fn lifecycle_event(turn: Option<TurnNo>, kind: &EventKind) -> Option<SessionEvent> {
    let of_turn = turn.unwrap_or_default();
    match kind {
        EventKind::WorkerReady { .. } => Some(SessionEvent::WorkerReady),
        EventKind::WorkerEnded { replaced: true, .. } => {
            Some(SessionEvent::WorkerReplaced { running: turn })
        }
        EventKind::WorkerEnded { limit, .. } => Some(SessionEvent::WorkerEnded { limit: *limit }),
        EventKind::ProtocolBroken { .. } => Some(SessionEvent::ProtocolBroken),
        EventKind::LimitReached { ends_session: true, .. } => Some(SessionEvent::DiskPassed),
        EventKind::StdinWait { .. } => Some(SessionEvent::StdinWaited { turn: of_turn }),
        EventKind::InputTaken { .. } => Some(SessionEvent::InputTaken { turn: of_turn }),
        _ => None,
    }
}
