//! A session's turns, their timers, and the replies that wait for them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_journal::{OpenTurn, RecoveredSession};
use windlass_lifecycle::SessionEvent;
use windlass_protocol::TurnNo;
use windlass_protocol::link::AttachReply;

use super::deadlines::Deadlines;
use super::limits::LimitReports;
use super::output_ends::OutputEnds;
use super::refusals::RefusalWatch;
use super::turns::{Snapshot, Turn, TurnRequest, Turns};
use super::{LATE, ReplySender};

/// Maximum number of replies that wait in one session. A further request is answered at once.
const WAITERS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct TurnQueue {
    pub turns: Turns,
    /// The default deadlines.
    pub deadlines: Deadlines,
    /// Limits that the session has reached.
    pub limits: LimitReports,
    /// What the policy has refused.
    pub refusals: RefusalWatch,
    waiters: Vec<Waiter>,
    interrupt_grace: Duration,
    deadline: Option<(TurnNo, Instant)>,
    grace: Option<(TurnNo, Instant)>,
    /// The turn that got its grace again because this node was stopped. A turn gets it again only once.
    grace_again: Option<TurnNo>,
}

/// A reply that waits for a turn to end or ask for input.
#[derive(Debug)]
struct Waiter {
    turn: TurnNo,
    reply: ReplySender<Snapshot>,
}

impl TurnQueue {
    pub fn new(deadlines: Deadlines, interrupt_grace: Duration) -> Self {
        Self {
            turns: Turns::default(),
            deadlines,
            limits: LimitReports::default(),
            refusals: RefusalWatch::default(),
            waiters: Vec::new(),
            interrupt_grace,
            deadline: None,
            grace: None,
            grace_again: None,
        }
    }

    /// Loads the open turns of an earlier node. The running turn's deadline counts from its start, which
    /// only the keeper knows ([`Self::rearm`]).
    pub fn reload(
        &mut self,
        open: &[OpenTurn],
        RecoveredSession { code, contexts, .. }: RecoveredSession,
        running: Option<TurnNo>,
    ) {
        self.turns.has_unknown_past();
        let code: HashMap<TurnNo, Bytes> = code.into_iter().collect();
        let mut contexts: HashMap<_, _> = contexts.into_iter().collect();
        for open in open {
            if Some(open.number) == running && open.interrupt.is_some() {
                self.arm_grace(open.number);
            }
            let code = code.get(&open.number).cloned().unwrap_or_default();
            let mut turn = Turn::new(open.id.clone(), open.number, code, open.deadline_ms);
            turn.request.context = contexts.remove(&open.number);
            turn.output = OutputEnds::in_journal(open.output_bytes);
            turn.displays.clone_from(&open.displays);
            turn.stdin_wait.clone_from(&open.stdin_wait);
            self.turns.insert(turn);
        }
    }

    /// Keeps a reply until the turn ends or asks for input. Gives the reply back if too many wait.
    pub fn wait(
        &mut self,
        turn: TurnNo,
        reply: ReplySender<Snapshot>,
    ) -> Result<(), ReplySender<Snapshot>> {
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        if self.waiters.len() >= WAITERS_MAX {
            return Err(reply);
        }
        self.waiters.push(Waiter { turn, reply });
        Ok(())
    }

    /// The replies that wait for this turn.
    pub fn take_waiters(&mut self, turn: TurnNo) -> Vec<ReplySender<Snapshot>> {
        let due = self.waiters.extract_if(.., |waiter| waiter.turn == turn);
        due.map(|waiter| waiter.reply).collect()
    }

    /// All waiting replies, each with its turn.
    pub fn take_all_waiters(&mut self) -> Vec<(TurnNo, ReplySender<Snapshot>)> {
        let all = std::mem::take(&mut self.waiters);
        all.into_iter().map(|waiter| (waiter.turn, waiter.reply)).collect()
    }

    /// The turn starts: takes its code and context for the keeper, and arms its deadline.
    pub fn start(&mut self, turn: TurnNo) -> Option<TurnRequest> {
        let starting = self.turns.get_mut(turn)?;
        let request = std::mem::take(&mut starting.request);
        if let Some(deadline) = self.deadlines.of(starting.deadline_ms) {
            self.deadline = Some((turn, Instant::now() + deadline));
        }
        Some(request)
    }

    /// The turn is interrupted: arms its grace.
    pub fn interrupted(&mut self, turn: TurnNo) {
        self.deadline = None;
        self.arm_grace(turn);
    }

    fn arm_grace(&mut self, turn: TurnNo) {
        self.grace = Some((turn, Instant::now() + self.interrupt_grace));
    }

    /// The turn has ended: disarms its timers.
    pub fn disarm(&mut self, turn: TurnNo) {
        self.deadline = self.deadline.filter(|(of, _)| *of != turn);
        self.grace = self.grace.filter(|(of, _)| *of != turn);
    }

    /// Arms the running turn's deadline after a node was replaced. The keeper reports how long the turn has
    /// run, so only the rest of the deadline is left. If the keeper does not report it, the whole deadline
    /// starts again.
    pub fn rearm(&mut self, attached: &AttachReply, current: Option<TurnNo>) {
        let Some(turn) = attached.running.filter(|turn| current == Some(*turn)) else { return };
        let is_stopped = self.grace.is_some_and(|(of, _)| of == turn);
        let own_ms = self.turns.get(turn).and_then(|running| running.deadline_ms);
        if let Some(deadline) = self.deadlines.of(own_ms).filter(|_| !is_stopped) {
            let passed = Duration::from_millis(attached.running_ms.unwrap_or(0));
            let left = deadline.saturating_sub(passed);
            self.deadline = Some((turn, Instant::now() + left));
        }
    }

    pub fn has_deadline(&self) -> bool {
        self.deadline.is_some()
    }

    pub fn next_due(&self) -> Option<Instant> {
        [self.deadline, self.grace].into_iter().flatten().map(|(_, at)| at).min()
    }

    /// The turn whose deadline has passed.
    pub fn deadline_passed(&mut self, now: Instant) -> Option<SessionEvent> {
        let (turn, _) = self.deadline.take_if(|(_, at)| *at <= now)?;
        Some(SessionEvent::DeadlinePassed { turn })
    }

    /// The turn that has not stopped within its grace. If this node itself was stopped for a while, the
    /// turn gets its grace again, once: it may have got the interrupt only now.
    pub fn grace_passed(&mut self, now: Instant) -> Option<SessionEvent> {
        let (turn, at) = self.grace.take_if(|(_, at)| *at <= now)?;
        if now > at + LATE && self.grace_again != Some(turn) {
            self.grace_again = Some(turn);
            self.grace = Some((turn, now + self.interrupt_grace));
            return None;
        }
        Some(SessionEvent::GracePassed { turn })
    }
}
