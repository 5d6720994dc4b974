//! The state that all tasks of one seed share: the ledger, the live sessions, and the troubles of the node,
//! present and past. The tasks decide what follows from it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::sync::watch;

use super::ledger::ChaosLedger;

/// The document that lists the error codes.
const OPENAPI: &str = include_str!("../../../../docs/openapi.json");

#[derive(Debug)]
pub struct World {
    pub seed: u64,
    pub ledger: ChaosLedger,
    pub interpreter: PathBuf,
    pub codes: BTreeSet<String>,
    /// The disk is full.
    pub disk: Trouble,
    /// Only a few processes can be started.
    pub scarcity: Trouble,
    /// The node has few descriptors or little memory.
    pub limits: Trouble,
    /// The node is down: a fault has killed or stopped it.
    pub node: Trouble,
    over: AtomicBool,
    cuts: watch::Sender<u64>,
    sessions: Mutex<Vec<Arc<ChaosSession>>>,
}

/// A condition that begins and ends, possibly several times.
#[derive(Debug, Default)]
pub struct Trouble {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A point in time. [`Trouble::since`] tells whether the trouble occurred at this time or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TroubleMark {
    begun: u64,
    active: bool,
}

impl Trouble {
    pub fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    pub fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub fn active(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > self.ended.load(Ordering::Relaxed)
    }

    pub fn ever(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > 0
    }

    pub fn mark(&self) -> TroubleMark {
        TroubleMark { begun: self.begun.load(Ordering::Relaxed), active: self.active() }
    }

    /// Whether the trouble was active at the mark or began after it.
    pub fn since(&self, mark: TroubleMark) -> bool {
        mark.active || self.begun.load(Ordering::Relaxed) > mark.begun
    }
}

/// What faults and its client have done to one session.
#[derive(Debug)]
pub struct ChaosSession {
    pub session: String,
    /// The id of the family's first session: the session itself, unless it is a twin.
    pub family: String,
    /// The session may end by itself, because its keeper was killed.
    pub may_end: AtomicBool,
    /// Its worker was killed or its keeper was stopped (SIGSTOP), at least once.
    pub worker_hurt: AtomicBool,
    /// Its worker was killed. If a new worker is killed while it starts, the session ends.
    pub worker_killed: AtomicBool,
    /// Its client closes it or has closed it.
    pub closing: AtomicBool,
    /// A lack of processes after this point in time may affect the session.
    pub scarcity: TroubleMark,
}

impl ChaosSession {
    pub fn new(session: &str, family: &str, scarcity: TroubleMark) -> Self {
        Self {
            session: session.to_owned(),
            family: family.to_owned(),
            may_end: AtomicBool::new(false),
            worker_hurt: AtomicBool::new(false),
            worker_killed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            scarcity,
        }
    }

    pub fn may_end(&self) -> bool {
        self.may_end.load(Ordering::Relaxed)
    }

    pub fn worker_hurt(&self) -> bool {
        self.worker_hurt.load(Ordering::Relaxed)
    }

    pub fn worker_killed(&self) -> bool {
        self.worker_killed.load(Ordering::Relaxed)
    }

    pub fn closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }
}

pub fn set(flag: &AtomicBool) {
    flag.store(true, Ordering::Relaxed);
}

impl World {
    pub fn new(seed: u64, interpreter: PathBuf) -> Result<Self> {
        Ok(Self {
            seed,
            ledger: ChaosLedger::new(seed),
            interpreter,
            codes: promised_codes()?,
            disk: Trouble::default(),
            scarcity: Trouble::default(),
            limits: Trouble::default(),
            cuts: watch::Sender::new(0),
            node: Trouble::default(),
            over: AtomicBool::new(false),
            sessions: Mutex::default(),
        })
    }

    /// Ends the run: clients finish their operation and close their sessions.
    pub fn finish(&self) {
        set(&self.over);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Cuts every connection of the clients.
    pub fn cut_connections(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// A receiver that changes at the next cut.
    pub fn cuts(&self) -> watch::Receiver<u64> {
        self.cuts.subscribe()
    }

    pub fn born(&self, facts: &Arc<ChaosSession>) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(facts));
    }

    pub fn gone(&self, session: &str) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|facts| facts.session != session);
    }

    pub fn live(&self) -> Vec<Arc<ChaosSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn promised_codes() -> Result<BTreeSet<String>> {
    let document: Value = serde_json::from_str(OPENAPI)?;
    let codes = document["components"]["schemas"]["ErrorCode"]["enum"].as_array();
    let codes = codes.context("docs/openapi.json names no error codes")?;
    Ok(codes.iter().filter_map(|code| code.as_str().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_remembered_from_its_mark_on() {
        let trouble = Trouble::default();
        let before = trouble.mark();
        assert!(!trouble.since(before));
        trouble.begin();
        let meanwhile = trouble.mark();
        trouble.end();
        assert!(trouble.since(before) && trouble.since(meanwhile));
        assert!(!trouble.active() && !trouble.since(trouble.mark()));
    }

    #[test]
    fn the_promised_codes_are_found() {
        assert!(promised_codes().unwrap().contains("overloaded"));
    }
}
