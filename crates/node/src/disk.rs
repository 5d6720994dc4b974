//! The node's disk usage: how much it is ([`survey`]), which directories no session needs ([`needed`]),
//! and their removal ([`removal`]): by retention, on a client's request, and when a family ends.
//!
//! Sessions can write in most of these directories. So all work is done by descriptors beneath the state
//! directory (`windlass_beneath`), and a directory's session is known only from names and symlinks that
//! the node alone can write. The work takes long and runs on the blocking pool.

mod needed;
mod removal;
mod survey;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use windlass_beneath::{LinkedFiles, TreeMeter};
use windlass_journal::{EndedSession, Journal, RetentionOptions};
use windlass_protocol::SessionId;
use windlass_protocol::disk::{DiskUse, PruneRequest, Pruned};

use self::needed::DiskSnapshot;
pub(crate) use self::needed::is_kept_after;
use self::removal::{Families, PruneMode, Removal};
use crate::agents::homes;
use crate::clock::now_ms;
use crate::config::Config;
use crate::context::Context;
use crate::failure::Failure;
use crate::session_dirs;

/// Maximum time to measure everything.
const LOOK_TIME: Duration = Duration::from_secs(60);

/// Maximum time that one round of housekeeping measures workspaces. The next round continues.
const ROUND_TIME: Duration = Duration::from_secs(10);

/// Maximum number of files and directories that one measurement counts.
const ENTRIES_MAX: u64 = 20_000_000;

/// The sessions that this node knows. A removal asks which directories are in use. It also claims a
/// session's id, so that no session of that id is created while its directories are removed.
pub(crate) trait SessionClaims {
    /// Whether this node has all live sessions. A node that has released a session to another node cannot
    /// distinguish it from an ended session, so it removes nothing any more.
    fn has_all(&self) -> bool;
    /// The first rooms of live sessions (`session_dirs` defines a room).
    fn rooms(&self) -> Vec<PathBuf>;
    /// Whether a live session belongs to the family of that first session.
    fn has_family(&self, first: &SessionId) -> bool;
    /// Whether the session is live or is being created.
    fn knows(&self, id: &SessionId) -> bool;
    /// Claims an id, unless such a session is live or is being created. No session of this id can be
    /// created until the id is released.
    fn claim(&self, id: &SessionId) -> bool;
    fn release(&self, id: &SessionId);
    /// Whether this node created every live session, so that all of them use its worker programs.
    fn are_all_new(&self) -> bool;
}

/// What a survey or a removal works with.
pub(crate) struct DiskScope<'a> {
    pub config: &'a Config,
    pub journal: &'a Journal,
    pub claims: &'a dyn SessionClaims,
    /// The worker programs of this release.
    pub programs: Vec<PathBuf>,
}

/// State that is kept between rounds of housekeeping.
#[derive(Debug, Default)]
pub(crate) struct DiskState {
    /// Held by a survey or a removal: one at a time.
    busy: tokio::sync::Mutex<()>,
    /// Sizes of the workspaces of ended sessions. Each is measured once, because nobody writes there any
    /// more.
    sizes: Mutex<HashMap<SessionId, u64>>,
}

impl DiskState {
    fn sizes(&self) -> MutexGuard<'_, HashMap<SessionId, u64>> {
        self.sizes.lock().expect("no holder of this lock can panic")
    }
}

/// Measures the current disk usage.
pub(crate) async fn usage(context: &Arc<Context>) -> Result<DiskUse, Failure> {
    exclusive(context, |context| Ok(survey::survey(&scope(context)))).await
}

/// Removes ended sessions as a client requests, or only reports what would be removed.
pub(crate) async fn prune(
    context: &Arc<Context>,
    request: PruneRequest,
) -> Result<Pruned, Failure> {
    exclusive(context, move |context| {
        let mode = if request.dry_run { PruneMode::DryRun } else { PruneMode::Remove };
        let mut limits = retention(context);
        let mut at_ms = now_ms();
        match request.older_than_s {
            Some(seconds) => limits.max_age = limits.max_age.min(Duration::from_secs(seconds)),
            // At that time every session has ended long ago.
            None => at_ms = u64::MAX,
        }
        let scope = scope(context);
        let removed = round(&scope, &context.disk, limits, mode, at_ms, LOOK_TIME)?;
        Ok(removed.answer())
    })
    .await
}

