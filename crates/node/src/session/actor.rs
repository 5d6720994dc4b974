//! The task that owns one session. Each round it takes what happened, decides (the lifecycle's
//! pure step), records what was decided, and only then acts: a client or a keeper never learns
//! what is not in the journal.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use windlass_journal::{NewEvent, SessionLog};
use windlass_lifecycle::link::Given;
use windlass_lifecycle::{Event, Session as Machine};
use windlass_protocol::link::Attached;
use windlass_protocol::{Seq, SessionId, TurnNo, api};

use super::alarm::Alarm;
use super::calls::OpenCalls;
use super::deadlines::Deadlines;
use super::disk::Owed;
use super::effects::Act;
use super::fork::ForkSide;
use super::idle::IdleWatch;
use super::keeper_link::{Filled, KeeperLink};
use super::limits::LimitsHeard;
use super::turns::{Snapshot, Turns};
use super::{Reply, Request};
use crate::context::Context;
use crate::tools::Caller;

/// Replies about turns that may wait in one session; one more is answered at once.
pub(super) const WAITERS_MAX: usize = 1024;

/// Reads from the keeper before a timer's moment is acted on: a keeper that never stops talking does not keep
/// a deadline from passing.
const READS_BEFORE_TIME_MAX: u32 = 16;

/// How late a timer may ring before it is taken that this node itself did not run: then what the worker or
/// the keeper had to do gets its time again, because the node may have asked for it only now.
const LATE: Duration = Duration::from_millis(500);

/// The owner of one session.
pub(crate) struct Actor {
    pub(super) id: SessionId,
    pub(super) context: Arc<Context>,
    pub(super) machine: Machine,
    pub(super) log: SessionLog,
    pub(super) link: KeeperLink,
    pub(super) inbox: mpsc::Receiver<Request>,
    pub(super) info: Arc<Mutex<api::Session>>,
    pub(super) seen: watch::Sender<Seq>,
    pub(super) turns: Turns,
    /// Who its code is, to those who offer tools.
    pub(super) caller: Caller,
    pub(super) calls: OpenCalls,
    pub(super) waiters: Vec<Waiter>,
    /// Replies that wait for the keeper to have seen a command.
    pub(super) confirmations: Vec<Confirmation>,
    pub(super) timers: Timers,
    pub(super) alarm: Alarm,
    /// When it ends if nobody uses it.
    pub(super) idle: IdleWatch,
    /// Of turns that have none of their own.
    pub(super) deadlines: Deadlines,
    pub(super) interrupt_grace_ms: u64,
    /// How long the session may live.
    pub(super) wall_s: Option<u64>,
    /// Limits that it ran into.
    pub(super) limits: LimitsHeard,
    /// Removed when it is over.
    pub(super) cgroups: Vec<PathBuf>,
    /// The session's temporary files, where it has no private `/tmp`.
    pub(super) tmp: Option<PathBuf>,
    /// The interpreter whose zygote its workers are forked from.
    pub(super) zygote_of: Option<PathBuf>,
    /// Records of this round, in order.
    pub(super) records: Vec<NewEvent>,
    /// What to do once they are in the journal.
    pub(super) acts: Vec<Act>,
    /// Records that a full disk still owes.
    pub(super) owed: Owed,
    /// The keeper's word when it was attached to, until its held events are taken in.
    pub(super) attached: Option<Attached>,
    pub(super) closing: Option<Closing>,
    pub(super) fork: ForkSide,
}

/// A reply that waits for a turn to end or ask for input.
#[derive(Debug)]
pub(super) struct Waiter {
    pub turn: TurnNo,
    pub reply: Reply<Snapshot>,
}

/// A reply that waits until the keeper has seen `command`.
#[derive(Debug)]
pub(super) struct Confirmation {
    pub command: Given,
    pub turn: TurnNo,
    pub reply: Reply<Snapshot>,
}

/// What the owner must do by itself, and when.
#[derive(Debug, Default)]
pub(super) struct Timers {
    pub deadline: Option<(TurnNo, Instant)>,
    pub grace: Option<(TurnNo, Instant)>,
    /// The turn whose grace was given again because this node did not run: once for each turn.
    pub grace_again: Option<TurnNo>,
    /// The keeper's time was given again for that reason, and nothing was heard of it since.
    pub patience_again: bool,
    /// The keeper must have brought up a worker, or answered, by then.
    pub keeper: Option<Instant>,
    /// The keeper must have seen the commands that replies wait for by then.
    pub confirmation: Option<Instant>,
    /// The session has lived as long as it may then.
    pub wall: Option<Instant>,
    /// The disk may have room then for what the journal is owed.
    pub owed: Option<Instant>,
}

