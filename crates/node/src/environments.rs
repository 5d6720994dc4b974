//! Environments: for each interpreter that the user named, a zygote that has its modules, and a few
//! workers that wait. An optimisation behind one question, [`Environments::zygote_for`] and
//! [`Environments::claim`]: where either has nothing to give, the session starts as it always could.
//!
//! A zygote is a program of the user's that is not confined, so it exists only for interpreters that
//! the user named or has on PATH, and only where no session could have changed what it runs
//! ([`crate::trust`]).

mod marks;
mod pool;
mod tending;
mod zygote;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use windlass_protocol::environments::{
    EnvironmentEntry, EnvironmentList, POOL_DEFAULT, PoolInfo, ZygoteInfo, ZygoteState,
};
use windlass_protocol::{Epoch, SessionId, environments};
use windlass_sandbox::{Around, Plan, Wanted};

use self::pool::{Model, Waiting};
use crate::config::{Config, StartBy};
use crate::trust::{Advice, Trust};
use crate::workers::Recipe;

pub(crate) use self::pool::{Claimed, Offer};
pub(crate) use self::tending::tend;
pub(crate) use self::zygote::Zygote;

/// All environments of this node.
#[derive(Debug)]
pub(crate) struct Environments {
    start: StartBy,
    /// Why the user's file is not used.
    error: Option<String>,
    list: Vec<Environment>,
    trust: Arc<Trust>,
    /// Something is to be started or put away.
    wanted: Notify,
    /// Told whenever something has changed that lists show.
    changed: watch::Sender<()>,
    /// Zygotes and waiting workers that were begun.
    begun: AtomicU64,
}

#[derive(Debug)]
struct Environment {
    entry: EnvironmentEntry,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Its interpreter, once that was looked for.
    program: Option<PathBuf>,
    zygote: Stage,
    /// What the sessions will be like for which workers wait.
    model: Option<Model>,
    waiting: Vec<Waiting>,
    /// Since when fewer wait than should, and when one was last claimed.
    claims: Option<Claims>,
    /// How many are on their way to wait, and how many of them will be confined.
    coming: usize,
    binding: usize,
    /// When one could not be confined ahead.
    unbindable: Option<Instant>,
    /// When one could not be made to wait, until one could.
    pool_failed: Option<Instant>,
    /// When a session last asked.
    used: Option<Instant>,
}

/// Claims since the pool was last full.
#[derive(Debug, Clone, Copy)]
struct Claims {
    first: Instant,
    last: Instant,
}

/// Where a zygote is in its life.
#[derive(Debug, Default)]
enum Stage {
    #[default]
    None,
    Starting,
    Ready(Arc<Zygote>),
    Failed {
        why: String,
        since: Instant,
    },
}

/// Who asks for a worker.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
    pub recipe: &'a Recipe,
    /// Where the session can write: nothing from there runs in a zygote.
    pub writable: &'a [PathBuf],
}

/// What a session will be like.
#[derive(Debug)]
pub(crate) struct Outline<'a> {
    pub plan: &'a Plan,
    /// What the plan was made from, as far as it is the same for others.
    pub around: &'a Arc<Around>,
    /// Directories of its own.
    pub own: &'a [&'a Path],
}

impl Environments {
    pub fn new(config: &Config, trust: Arc<Trust>) -> Self {
        let environment = |entry: &EnvironmentEntry| Environment {
            entry: entry.clone(),
            // As if somebody had asked: the first session should find them.
            state: Mutex::new(State { used: Some(Instant::now()), ..State::default() }),
        };
        Self {
            // Into a tree that is held without a namespace no zygote can fork.
            start: if config.hold == Wanted::Subreaper { StartBy::Exec } else { config.start },
            error: config.environments.error.clone(),
            list: config.environments.entries.iter().map(environment).collect(),
            trust,
            wanted: Notify::new(),
            changed: watch::Sender::new(()),
            begun: AtomicU64::new(0),
        }
    }

    /// The zygote from which a session's workers can be forked, if one is ready that fits. If none
    /// is, one is started for those who come later.
    pub fn zygote_for(&self, asking: &Asking<'_>) -> Option<Arc<Zygote>> {
        if self.start == StartBy::Exec {
            return None;
        }
        let zygote = self.ready(self.of(asking)?)?;
        zygote.fits(&asking.recipe.env).then_some(zygote)
    }

    /// A connection to the zygote of this interpreter, for one more worker of a session that had
    /// its first one from there.
    pub fn connect(&self, program: &Path) -> Option<OwnedFd> {
        if self.start == StartBy::Exec {
            return None;
        }
        self.ready(self.of_program(program)?)?.connect().ok()
    }

