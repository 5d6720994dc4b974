//! One environment: an interpreter that the user named, its zygote, and its pool.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use windlass_protocol::environments::{
    self, EnvironmentEntry, POOL_DEFAULT, PoolInfo, ZygoteInfo, ZygoteState,
};
use windlass_protocol::kinds;

use super::pool::{FreeMemory, PoolEffect, PoolEvent, PoolKey, WorkerNo, WorkerPool};
use super::pool_base::{PlannedSession, PoolBase};
use super::pooled::PooledWorker;
use super::zygote::Zygote;
use crate::config::StartBy;
use crate::trust::{Advice, Trust};

#[derive(Debug)]
pub(super) struct Environment {
    pub entry: EnvironmentEntry,
    /// Pooled workers of one key.
    pool_size: usize,
    state: Mutex<EnvironmentState>,
}

#[derive(Debug)]
pub(super) struct EnvironmentState {
    /// The interpreter, after it was found.
    pub program: Option<PathBuf>,
    pub zygote: ZygoteStage,
    /// When a session last asked for the zygote.
    pub used: Option<Instant>,
    pub memory: FreeMemory,
    pool: WorkerPool,
    /// The bases of the pool's keys.
    bases: Vec<Arc<PoolBase>>,
    workers: HashMap<WorkerNo, PooledWorker>,
    /// Workers to make and to end. The tending task does this.
    to_make: Vec<(WorkerNo, Arc<PoolBase>)>,
    to_end: Vec<PooledWorker>,
    born: Instant,
}

/// The state of an environment's zygote.
#[derive(Debug, Default)]
pub(super) enum ZygoteStage {
    #[default]
    None,
    Starting,
    Ready(Arc<Zygote>),
    Failed {
        why: String,
        since: Instant,
    },
}

impl Environment {
    pub fn new(entry: &EnvironmentEntry, start: StartBy) -> Self {
        let pool_size = match start {
            StartBy::Pool => entry.pool.unwrap_or(POOL_DEFAULT),
            StartBy::Exec | StartBy::Zygote => 0,
        };
        let born = Instant::now();
        let state = EnvironmentState {
            program: None,
            zygote: ZygoteStage::None,
            // The default kind's zygote starts with the node, so that the first session finds it ready. Other
            // zygotes start with the first session of their kind.
            used: (entry.worker == kinds::DEFAULT.name).then_some(born),
            memory: FreeMemory::Enough,
            pool: WorkerPool::new(pool_size),
            bases: Vec::new(),
            workers: HashMap::new(),
            to_make: Vec::new(),
            to_end: Vec::new(),
            born,
        };
        Self { entry: entry.clone(), pool_size, state: Mutex::new(state) }
    }

    pub fn lock(&self) -> MutexGuard<'_, EnvironmentState> {
        self.state.lock().expect("no holder of this lock can panic")
    }

    /// Whether the default base (of sessions that use the default policy) must still be computed.
    pub fn lacks_base(&self) -> bool {
        let state = self.lock();
        self.pool_size > 0
            && matches!(state.zygote, ZygoteStage::Ready(_))
            && state.bases.is_empty()
    }

    /// Whether a zygote or a pooled worker is being started.
    pub fn is_starting(&self) -> bool {
        let state = self.lock();
        match &state.zygote {
            ZygoteStage::None => state.used.is_some(),
            ZygoteStage::Starting => true,
            ZygoteStage::Ready(_) => {
                self.pool_size > 0 && (state.bases.is_empty() || !state.pool.is_settled())
            }
            ZygoteStage::Failed { .. } => false,
        }
    }

    pub fn info(&self) -> environments::Environment {
        let state = self.lock();
        let none = ZygoteInfo {
            state: ZygoteState::None,
            pid: None,
            pss_kib: None,
            missing: Vec::new(),
            error: None,
        };
        let zygote = match &state.zygote {
            ZygoteStage::None => none,
            ZygoteStage::Starting => ZygoteInfo { state: ZygoteState::Starting, ..none },
            ZygoteStage::Ready(zygote) => zygote.info(),
            ZygoteStage::Failed { why, .. } => {
                ZygoteInfo { state: ZygoteState::Failed, error: Some(why.clone()), ..none }
            }
        };
        let (ready, size) = state.pool.counts();
        environments::Environment {
            worker: self.entry.worker.clone(),
            interpreter: self.entry.interpreter.clone(),
            program: state.program.as_ref().map(|program| program.display().to_string()),
            preload: self.entry.preload.clone(),
            zygote,
            pool: PoolInfo { size, ready },
        }
    }
}

impl EnvironmentState {
    /// Number of pooled workers that are ready.
    pub fn ready(&self) -> usize {
        self.pool.counts().0
    }

