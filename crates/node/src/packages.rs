//! Package environments: which there are, who builds them, and which one a session uses. The code that builds one runs in
//! a confined session of its own ([`build`]); the node runs nothing of an environment.

mod build;
mod index;
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

use self::store::Record;
use crate::clock::now_ms;
use crate::config::Config;
use crate::context::Context;
use crate::failure::Failure;
use crate::trust::Trust;

/// Maximum number of builds at the same time. One more is refused as `overloaded`.
const BUILDS_MAX: usize = 4;

/// How much later than the last recorded use a use is recorded.
const USE_RECORDED_MS: u64 = 3600 * 1000;

/// The error of an environment whose build was cut off.
const CUT_OFF: &str = "the node ended during the build";

/// The package environments of this node.
#[derive(Debug)]
pub(crate) struct PackageEnvironments {
    config: Arc<Config>,
    trust: Arc<Trust>,
    known: Mutex<HashMap<String, Known>>,
    /// Changes when a build begins or ends.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Known {
    record: Record,
    /// Sessions that are being made with it.
    starting: usize,
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
        for (name, mut record) in store::load(&config) {
            if record.state == PackageEnvironmentState::Building {
                record.state = PackageEnvironmentState::Failed;
                record.error = Some(CUT_OFF.to_owned());
            }
            known.insert(name, Known { record, starting: 0 });
        }
        Self { config, trust, known: Mutex::new(known), changes: watch::Sender::new(0) }
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

    /// Removes an environment that no session uses. Blocks: it removes files.
    pub fn remove(
        &self,
        name: &str,
        in_use: &HashSet<String>,
    ) -> Result<PackageEnvironment, Failure> {
        let removed = {
            let mut known = self.known();
            let one = known.get(name).ok_or_else(|| unknown(name))?;
            if is_busy(name, one, in_use) {
                let message =
                    format!("the environment {name:?} is being built, or a session uses it");
                return Err(Failure::new(ErrorCode::SessionBusy, message));
            }
            let removed = self.show(name, &one.record);
            known.remove(name);
            // Removed under the lock, so that no build of the same name begins meanwhile.
            store::remove(&self.config, name);
            removed
        };
        Ok(removed)
    }

