//! A node's life: claim the runtime directory, take over what an earlier node left, serve, stop.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use windlass_journal::{Journal, JournalOptions, OpenError, RetentionOptions};
use windlass_protocol::SessionId;
use windlass_protocol::api::StopSessions;

use crate::clock::now_ms;
use crate::config::Config;
use crate::context::Context;
use crate::instance::{Claim, ClaimError};
use crate::session::{Request, start};
use crate::workers::Workers;
use crate::{http, keepers};

/// How long the sessions of a stopping node may take to end before it goes without them.
const STOP_SESSIONS: Duration = Duration::from_secs(15);

/// How often figures are folded and old journals removed. Nothing waits for it.
const HOUSEKEEPING: Duration = Duration::from_secs(60);

/// Why a node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("the journal cannot be opened: {0}")]
    Journal(#[from] OpenError),
    #[error("cannot {act}: {cause}")]
    Io { act: &'static str, cause: io::Error },
}

/// Runs a node until it is told to stop. `ready` is called once clients can connect.
pub async fn run(config: Config, ready: impl FnOnce()) -> Result<(), RunError> {
    let failed = |act| move |cause| RunError::Io { act, cause };
    let (claim, listener) = Claim::take(&config)?;
    raise_descriptor_limit();
    windlass_client::keep_short(&keepers::log_path(&config));
    let listener = UnixListener::from_std(listener).map_err(failed("listen"))?;
    let journal = Journal::open(&config.state_dir, JournalOptions::default())?;
    let epoch = journal.next_epoch().map_err(failed("take an epoch"))?;
    let workers = Workers::prepare(&config.state_dir).map_err(failed("lay out the workers"))?;
    let context = Arc::new(Context::new(config, journal, epoch, workers));
    tokio::spawn(keepers::reap());
    take_over_all(&context);
    tokio::spawn(http::serve(listener, context.clone()));
    ready();
    tracing::info!(%epoch, sessions = context.session_count(), "the node serves");
    let sessions = until_stopped(&context).await.map_err(failed("listen to signals"))?;
    tracing::info!(?sessions, "the node stops");
    claim.release();
    leave_sessions(&context, sessions).await;
    Ok(())
}

fn take_over_all(context: &Arc<Context>) {
    let live = match context.journal.live_sessions() {
        Ok(live) => live,
        Err(error) => {
            tracing::error!(%error, "the sessions of earlier nodes cannot be listed");
            return;
        }
    };
    for id in live {
        if let Err(error) = start::take_over(context, &id) {
            tracing::error!(session = %id, error, "a session cannot be taken over");
        }
    }
}

/// Waits for the reason to stop, and says what becomes of the sessions.
async fn until_stopped(context: &Arc<Context>) -> io::Result<StopSessions> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut asked = context.stop.subscribe();
    let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
    loop {
        tokio::select! {
            // A service manager's stop, or an upgrade: the next node takes the sessions over.
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            Ok(wish) = asked.wait_for(Option::is_some) => {
                return Ok(wish.unwrap_or(StopSessions::Keep));
            }
            () = long_unused(context) => return Ok(StopSessions::End),
            _ = housekeeping.tick() => keep_house(context),
        }
    }
    context.stop.send_replace(Some(StopSessions::Keep));
    Ok(StopSessions::Keep)
}

/// Returns when the node has had no session and no request for its idle time.
async fn long_unused(context: &Context) {
    let Some(limit) = context.config.idle_exit else { return std::future::pending().await };
    loop {
        let unused = Duration::from_millis(context.unused_ms());
        if context.session_count() == 0 {
            if unused >= limit {
                return;
            }
            tokio::time::sleep(limit - unused).await;
        } else {
            context.idle.notified().await;
        }
    }
}

fn keep_house(context: &Arc<Context>) {
    context.metrics.settle();
    let context = context.clone();
    // Nobody waits for it: old journals go when they go.
    drop(tokio::task::spawn_blocking(move || {
        let retention = RetentionOptions {
            max_age: context.config.keep_ended,
            max_total_bytes: context.config.keep_bytes,
        };
        match context.journal.prune(retention, now_ms()) {
            Ok(removed) => removed.iter().for_each(|id| remove_workspace(&context, id)),
            Err(error) => tracing::warn!(%error, "old journals cannot be removed"),
        }
    }));
}

/// A workspace of the session's own goes with its journal; one that the client named is not ours.
fn remove_workspace(context: &Context, id: &SessionId) {
    let path = context.config.workspace_of(id);
    if let Err(error) = std::fs::remove_dir_all(&path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "an old workspace cannot be removed");
    }
}

async fn leave_sessions(context: &Arc<Context>, sessions: StopSessions) {
    let mut left = Vec::new();
    for handle in context.handles() {
        left.push(tokio::spawn(async move {
            match sessions {
                StopSessions::End => {
                    // One that has ended meanwhile is as it should be.
                    let _ = handle.ask(|reply| Request::Close { grace_ms: 500, reply }).await;
                }
                StopSessions::Keep => {
                    let (reply, released) = oneshot::channel();
                    if handle.send(Request::Release { reply }).await.is_ok() {
                        let _ = released.await;
                    }
                }
            }
        }));
    }
    let all = async {
        for one in left {
            let _ = one.await;
        }
    };
    if tokio::time::timeout(STOP_SESSIONS, all).await.is_err() {
        tracing::warn!("some sessions did not end in time");
    }
    if let Err(error) = context.journal.flush_index() {
        tracing::warn!(%error, "the index is behind; the next node catches up");
    }
}

/// A session takes a few descriptors; the usual soft limit of 1,024 is for other programs.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open descriptors stays low");
    }
}
