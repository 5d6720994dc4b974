//! Package environments: which there are, who builds them, and which one a session uses. The code that builds one runs in
//! a confined session of its own ([`build`]); the node runs nothing of an environment.

mod build;
mod index;
mod session;
mod store;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use windlass_protocol::ErrorCode;
use windlass_protocol::api::CreateSession;
use windlass_protocol::kinds;
use windlass_protocol::limits::WAIT_MS_MAX;
use windlass_protocol::packages::{
    CreatePackageEnvironment, PACKAGE_ENVIRONMENTS_MAX, PackageEnvironment,
    PackageEnvironmentState, UNNAMED_PREFIX,
};
use windlass_protocol::policy::Policy;

use self::store::Record;
use crate::clock::now_ms;
use crate::config::Config;
use crate::context::Context;
use crate::disk::SessionClaims as _;
use crate::failure::Failure;
use crate::trust::Trust;

/// Maximum number of builds at the same time. One more is refused as `overloaded`.
const BUILDS_MAX: usize = 4;

/// Maximum time that a reply waits until the session of a build is made. After that the reply names no session.
const BUILD_NAMED_WAIT: Duration = Duration::from_millis(WAIT_MS_MAX);

/// How much later than the last recorded use a use is recorded.
const USE_RECORDED_MS: u64 = 3600 * 1000;

/// The error of an environment whose build was cut off.
const CUT_OFF: &str = "the node ended during the build";

/// The package environments of this node.
#[derive(Debug)]
pub(crate) struct PackageEnvironments {
    config: Arc<Config>,
    trust: Arc<Trust>,
    /// Held for changes in memory and for one rename, because the thread that serves turns takes it too.
    known: Mutex<HashMap<String, Known>>,
    /// Held while a record is written, and while an environment is renamed. Taken before `known`, and only on threads for
    /// blocking work.
    disk: Mutex<()>,
    /// Directories that an earlier node has left, until they are removed.
    leftovers: Mutex<Vec<PathBuf>>,
    /// Changes when a build begins or ends.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Known {
    record: Record,
    /// The last use that the disk has.
    use_recorded_ms: u64,
    /// Sessions that are being made with it.
    starting: usize,
}

impl Known {
    fn new(record: Record) -> Self {
        Self { use_recorded_ms: record.used_at_ms, record, starting: 0 }
    }

    /// Notes a use. Returns whether it is to be written to the disk.
    fn note_use(&mut self, now_ms: u64) -> bool {
        self.record.used_at_ms = now_ms;
        let is_to_be_recorded = now_ms.saturating_sub(self.use_recorded_ms) > USE_RECORDED_MS;
        if is_to_be_recorded {
            self.use_recorded_ms = now_ms;
        }
        is_to_be_recorded
    }
}

/// For how long an environment was not used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnusedFor {
    pub at_least: Duration,
    pub now_ms: u64,
}

impl UnusedFor {
    fn holds_for(self, record: &Record) -> bool {
        u128::from(self.now_ms.saturating_sub(record.used_at_ms)) >= self.at_least.as_millis()
    }
}

/// What a request for an environment finds.
enum Found {
    There,
    /// The environment is to be built. `old` is the record of its last build.
    Begun {
        old: Option<Record>,
    },
}

impl PackageEnvironments {
    /// Reads what earlier nodes built. Blocks: it reads files.
    pub fn load(config: Arc<Config>, trust: Arc<Trust>) -> Self {
        let mut known = HashMap::new();
        let stored = store::load(&config);
        for (name, mut record) in stored.records {
            if record.state == PackageEnvironmentState::Building {
                record.state = PackageEnvironmentState::Failed;
                record.error = Some(CUT_OFF.to_owned());
            }
            known.insert(name, Known::new(record));
        }
        Self {
            config,
            trust,
            known: Mutex::new(known),
            disk: Mutex::default(),
            leftovers: Mutex::new(stored.removed),
            changes: watch::Sender::new(0),
        }
    }

