//! Decides when a turn is over and how it ended, from the kernel's messages about it. Does no I/O.
//!
//! A turn is over when the kernel is idle *and* has replied. The two come on different channels, and a kernel
//! may lose one of them. A *probe* is a second request that the kernel answers in order: once it is answered,
//! nothing about the turn is still on its way.

use std::time::Duration;

use tokio::time::Instant;
use windlass_protocol::TurnNo;
use windlass_protocol::worker::{WorkerError, WorkerOutcome};

/// How long one half of a turn's end waits for the other until the worker sends a probe.
const HALF_END_TIME: Duration = Duration::from_millis(100);

/// How long an interrupt waits until the kernel says that it runs the code. A kernel ignores or mistakes an
/// interrupt that comes before, and some kernels never say it. A kernel that says it later gets the interrupt again.
const BEGIN_TIME: Duration = Duration::from_millis(100);

/// A message of the kernel about the running turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnEvent {
    Busy,
    Executing,
    Error { name: String, message: String },
    Idle,
    Replied(ReplyStatus),
    ProbeReplied,
    ProbeIdle,
    InterruptAsked,
}

/// The status of an `execute_reply`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyStatus {
    Ok,
    Error { name: String, message: String },
    Aborted,
}

/// What the worker does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnStep {
    Wait,
    Interrupt,
    Probe,
    End,
}

