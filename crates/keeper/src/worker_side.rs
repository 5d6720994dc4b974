//! The keeper's side towards its worker: the process, the turn in flight, and what watches over both.

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
    /// The way out of the sandbox, where the policy has one.
    pub egress: Option<Egress>,
    /// How the worker was confined.
    pub confinement: Option<Confinement>,
    /// A connection to a zygote, for the next worker and no other.
    pub zygote: Option<OwnedFd>,
    /// A worker that was forked before there is a session.
    pub pooled: Option<PooledWorker>,
    pub last_turn: TurnNo,
    pub restarts: u32,
    /// Why worker and keeper cannot understand each other.
    broken: Option<String>,
}

impl WorkerSide {
    /// The numbers of the worker and of the first process of its namespace.
    pub fn who(&self) -> Option<(u32, Option<u32>)> {
        self.process.as_ref().map(|worker| (worker.pid, worker.init))
    }

    pub fn init(&self) -> Option<u32> {
        self.process.as_ref().and_then(|worker| worker.init)
    }

    /// A message for the worker was made, or does not fit its frame: then the session ends
    /// ([`Self::take_broken`]).
    pub fn sent(&mut self, sent: Result<(), EncodeError>) {
        if let Err(error) = sent {
            self.broken = Some(format!("a message for the worker cannot be sent: {error}"));
        }
    }

    pub fn take_broken(&mut self) -> Option<String> {
        self.broken.take()
    }
}