/// One round of housekeeping: removes what the retention does not keep, and leftovers.
pub(crate) async fn keep_house(context: &Arc<Context>) {
    // Another round still runs and does the same work.
    let Ok(_busy) = context.disk.busy.try_lock() else { return };
    let context = context.clone();
    let kept = tokio::task::spawn_blocking(move || {
        let scope = scope(&context);
        let limits = retention(&context);
        match round(&scope, &context.disk, limits, PruneMode::Remove, now_ms(), ROUND_TIME) {
            Ok(removed) => removed.log(),
            Err(failure) => {
                tracing::warn!(error = failure.message, "cannot remove old sessions");
            }
        }
    });
    // An error means that the runtime shuts down.
    let _ = kept.await;
}

/// Removes what nobody needs any more in the family directory of a session that has ended. `room` is the
/// session's first room.
pub(crate) fn clean_family(context: &Context, room: &Path) {
    let Some((root, _)) = session_dirs::root_of(&context.config, room) else { return };
    // Most sessions were never forked, so their room is removed already.
    let family = if root.starts_with(context.config.legacy_pool_dir()) { room } else { &root };
    if !session_dirs::is_there(&context.config, family) {
        return;
    }
    let mut removal = Removal::new(PruneMode::Remove, LOOK_TIME);
    let scope = scope(context);
    if let Some(snapshot) = DiskSnapshot::take(&scope, &[]) {
        removal.families(&scope, &snapshot, Families::In(&root));
    }
    removal.log();
}

fn retention(context: &Context) -> RetentionOptions {
    let config = &context.config;
    config.retention
}

fn scope(context: &Context) -> DiskScope<'_> {
    DiskScope {
        config: &context.config,
        journal: &context.journal,
        claims: context,
        programs: context.host.workers.programs(),
    }
}

/// One round of removal: ended sessions that the retention does not keep, and everything that no session
/// needs.
fn round(
    scope: &DiskScope<'_>,
    state: &DiskState,
    limits: RetentionOptions,
    mode: PruneMode,
    now_ms: u64,
    time: Duration,
) -> Result<Removal, Failure> {
    let mut removal = Removal::new(mode, time);
    let (ended, total) = sized(scope, state, time)?;
    let due = windlass_journal::sessions_to_remove(&ended, total, limits, now_ms);
    let Some(snapshot) = DiskSnapshot::take(scope, &due) else { return Ok(removal) };
    // Families first: the copy of an ended twin is removed even if the twin's journal stays.
    removal.families(scope, &snapshot, Families::All);
    for id in &due {
        removal.session(scope, &snapshot, id);
    }
    removal.leftovers(scope, &snapshot);
    if mode == PruneMode::Remove {
        let is_known = |id: &SessionId| scope.claims.knows(id) || scope.journal.has_directory(id);
        if let Err(error) = homes::sweep(scope.config, is_known) {
            tracing::warn!(%error, "cannot remove the homes of agents");
        }
        let mut sizes = state.sizes();
        for id in &due {
            sizes.remove(id);
        }
    }
    Ok(removal)
}

/// The ended sessions with the size of their journals and workspaces, and the total size.
fn sized(
    scope: &DiskScope<'_>,
    state: &DiskState,
    time: Duration,
) -> Result<(Vec<EndedSession>, u64), Failure> {
    let (mut ended, mut total) = scope.journal.ended().map_err(|error| {
        let message = format!("cannot list the ended sessions: {error}");
        Failure::new(windlass_protocol::ErrorCode::Internal, message)
    })?;
    let until = Instant::now() + time;
    let mut sizes = state.sizes();
    let mut found = HashMap::new();
    for session in &mut ended {
        let bytes = match sizes.remove(&session.id) {
            Some(bytes) => bytes,
            // The next round measures the workspace.
            None if Instant::now() >= until => continue,
            None => {
                let mut meter = TreeMeter::new(until, ENTRIES_MAX, LinkedFiles::AtFirstName);
                needed::workspace_bytes(scope, &session.id, &mut meter)
            }
        };
        found.insert(session.id.clone(), bytes);
        session.bytes = session.bytes.saturating_add(bytes);
        total = total.saturating_add(bytes);
    }
    *sizes = found;
    Ok((ended, total))
}

/// Runs `work` on the blocking pool, exclusive of other work on the disk.
async fn exclusive<T: Send + 'static>(
    context: &Arc<Context>,
    work: impl FnOnce(&Context) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let _busy = context.disk.busy.lock().await;
    let context = context.clone();
    let done = tokio::task::spawn_blocking(move || work(&context)).await;
    done.unwrap_or_else(|error| {
        let message = format!("the work on the disk ended early: {error}");
        Err(Failure::new(windlass_protocol::ErrorCode::Internal, message))
    })
}