    /// The virtual environment for a session that names one, held until the session is made.
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
        let now = now_ms();
        if now.saturating_sub(one.record.used_at_ms) > USE_RECORDED_MS {
            one.record.used_at_ms = now;
            if let Err(error) = store::write(&self.config, name, &one.record) {
                tracing::warn!(name, %error, "cannot record the use of a package environment");
            }
        }
        let venv = store::venv_dir(&self.config, name);
        Ok(Some(UsedEnvironment { environments: self.clone(), name: name.clone(), venv }))
    }

    /// Registers a request: finds the environment, or begins its build.
    fn begin(
        &self,
        name: &str,
        wanted: &Record,
        in_use: &HashSet<String>,
    ) -> Result<Found, Failure> {
        let mut known = self.known();
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
                return Ok(Found::There);
            }
            if is_busy(name, one, in_use) {
                let message = format!("a session still uses the environment {name:?}");
                return Err(Failure::new(ErrorCode::SessionBusy, message));
            }
        }
        let building = |one: &&Known| one.record.state == PackageEnvironmentState::Building;
        if known.values().filter(building).count() >= BUILDS_MAX {
            let message = format!("{BUILDS_MAX} package environments are being built already");
            return Err(Failure::new(ErrorCode::Overloaded, message));
        }
        if !known.contains_key(name) && known.len() >= PACKAGE_ENVIRONMENTS_MAX {
            self.make_room(&mut known, in_use)?;
        }
        store::write(&self.config, name, wanted).map_err(|error| {
            Failure::while_making(format_args!("the environment {name:?}"), &error)
        })?;
        let begun = Known { record: wanted.clone(), starting: 0 };
        let old = known.insert(name.to_owned(), begun).map(|one| one.record);
        Ok(Found::Begun { old })
    }

    /// Removes the unnamed environment that was not used for the longest time.
    fn make_room(
        &self,
        known: &mut HashMap<String, Known>,
        in_use: &HashSet<String>,
    ) -> Result<(), Failure> {
        let unneeded = |(name, one): &(&String, &Known)| {
            name.starts_with(UNNAMED_PREFIX) && !is_busy(name, one, in_use)
        };
        let oldest = known.iter().filter(unneeded).min_by_key(|(_, one)| one.record.used_at_ms);
        let Some(name) = oldest.map(|(name, _)| name.clone()) else {
            let message = format!(
                "the node has {PACKAGE_ENVIRONMENTS_MAX} package environments; remove one: `windlass env rm NAME`"
            );
            return Err(Failure::new(ErrorCode::Overloaded, message));
        };
        known.remove(&name);
        store::remove(&self.config, &name);
        Ok(())
    }

    /// Changes a record, in memory and on the disk.
    fn update(&self, name: &str, change: impl FnOnce(&mut Record)) {
        let mut known = self.known();
        let Some(one) = known.get_mut(name) else { return };
        change(&mut one.record);
        if let Err(error) = store::write(&self.config, name, &one.record) {
            tracing::warn!(name, %error, "cannot write the record of a package environment");
        }
        drop(known);
        self.changes.send_modify(|changes| *changes += 1);
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
        self.known.lock().expect("no holder of this lock can panic")
    }
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
    let (name, begun, wanted) = {
        let (context, request) = (context.clone(), request.clone());
        // Looks for the interpreter and writes to the disk.
        tokio::task::spawn_blocking(move || {
            let python = interpreter(&context, request.python.as_deref())?;
            let wanted = Record::new(&request, python, now_ms());
            let name = request.name.clone().unwrap_or_else(|| unnamed(&wanted));
            let begun = context.host.packages.begin(&name, &wanted, &in_use(&context))?;
            Ok::<_, Failure>((name, begun, wanted))
        })
        .await
        .map_err(|error| Failure::internal(&error.to_string()))??
    };
    // Before the build begins, so that no change is missed.
    let mut changes = environments.changes.subscribe();
    if let Found::Begun { old } = begun {
        let context = context.clone();
        let build = build::Build { name: name.clone(), record: wanted, old };
        // The client may disconnect meanwhile.
        tokio::spawn(async move { build.run(&context).await });
    }
    let mut until = async |is_reached: fn(&PackageEnvironment) -> bool| {
        while environments.look(&name).is_ok_and(|one| !is_reached(&one)) {
            if changes.changed().await.is_err() {
                break;
            }
        }
    };
    // A client that does not wait follows the session of the build, so the reply names it.
    until(|one| one.state != PackageEnvironmentState::Building || one.build.is_some()).await;
    let wait = Duration::from_millis(request.wait_ms.min(WAIT_MS_MAX));
    let is_built = |one: &PackageEnvironment| one.state != PackageEnvironmentState::Building;
    let _ = tokio::time::timeout(wait, until(is_built)).await;
    environments.look(&name)
}

/// The names of the environments of live sessions.
pub(crate) fn in_use(context: &Context) -> HashSet<String> {
    let handles = context.sessions.handles();
    handles.iter().filter_map(|handle| handle.info().environment).collect()
}

fn is_busy(name: &str, one: &Known, in_use: &HashSet<String>) -> bool {
    let is_building = one.record.state == PackageEnvironmentState::Building;
    is_building || one.starting > 0 || in_use.contains(name)
}

/// The interpreter that a request names: by its version, or as a session does.
fn interpreter(context: &Context, named: Option<&str>) -> Result<PathBuf, Failure> {
    let named = named.unwrap_or("python3");
    let is_version = named.starts_with(|first: char| first.is_ascii_digit());
    let named = if is_version { format!("python{named}") } else { named.to_owned() };
    let launcher = context.host.workers.launcher(kinds::python::KIND.name)?;
    launcher.named_interpreter(&named)
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
