//! The task that owns one session. Each round it takes what happened, decides (the lifecycle's
//! pure step), records what was decided, and only then acts: a client or a keeper never learns
//! what is not in the journal.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use windlass_lifecycle::{SessionEffect, SessionEvent, SessionMachine};
use windlass_protocol::api::TurnState;
use windlass_protocol::{ErrorCode, SessionId, TurnId, TurnNo};

use super::Request;
use super::calls::ToolCalls;
use super::effects::Reported;
use super::fork::ForkSide;
use super::journal_side::{JournalSide, Written, fail_cut_turns};
use super::keeper_link::Filled;
use super::keeper_side::KeeperSide;
use super::leaving::leave;
use super::lifetime::Lifetime;
use super::public_view::PublicView;
use super::round::Round;
use super::turn_queue::TurnQueue;
use super::turns::{Extent, Snapshot};
use crate::context::Context;
use crate::failure::Failure;

/// Reads from the keeper before a timer's moment is acted on: a keeper that never stops talking does not keep
/// a deadline from passing.
const READS_BEFORE_TIME_MAX: u32 = 16;

/// The owner of one session.
pub(crate) struct Actor {
    pub(super) id: SessionId,
    pub(super) context: Arc<Context>,
    pub(super) machine: SessionMachine,
    pub(super) inbox: mpsc::Receiver<Request>,
    pub(super) round: Round,
    pub(super) journal: JournalSide,
    pub(super) keeper: KeeperSide,
    pub(super) queue: TurnQueue,
    pub(super) calls: ToolCalls,
    pub(super) fork: ForkSide,
    pub(super) view: PublicView,
    pub(super) life: Lifetime,
}

/// What ends the task.
pub(super) enum Leave {
    /// The session is over.
    Ended,
    /// A newer node has the keeper, or this node stops: the session lives on without us.
    Released(Option<oneshot::Sender<()>>),
}

/// What whoever caused an event is to be told, besides what is recorded and done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    Refused(ErrorCode),
}

impl Actor {
    pub async fn run(mut self) {
        let left = loop {
            if let Some(left) = self.round().await {
                break left;
            }
            if self.machine.is_ended() {
                break Leave::Ended;
            }
        };
        leave(self, left).await;
    }

    /// Waits for one thing to happen and deals with it whole.
    async fn round(&mut self) -> Option<Leave> {
        let dues = [
            self.queue.next_due(),
            self.keeper.due(),
            self.journal.next_due(),
            self.life.next_due(),
            self.calls.next_deadline(),
        ];
        let next = dues.into_iter().flatten().min();
        // In no fixed order: neither a flood of output nor one of requests shuts out the other.
        tokio::select! {
            filled = self.keeper.link.fill() => self.hear_keeper(filled),
            request = self.inbox.recv() => match request {
                Some(request) => self.serve(request),
                None => Some(Leave::Released(None)),
            },
            () = self.fork.released(), if self.fork.is_held() => {
                self.fork.let_go();
                self.apply(SessionEvent::HoldReleased);
                self.commit();
                None
            }
            () = self.life.alarm.rings(next) => {
                // A node that did not run for a while has messages waiting that are older than this moment.
                let leave = self.hear_what_has_come().await;
                self.pass_time();
                leave
            }
        }
    }

    /// Takes in what the keeper has sent by now, a bounded number of reads of it.
    async fn hear_what_has_come(&mut self) -> Option<Leave> {
        for _ in 0..READS_BEFORE_TIME_MAX {
            let filled = tokio::select! {
                biased;
                filled = self.keeper.link.fill() => filled,
                () = std::future::ready(()) => return None,
            };
            let closed = filled == Filled::Closed;
            if let leave @ Some(_) = self.hear_keeper(filled) {
                return leave;
            }
            if closed || self.machine.is_ended() {
                return None;
            }
        }
        None
    }

    fn hear_keeper(&mut self, filled: Filled) -> Option<Leave> {
        match filled {
            Filled::Some => {
                self.keeper.is_heard();
                self.take_messages()
            }
            Filled::Room => {
                self.calls.send_waiting(&mut self.keeper);
                self.commit();
                None
            }
            Filled::Closed => {
                self.keeper_hung_up();
                None
            }
        }
    }

    fn pass_time(&mut self) {
        let now = Instant::now();
        if let Some(event) = self.queue.deadline_passed(now) {
            self.apply(event);
        }
        if let Some(event) = self.queue.grace_passed(now) {
            self.apply(event);
        }
        self.calls.pass_deadlines(now, &self.context, &mut self.round);
        if self.keeper.patience_passed(now) {
            self.lose_keeper("it did not answer in time");
        }
        if self.life.wall_time_passed(now) {
            let wall_s = self.life.wall_s.unwrap_or_default();
            let reached = self.queue.limits.wall_time_passed(wall_s);
            self.round.record(self.machine.current(), reached, Bytes::new());
            self.apply(SessionEvent::WallTimePassed);
        }
        let retried = self.journal.retry(now, &mut self.keeper.link.half);
        self.count_failed(retried);
        if self.life.idle.due().is_some_and(|at| at <= now) {
            self.pass_idle_time(now);
        }
        self.commit();
    }

