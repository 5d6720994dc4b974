//! A session's turns with their timers, and the replies that wait for them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_journal::OpenTurn;
use windlass_lifecycle::SessionEvent;
use windlass_protocol::TurnNo;
use windlass_protocol::link::AttachReply;

use super::deadlines::Deadlines;
use super::limits::LimitsHeard;
use super::turns::{Snapshot, Turn, Turns};
use super::view::Ends;
use super::{LATE, Reply};

/// Replies about turns that may wait in one session; one more is answered at once.
const WAITERS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct TurnQueue {
    pub turns: Turns,
    /// The deadlines of turns that have none of their own.
    pub deadlines: Deadlines,
    /// Limits that the session ran into.
    pub limits: LimitsHeard,
    waiters: Vec<Waiter>,
    interrupt_grace: Duration,
    deadline: Option<(TurnNo, Instant)>,
    grace: Option<(TurnNo, Instant)>,
    /// The turn whose grace was given again because this node did not run: once for each turn.
    grace_again: Option<TurnNo>,
}

/// A reply that waits for a turn to end or ask for input.
#[derive(Debug)]
struct Waiter {
    turn: TurnNo,
    reply: Reply<Snapshot>,
}

impl TurnQueue {
    pub fn new(deadlines: Deadlines, interrupt_grace: Duration) -> Self {
        Self {
            turns: Turns::default(),
            deadlines,
            limits: LimitsHeard::default(),
            waiters: Vec::new(),
            interrupt_grace,
            deadline: None,
            grace: None,
            grace_again: None,
        }
    }

    /// The open turns of an earlier node. The deadline of the running one is counted from its start, which
    /// only the keeper knows ([`Self::rearm`]).
    pub fn reload(
        &mut self,
        open: &[OpenTurn],
        code: Vec<(TurnNo, Bytes)>,
        running: Option<TurnNo>,
    ) {
        self.turns.had_others();
        let code: HashMap<TurnNo, Bytes> = code.into_iter().collect();
        for open in open {
            if Some(open.number) == running && open.interrupt.is_some() {
                self.arm_grace(open.number);
            }
            let code = code.get(&open.number).cloned().unwrap_or_default();
            let mut turn = Turn::new(open.id.clone(), open.number, code, open.deadline_ms);
            turn.output = Ends::elsewhere(open.output_bytes);
            turn.displays.clone_from(&open.displays);
            turn.stdin_wait.clone_from(&open.stdin_wait);
            self.turns.insert(turn);
        }
    }

    /// Has a reply wait until the turn ends or asks for input; the reply comes back where too many wait.
    pub fn wait(&mut self, turn: TurnNo, reply: Reply<Snapshot>) -> Result<(), Reply<Snapshot>> {
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        if self.waiters.len() >= WAITERS_MAX {
            return Err(reply);
        }
        self.waiters.push(Waiter { turn, reply });
        Ok(())
    }

    /// The replies that wait for this turn.
    pub fn take_waiters(&mut self, turn: TurnNo) -> Vec<Reply<Snapshot>> {
        let due = self.waiters.extract_if(.., |waiter| waiter.turn == turn);
        due.map(|waiter| waiter.reply).collect()
    }

    /// All replies that wait, each with its turn.
    pub fn take_all_waiters(&mut self) -> Vec<(TurnNo, Reply<Snapshot>)> {
        let all = std::mem::take(&mut self.waiters);
        all.into_iter().map(|waiter| (waiter.turn, waiter.reply)).collect()
    }

    /// The turn starts: its code goes to the keeper, and its deadline runs.
    pub fn start(&mut self, turn: TurnNo) -> Option<Bytes> {
        let starting = self.turns.get_mut(turn)?;
        let code = std::mem::take(&mut starting.code);
        if let Some(deadline) = self.deadlines.of(starting.deadline_ms) {
            self.deadline = Some((turn, Instant::now() + deadline));
        }
        Some(code)
    }

    /// The turn is interrupted: it has so long to stop.
    pub fn interrupted(&mut self, turn: TurnNo) {
        self.deadline = None;
        self.arm_grace(turn);
    }

    fn arm_grace(&mut self, turn: TurnNo) {
        self.grace = Some((turn, Instant::now() + self.interrupt_grace));
    }

    /// The turn is over: none of its timers matters.
    pub fn disarm(&mut self, turn: TurnNo) {
        self.deadline = self.deadline.filter(|(of, _)| *of != turn);
        self.grace = self.grace.filter(|(of, _)| *of != turn);
    }

    /// The keeper has said how long the turn that it runs has run: the rest of its deadline is left, as
    /// if no node had been replaced. A keeper that does not say gives it the whole deadline again.
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

    /// The turn that has not stopped in time. Where this node itself did not run for a while, the turn
    /// gets its grace again, once: it may have heard of the interrupt only now.
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
