//! What the keeper says: its answer to an attach, its events, its silence. Events that only carry
//! bytes go to the journal as they are; those that move the session go through the lifecycle.

use std::time::Instant;

use bytes::Bytes;
use windlass_journal::NewEvent;
use windlass_lifecycle::link::Arrival;
use windlass_lifecycle::session::KeeperLoss;
use windlass_lifecycle::{Effect, Event};
use windlass_protocol::api::{DisplayRef, StdinWait};
use windlass_protocol::event::EventKind;
use windlass_protocol::link::{Attached, FromKeeper, RefuseReason};
use windlass_protocol::worker::WorkerOutcome;
use windlass_protocol::{LinkSeq, Outcome, Seq, TurnNo};

use super::actor::{Actor, Leave};
use super::calls::CallPart;
use super::effects::{Act, Reported};
use super::requests::answer;
use crate::clock::now_ms;
use crate::keepers;

/// How often a cut link is opened again before the keeper is given up.
const REOPEN_MAX: u32 = 3;

impl Actor {
    /// Takes all whole messages that have come, as one round.
    pub(super) fn take_messages(&mut self) -> Option<Leave> {
        let mut leave = None;
        loop {
            match self.link.next_message() {
                Ok(None) => break,
                Ok(Some((message, body))) => leave = leave.or(self.take_message(message, body)),
                Err(error) => {
                    tracing::error!(session = %self.id, %error, "giving up the keeper");
                    self.lose_keeper("it said what is no message");
                    break;
                }
            }
        }
        self.commit();
        self.link.acknowledge_some();
        let _ = self.link.flush();
        self.confirm();
        leave
    }

    fn take_message(&mut self, message: FromKeeper, body: Bytes) -> Option<Leave> {
        match message {
            FromKeeper::Attached(attached) => self.take_attached(*attached),
            FromKeeper::Refused { epoch, reason } => {
                tracing::warn!(session = %self.id, %epoch, ?reason, "the keeper refused this node");
                match reason {
                    RefuseReason::StaleEpoch => return Some(Leave::Released(None)),
                    RefuseReason::BadAttach | RefuseReason::NotLaunched => {
                        self.lose_keeper("it refused the attach");
                    }
                }
            }
            FromKeeper::Seen { command } => self.link.half.seen(command),
            // Told on the line that a keeper waits on, before it has a session.
            FromKeeper::Prepared { .. } => {}
            FromKeeper::Forked { session, end } => self.forked(&session, end),
            FromKeeper::Event { link, command, turn, event } => {
                self.link.half.seen(command);
                match self.link.half.arrived(link) {
                    Arrival::Again => {}
                    Arrival::Next => self.take_event(link, turn, event, body),
                    Arrival::Gap { missing } => {
                        self.missed_for_room(missing);
                        self.take_event(link, turn, event, body);
                    }
                }
                if self.attached.as_ref().is_some_and(|attached| link >= attached.last) {
                    self.caught_up();
                }
            }
        }
        None
    }

    fn take_attached(&mut self, attached: Attached) {
        self.greet(&attached);
        self.take_failed(&attached);
        if self.timers.deadline.is_none() {
            self.rearm(&attached);
        }
        let held = attached.last > self.link.half.after();
        self.attached = Some(attached);
        if !held {
            self.caught_up();
        }
    }

    /// The keeper answered: now it gets the commands that waited for it.
    pub(super) fn greet(&mut self, attached: &Attached) {
        {
            let mut info = self.info.lock().expect("no holder of this lock can panic");
            let pid = Some(attached.pid).filter(|pid| *pid != 0);
            info.keeper_pid = pid.or_else(|| self.link.peer_pid());
            info.hold = Some(attached.hold);
        }
        self.fork.keeper_said(attached);
        self.owed.keeper_said(attached);
        self.context.keepers.starting.answered(&self.id);
        if let Err(error) = self.link.attached(attached) {
            tracing::warn!(session = %self.id, %error, "the keeper's link broke");
        }
    }

    fn take_event(
        &mut self,
        link: LinkSeq,
        turn: Option<TurnNo>,
        mut kind: EventKind,
        body: Bytes,
    ) {
        if let EventKind::TurnEnded { outcome, error, usage, .. } = kind {
            let reported = Reported { link: Some(link), error, usage: Some(usage) };
            return self.turn_done(turn, outcome, reported);
        }
        if let EventKind::ToolCall { call, name, deadline_ms, offset, more, .. } = kind {
            let turn = turn.unwrap_or_default();
            let part = CallPart { turn, call, name, deadline_ms, offset, more, body };
            return self.take_call(link, part);
        }
        if let EventKind::Confined(confinement) = &kind {
            let mut info = self.info.lock().expect("no holder of this lock can panic");
            info.confinement = Some(confinement.clone());
        }
        if let EventKind::Output { background, .. } = &mut kind {
            // The node ended the turn before the keeper had told all of it: its output is told to be complete.
            *background |=
                turn.and_then(|turn| self.turns.get(turn)).is_some_and(|turn| turn.end.is_some());
        }
        self.note(turn, &kind, &body);
        self.limits.hear(&kind);
        if matches!(kind, EventKind::WorkerReady { .. }) {
            // What a restart was waited for.
            self.timers.keeper = None;
        }
        let moved = lifecycle_event(turn, &kind);
        let waits = matches!(kind, EventKind::StdinWait { .. });
        let given_up = match kind {
            EventKind::ToolCancel { call } => turn.zip(Some(call)),
            _ => None,
        };
        self.records.push(NewEvent { at_ms: now_ms(), turn, link: Some(link), kind, body });
        if let Some(event) = moved {
            self.step(event);
            self.note_carried_state(event);
        }
        if let Some((turn, call)) = given_up {
            self.call_given_up(turn, call);
        }
        if let Some(turn) = turn.filter(|_| waits) {
            self.acts.push(Act::Settle { turn });
        }
    }