    /// Whether the zygote with this number is ready.
    pub fn has_zygote(&self, number: u64) -> bool {
        matches!(&self.zygote, ZygoteStage::Ready(zygote) if zygote.number() == number)
    }

    /// A pooled worker for a session with this plan.
    pub fn claim(&mut self, session: &PlannedSession<'_>) -> Option<PooledWorker> {
        let key = self.key_of(session)?;
        loop {
            let worker = self.apply(PoolEvent::Claimed(key))?;
            if worker.is_alive() {
                return Some(worker);
            }
            self.to_end.push(worker);
        }
    }

    /// The pool key of a session's plan. None if no pooled worker can become the session's. Keys that fit
    /// the plan but are out of date, because files around the sessions have changed, are forgotten.
    fn key_of(&mut self, session: &PlannedSession<'_>) -> Option<PoolKey> {
        let fits = |base: &&Arc<PoolBase>| base.fits(session.plan);
        let fitting: Vec<Arc<PoolBase>> = self.bases.iter().filter(fits).cloned().collect();
        for base in fitting {
            if base.is_current(session.around) {
                return Some(base.key);
            }
            self.apply(PoolEvent::Stale(base.key));
        }
        // If the workspace contains the node's own directories, the plan has no base.
        let base = Some(PoolBase::of(session)).filter(|base| base.fits(session.plan))?;
        Some(self.add_base(base))
    }

    fn add_base(&mut self, base: PoolBase) -> PoolKey {
        let key = base.key;
        self.bases.retain(|known| known.key != key);
        self.bases.push(Arc::new(base));
        key
    }

    /// Fills the pool for sessions with this base.
    pub fn expect(&mut self, base: PoolBase) {
        // The zygote may have ended, or a session may have added a base, while this base was computed.
        if matches!(self.zygote, ZygoteStage::Ready(_)) && self.bases.is_empty() {
            let key = self.add_base(base);
            self.apply(PoolEvent::Expected(key));
        }
    }

    /// A pooled worker is ready, or could not be made.
    pub fn made(&mut self, number: WorkerNo, made: Option<PooledWorker>) {
        match made {
            Some(worker) => {
                self.workers.insert(number, worker);
                self.apply(PoolEvent::Made(number));
            }
            None => {
                self.apply(PoolEvent::MakeFailed(number));
            }
        }
    }

    /// Removes pooled workers whose keepers have ended, and steps the pool's clock.
    pub fn tick(&mut self) {
        let dead = self.workers.iter().filter(|(_, worker)| !worker.is_alive());
        for number in dead.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.to_end.extend(self.workers.remove(&number));
            self.apply(PoolEvent::Ended(number));
        }
        self.apply(PoolEvent::Tick);
    }

    /// How long until [`Self::tick`] is due.
    pub fn until_tick(&self) -> Option<Duration> {
        if !matches!(self.zygote, ZygoteStage::Ready(_)) {
            return None;
        }
        let now = self.born.elapsed();
        self.pool.next_tick(now).map(|at| at.saturating_sub(now))
    }

    /// Takes the workers to make and the workers to end.
    pub fn take_work(&mut self) -> (Vec<(WorkerNo, Arc<PoolBase>)>, Vec<PooledWorker>) {
        (std::mem::take(&mut self.to_make), std::mem::take(&mut self.to_end))
    }

    /// Ends the zygote if a session can write the directories of its code. Returns whether the zygote stays.
    pub fn keep_if_trusted(&mut self, trust: &Trust) -> bool {
        let ZygoteStage::Ready(zygote) = &self.zygote else { return true };
        let Err(why) = zygote.check_trust(trust) else { return true };
        tracing::warn!(%why, "ending a zygote that is not trusted any more");
        self.end_zygote();
        self.zygote = ZygoteStage::Failed { why: Advice(&why).to_string(), since: Instant::now() };
        false
    }

    /// Ends the zygote and its pooled workers. Workers that sessions have claimed keep running.
    pub fn end_zygote(&mut self) {
        self.zygote = ZygoteStage::None;
        self.apply(PoolEvent::ZygoteGone);
    }

    /// Steps the pool and queues its effects. Returns the worker that the pool gives to a session.
    fn apply(&mut self, event: PoolEvent) -> Option<PooledWorker> {
        let mut given = None;
        for effect in self.pool.step(event, self.born.elapsed(), self.memory) {
            match effect {
                PoolEffect::Give(number) => given = self.workers.remove(&number),
                PoolEffect::End(number) => self.to_end.extend(self.workers.remove(&number)),
                PoolEffect::Forget(key) => self.bases.retain(|base| base.key != key),
                PoolEffect::Make(key, number) => {
                    match self.bases.iter().find(|base| base.key == key).cloned() {
                        Some(base) => self.to_make.push((number, base)),
                        None => drop(self.apply(PoolEvent::MakeFailed(number))),
                    }
                }
            }
        }
        given
    }
}
