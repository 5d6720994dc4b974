//! What a process said on its way into the sandbox, and what that makes of the plan's controls.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use windlass_protocol::confinement::{Confinement, Control, ControlReport, ControlState};

use super::channel::{Channel, Word};
use super::{CONFINE_WAIT, SpawnError, Started, setup};
use crate::enter::FailedAt;
use crate::enter::canary::{CANARIES_MAX, Results};
use crate::plan::Plan;

/// What the caller heard of its child.
#[derive(Debug)]
pub(super) struct Heard {
    pub init: Option<i32>,
    pub worker: Option<i32>,
    listener: Option<OwnedFd>,
    canaries: Option<Results>,
}

impl Heard {
    /// For processes that are known to have been started.
    pub fn of(init: Option<i32>, worker: Option<i32>) -> Self {
        Self { init, worker, listener: None, canaries: None }
    }

    /// Listens until the program runs or nobody is left who could say anything; what was started is
    /// ended if it went wrong. The steps that are done are those of `plan`.
    pub fn listen(mut self, channel: &Channel, plan: &Plan) -> Result<Self, SpawnError> {
        let until = Instant::now() + CONFINE_WAIT;
        loop {
            let error = match channel.hear(until) {
                Ok(None) => return Ok(self),
                Ok(Some(Word::Failed(failed))) => SpawnError::Confine(FailedAt::of(failed, plan)),
                Ok(Some(word)) => {
                    self.take(word);
                    continue;
                }
                Err(_) => SpawnError::TooSlow,
            };
            self.end();
            return Err(error);
        }
    }

    fn take(&mut self, word: Word) {
        match word {
            Word::Pids { init, worker } => {
                self.init = Some(init).filter(|pid| *pid > 0).or(self.init);
                self.worker = Some(worker).filter(|pid| *pid > 0).or(self.worker);
            }
            Word::Listener(listener) => self.listener = Some(listener),
            Word::Canaries(results) => self.canaries = Some(results),
            Word::Failed(_) | Word::Network(_) | Word::Built => {}
        }
    }

    /// Ends whatever was started.
    pub fn end(&self) {
        for pid in [self.init, self.worker].into_iter().flatten() {
            let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    pub fn into_started(self, plan: &Plan) -> Result<Started, SpawnError> {
        let Some(worker) = self.worker else {
            let cause = io::Error::other("it ended without a word");
            return Err(setup("start it")(cause));
        };
        let Some(results) = self.canaries else {
            self.end();
            let cause = io::Error::other("it ended before it was confined");
            return Err(setup("start it")(cause));
        };
        let confinement = judge(plan, &results);
        if results.required_failed {
            self.end();
            let required = |report: &&ControlReport| {
                report.state == ControlState::NotEnforced && plan.required.contains(&report.control)
            };
            let control = confinement.controls.iter().find(required);
            let control = control.map_or(Control::Syscalls, |report| report.control);
            return Err(SpawnError::CanaryThrough { control });
        }
        Ok(Started {
            pid: worker.unsigned_abs(),
            init: self.init.map(i32::unsigned_abs),
            joining: Vec::new(),
            listener: self.listener,
            confinement,
        })
    }
}

/// The plan's controls, with what the canaries found.
fn judge(plan: &Plan, results: &Results) -> Confinement {
    let mut controls = plan.controls.clone();
    for (place, canary) in plan.canaries.iter().take(CANARIES_MAX).enumerate() {
        let Some(report) = controls.iter_mut().find(|report| report.control == canary.control)
        else {
            continue;
        };
        if results.is_through(place) {
            report.state = ControlState::NotEnforced;
            report.tested = false;
            report.mechanism = format!("a canary got through: {:?}", canary.attempt);
        } else {
            report.tested |= report.state == ControlState::Enforced;
        }
    }
    Confinement { isolation: plan.isolation, controls }
}
