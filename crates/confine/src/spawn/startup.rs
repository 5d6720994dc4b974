//! Collects the messages of a process while it is confined, and updates the plan's controls with the results
//! of the canaries.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use windlass_protocol::confinement::{Confinement, Control, ControlReport, ControlState};

use super::channel::{Channel, StartupMessage};
use super::{CONFINE_WAIT, SpawnError, StartedProcess, setup};
use crate::enter::StepErrorAt;
use crate::enter::canary::{CANARIES_MAX, CanaryResults};
use crate::plan::Plan;

/// What a child has reported during its startup.
#[derive(Debug)]
pub(super) struct StartupReport {
    pub init: Option<i32>,
    pub worker: Option<i32>,
    listener: Option<OwnedFd>,
    canaries: Option<CanaryResults>,
}

impl StartupReport {
    /// A report with the pids that are already known.
    pub fn of(init: Option<i32>, worker: Option<i32>) -> Self {
        Self { init, worker, listener: None, canaries: None }
    }

    /// Receives messages until the program runs or all senders have ended. On an error it kills the started
    /// processes. `plan` is the plan whose steps the child performs.
    pub fn listen(mut self, channel: &Channel, plan: &Plan) -> Result<Self, SpawnError> {
        let until = Instant::now() + CONFINE_WAIT;
        loop {
            let error = match channel.receive(until) {
                Ok(None) => return Ok(self),
                Ok(Some(StartupMessage::Failed(failed))) => {
                    SpawnError::Confine(StepErrorAt::of(failed, plan))
                }
                Ok(Some(message)) => {
                    self.add(message);
                    continue;
                }
                Err(_) => SpawnError::TooSlow,
            };
            self.kill();
            return Err(error);
        }
    }

    fn add(&mut self, message: StartupMessage) {
        match message {
            StartupMessage::Pids { init, worker } => {
                self.init = Some(init).filter(|pid| *pid > 0).or(self.init);
                self.worker = Some(worker).filter(|pid| *pid > 0).or(self.worker);
            }
            StartupMessage::Listener(listener) => self.listener = Some(listener),
            StartupMessage::Canaries(results) => self.canaries = Some(results),
            StartupMessage::Failed(_) | StartupMessage::Network(_) | StartupMessage::Built => {}
        }
    }

    /// Kills the started processes.
    pub fn kill(&self) {
        for pid in [self.init, self.worker].into_iter().flatten() {
            let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    pub fn into_started(self, plan: &Plan) -> Result<StartedProcess, SpawnError> {
        let Some(worker) = self.worker else {
            let cause = io::Error::other("the process ended before it sent its pid");
            return Err(setup("start the worker")(cause));
        };
        let Some(results) = self.canaries else {
            self.kill();
            let cause = io::Error::other("the process ended before it was confined");
            return Err(setup("start the worker")(cause));
        };
        let confinement = judge(plan, &results);
        if results.required_failed {
            self.kill();
            let required = |report: &&ControlReport| {
                report.state == ControlState::NotEnforced && plan.required.contains(&report.control)
            };
            let control = confinement.controls.iter().find(required);
            let control = control.map_or(Control::Syscalls, |report| report.control);
            return Err(SpawnError::CanaryThrough { control });
        }
        Ok(StartedProcess {
            pid: worker.unsigned_abs(),
            init: self.init.map(i32::unsigned_abs),
            joining: Vec::new(),
            listener: self.listener,
            confinement,
        })
    }
}

/// The plan's controls, with the results of the canaries.
fn judge(plan: &Plan, results: &CanaryResults) -> Confinement {
    let mut controls = plan.controls.clone();
    for (index, canary) in plan.canaries.iter().take(CANARIES_MAX).enumerate() {
        let Some(report) = controls.iter_mut().find(|report| report.control == canary.control)
        else {
            continue;
        };
        if results.is_through(index) {
            report.state = ControlState::NotEnforced;
            report.tested = false;
            report.mechanism = format!("a canary got through: {:?}", canary.attempt);
        } else {
            report.tested |= report.state == ControlState::Enforced;
        }
    }
    Confinement { isolation: plan.isolation, controls }
}