    /// Removes the files of directories that an earlier node has left. Blocks: this may take long.
    pub fn sweep(&self) {
        let leftovers = std::mem::take(&mut *held(&self.leftovers));
        leftovers.iter().for_each(|moved| store::remove_moved(&self.config, moved));
    }

    pub fn list(&self) -> Vec<PackageEnvironment> {
        let known = self.known();
        let mut list: Vec<_> =
            known.iter().map(|(name, one)| self.show(name, &one.record)).collect();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }

    /// One environment, with its lock file.
    pub fn look(&self, name: &str) -> Result<PackageEnvironment, Failure> {
        let known = self.known();
        let record = &known.get(name).ok_or_else(|| unknown(name))?.record;
        Ok(PackageEnvironment { lock: record.lock.clone(), ..self.show(name, record) })
    }

    /// Removes an environment that no session uses. Blocks: it removes files. `in_use` is asked under the lock: a session
    /// that starts is counted here until it is among the live ones. Nothing is removed if it is `None`.
    pub fn remove(
        &self,
        name: &str,
        in_use: &dyn Fn() -> Option<HashSet<String>>,
    ) -> Result<PackageEnvironment, Failure> {
        let (removed, moved) = {
            let _disk = held(&self.disk);
            let mut known = self.known();
            let one = known.get(name).ok_or_else(|| unknown(name))?;
            if is_busy(name, one, in_use().as_ref()) {
                let message =
                    format!("the environment {name:?} is being built, or a session uses it");
                return Err(Failure::new(ErrorCode::SessionBusy, message));
            }
            let removed = self.show(name, &one.record);
            (removed, self.forget(&mut known, name)?)
        };
        moved.iter().for_each(|moved| store::remove_moved(&self.config, moved));
        Ok(removed)
    }

    /// Notes that live sessions use these environments now. Blocks: it may write to the disk.
    pub fn note_uses(&self, in_use: &HashSet<String>, now_ms: u64) {
        let mut known = self.known();
        let mut unrecorded = Vec::new();
        for name in in_use {
            if known.get_mut(name).is_some_and(|one| one.note_use(now_ms)) {
                unrecorded.push(name);
            }
        }
        drop(known);
        unrecorded.into_iter().for_each(|name| self.record_use(name));
    }

