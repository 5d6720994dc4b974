//! The ends of an owner's time with a session: catching up with a keeper after an attach, telling
//! the world how things stand, and leaving.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;
use windlass_journal::NewEvent;
use windlass_lifecycle::session::Loss;
use windlass_lifecycle::{Effect, Event};
use windlass_protocol::SessionId;
use windlass_protocol::api::SessionState;
use windlass_protocol::event::{EndReason, EventKind, Usage};
use windlass_protocol::link::{Attached, FromKeeper};
use windlass_protocol::worker::WorkerOutcome;

use super::actor::{Actor, Leave};
use super::disk::OWED_RETRY;
use super::keeper_link::Filled;
use super::receipts::WorkspaceFate;
use super::requests::answer;
use super::{effects, receipts};
use crate::clock::now_ms;
use crate::session_dirs;
use crate::{disk, keepers};

/// How long a keeper may take to end beyond the grace it was given.
const SEE_OFF: Duration = Duration::from_secs(5);

impl Actor {
    /// Everything the keeper held is taken in: now what it lacks is sent, and what it should not
    /// be doing is stopped.
    pub(super) fn caught_up(&mut self) {
        let Some(attached) = self.attached.take() else { return };
        self.timers.keeper = None;
        self.drop_unended(&attached);
        for effect in self.machine.resume(attached.last_turn, attached.restarts) {
            if let Effect::Start { turn } = effect
                && !self.link.half.lacks(&attached, turn)
            {
                continue;
            }
            self.plan(effect);
        }
        if matches!(self.machine.state(), SessionState::Starting | SessionState::Restarting) {
            self.expect_keeper();
        }
        if let Some(turn) = attached.running.filter(|_| !attached.calls.is_empty()) {
            self.fail_unknown_calls(turn, &attached.calls);
        }
        if attached.running.is_some() && attached.running != self.machine.current() {
            // It runs a turn that the journal knows as ended: only a fresh worker is sure.
            self.step(Event::ResetAsked);
        }
    }

    /// A turn that the keeper has ended although the journal never learned so (the disk was full
    /// when a node died) would otherwise be waited for forever.
    fn drop_unended(&mut self, attached: &Attached) {
        if let Some(turn) = self.machine.current()
            && turn <= attached.last_turn
            && attached.running.is_none()
            && attached.last <= self.link.half.after()
        {
            if let Some(open) = self.turns.get_mut(turn) {
                open.disk_full = true;
            }
            let outcome = WorkerOutcome::Error;
            self.step(Event::TurnDone { turn, outcome });
        }
    }

    /// Makes this round's changes visible.
    pub(super) fn publish(&mut self) {
        let facts = self.log.facts();
        {
            let mut info = self.info.lock().expect("no holder of this lock can panic");
            info.state = self.machine.state();
            let running = self.machine.current().and_then(|turn| self.turns.get(turn));
            info.turn = running.map(|turn| turn.id.clone());
            info.waiting = self.machine.waiting().len();
            info.turns = facts.last_turn.0;
            info.seq = facts.last_seq;
            info.output_bytes = facts.output_bytes;
            info.output_dropped_bytes = facts.output_dropped_bytes;
            info.messages_dropped = facts.messages_dropped;
            info.restarts = facts.restarts;
            info.worker_pid = facts.worker_pid;
            info.started_by = facts.started_by;
            if let Some(worker) = &facts.worker
                && info.worker != *worker
            {
                info.worker.clone_from(worker);
            }
            info.ended.clone_from(&facts.ended);
            if info.ended.is_none() {
                info.ended = self.owed.session_end();
            }
        }
        let seq = facts.last_seq;
        self.seen.send_if_modified(|seen| std::mem::replace(seen, seq) != seq);
    }

    pub(super) async fn leave(mut self, leave: Leave) {
        match leave {
            Leave::Ended => self.see_off().await,
            Leave::Released(reply) => self.release(reply),
        }
    }

    /// The session is over: its keeper goes, with everything it holds, before anybody is told.
    async fn see_off(&mut self) {
        for waiter in std::mem::take(&mut self.waiters) {
            answer(waiter.reply, self.snapshot(waiter.turn));
        }
        let grace_ms = self.closing.as_ref().map_or(0, |closing| closing.grace_ms);
        let until = Instant::now() + Duration::from_millis(grace_ms) + SEE_OFF;
        let gone = tokio::time::timeout_at(until.into(), self.until_hung_up()).await;
        if gone.is_err() {
            self.end_keeper();
        }
        keepers::remove_socket(&self.link.path);
        let had_placeholders = self.context.placeholders.are_needed_by(&self.id);
        self.remove_belongings().await;
        if !self.owed.is_empty() {
            self.answer_closers();
            if let Some(released) = self.until_recorded().await {
                self.context.leave(&self.id);
                let _ = released.send(());
                return;
            }
        }
        self.context.forget(&self.id);
        // Of those that end at the same moment, the last to be forgotten finds the family empty.
        if let Some(room) = self.fork.first_room() {
            let context = self.context.clone();
            let _ = tokio::task::spawn_blocking(move || disk::settle(&context, &room)).await;
        }
        self.answer_closers();
        if had_placeholders {
            let context = self.context.clone();
            drop(tokio::task::spawn_blocking(move || context.placeholders.stock_up()));
        }
    }

