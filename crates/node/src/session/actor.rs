//! The task that owns one session. Each round it takes one event, decides (the pure step of the
//! lifecycle), writes the decision to the journal, and only then acts. So a client or a keeper never
//! learns anything that is not in the journal.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use windlass_lifecycle::{SessionEffect, SessionEvent, SessionMachine};
use windlass_protocol::api::TurnState;
use windlass_protocol::{ErrorCode, SessionId, TurnId, TurnNo};

use super::Request;
use super::calls::ToolCalls;
use super::fork::ForkSide;
use super::journal_side::{JournalSide, JournalWrite, fail_cut_turns};
use super::keeper_link::LinkActivity;
use super::keeper_side::KeeperSide;
use super::leaving::leave;
use super::lifetime::Lifetime;
use super::public_view::PublicView;
use super::round::{Round, TurnEndReport};
use super::turn_queue::TurnQueue;
use super::turns::{OutputExtent, Snapshot};
use crate::context::Context;
use crate::failure::Failure;

/// Maximum number of reads from the keeper before the owner acts on a timer. A keeper that sends without a
/// pause cannot delay a deadline.
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

/// Why the owner task ends.
pub(super) enum LeaveReason {
    /// The session is over.
    Ended,
    /// A newer node has the keeper, or this node stops. The session goes on without this node.
    Released(Option<oneshot::Sender<()>>),
}

