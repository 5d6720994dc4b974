//! The keeper's side towards its worker: the process, the running turn, and the limit watch.

pub(crate) mod calls;
pub(crate) mod turn;

use std::os::fd::OwnedFd;
use std::time::Instant;

use windlass_protocol::TurnNo;
use windlass_protocol::confinement::Confinement;
use windlass_protocol::frame::EncodeError;

use self::turn::TurnSlot;
use crate::egress::Egress;
use crate::family::Family;
use crate::stage::WorkerStage;
use crate::starting::PooledWorker;
use crate::watch::{Finding, LimitWatch, TurnActivity};
use crate::worker::Worker;

#[derive(Default)]
pub(crate) struct WorkerSide {
    pub process: Option<Worker>,
    pub running: TurnSlot,
    pub watch: LimitWatch,
    /// The egress of the sandbox, if the policy allows hosts.
    pub egress: Option<Egress>,
    /// How the worker was confined.
    pub confinement: Option<Confinement>,
    /// A connection to a zygote, for the next worker only.
    pub zygote: Option<OwnedFd>,
    /// The pooled worker of a keeper without a session.
    pub pooled: Option<PooledWorker>,
    pub last_turn: TurnNo,
    pub restarts: u32,
    /// Why a message for the worker could not be encoded.
    broken: Option<String>,
}

impl WorkerSide {
    /// The process ids of the worker and of its init.
    pub fn pids(&self) -> Option<(u32, Option<u32>)> {
        self.process.as_ref().map(|worker| (worker.pid, worker.init))
    }

    /// Checks the session's limits if a check is due and the worker is ready.
    pub fn check_limits(&mut self, now: Instant, stage: WorkerStage, family: &Family) -> Finding {
        let pids = self.pids().filter(|_| stage == WorkerStage::Up);
        let turn = match self.running.turn() {
            Some(_) => TurnActivity::Running,
            None => TurnActivity::None,
        };
        self.watch.check_due(now, pids, turn, || family.listed())
    }

    pub fn init(&self) -> Option<u32> {
        self.process.as_ref().and_then(|worker| worker.init)
    }

    /// Takes the result of sending a message to the worker. If the message does not fit a frame, the session
    /// ends ([`Self::take_broken`]).
    pub fn sent(&mut self, sent: Result<(), EncodeError>) {
        if let Err(error) = sent {
            self.broken = Some(format!("a message for the worker cannot be sent: {error}"));
        }
    }

    pub fn take_broken(&mut self) -> Option<String> {
        self.broken.take()
    }
}
