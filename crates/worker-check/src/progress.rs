//! Where a worker is in the protocol, and which messages are allowed there.

use std::collections::BTreeSet;

use windlass_protocol::limits::MESSAGE_BYTES_MAX;
use windlass_protocol::worker::{FromWorker, PROTOCOL};
use windlass_protocol::{CallNo, TurnNo};

use crate::failure::{Step, fail};

/// Where the worker is in the protocol.
#[derive(Debug, Default)]
pub(crate) struct TurnProgress {
    pub ready: bool,
    pub running: Option<TurnNo>,
    pub last: TurnNo,
    /// Calls whose last frame has not come.
    unfinished_calls: BTreeSet<CallNo>,
    display_bytes: usize,
    pub closed: bool,
    pub ended: bool,
}

impl TurnProgress {
    /// A worker whose first turn follows this one.
    pub fn after(last: TurnNo) -> Self {
        Self { last, ..Self::default() }
    }

    /// Checks a message against the running turn.
    pub fn check(&mut self, message: &FromWorker, body: usize) -> Step {
        match message {
            FromWorker::WorkerReady { protocol, .. } => {
                if self.ready {
                    return fail("worker_ready came twice");
                }
                self.ready = true;
                match *protocol {
                    PROTOCOL => Ok(()),
                    other => fail(format!("the worker speaks protocol {other}, not {PROTOCOL}")),
                }
            }
            _ if !self.ready => fail("the first message was not worker_ready"),
            FromWorker::Output { turn, background: true, .. } if *turn <= self.last => Ok(()),
            FromWorker::Output { turn, .. } => self.of_turn("output", *turn),
            FromWorker::Display { turn, more, .. } => {
                self.display_bytes = if *more { self.display_bytes + body } else { 0 };
                if self.display_bytes > MESSAGE_BYTES_MAX {
                    return fail(format!("a display has more than {MESSAGE_BYTES_MAX} bytes"));
                }
                self.of_turn("display", *turn)
            }
            FromWorker::StdinWait { turn, .. } => self.of_turn("stdin_wait", *turn),
            FromWorker::ToolCall { turn, call, more, .. } => {
                if *more {
                    self.unfinished_calls.insert(*call);
                } else {
                    self.unfinished_calls.remove(call);
                }
                self.of_turn("tool_call", *turn)
            }
            FromWorker::Idle { turn, .. } => {
                self.of_turn("idle", *turn)?;
                self.running = None;
                match self.unfinished_calls.pop_first() {
                    Some(call) => fail(format!("idle came before the last frame of call {call}")),
                    None => Ok(()),
                }
            }
            FromWorker::Unknown => fail("the protocol has no message of this kind"),
            FromWorker::ToolCancel { .. }
            | FromWorker::ForkWait
            | FromWorker::Forked { .. }
            | FromWorker::SessionEnd { .. } => Ok(()),
        }
    }

    fn of_turn(&self, kind: &str, turn: TurnNo) -> Step {
        match self.running {
            Some(running) if running == turn => Ok(()),
            Some(running) => fail(format!("{kind} names turn {turn} while turn {running} runs")),
            None => fail(format!("{kind} of turn {turn} came while no turn runs")),
        }
    }
}