    /// The zygote of an environment, if it is ready and what it should be.
    fn ready(&self, environment: &Environment) -> Option<Arc<Zygote>> {
        let mut state = environment.lock();
        state.used = Some(Instant::now());
        let zygote = match &state.zygote {
            Stage::Ready(zygote) => zygote.clone(),
            Stage::None => {
                self.wanted.notify_one();
                return None;
            }
            Stage::Starting | Stage::Failed { .. } => return None,
        };
        if !zygote.is_current() {
            tracing::info!(interpreter = environment.entry.interpreter, "a zygote is out of date");
            state.put_away();
            self.wanted.notify_one();
            return None;
        }
        if !state.keep_if_trusted(&self.trust) {
            self.wanted.notify_one();
            return None;
        }
        Some(zygote)
    }

    /// A worker that waits, for a session that [`Self::zygote_for`] gave this zygote to.
    pub fn claim(&self, zygote: u64, outline: &Outline<'_>) -> Option<Claimed> {
        if self.start != StartBy::Pool {
            return None;
        }
        for environment in &self.list {
            let mut state = environment.lock();
            if !state.is_of(zygote) {
                continue;
            }
            if !state.model.as_ref().is_some_and(|model| model.suits(outline)) {
                // Those who wait are for others; the next ones will be for such as this.
                state.model = Some(Model::of(outline));
                state.unbindable = None;
                state.waiting.clear();
            }
            state.note_claim();
            self.wanted.notify_one();
            return state.take(|waiting| !waiting.is_bound());
        }
        None
    }

    pub fn have_workers_wait(&self) -> bool {
        self.start == StartBy::Pool
    }

    /// What a worker of this interpreter is confined for that waits.
    pub fn offer(&self, program: &Path) -> Option<Offer> {
        let state = self.of_program(program)?.lock();
        state.waiting.iter().find_map(Waiting::offer)
    }

    /// The worker that was offered, if nobody else has it by now.
    pub fn accept(&self, program: &Path, offer: &Offer) -> Option<Claimed> {
        let mut state = self.of_program(program)?.lock();
        let claimed = state.take(|waiting| waiting.is_for(offer))?;
        state.note_claim();
        self.wanted.notify_one();
        Some(claimed)
    }

    /// Whether this zygote's pooled workers were prepared for a plan like this session's.
    pub fn suits(&self, zygote: u64, outline: &Outline<'_>) -> bool {
        let suits = |state: &State| state.model.as_ref().is_some_and(|model| model.suits(outline));
        let environment = self.list.iter().map(Environment::lock).find(|one| one.is_of(zygote));
        environment.is_some_and(|state| suits(&state))
    }

    /// What they are like at this moment.
    pub fn list(&self) -> EnvironmentList {
        let environments = self.list.iter().map(|one| one.info(self.pool_size(one))).collect();
        EnvironmentList { environments, error: self.error.clone() }
    }

    /// Waits until nothing is on its way any more.
    pub async fn settled(&self) {
        let mut changed = self.changed.subscribe();
        while self.list.iter().any(|one| one.is_on_its_way(self.pool_size(one))) {
            if self.start == StartBy::Exec || changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// There is a new root that sessions can write: ends the zygotes whose code could come from there.
    pub fn put_away_untrusted(&self) {
        for environment in &self.list {
            if !environment.lock().keep_if_trusted(&self.trust) {
                self.wanted.notify_one();
            }
        }
    }

    /// Ends all zygotes and pooled workers, because the node ends.
    pub fn put_away(&self) {
        self.list.iter().for_each(|environment| environment.lock().put_away());
    }

    fn next_number(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed)
    }

    fn of(&self, asking: &Asking<'_>) -> Option<&Environment> {
        let program = &asking.recipe.interpreter;
        let within = |root: &PathBuf| program.starts_with(root) && root.as_path() != Path::new("/");
        if asking.writable.iter().any(within) {
            return None;
        }
        self.of_program(program)
    }

    fn of_program(&self, program: &Path) -> Option<&Environment> {
        self.list.iter().find(|one| one.lock().program.as_deref() == Some(program))
    }

    fn pool_size(&self, environment: &Environment) -> usize {
        match self.start {
            StartBy::Pool => environment.entry.pool.unwrap_or(POOL_DEFAULT),
            StartBy::Exec | StartBy::Zygote => 0,
        }
    }
}

impl Environment {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock can panic")
    }