    /// Names of the unnamed environments that no session uses, and that were unused for this time.
    pub fn unused(
        &self,
        in_use: &dyn Fn() -> Option<HashSet<String>>,
        unused: UnusedFor,
    ) -> Vec<String> {
        let known = self.known();
        let in_use = in_use();
        let is_unused = |(name, one): &(&String, &Known)| {
            is_unneeded(name, one, in_use.as_ref()) && unused.holds_for(&one.record)
        };
        let mut names: Vec<_> =
            known.iter().filter(is_unused).map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Moves an environment without a name away, unless a session uses it meanwhile. Returns the path of its files.
    pub fn move_unused_away(
        &self,
        name: &str,
        in_use: &dyn Fn() -> Option<HashSet<String>>,
    ) -> Result<Option<PathBuf>, Failure> {
        let _disk = held(&self.disk);
        let mut known = self.known();
        let is_unused =
            known.get(name).is_some_and(|one| is_unneeded(name, one, in_use().as_ref()));
        if is_unused { self.forget(&mut known, name) } else { Ok(None) }
    }

    /// Renames the directory of an environment and removes its record from memory. The caller holds the lock `disk`. It
    /// removes the renamed directory after it has released both locks.
    fn forget(
        &self,
        known: &mut HashMap<String, Known>,
        name: &str,
    ) -> Result<Option<PathBuf>, Failure> {
        let moved = store::move_away(&self.config, name).map_err(|error| {
            Failure::while_making(format_args!("cannot remove the environment {name:?}"), &error)
        })?;
        known.remove(name);
        Ok(moved)
    }

    /// The virtual environment for a session that names one, held until the session is made. Blocks: it may write to the
    /// disk.
    pub fn for_session(
        self: &Arc<Self>,
        wanted: &CreateSession,
    ) -> Result<Option<UsedEnvironment>, Failure> {
        let Some(name) = &wanted.environment else { return Ok(None) };
        let refused = |message: String| Failure::new(ErrorCode::BadRequest, message);
        let kind = wanted.worker.as_deref().unwrap_or(kinds::DEFAULT.name);
        if kind != kinds::python::KIND.name {
            return Err(refused(format!(
                "the worker {kind:?} takes no environment; only python does"
            )));
        }
        if wanted.interpreter.is_some() {
            let message = "a session takes an interpreter or an environment, not both";
            return Err(refused(message.to_owned()));
        }
        let mut known = self.known();
        let one = known.get_mut(name).ok_or_else(|| unknown(name))?;
        if one.record.state != PackageEnvironmentState::Ready {
            let why = one.record.error.as_deref().unwrap_or("it is being built");
            let message = format!("the environment {name:?} is not ready: {why}");
            return Err(Failure::new(ErrorCode::WorkerFailed, message));
        }
        one.starting += 1;
        let is_to_be_recorded = one.note_use(now_ms());
        drop(known);
        if is_to_be_recorded {
            self.record_use(name);
        }
        let venv = store::venv_dir(&self.config, name);
        Ok(Some(UsedEnvironment { environments: self.clone(), name: name.clone(), venv }))
    }

    /// Lets the code of a session install packages, if the request wants that. Blocks.
    pub fn allow_in(&self, wanted: &mut CreateSession, policy: &mut Policy) -> Result<(), Failure> {
        session::allow(&self.trust, wanted, policy)
    }

    /// Registers a request: finds the environment, or begins its build. Blocks: it writes to the disk.
    fn begin(
        &self,
        name: &str,
        wanted: &Record,
        in_use: &dyn Fn() -> Option<HashSet<String>>,
    ) -> Result<Found, Failure> {
        let (found, moved) = self.register(name, wanted, in_use)?;
        moved.iter().for_each(|moved| store::remove_moved(&self.config, moved));
        let Found::Begun { old } = found else { return Ok(found) };
        if let Err(error) = self.save(name) {
            self.take_back(name, old);
            let what = format_args!("the environment {name:?}");
            return Err(Failure::while_making(what, &error));
        }
        Ok(Found::Begun { old })
    }

    /// Undoes [`Self::register`], because its record could not be written.
    fn take_back(&self, name: &str, old: Option<Record>) {
        let mut known = self.known();
        match old {
            Some(record) => {
                known.insert(name.to_owned(), Known::new(record));
            }
            None => {
                known.remove(name);
            }
        }
        drop(known);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Finds the environment, or notes that it is being built. Also returns a directory that was moved away for it.
    fn register(
        &self,
        name: &str,
        wanted: &Record,
        in_use: &dyn Fn() -> Option<HashSet<String>>,
    ) -> Result<(Found, Option<PathBuf>), Failure> {
        let _disk = held(&self.disk);
        let mut known = self.known();
        let in_use = in_use();
        if let Some(one) = known.get(name) {
            if !one.record.is_same_request(wanted)
                && one.record.state != PackageEnvironmentState::Failed
            {
                let message = format!(
                    "the environment {name:?} exists with other packages or another interpreter; \
                     remove it first (`windlass env rm {name}`), or choose another name"
                );
                return Err(Failure::new(ErrorCode::BadRequest, message));
            }
            if one.record.state != PackageEnvironmentState::Failed {
                return Ok((Found::There, None));
            }
            if is_busy(name, one, in_use.as_ref()) {
                let message = format!("a session still uses the environment {name:?}");
                return Err(Failure::new(ErrorCode::SessionBusy, message));
            }
        }
        let building = |one: &&Known| one.record.state == PackageEnvironmentState::Building;
        if known.values().filter(building).count() >= BUILDS_MAX {
            let message = format!("{BUILDS_MAX} package environments are being built already");
            return Err(Failure::new(ErrorCode::Overloaded, message));
        }
        let mut moved = None;
        if !known.contains_key(name) && known.len() >= PACKAGE_ENVIRONMENTS_MAX {
            moved = self.make_room(&mut known, in_use.as_ref())?;
        }
        let begun = Known::new(wanted.clone());
        let old = known.insert(name.to_owned(), begun).map(|one| one.record);
        Ok((Found::Begun { old }, moved))
    }

    /// Moves the unnamed environment away that was not used for the longest time.
    fn make_room(
        &self,
        known: &mut HashMap<String, Known>,
        in_use: Option<&HashSet<String>>,
    ) -> Result<Option<PathBuf>, Failure> {
        let unneeded = |(name, one): &(&String, &Known)| is_unneeded(name, one, in_use);
        let oldest = known.iter().filter(unneeded).min_by_key(|(_, one)| one.record.used_at_ms);
        let Some(name) = oldest.map(|(name, _)| name.clone()) else {
            let message = format!(
                "the node has {PACKAGE_ENVIRONMENTS_MAX} package environments; remove one: `windlass env rm NAME`"
            );
            return Err(Failure::new(ErrorCode::Overloaded, message));
        };
        self.forget(known, &name)
    }

    /// Writes the current record of an environment to the disk, if there is one. Blocks.
    fn save(&self, name: &str) -> std::io::Result<()> {
        let _disk = held(&self.disk);
        let record = self.known().get(name).map(|one| one.record.clone());
        record.map_or(Ok(()), |record| store::write(&self.config, name, &record))
    }

    /// Changes a record, in memory and on the disk. Blocks.
    fn update(&self, name: &str, change: impl FnOnce(&mut Record)) {
        let mut known = self.known();
        let Some(one) = known.get_mut(name) else { return };
        change(&mut one.record);
        drop(known);
        if let Err(error) = self.save(name) {
            tracing::warn!(name, %error, "cannot write the record of a package environment");
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Writes the last use of an environment to the disk. Blocks.
    fn record_use(&self, name: &str) {
        if let Err(error) = self.save(name) {
            tracing::warn!(name, %error, "cannot record the use of a package environment");
        }
    }

    fn show(&self, name: &str, record: &Record) -> PackageEnvironment {
        PackageEnvironment {
            name: name.to_owned(),
            state: record.state,
            packages: record.packages.clone(),
            python: record.python.display().to_string(),
            directory: store::venv_dir(&self.config, name).display().to_string(),
            created_at_ms: record.created_at_ms,
            used_at_ms: record.used_at_ms,
            build: record.build.clone(),
            error: record.error.clone(),
            lock: None,
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        held(&self.known)
    }
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().expect("no holder of this lock can panic")
}

/// An environment that a session is being made with. It is not removed meanwhile.
#[derive(Debug)]
pub(crate) struct UsedEnvironment {
    environments: Arc<PackageEnvironments>,
    pub name: String,
    pub venv: PathBuf,
}

impl Drop for UsedEnvironment {
    fn drop(&mut self) {
        if let Some(one) = self.environments.known().get_mut(&self.name) {
            one.starting = one.starting.saturating_sub(1);
        }
    }
}

/// Finds an environment or builds it. The reply comes when it is ready or failed, or when the wait has passed.
pub(crate) async fn ensure(
    context: &Arc<Context>,
    request: CreatePackageEnvironment,
) -> Result<PackageEnvironment, Failure> {
    request.check().map_err(|error| Failure::new(ErrorCode::BadRequest, error.to_string()))?;
    let environments = context.host.packages.clone();
    let wait = Duration::from_millis(request.wait_ms.min(WAIT_MS_MAX));
    // Before the build begins, so that no change is missed.
    let mut changes = environments.changes.subscribe();
    // The client may disconnect meanwhile. A task of its own starts the build in any case.
    let begun = tokio::spawn(find_or_build(context.clone(), request));
    let name = begun.await.map_err(|error| Failure::internal(&error.to_string()))??;
    let mut until = async |is_reached: fn(&PackageEnvironment) -> bool| {
        while environments.look(&name).is_ok_and(|one| !is_reached(&one)) {
            if changes.changed().await.is_err() {
                break;
            }
        }
    };
    // A client that does not wait follows the session of the build, so the reply names it.
    let is_named: fn(&PackageEnvironment) -> bool =
        |one| one.state != PackageEnvironmentState::Building || one.build.is_some();
    let _ = tokio::time::timeout(BUILD_NAMED_WAIT, until(is_named)).await;
    let is_built = |one: &PackageEnvironment| one.state != PackageEnvironmentState::Building;
    let _ = tokio::time::timeout(wait, until(is_built)).await;
    environments.look(&name)
}

/// Finds the environment of a request, or spawns its build. Returns the name.
async fn find_or_build(
    context: Arc<Context>,
    request: CreatePackageEnvironment,
) -> Result<String, Failure> {
    let (name, begun, wanted) = {
        let context = context.clone();
        // Looks for the interpreter and writes to the disk.
        tokio::task::spawn_blocking(move || {
            let python = interpreter(&context, request.python.as_deref())?;
            let wanted = Record::new(&request, python, now_ms());
            let name = request.name.clone().unwrap_or_else(|| unnamed(&wanted));
            let begun = context.host.packages.begin(&name, &wanted, &|| in_use(&context))?;
            Ok::<_, Failure>((name, begun, wanted))
        })
        .await
        .map_err(|error| Failure::internal(&error.to_string()))??
    };
    if let Found::Begun { old } = begun {
        let build = build::Build { name: name.clone(), record: wanted, old };
        tokio::spawn(async move { build.run(&context).await });
    }
    Ok(name)
}

/// The names of the environments of live sessions. `None` if this node does not have all live sessions.
pub(crate) fn in_use(context: &Context) -> Option<HashSet<String>> {
    context.environments_in_use()
}

/// Whether an environment must stay. Without a list of those in use, each one must.
fn is_busy(name: &str, one: &Known, in_use: Option<&HashSet<String>>) -> bool {
    let is_building = one.record.state == PackageEnvironmentState::Building;
    is_building || one.starting > 0 || in_use.is_none_or(|in_use| in_use.contains(name))
}

/// Whether an environment has no name that a client would miss, and no session uses it.
fn is_unneeded(name: &str, one: &Known, in_use: Option<&HashSet<String>>) -> bool {
    name.starts_with(UNNAMED_PREFIX) && !is_busy(name, one, in_use)
}

/// The interpreter that a request names, as a session does.
fn interpreter(context: &Context, named: Option<&str>) -> Result<PathBuf, Failure> {
    let launcher = context.host.workers.launcher(kinds::python::KIND.name)?;
    launcher.named_interpreter(named.unwrap_or("python3"))
}

/// The name of an environment whose request has none.
fn unnamed(record: &Record) -> String {
    let mut hasher = DefaultHasher::new();
    (&record.packages, &record.given_lock, record.allow_source_builds, &record.python)
        .hash(&mut hasher);
    format!("{UNNAMED_PREFIX}{:016x}", hasher.finish())
}

fn unknown(name: &str) -> Failure {
    let message = format!("there is no environment {name:?}; `windlass env list` shows all");
    Failure::new(ErrorCode::NotFound, message)
}

/// Finds `uv` on the node's PATH.
fn uv() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|dir| dir.join("uv"));
    found.filter(|program| program.is_absolute()).find(|program| is_program(program))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
