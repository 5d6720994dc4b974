//! All environments of a node: a zygote and a pool for each interpreter that the user named. If an
//! environment has no worker ready, the session starts by the next strategy.
//!
//! A zygote is not confined. So it exists only for interpreters that the user named or has on PATH, and
//! only if no session could have changed the code that it runs ([`crate::trust`]).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use windlass_procs::HoldMode;
use windlass_protocol::environments::{EnvironmentEntry, EnvironmentList};
use windlass_protocol::fleet_view::ReadyWorkers;

use super::environment::{Environment, ZygoteStage};
use super::pool_base::PlannedSession;
use super::pooled::PooledWorker;
use super::zygote::Zygote;
use crate::config::{Config, StartBy};
use crate::trust::Trust;
use crate::workers::Recipe;

#[derive(Debug)]
pub(super) struct Environments {
    pub start: StartBy,
    /// Why the user's `environments.json` is not used.
    error: Option<String>,
    pub list: Vec<Environment>,
    trust: Arc<Trust>,
    /// Wakes the tending task: something must be started or ended.
    pub wanted: Notify,
    /// Signals every change of what [`Self::list`] shows.
    pub changed: watch::Sender<()>,
    /// How many zygotes and pooled workers were started. The next number comes from here.
    started: AtomicU64,
}

impl Environments {
    pub fn new(config: &Config, trust: Arc<Trust>) -> Self {
        // A zygote cannot fork into a process tree that is held by a subreaper instead of a namespace, and its forks
        // cannot get a user id of their own.
        let only_exec = config.hold == HoldMode::Subreaper || config.session_uids.is_some();
        let start = if only_exec { StartBy::Exec } else { config.start };
        let entries = config.environments.entries.iter();
        Self {
            start,
            error: config.environments.error.clone(),
            list: entries.map(|entry| Environment::new(entry, start)).collect(),
            trust,
            wanted: Notify::new(),
            changed: watch::Sender::new(()),
            started: AtomicU64::new(0),
        }
    }

    /// The zygote from which a session's workers can be forked, if it is ready and its environment
    /// variables fit. If it is not ready, it is started for later sessions.
    pub fn zygote_for(&self, recipe: &Recipe) -> Option<Arc<Zygote>> {
        let zygote = self.ready(&recipe.interpreter, |entry| entry.worker == recipe.name)?;
        zygote.fits(&recipe.env).then_some(zygote)
    }

    /// A connection to the zygote of this interpreter.
    pub fn connect(&self, program: &Path) -> Option<OwnedFd> {
        self.ready(program, |_| true)?.connect().ok()
    }

    /// The zygote of this interpreter, if it is ready, up to date and trusted. Workers of different kinds may
    /// have the same interpreter, so `is_kind` checks the entry.
    fn ready(
        &self,
        program: &Path,
        is_kind: impl Fn(&EnvironmentEntry) -> bool,
    ) -> Option<Arc<Zygote>> {
        if self.start == StartBy::Exec {
            return None;
        }
        let is_of = |one: &&Environment| {
            is_kind(&one.entry) && one.lock().program.as_deref() == Some(program)
        };
        let environment = self.list.iter().find(is_of)?;
        let mut state = environment.lock();
        state.used = Some(Instant::now());
        let zygote = match &state.zygote {
            ZygoteStage::Ready(zygote) => Some(zygote.clone()),
            ZygoteStage::None => None,
            ZygoteStage::Starting | ZygoteStage::Failed { .. } => return None,
        };
        let ready = zygote.filter(|zygote| {
            let is_current = zygote.is_current();
            if !is_current {
                let interpreter = &environment.entry.interpreter;
                tracing::info!(interpreter, "the zygote's files have changed; ending the zygote");
                state.end_zygote();
            }
            is_current && state.keep_if_trusted(&self.trust)
        });
        if ready.is_none() {
            self.wanted.notify_one();
        }
        ready
    }

    /// A pooled worker for a session. `zygote` is the number of the zygote that [`Self::zygote_for`]
    /// returned.
    pub fn claim(&self, zygote: u64, session: &PlannedSession<'_>) -> Option<PooledWorker> {
        if self.start != StartBy::Pool {
            return None;
        }
        let mut state =
            self.list.iter().map(Environment::lock).find(|one| one.has_zygote(zygote))?;
        let claimed = state.claim(session);
        self.wanted.notify_one();
        claimed
    }

    pub fn list(&self) -> EnvironmentList {
        let environments = self.list.iter().map(Environment::info).collect();
        EnvironmentList { environments, error: self.error.clone(), packages: Vec::new() }
    }

    /// The environments with workers that are ready for sessions.
    pub fn ready_workers(&self) -> Vec<ReadyWorkers> {
        let all = self.list.iter().map(|environment| ReadyWorkers {
            worker: environment.entry.worker.clone(),
            interpreter: environment.entry.interpreter.clone(),
            ready: environment.lock().ready() as u64,
        });
        all.filter(|workers| workers.ready > 0).collect()
    }

    pub async fn settled(&self) {
        let mut changed = self.changed.subscribe();
        while self.list.iter().any(Environment::is_starting) {
            if self.start == StartBy::Exec || changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Sessions can write a new directory: ends the zygotes whose code is there.
    pub fn end_untrusted(&self) {
        for environment in &self.list {
            if !environment.lock().keep_if_trusted(&self.trust) {
                self.wanted.notify_one();
            }
        }
    }

    /// Ends all zygotes. Returns the pooled workers, which the caller must end.
    pub fn shut_down(&self) -> Vec<PooledWorker> {
        let workers = self.list.iter().flat_map(|environment| {
            let mut state = environment.lock();
            state.end_zygote();
            state.take_work().1
        });
        workers.collect()
    }

    pub fn next_number(&self) -> u64 {
        self.started.fetch_add(1, Ordering::Relaxed)
    }
}