    /// The end of a turn as the keeper saw it; the lifecycle has the last word on its outcome.
    fn turn_done(&mut self, turn: Option<TurnNo>, outcome: Outcome, mut reported: Reported) {
        let link = reported.link;
        let outcome = match outcome {
            Outcome::Ok => WorkerOutcome::Ok,
            Outcome::Interrupted => WorkerOutcome::Interrupted,
            Outcome::Error | Outcome::TimedOut | Outcome::Lost => WorkerOutcome::Error,
        };
        let turn = turn.unwrap_or_default();
        if outcome == WorkerOutcome::Interrupted {
            self.interrupted_without_record(turn);
        }
        let (machine, effects) =
            std::mem::take(&mut self.machine).step(Event::TurnDone { turn, outcome });
        self.machine = machine;
        for effect in effects {
            match effect {
                Effect::Finish { turn: ended, outcome, code, loss } if ended == turn => {
                    self.finish(ended, outcome, code, loss, Some(std::mem::take(&mut reported)));
                }
                other => self.plan(other),
            }
        }
        if reported.link.is_some() {
            // Late: the turn had been ended without the keeper. Its number must not be lost.
            let reason = "the late end of a turn".to_owned();
            let kind = EventKind::MessagesDropped { count: 1, reason };
            let body = Bytes::new();
            self.records.push(NewEvent { at_ms: now_ms(), turn: None, link, kind, body });
        }
    }

    /// What replies will say of the turn.
    fn note(&mut self, turn: Option<TurnNo>, kind: &EventKind, body: &Bytes) {
        let place = self.log.facts().last_seq.0 + self.records.len() as u64 + 1;
        let Some(turn) = turn.and_then(|turn| self.turns.get_mut(turn)) else { return };
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
                    turn.show(DisplayRef { seq: Seq(place), mime, id, bytes }, *update);
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

    /// Answers those whose command the keeper has seen.
    fn confirm(&mut self) {
        let waited = self.confirmations.len();
        let mut place = 0;
        while place < self.confirmations.len() {
            if self.link.half.is_seen(self.confirmations[place].command) {
                let confirmed = self.confirmations.swap_remove(place);
                answer(confirmed.reply, self.snapshot(confirmed.turn));
            } else {
                place += 1;
            }
        }
        if self.confirmations.len() < waited {
            let patience = self.context.config.keeper_patience;
            let left = !self.confirmations.is_empty();
            self.timers.confirmation = left.then(|| Instant::now() + patience);
        }
    }

    /// The link is cut. A keeper that lives is attached to again; one that does not is lost.
    pub(super) fn keeper_hung_up(&mut self) {
        for _ in 0..REOPEN_MAX {
            if self.link.reopen().is_ok() {
                return;
            }
        }
        self.step(Event::KeeperLost(KeeperLoss::Died));
        self.commit();
    }

    /// Gives up a keeper that does not answer or talks nonsense, and ends it.
    pub(super) fn lose_keeper(&mut self, why: &str) {
        tracing::warn!(session = %self.id, why, "ending the keeper");
        self.end_keeper();
        self.step(Event::KeeperLost(KeeperLoss::Died));
    }

    pub(super) fn end_keeper(&self) {
        let pid = self.info.lock().expect("no holder of this lock can panic").keeper_pid;
        match pid {
            Some(pid) => keepers::end(pid),
            None => self.context.keepers.starting.end(&self.id),
        }
    }
}

/// What an event means for the session's life.
fn lifecycle_event(turn: Option<TurnNo>, kind: &EventKind) -> Option<Event> {
    let of_turn = turn.unwrap_or_default();
    match kind {
        EventKind::WorkerReady { .. } => Some(Event::WorkerReady),
        EventKind::WorkerEnded { replaced: true, .. } => {
            Some(Event::WorkerReplaced { running: turn })
        }
        EventKind::WorkerEnded { limit, .. } => Some(Event::WorkerEnded { limit: *limit }),
        EventKind::ProtocolBroken { .. } => Some(Event::ProtocolBroken),
        EventKind::StdinWait { .. } => Some(Event::StdinWaited { turn: of_turn }),
        EventKind::InputTaken { .. } => Some(Event::InputTaken { turn: of_turn }),
        _ => None,
    }
}