    fn answer_closers(&mut self) {
        if let Some(closing) = self.closing.take() {
            for reply in closing.replies {
                answer(reply, Ok(()));
            }
        }
    }

    /// Answers for a session that is over while its end is only owed to the journal: until there is room, or this
    /// node stops and the next one finds the keeper gone.
    async fn until_recorded(&mut self) -> Option<oneshot::Sender<()>> {
        while !self.owed.is_empty() {
            let asked = tokio::time::timeout(OWED_RETRY, self.inbox.recv()).await;
            match asked.map(|request| request.map(|request| self.serve(request))) {
                Err(_) => {
                    self.write_owed();
                    self.publish();
                }
                Ok(None) => return None,
                Ok(Some(Some(Leave::Released(reply)))) => return reply,
                Ok(Some(_)) => self.answer_closers(),
            }
        }
        None
    }

    /// What was made for the session beside its journal and workspace.
    async fn remove_belongings(&mut self) {
        let (dirs, tmp) = (std::mem::take(&mut self.cgroups), self.family_tmp());
        let room = self.fork.first_room();
        let has_placeholders = self.context.placeholders.are_needed_by(&self.id);
        if !dirs.is_empty() || tmp.is_some() || room.is_some() || has_placeholders {
            let (context, id) = (self.context.clone(), self.id.clone());
            let keeper_lost = self.machine.end_reason() == Some(EndReason::KeeperLost);
            let remove = move || {
                if keeper_lost {
                    context.cgroups.remove_lost(&dirs);
                } else {
                    context.cgroups.remove(&dirs);
                }
                context.placeholders.release(&id);
                if let Some(room) = room {
                    session_dirs::remove_empty(&context.config, &room);
                }
                if let Some(tmp) = tmp {
                    session_dirs::remove(&context.config, &tmp);
                }
            };
            // It fails only with the runtime.
            let _ = tokio::task::spawn_blocking(remove).await;
        }
    }

    async fn until_hung_up(&mut self) {
        loop {
            let _ = self.link.flush();
            self.link.acknowledge_all();
            match self.link.fill().await {
                Filled::Closed => return,
                Filled::Room => {}
                Filled::Some => {
                    // What a session says after its end is nobody's. But a keeper that answers
                    // only now has not been told to stop.
                    while let Ok(Some((message, _))) = self.link.next_message() {
                        if let FromKeeper::Attached(attached) = message {
                            self.greet(&attached);
                        }
                    }
                }
            }
        }
    }

    fn release(&mut self, reply: Option<oneshot::Sender<()>>) {
        // For whoever waits it is as if the wait had passed: the turn runs on.
        for waiter in std::mem::take(&mut self.waiters) {
            answer(waiter.reply, self.snapshot(waiter.turn));
        }
        // There may be room again for what is owed; if not, the keeper has it.
        let _ = self.try_write(&mut Vec::new());
        self.link.acknowledge_all();
        let _ = self.link.flush();
        if self.link.is_flushed() {
            // The keeper reads what lies in its socket, whoever goes.
            for given in std::mem::take(&mut self.confirmations) {
                answer(given.reply, self.snapshot(given.turn));
            }
        }
        self.context.leave(&self.id);
        if let Some(reply) = reply {
            let _ = reply.send(());
        }
    }
}

/// The records of a keeper's death when no owner is there to write them.
pub(super) fn records_of_loss(
    id: &SessionId,
    effects: &[Effect],
    workspace: WorkspaceFate,
) -> Vec<NewEvent> {
    let record =
        |turn, kind| NewEvent { at_ms: now_ms(), turn, link: None, kind, body: Bytes::new() };
    effects
        .iter()
        .filter_map(|effect| match *effect {
            Effect::Finish { turn, outcome, code, loss } => {
                let receipt = (loss == Loss::State).then(|| receipts::state_lost(id));
                let error = code.map(|code| effects::explain(code, None));
                let usage = Usage::default();
                Some(record(Some(turn), EventKind::TurnEnded { outcome, error, usage, receipt }))
            }
            Effect::End { reason } => {
                let receipt = receipts::session_ended(id, reason, workspace);
                Some(record(None, EventKind::SessionEnded { reason, message: None, receipt }))
            }
            _ => None,
        })
        .collect()
}