    fn is_on_its_way(&self, size: usize) -> bool {
        let state = self.lock();
        match &state.zygote {
            Stage::None => state.used.is_some(),
            Stage::Starting => true,
            Stage::Ready(_) => state.waiting.len() < size && state.pool_failed.is_none(),
            Stage::Failed { .. } => false,
        }
    }

    fn info(&self, size: usize) -> environments::Environment {
        let state = self.lock();
        let none = ZygoteInfo {
            state: ZygoteState::None,
            pid: None,
            pss_kib: None,
            missing: Vec::new(),
            error: None,
        };
        let zygote = match &state.zygote {
            Stage::None => none,
            Stage::Starting => ZygoteInfo { state: ZygoteState::Starting, ..none },
            Stage::Ready(zygote) => zygote.info(),
            Stage::Failed { why, .. } => {
                ZygoteInfo { state: ZygoteState::Failed, error: Some(why.clone()), ..none }
            }
        };
        environments::Environment {
            interpreter: self.entry.interpreter.clone(),
            program: state.program.as_ref().map(|program| program.display().to_string()),
            preload: self.entry.preload.clone(),
            zygote,
            pool: PoolInfo { size, ready: state.waiting.len() },
        }
    }
}

impl State {
    /// Whether its zygote is this one.
    fn is_of(&self, number: u64) -> bool {
        matches!(&self.zygote, Stage::Ready(zygote) if zygote.number() == number)
    }

    /// Ends the zygote if a session can write to where its code came from.
    fn keep_if_trusted(&mut self, trust: &Trust) -> bool {
        let Stage::Ready(zygote) = &self.zygote else { return true };
        let Err(why) = zygote.check_trust(trust) else { return true };
        tracing::warn!(%why, "a zygote is put away");
        self.put_away();
        self.zygote = Stage::Failed { why: Advice(&why).to_string(), since: Instant::now() };
        false
    }

    fn note_claim(&mut self) {
        let last = Instant::now();
        let first = self.claims.map_or(last, |claims| claims.first);
        self.claims = Some(Claims { first, last });
    }

    /// The one of those that has waited longest.
    fn take(&mut self, which: impl Fn(&Waiting) -> bool) -> Option<Claimed> {
        while let Some(place) = self.waiting.iter().position(&which) {
            if let Some(claimed) = self.waiting.remove(place).claim() {
                return Some(claimed);
            }
        }
        None
    }

    /// Ends the zygote and its pooled workers. Workers that sessions have claimed go on.
    fn put_away(&mut self) {
        self.zygote = Stage::None;
        self.waiting.clear();
    }
}

/// Variables that an interpreter or a library reads when it starts: a zygote has read its own.
fn is_read_at_start(name: &str) -> bool {
    const NAMES: [&str; 5] = ["HOME", "LANG", "LANGUAGE", "VIRTUAL_ENV", "USER"];
    const BEGINNINGS: [&str; 12] = [
        "PYTHON",
        "LD_",
        "LC_",
        "MALLOC_",
        "GLIBC_",
        "OMP_",
        "GOMP_",
        "KMP_",
        "OPENBLAS_",
        "MKL_",
        "NUMEXPR_",
        "MPL",
    ];
    NAMES.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// Whether two environments are the same to whatever reads them when it starts.
fn start_alike(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> bool {
    let read = |all: &BTreeMap<String, String>| -> BTreeMap<String, String> {
        let of_start = all.iter().filter(|(name, _)| is_read_at_start(name));
        of_start.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    read(one) == read(other)
}

/// A name for a keeper that no session has yet.
fn nameless(epoch: Epoch, number: u64) -> Option<SessionId> {
    SessionId::parse(format!("waiting-{}-{number}", epoch.0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_is_read_at_the_start_must_be_alike() {
        let zygote = variables(&[("HOME", "/a"), ("PATH", "/bin")]);
        let with = |name, value| {
            let mut all = zygote.clone();
            all.insert(String::from(name), String::from(value));
            all
        };
        assert!(start_alike(&zygote, &with("TOKEN", "1")));
        assert!(start_alike(&zygote, &with("PATH", "/usr/bin")));
        assert!(!start_alike(&zygote, &with("PYTHONHASHSEED", "0")));
        assert!(!start_alike(&zygote, &with("HOME", "/b")));
        assert!(!start_alike(&zygote, &with("OMP_NUM_THREADS", "1")));
        assert!(!start_alike(&zygote, &variables(&[])));
    }
}
