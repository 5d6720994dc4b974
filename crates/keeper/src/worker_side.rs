//! The keeper's side towards its worker: the process, the running turn, and the limit watch.

use std::os::fd::OwnedFd;

use windlass_protocol::TurnNo;
use windlass_protocol::confinement::Confinement;
use windlass_protocol::frame::EncodeError;

use crate::egress::Egress;
use crate::starting::PooledWorker;
use crate::turn::TurnSlot;
use crate::watch::LimitWatch;
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