/// What the sender of an event is told, besides what is recorded and done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EventVerdict {
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
                break LeaveReason::Ended;
            }
        };
        leave(self, left).await;
    }

    /// Waits for one event and handles it completely.
    async fn round(&mut self) -> Option<LeaveReason> {
        let dues = [
            self.queue.next_due(),
            self.keeper.due(),
            self.journal.next_due(),
            self.life.next_due(),
            self.calls.next_deadline(),
        ];
        let next = dues.into_iter().flatten().min();
        // `select!` picks in random order, so a flood of output cannot starve requests, nor the reverse.
        tokio::select! {
            filled = self.keeper.link.fill() => self.hear_keeper(filled),
            request = self.inbox.recv() => match request {
                Some(request) => self.serve(request),
                None => Some(LeaveReason::Released(None)),
            },
            () = self.fork.released(), if self.fork.is_held() => {
                self.fork.release();
                self.apply(SessionEvent::HoldReleased);
                self.commit();
                None
            }
            () = self.life.alarm.rings(next) => {
                // If the node was stopped for a while, the keeper's messages are older than the timer: read
                // them first.
                let leave = self.read_pending().await;
                self.pass_time();
                leave
            }
        }
    }

    /// Reads what the keeper has sent by now, with a bounded number of reads.
    async fn read_pending(&mut self) -> Option<LeaveReason> {
        for _ in 0..READS_BEFORE_TIME_MAX {
            let filled = tokio::select! {
                biased;
                filled = self.keeper.link.fill() => filled,
                () = std::future::ready(()) => return None,
            };
            let closed = filled == LinkActivity::Closed;
            if let leave @ Some(_) = self.hear_keeper(filled) {
                return leave;
            }
            if closed || self.machine.is_ended() {
                return None;
            }
        }
        None
    }

    fn hear_keeper(&mut self, filled: LinkActivity) -> Option<LeaveReason> {
        match filled {
            LinkActivity::Received => {
                self.keeper.has_sent();
                self.take_messages()
            }
            LinkActivity::Writable => {
                self.calls.send_waiting(&mut self.keeper);
                self.commit();
                None
            }
            LinkActivity::Closed => {
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
            self.lose_keeper("the keeper did not answer in time");
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

    /// Ends the session if no client has used it for its idle timeout.
    fn pass_idle_time(&mut self, now: Instant) {
        // A tool host of the whole owner is looked for only here. So the session stays for up to twice its
        // timeout after such a host has disconnected.
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
                // The machine refused: a turn runs, or a worker starts.
                self.life.idle.put_off(now);
            }
        }
    }

    /// Steps the machine and plans its effects as records and acts.
    pub(super) fn apply(&mut self, event: SessionEvent) -> EventVerdict {
        self.apply_reported(event, &mut None)
    }

    /// Like [`Self::apply`]. `reported` is the keeper's report of the turn that the event is about; finishing
    /// the turn takes it out.
    pub(super) fn apply_reported(
        &mut self,
        event: SessionEvent,
        reported: &mut Option<TurnEndReport>,
    ) -> EventVerdict {
        let (machine, effects) = std::mem::take(&mut self.machine).step(event);
        self.machine = machine;
        let mut verdict = EventVerdict::Done;
        for effect in effects {
            match effect {
                SessionEffect::Refuse { code, .. }
                | SessionEffect::RefuseInterrupt { code, .. }
                | SessionEffect::RefuseInput { code, .. } => verdict = EventVerdict::Refused(code),
                effect => self.plan(effect, reported),
            }
        }
        verdict
    }

    /// Writes this round's records, then performs its acts.
    pub(super) fn commit(&mut self) {
        self.write_records();
        loop {
            while !self.round.acts.is_empty() {
                for act in std::mem::take(&mut self.round.acts) {
                    self.perform(act);
                }
                // A tool call that could not be passed on has added a record.
                self.write_records();
            }
            match self.keeper.take_failure() {
                Some(why) => self.lose_keeper(&why),
                None => break,
            }
            self.write_records();
        }
        if self.journal.is_settled() {
            self.queue.turns.drop_recorded();
        }
        if !self.machine.has_pending_reset() {
            self.fork.resets_done();
        }
        self.publish();
        self.keeper.flush();
    }

    /// Writes this round's records. Records that cannot be written are owed, and the running turn is stopped.
    fn write_records(&mut self) {
        if self.round.records.is_empty() {
            return;
        }
        let mut records = std::mem::take(&mut self.round.records);
        self.life.audit.note(&self.context.serving.audit, &self.id, &records);
        let written = self.journal.write(&mut records, &mut self.keeper.link.half);
        self.count_failed(written);
        if written == JournalWrite::Failed {
            let mut failed = fail_cut_turns(&mut records, &mut self.queue.turns);
            self.journal.owe(&mut records);
            failed.extend(self.stop_for_full_disk());
            // Before any command is sent: each command tells the keeper which events it may discard.
            self.journal.withhold(&mut self.keeper.link.half);
            // Before a client is told: if this node is killed before the disk has space, the next node
            // reports the same end.
            if self.journal.keeper_remembers() {
                for turn in failed {
                    self.tell_failed(turn);
                }
            }
        }
        // The vector is empty again; the next round reuses its allocation.
        self.round.records = records;
    }

    /// Stops the running turn because the disk is full. Returns the turn the first time.
    fn stop_for_full_disk(&mut self) -> Option<TurnNo> {
        let turn = self.machine.current()?;
        let is_new = self.queue.turns.get(turn).is_some() && self.journal.cut(turn);
        if is_new {
            tracing::warn!(session = %self.id, %turn, "no space left for the journal; stopping the turn");
            self.apply(SessionEvent::InterruptAsked { turn });
            let mut records = std::mem::take(&mut self.round.records);
            self.journal.owe(&mut records);
        }
        is_new.then_some(turn)
    }

    /// Counts a failed write in the metrics.
    pub(super) fn count_failed(&self, written: JournalWrite) {
        if written == JournalWrite::Failed {
            self.context.metrics.append_failed();
        }
    }

    /// Makes this round's changes visible to clients.
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
            found.extent = OutputExtent::of(open);
        }
        let accepted = open.map(|open| open.code_to_seq);
        Ok(Snapshot { turn: found, state, accepted })
    }

    pub(super) fn no_turn(&self, id: &TurnId) -> Failure {
        Failure::new(ErrorCode::TurnNotFound, format!("session {} has no turn {id}", self.id))
    }
}
