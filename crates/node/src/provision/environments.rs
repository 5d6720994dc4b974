//! All environments of a node: for each interpreter that the user named, a zygote and a pool. Where an
//! environment has nothing to give, the session starts as it would without.
//!
//! A zygote is a program of the user's that is not confined, so it exists only for interpreters that
//! the user named or has on PATH, and only where no session could have changed what it runs
//! ([`crate::trust`]).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use windlass_procs::Wanted;
use windlass_protocol::environments::EnvironmentList;

use super::base::PlannedFor;
use super::environment::{Environment, Stage};
use super::pooled::PooledWorker;
use super::zygote::Zygote;
use crate::config::{Config, StartBy};
use crate::trust::Trust;
use crate::workers::Recipe;

#[derive(Debug)]
pub(super) struct Environments {
    pub start: StartBy,
    /// Why the user's file is not used.
    error: Option<String>,
    pub list: Vec<Environment>,
    trust: Arc<Trust>,
    /// Something is to be started or ended.
    pub wanted: Notify,
    /// Told whenever something has changed that lists show.
    pub changed: watch::Sender<()>,
    /// Zygotes and pooled workers that were begun.
    begun: AtomicU64,
}

impl Environments {
    pub fn new(config: &Config, trust: Arc<Trust>) -> Self {
        // Into a tree that is held without a namespace no zygote can fork.
        let start = if config.hold == Wanted::Subreaper { StartBy::Exec } else { config.start };
        let entries = config.environments.entries.iter();
        Self {
            start,
            error: config.environments.error.clone(),
            list: entries.map(|entry| Environment::new(entry, start)).collect(),
            trust,
            wanted: Notify::new(),
            changed: watch::Sender::new(()),
            begun: AtomicU64::new(0),
        }
    }

    /// The zygote from which a session's workers can be forked, if one is ready that fits. If none is,
    /// one is started for later sessions.
    pub fn zygote_for(&self, recipe: &Recipe) -> Option<Arc<Zygote>> {
        let zygote = self.ready(&recipe.interpreter)?;
        zygote.fits(&recipe.env).then_some(zygote)
    }

    /// A connection to the zygote of this interpreter.
    pub fn connect(&self, program: &Path) -> Option<OwnedFd> {
        self.ready(program)?.connect().ok()
    }

    /// The zygote of this interpreter, if it is ready and what it should be.
    fn ready(&self, program: &Path) -> Option<Arc<Zygote>> {
        if self.start == StartBy::Exec {
            return None;
        }
        let is_of = |one: &&Environment| one.lock().program.as_deref() == Some(program);
        let environment = self.list.iter().find(is_of)?;
        let mut state = environment.lock();
        state.used = Some(Instant::now());
        let zygote = match &state.zygote {
            Stage::Ready(zygote) => Some(zygote.clone()),
            Stage::None => None,
            Stage::Starting | Stage::Failed { .. } => return None,
        };
        let ready = zygote.filter(|zygote| {
            let is_current = zygote.is_current();
            if !is_current {
                let interpreter = &environment.entry.interpreter;
                tracing::info!(interpreter, "a zygote is out of date");
                state.end_zygote();
            }
            is_current && state.keep_if_trusted(&self.trust)
        });
        if ready.is_none() {
            self.wanted.notify_one();
        }
        ready
    }

    /// A pooled worker, for a session that [`Self::zygote_for`] gave this zygote to.
    pub fn claim(&self, zygote: u64, session: &PlannedFor<'_>) -> Option<PooledWorker> {
        if self.start != StartBy::Pool {
            return None;
        }
        let mut state = self.list.iter().map(Environment::lock).find(|one| one.is_of(zygote))?;
        let claimed = state.claim(session);
        self.wanted.notify_one();
        claimed
    }

    pub fn list(&self) -> EnvironmentList {
        let environments = self.list.iter().map(Environment::info).collect();
        EnvironmentList { environments, error: self.error.clone() }
    }

    pub async fn settled(&self) {
        let mut changed = self.changed.subscribe();
        while self.list.iter().any(Environment::is_on_its_way) {
            if self.start == StartBy::Exec || changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// There is a new root that sessions can write: ends the zygotes whose code could come from there.
    pub fn end_untrusted(&self) {
        for environment in &self.list {
            if !environment.lock().keep_if_trusted(&self.trust) {
                self.wanted.notify_one();
            }
        }
    }

    /// Ends all zygotes; the pooled workers, to be ended.
    pub fn shut_down(&self) -> Vec<PooledWorker> {
        let workers = self.list.iter().flat_map(|environment| {
            let mut state = environment.lock();
            state.end_zygote();
            state.take_work().1
        });
        workers.collect()
    }

    pub fn next_number(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed)
    }
}