/// How the session is to be closed.
#[derive(Debug)]
pub(super) struct Closing {
    pub grace_ms: u64,
    pub replies: Vec<Reply<()>>,
}

/// What ends the task.
pub(super) enum Leave {
    /// The session is over.
    Ended,
    /// A newer node has the keeper, or this node stops: the session lives on without us.
    Released(Option<oneshot::Sender<()>>),
}

impl Actor {
    pub async fn run(mut self) {
        let leave = loop {
            if let Some(leave) = self.round().await {
                break leave;
            }
            if self.machine.is_ended() {
                break Leave::Ended;
            }
        };
        self.leave(leave).await;
    }

    /// Waits for one thing to happen and deals with it whole.
    async fn round(&mut self) -> Option<Leave> {
        let own = self.timers.next().into_iter().chain(self.idle.due());
        let next = own.chain(self.calls.next_deadline()).min();
        // In no fixed order: neither a flood of output nor one of requests shuts out the other.
        tokio::select! {
            filled = self.link.fill() => self.hear_keeper(filled),
            request = self.inbox.recv() => match request {
                Some(request) => self.serve(request),
                None => Some(Leave::Released(None)),
            },
            () = self.fork.released(), if self.fork.is_held() => {
                self.let_go();
                None
            }
            () = self.alarm.rings(next) => {
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
                filled = self.link.fill() => filled,
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
                self.timers.patience_again = false;
                self.take_messages()
            }
            Filled::Room => {
                self.send_waiting_answers();
                None
            }
            Filled::Closed => {
                self.keeper_hung_up();
                None
            }
        }
    }

    pub(super) fn pass_time(&mut self) {
        let now = Instant::now();
        if let Some((turn, at)) = self.timers.deadline
            && at <= now
        {
            self.timers.deadline = None;
            self.step(Event::DeadlinePassed { turn });
        }
        if let Some((turn, at)) = self.timers.grace
            && at <= now
        {
            if now > at + LATE && self.timers.grace_again != Some(turn) {
                self.timers.grace_again = Some(turn);
                let grace = Duration::from_millis(self.interrupt_grace_ms);
                self.timers.grace = Some((turn, now + grace));
            } else {
                self.timers.grace = None;
                self.step(Event::GracePassed { turn });
            }
        }
        self.pass_call_deadlines(now);
        self.pass_keeper_patience(now);
        if self.timers.wall.is_some_and(|at| at <= now) {
            self.timers.wall = None;
            self.wall_time_passed();
        }
        if self.timers.owed.is_some_and(|at| at <= now) {
            self.timers.owed = None;
            self.write_owed();
        }
        if self.idle.due().is_some_and(|at| at <= now) {
            self.idle_due(now);
        }
        self.commit();
    }

    /// Gives up a keeper that has not answered, although this node ran all the time.
    fn pass_keeper_patience(&mut self, now: Instant) {
        let Some(at) = self.timers.keeper().filter(|at| *at <= now) else { return };
        if now > at + LATE && !std::mem::replace(&mut self.timers.patience_again, true) {
            let again = Some(now + self.context.config.keeper_patience);
            self.timers.keeper = self.timers.keeper.and(again);
            self.timers.confirmation = self.timers.confirmation.and(again);
            return;
        }
        self.timers.keeper = None;
        self.timers.confirmation = None;
        self.timers.patience_again = false;
        self.lose_keeper("it did not answer in time");
    }

    /// One decision: the machine moves on, and its effects become records and acts.
    pub(super) fn step(&mut self, event: Event) {
        let machine = std::mem::take(&mut self.machine);
        let (machine, effects) = machine.step(event);
        self.machine = machine;
        for effect in effects {
            self.plan(effect);
        }
    }
}

impl Timers {
    fn next(&self) -> Option<Instant> {
        let turn = [self.deadline, self.grace].into_iter().flatten().map(|(_, at)| at);
        turn.chain(self.keeper()).chain(self.wall).chain(self.owed).min()
    }

    /// When the keeper is given up unless it has answered.
    fn keeper(&self) -> Option<Instant> {
        self.keeper.into_iter().chain(self.confirmation).min()
    }

    /// The turn is over: none of its timers matters.
    pub fn disarm(&mut self, turn: TurnNo) {
        self.deadline = self.deadline.filter(|(of, _)| *of != turn);
        self.grace = self.grace.filter(|(of, _)| *of != turn);
    }
}
