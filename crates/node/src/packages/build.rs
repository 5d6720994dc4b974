//! Builds one package environment: a confined session of its own downloads and installs the packages. It reaches the
//! package index and nothing else, and writes its workspace and the installers' caches. Its output is what the installer
//! prints.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use windlass_protocol::api::CreateSession;
use windlass_protocol::packages::PackageEnvironmentState;
use windlass_protocol::policy::{Network, PolicyRequest, UnixSockets};
use windlass_protocol::{Outcome, SessionId};

use super::index::PackageIndex;
use super::store::{self, Record};
use crate::audit::AuditNote;
use crate::context::Context;
use crate::failure::Failure;
use crate::session::start::{self, SessionOrigin};
use crate::session::turns::Snapshot;
use crate::session::{Request, SessionHandle, SubmitRequest, Until, ids};

/// The program of a build.
const PROGRAM: &str = include_str!("build.py");

/// How long a build may take.
const BUILD_MAX: Duration = Duration::from_secs(30 * 60);

/// A build that runs on its own, because its node was killed, ends after this time.
const IDLE_S: u64 = 300;

/// A build to run.
pub(super) struct Build {
    pub name: String,
    pub record: Record,
    /// The record of the last build under this name.
    pub old: Option<Record>,
}

impl Build {
    /// Builds the environment and records how that ended.
    pub async fn run(self, context: &Arc<Context>) {
        let built = self.build(context).await;
        let environments = &context.host.packages;
        match &built {
            Ok(_) => tracing::info!(name = self.name, "built a package environment"),
            Err(failure) => {
                tracing::warn!(
                    name = self.name,
                    error = failure.message,
                    "cannot build a package environment"
                );
            }
        }
        let (environments, name) = (environments.clone(), self.name);
        // Writes to the disk. The join fails only when the runtime stops.
        let _ = tokio::task::spawn_blocking(move || {
            environments.update(&name, |record| match built {
                Ok(lock) => {
                    record.state = PackageEnvironmentState::Ready;
                    record.lock = Some(lock);
                }
                Err(failure) => {
                    record.state = PackageEnvironmentState::Failed;
                    record.error = Some(failure.message);
                }
            });
        })
        .await;
    }

    /// Builds the environment and returns its lock file.
    async fn build(&self, context: &Arc<Context>) -> Result<String, Failure> {
        if let Some(earlier) = self.old.as_ref().and_then(|old| old.build.as_ref()) {
            close(context, earlier).await;
        }
        let wanted = self.prepare(context).await?;
        let origin = SessionOrigin::default();
        let handle = start::create(context, ids::new_id(), wanted, origin, None).await?.handle;
        let id = handle.id.clone();
        self.note_session(context, &id).await;
        let ended = run_program(&handle).await;
        close(context, &id).await;
        failure_of(ended?).map_or(Ok(()), Err)?;
        let (config, name) = (context.config.clone(), self.name.clone());
        let lock = tokio::task::spawn_blocking(move || store::read_lock(&config, &name)).await;
        lock.map_err(std::io::Error::other)
            .flatten()
            .map_err(|error| Failure::while_making("the lock file of the environment", &error))
    }

    /// Records which session builds the environment.
    async fn note_session(&self, context: &Arc<Context>, id: &SessionId) {
        let environments = context.host.packages.clone();
        let (name, id) = (self.name.clone(), id.clone());
        // Writes to the disk. The join fails only when the runtime stops.
        let _ = tokio::task::spawn_blocking(move || {
            environments.update(&name, |record| record.build = Some(id));
        })
        .await;
    }

    /// Makes the files of the build, and returns the request for its session.
    async fn prepare(&self, context: &Arc<Context>) -> Result<CreateSession, Failure> {
        let (config, name) = (context.config.clone(), self.name.clone());
        let record = self.record.clone();
        let trust = context.host.packages.trust.clone();
        let prepared = tokio::task::spawn_blocking(move || {
            let index = PackageIndex::configured(&trust);
            store::prepare_build(&config, &name, &record, super::uv().as_deref())?;
            Ok::<_, std::io::Error>((index.environment(), index.rules()))
        });
        let prepared = prepared.await.map_err(std::io::Error::other).flatten();
        let (mut env, rules) = prepared.map_err(|error| {
            Failure::while_making(
                format_args!("cannot prepare the environment {:?}", self.name),
                &error,
            )
        })?;
        let mut policy = PolicyRequest {
            network: Some(Network::Hosts(rules)),
            unix_sockets: Some(UnixSockets::None),
            ..PolicyRequest::default()
        };
        // The code of packages that are built could change what later builds find in a shared cache.
        if self.record.allow_source_builds {
            env.extend([("PIP_NO_CACHE_DIR", "1"), ("UV_NO_CACHE", "1")].map(text_pair));
        } else {
            let cache = store::cache_dir(&context.config).display().to_string();
            env.push(("PIP_CACHE_DIR".to_owned(), format!("{cache}/pip")));
            env.push(("UV_CACHE_DIR".to_owned(), format!("{cache}/uv")));
            policy.writable.push(cache);
        }
        Ok(CreateSession {
            interpreter: Some(self.record.python.display().to_string()),
            workspace: Some(store::build_dir(&context.config, &self.name).display().to_string()),
            policy: Some(policy),
            env: env.into_iter().collect::<BTreeMap<_, _>>(),
            idle_s: Some(IDLE_S),
            ..CreateSession::default()
        })
    }
}

fn text_pair((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// Runs the program of the build as a turn, to its end.
async fn run_program(handle: &SessionHandle) -> Result<Snapshot, Failure> {
    let submitted = handle.ask(|reply| {
        Request::Submit(SubmitRequest {
            id: None,
            code: Bytes::from_static(PROGRAM.as_bytes()),
            context: None,
            deadline_ms: u64::try_from(BUILD_MAX.as_millis()).ok(),
            within: None,
            trace: None,
            until: Until::Settled,
            number: Arc::new(OnceLock::new()),
            note: AuditNote::default(),
            reply,
        })
    });
    submitted.await
}

/// Why a build failed, if it did.
fn failure_of(snapshot: Snapshot) -> Option<Failure> {
    let end = snapshot.turn.end;
    if end.as_ref().is_some_and(|end| end.outcome == Outcome::Ok) {
        return None;
    }
    let why = end.and_then(|end| end.error).map(|error| error.message);
    let why = why.filter(|why| !why.is_empty());
    let message = why.unwrap_or_else(|| "the installer did not end".to_owned());
    Some(Failure::new(windlass_protocol::ErrorCode::WorkerFailed, message))
}

/// Ends the session of a build, with everything that it started.
async fn close(context: &Arc<Context>, id: &SessionId) {
    let Some(handle) = context.sessions.find(id) else { return };
    // The session may have ended by itself.
    let _ = handle.ask(|reply| Request::Close { grace_ms: 0, reply }).await;
}