    /// Ends the session if nobody has used it for its idle timeout.
    fn pass_idle_time(&mut self, now: Instant) {
        // An owner's tool host is looked for only here: the session stays up to twice its timeout after
        // such a host has gone.
        let owner = self.calls.caller.owner.as_ref();
        let is_about_to_be_used = !self.inbox.is_empty()
            || self.fork.is_held()
            || owner.is_some_and(|owner| self.context.tools.serves_owner(owner));
        if is_about_to_be_used {
            return self.life.idle.put_off(now);
        }
        if self.life.idle.has_passed(now) {
            self.apply(SessionEvent::IdlePassed);
            if !self.machine.is_ended() {
                // A turn runs, or a worker starts.
                self.life.idle.put_off(now);
            }
        }
    }

    /// One decision: the machine moves on, and its effects become records and acts.
    pub(super) fn apply(&mut self, event: SessionEvent) -> Verdict {
        self.apply_reported(event, &mut None)
    }

    /// The same. `reported` is what the keeper said of the turn that the event is about; the turn's end
    /// takes it.
    pub(super) fn apply_reported(
        &mut self,
        event: SessionEvent,
        reported: &mut Option<Reported>,
    ) -> Verdict {
        let (machine, effects) = std::mem::take(&mut self.machine).step(event);
        self.machine = machine;
        let mut verdict = Verdict::Done;
        for effect in effects {
            match effect {
                SessionEffect::Refuse { code, .. }
                | SessionEffect::RefuseInterrupt { code, .. }
                | SessionEffect::RefuseInput { code, .. } => verdict = Verdict::Refused(code),
                effect => self.plan(effect, reported),
            }
        }
        verdict
    }

    /// Writes this round's records, then does what they allow.
    pub(super) fn commit(&mut self) {
        self.write_records();
        loop {
            while !self.round.acts.is_empty() {
                for act in std::mem::take(&mut self.round.acts) {
                    self.perform(act);
                }
                // A call that could not be passed on has ended with a record of its own.
                self.write_records();
            }
            match self.keeper.take_failure() {
                Some(why) => self.lose_keeper(&why),
                None => break,
            }
            self.write_records();
        }
        if self.journal.is_settled() {
            self.queue.turns.let_go_of_recorded();
        }
        if !self.machine.has_pending_reset() {
            self.fork.resets_done();
        }
        self.publish();
        self.keeper.flush();
    }

    /// Writes this round's records. What cannot be written is owed, and the running turn stopped.
    fn write_records(&mut self) {
        if self.round.records.is_empty() {
            return;
        }
        let mut records = std::mem::take(&mut self.round.records);
        let written = self.journal.write(&mut records, &mut self.keeper.link.half);
        self.count_failed(written);
        if written == Written::No {
            let mut failed = fail_cut_turns(&mut records, &mut self.queue.turns);
            self.journal.owe(&mut records);
            failed.extend(self.stop_for_room());
            // Before anything is said to the keeper: each command says what it need not hold any more.
            self.journal.withhold(&mut self.keeper.link.half);
            // Before a client is told: should this node be killed before there is room, the next one
            // tells the same end.
            if self.journal.keeper_remembers() {
                for turn in failed {
                    self.tell_failed(turn);
                }
            }
        }
        // Empty again: its room serves the next round.
        self.round.records = records;
    }

    /// Stops the running turn; says which, the first time.
    fn stop_for_room(&mut self) -> Option<TurnNo> {
        let turn = self.machine.current()?;
        let is_new = self.queue.turns.get(turn).is_some() && self.journal.cut(turn);
        if is_new {
            tracing::warn!(session = %self.id, %turn, "the journal has no room; stopping the turn");
            self.apply(SessionEvent::InterruptAsked { turn });
            let mut records = std::mem::take(&mut self.round.records);
            self.journal.owe(&mut records);
        }
        is_new.then_some(turn)
    }

    /// Counts a write that failed.
    pub(super) fn count_failed(&self, written: Written) {
        if written == Written::No {
            self.context.metrics.append_failed();
        }
    }

    /// Makes this round's changes visible.
    pub(super) fn publish(&self) {
        let running = self.machine.current().and_then(|turn| self.queue.turns.get(turn));
        let running = running.map(|turn| turn.id.clone());
        let owed = self.journal.owed_end();
        self.view.publish(&self.machine, self.journal.facts(), running, owed);
    }

    pub(super) fn snapshot(&self, turn: TurnNo) -> Result<Snapshot, Failure> {
        let found = self.queue.turns.get(turn);
        let mut found = found.cloned().ok_or_else(|| self.no_turn(&TurnId::from_number(turn)))?;
        let state = match found.end {
            Some(_) => TurnState::Ended,
            None => self.machine.turn_state(turn),
        };
        let open = self.journal.facts().open_turn(turn).filter(|_| found.end.is_none());
        if let Some(open) = open {
            found.extent = Extent::of(open);
        }
        Ok(Snapshot { turn: found, state })
    }

    pub(super) fn no_turn(&self, id: &TurnId) -> Failure {
        Failure::new(ErrorCode::TurnNotFound, format!("session {} has no turn {id}", self.id))
    }
}
