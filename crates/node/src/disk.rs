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

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use windlass_beneath::{LinkedFiles, TreeMeter};
use windlass_journal::{EndedSession, Journal, LiveBytes, RetentionOptions};
use windlass_protocol::disk::{DiskUse, PruneRequest, Pruned};
use windlass_protocol::{SessionId, TenantName};

use self::needed::DiskSnapshot;
pub(crate) use self::needed::is_kept_after;
use self::removal::{Families, PruneMode, Removal};
use crate::agents::homes;
use crate::clock::now_ms;
use crate::config::Config;
use crate::context::Context;
use crate::failure::Failure;
use crate::packages::UnusedFor;
use crate::session_dirs;

/// Maximum time to measure everything.
const LOOK_TIME: Duration = Duration::from_secs(60);

/// Maximum time that one round of housekeeping measures workspaces. The next round continues.
const ROUND_TIME: Duration = Duration::from_secs(10);

/// How long a package environment without a name is kept at least after its last use.
const PACKAGES_KEPT_MIN: Duration = Duration::from_secs(3600);

/// How often the usage is measured for the metrics at most. A measurement reads every directory of every workspace.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(300);

/// How long a scrape waits for the measurement of the disk usage.
const SAMPLE_WAIT: Duration = Duration::from_secs(2);

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
    /// The package environments of live sessions.
    fn environments(&self) -> HashSet<String>;
    /// Whether the session is live or is being created.
    fn knows(&self, id: &SessionId) -> bool;
    /// Claims an id, unless such a session is live or is being created. No session of this id can be
    /// created until the id is released.
    fn claim(&self, id: &SessionId) -> bool;
    fn release(&self, id: &SessionId);
    /// Whether this node created every live session, so that all of them use its worker programs.
    fn are_all_new(&self) -> bool;

    /// The package environments of live sessions. `None` if this node does not have all live sessions, also if it
    /// released one while they were listed.
    fn environments_in_use(&self) -> Option<HashSet<String>> {
        let had_all = self.has_all();
        let environments = self.environments();
        (had_all && self.has_all()).then_some(environments)
    }
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
    /// When the usage was last measured for the metrics.
    sampled: Mutex<Option<Instant>>,
}

impl DiskState {
    /// Whether the usage is to be measured for the metrics. The caller measures it then.
    fn takes_sample(&self, now: Instant) -> bool {
        let mut sampled = self.sampled.lock().expect("no holder of this lock can panic");
        let is_due = sampled.is_none_or(|at| now.duration_since(at) >= SAMPLE_INTERVAL);
        if is_due {
            *sampled = Some(now);
        }
        is_due
    }

    fn sizes(&self) -> MutexGuard<'_, HashMap<SessionId, u64>> {
        self.sizes.lock().expect("no holder of this lock can panic")
    }
}

/// Measures the current disk usage.
pub(crate) async fn usage(context: &Arc<Context>) -> Result<DiskUse, Failure> {
    exclusive(context, |context| Ok(survey::survey(&scope(context)))).await
}

/// Measures the usage for the metrics, unless it was measured a short time ago.
pub(crate) async fn sample(context: &Arc<Context>) {
    if !context.disk.takes_sample(Instant::now()) {
        return;
    }
    let context = context.clone();
    let measuring = tokio::spawn(async move {
        match usage(&context).await {
            Ok(used) => context.metrics.disk(&used),
            Err(failure) => {
                tracing::warn!(error = failure.message, "cannot measure the disk usage");
            }
        }
    });
    // A measurement that takes longer goes on, and the next scrape shows it.
    let _ = tokio::time::timeout(SAMPLE_WAIT, measuring).await;
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
        let mut removed = round(&scope, &context.disk, limits, mode, at_ms, LOOK_TIME)?;
        remove_packages(context, &scope, &mut removed, limits, at_ms);
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
        let now = now_ms();
        match round(&scope, &context.disk, limits, PruneMode::Remove, now, ROUND_TIME) {
            Ok(mut removed) => {
                // A client that has just made an environment is about to use it.
                let max_age = limits.max_age.max(PACKAGES_KEPT_MIN);
                let limits = RetentionOptions { max_age, ..limits };
                remove_packages(&context, &scope, &mut removed, limits, now);
                removed.log();
            }
            Err(failure) => {
                tracing::warn!(error = failure.message, "cannot remove old sessions");
            }
        }
    });
    // An error means that the runtime shuts down.
    let _ = kept.await;
}

/// Removes the package environments that the retention does not keep at a time.
fn remove_packages(
    context: &Context,
    scope: &DiskScope<'_>,
    removal: &mut Removal,
    limits: RetentionOptions,
    at_ms: u64,
) {
    let packages = &context.host.packages;
    // An environment is used as long as its sessions live, not only when they start.
    if let Some(in_use) = scope.claims.environments_in_use() {
        packages.note_uses(&in_use, now_ms());
    }
    let unused = UnusedFor { at_least: limits.max_age, now_ms: at_ms };
    removal.packages(scope, packages, unused);
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
    let (ended, live) = sized(scope, state, time)?;
    // Without readable quotas, all tenants still have their share.
    let quota_of = |tenant: &TenantName| scope.config.tenants.of(tenant).ok()?.disk_bytes;
    let due = windlass_journal::sessions_to_remove(&ended, &live, quota_of, limits, now_ms);
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

/// The ended sessions with the size of their journals and workspaces, and the size of the journals of live sessions.
fn sized(
    scope: &DiskScope<'_>,
    state: &DiskState,
    time: Duration,
) -> Result<(Vec<EndedSession>, LiveBytes), Failure> {
    let (mut ended, live) = scope.journal.ended().map_err(|error| {
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
    }
    *sizes = found;
    Ok((ended, live))
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