/// How far the kernel is with the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Progress {
    Sent,
    Busy,
    Executing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InterruptState {
    None,
    /// Asked for, and not yet passed on to the kernel.
    Asked {
        since: Instant,
    },
    /// Passed on before the kernel has said that it runs the code: the kernel may have ignored it.
    Early,
    Delivered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeState {
    None,
    Sent { replied: bool, idle: bool },
}

/// The turn that the kernel runs.
#[derive(Debug)]
pub struct KernelTurn {
    pub number: TurnNo,
    progress: Progress,
    idle: bool,
    reply: Option<ReplyStatus>,
    error: Option<WorkerError>,
    interrupt: InterruptState,
    probe: ProbeState,
    /// When the first half of the turn's end came.
    half_ended: Option<Instant>,
}

impl KernelTurn {
    pub fn new(number: TurnNo) -> Self {
        Self {
            number,
            progress: Progress::Sent,
            idle: false,
            reply: None,
            error: None,
            interrupt: InterruptState::None,
            probe: ProbeState::None,
            half_ended: None,
        }
    }

    /// Takes the next message about the turn.
    pub fn apply(&mut self, event: TurnEvent, now: Instant) {
        match event {
            TurnEvent::Busy if self.progress == Progress::Sent => self.progress = Progress::Busy,
            TurnEvent::Busy => {}
            TurnEvent::Executing => self.progress = Progress::Executing,
            TurnEvent::Error { name, message } => self.error = Some(WorkerError { name, message }),
            TurnEvent::Idle => self.idle = true,
            TurnEvent::Replied(status) => self.reply = Some(status),
            TurnEvent::ProbeReplied => self.note_probe(true, false),
            TurnEvent::ProbeIdle => self.note_probe(false, true),
            TurnEvent::InterruptAsked => {
                if self.interrupt == InterruptState::None && !self.is_half_ended() {
                    self.interrupt = InterruptState::Asked { since: now };
                }
            }
        }
        if self.is_half_ended() && self.half_ended.is_none() {
            self.half_ended = Some(now);
        }
    }

    /// What to do now. With `always_probe` the kernel is one that sends output after it is idle.
    pub fn step(&mut self, always_probe: bool, now: Instant) -> TurnStep {
        let ended = self.idle && self.reply.is_some();
        match self.probe {
            ProbeState::Sent { replied: true, idle: true } if self.is_half_ended() => TurnStep::End,
            _ if ended && !always_probe => TurnStep::End,
            ProbeState::None if ended => self.send_probe(),
            ProbeState::None
                if self.half_ended.is_some_and(|since| now >= since + HALF_END_TIME) =>
            {
                self.send_probe()
            }
            _ if self.is_interrupt_due(now) => {
                self.interrupt = match self.progress {
                    Progress::Executing => InterruptState::Delivered,
                    Progress::Sent | Progress::Busy => InterruptState::Early,
                };
                TurnStep::Interrupt
            }
            _ => TurnStep::Wait,
        }
    }

    /// When [`KernelTurn::step`] has something to do if no message comes.
    pub fn wakes_at(&self) -> Option<Instant> {
        let interrupt = match self.interrupt {
            InterruptState::Asked { since } => Some(since + BEGIN_TIME),
            _ => None,
        };
        let probe = match self.probe {
            ProbeState::None => self.half_ended.map(|since| since + HALF_END_TIME),
            ProbeState::Sent { .. } => None,
        };
        interrupt.into_iter().chain(probe).min()
    }

    /// How the turn ended.
    pub fn outcome(&self) -> (WorkerOutcome, Option<WorkerError>) {
        let error = |name: &str, message: &str| {
            let said = WorkerError { name: name.to_owned(), message: message.to_owned() };
            (WorkerOutcome::Error, Some(self.error.clone().unwrap_or(said)))
        };
        let interrupted =
            matches!(self.interrupt, InterruptState::Early | InterruptState::Delivered);
        match &self.reply {
            Some(ReplyStatus::Ok) => (WorkerOutcome::Ok, None),
            _ if interrupted => (WorkerOutcome::Interrupted, None),
            Some(ReplyStatus::Error { name, message }) => error(name, message),
            Some(ReplyStatus::Aborted) => error("Aborted", "the kernel did not run the code"),
            None => error("NoReply", "the kernel is idle, but has not replied to the request"),
        }
    }

    pub fn is_interrupted(&self) -> bool {
        self.interrupt != InterruptState::None
    }

    /// Whether the kernel reported an error as output.
    pub fn has_error(&self) -> bool {
        self.error.is_some()
    }

    fn is_half_ended(&self) -> bool {
        self.idle || self.reply.is_some()
    }

    fn is_interrupt_due(&self, now: Instant) -> bool {
        let executes = self.progress == Progress::Executing;
        match self.interrupt {
            InterruptState::Asked { since } => executes || now >= since + BEGIN_TIME,
            InterruptState::Early => executes && !self.is_half_ended(),
            InterruptState::None | InterruptState::Delivered => false,
        }
    }

    fn send_probe(&mut self) -> TurnStep {
        self.probe = ProbeState::Sent { replied: false, idle: false };
        TurnStep::Probe
    }

    fn note_probe(&mut self, has_replied: bool, is_idle: bool) {
        if let ProbeState::Sent { replied, idle } = &mut self.probe {
            *replied |= has_replied;
            *idle |= is_idle;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs events of one word each; `+N` lets N milliseconds pass. Returns the steps that are not `Wait`, and
    /// the outcome if the turn ended.
    fn check(always_probe: bool, script: &str) -> String {
        let mut now = Instant::now();
        let mut turn = KernelTurn::new(TurnNo(1));
        let mut steps = Vec::new();
        for word in script.split_whitespace() {
            let error = || ("E".to_owned(), "m".to_owned());
            let event = match word {
                "busy" => TurnEvent::Busy,
                "executing" => TurnEvent::Executing,
                "idle" => TurnEvent::Idle,
                "ok" => TurnEvent::Replied(ReplyStatus::Ok),
                "aborted" => TurnEvent::Replied(ReplyStatus::Aborted),
                "failed" => {
                    let (name, message) = error();
                    TurnEvent::Replied(ReplyStatus::Error { name, message })
                }
                "error" => {
                    let (name, message) = error();
                    TurnEvent::Error { name, message }
                }
                "probe-reply" => TurnEvent::ProbeReplied,
                "probe-idle" => TurnEvent::ProbeIdle,
                "interrupt" => TurnEvent::InterruptAsked,
                pause => {
                    now += Duration::from_millis(pause[1..].parse().unwrap());
                    if let step @ (TurnStep::Probe | TurnStep::Interrupt | TurnStep::End) =
                        turn.step(always_probe, now)
                    {
                        steps.push(format!("{step:?}"));
                    }
                    continue;
                }
            };
            turn.apply(event, now);
            match turn.step(always_probe, now) {
                TurnStep::Wait => {}
                TurnStep::End => {
                    let (outcome, error) = turn.outcome();
                    let name = error.map(|error| error.name).unwrap_or_default();
                    steps.push(format!("End {outcome:?} {name}"));
                }
                step => steps.push(format!("{step:?}")),
            }
        }
        steps.join(", ")
    }

    #[test]
    fn a_turn_ends_once_with_both_halves_or_a_probe() {
        for (always_probe, script, steps) in [
            (false, "busy executing idle ok", "End Ok "),
            (false, "busy executing ok idle", "End Ok "),
            (false, "ok +50 idle", "End Ok "),
            (false, "idle +100 probe-reply probe-idle", "Probe, End Error NoReply"),
            (false, "ok +100 probe-idle probe-reply", "Probe, End Ok "),
            (false, "ok +100 idle", "Probe, End Ok "),
            (false, "busy executing +5000", ""),
            (false, "busy probe-reply probe-idle", ""),
            (true, "idle ok probe-reply probe-idle", "Probe, End Ok "),
            (true, "ok idle probe-idle", "Probe"),
            (false, "error failed idle", "End Error E"),
            (false, "aborted idle", "End Error Aborted"),
        ] {
            assert_eq!(check(always_probe, script), steps, "{script}");
        }
    }

    #[test]
    fn an_interrupt_reaches_the_kernel_while_code_runs() {
        for (script, steps) in [
            ("busy executing interrupt interrupt failed idle", "Interrupt, End Interrupted "),
            ("interrupt busy executing error failed idle", "Interrupt, End Interrupted "),
            ("interrupt busy +99", ""),
            ("interrupt busy +100 +100", "Interrupt"),
            // A slow kernel begins after the interrupt, which it has ignored.
            (
                "interrupt busy +100 executing +100 executing failed idle",
                "Interrupt, Interrupt, End Interrupted ",
            ),
            ("interrupt busy +100 failed executing idle", "Interrupt, End Interrupted "),
            ("busy executing ok interrupt idle", "End Ok "),
            ("busy executing interrupt ok idle", "Interrupt, End Ok "),
            ("busy executing interrupt aborted idle", "Interrupt, End Interrupted "),
            (
                "executing interrupt idle +100 probe-idle probe-reply",
                "Interrupt, Probe, End Interrupted ",
            ),
        ] {
            assert_eq!(check(false, script), steps, "{script}");
        }
    }
}
