//! What the node keeps on the disk: how much it is ([`survey`]), which of it no session needs
//! ([`needed`]), and its removal by retention, by a client's wish and when a family ends ([`removal`]).
//!
//! Sessions can write in most of these directories. So nothing here goes by a path: all is done by
//! descriptors beneath the state directory (`windlass_beneath`), and which session something
//! belongs to is known from names and links that only the node can write. All of it takes long and runs
//! where waiting hurts nobody.

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

use self::needed::Picture;
pub(crate) use self::needed::is_kept_after;
use self::removal::{Families, PruneMode, Removal};
use crate::clock::now_ms;
use crate::config::Config;
use crate::context::Context;
use crate::failure::Failure;
use crate::session_dirs;

/// How long one look at everything may take.
const LOOK_TIME: Duration = Duration::from_secs(60);

/// How long one round of housekeeping may measure workspaces. The next round goes on.
const ROUND_TIME: Duration = Duration::from_secs(10);

/// Files and directories that one look counts.
const ENTRIES_MAX: u64 = 20_000_000;

/// The sessions that this node knows. A removal asks it which directories are in use, and claims a session's id so
/// that no session of that id is made while its directories are removed.
pub(crate) trait SessionClaims {
    /// Whether this node has all live sessions. One that left a session to another node cannot tell it
    /// from a session that has ended, and removes nothing any more.
    fn has_all(&self) -> bool;
    /// The first rooms of live sessions.
    fn rooms(&self) -> Vec<PathBuf>;
    /// Whether a live session belongs to the family of that first session.
    fn has_family(&self, first: &SessionId) -> bool;
    /// Whether the session lives or is being made.
    fn knows(&self, id: &SessionId) -> bool;
    /// Takes an id, unless such a session lives or is being made. Nobody can make one until the id is
    /// released.
    fn claim(&self, id: &SessionId) -> bool;
    fn release(&self, id: &SessionId);
    /// Whether every live session was made by this node, and so works with its worker programs.
    fn are_all_new(&self) -> bool;
}

/// What the node's directories are judged by.
pub(crate) struct DiskGround<'a> {
    pub config: &'a Config,
    pub journal: &'a Journal,
    pub claims: &'a dyn SessionClaims,
    /// The worker programs of this release.
    pub programs: Vec<PathBuf>,
}

/// What the node remembers of its disk between rounds.
#[derive(Debug, Default)]
pub(crate) struct DiskState {
    /// One look or removal at a time.
    busy: tokio::sync::Mutex<()>,
    /// The bytes that the workspaces of ended sessions take. They are measured once: no session writes there any more.
    sizes: Mutex<HashMap<SessionId, u64>>,
}

impl DiskState {
    fn sizes(&self) -> MutexGuard<'_, HashMap<SessionId, u64>> {
        self.sizes.lock().expect("no holder of this lock can panic")
    }
}

/// What is on the disk now.
pub(crate) async fn look(context: &Arc<Context>) -> Result<DiskUse, Failure> {
    apart(context, |context| Ok(survey::survey(&ground(context)))).await
}

/// Removes what a client asks for, or says what that would be.
pub(crate) async fn prune(context: &Arc<Context>, wanted: PruneRequest) -> Result<Pruned, Failure> {
    apart(context, move |context| {
        let act = if wanted.dry_run { PruneMode::Look } else { PruneMode::Remove };
        let mut limits = retention(context);
        let mut at_ms = now_ms();
        match wanted.older_than_s {
            Some(seconds) => limits.max_age = limits.max_age.min(Duration::from_secs(seconds)),
            // Every session has ended long ago then.
            None => at_ms = u64::MAX,
        }
        let ground = ground(context);
        let removed = round(&ground, &context.disk, limits, act, at_ms, LOOK_TIME)?;
        Ok(removed.answer())
    })
    .await
}

/// What each minute brings: what the retention removes, and leftovers.
pub(crate) async fn keep_house(context: &Arc<Context>) {
    // A round that still runs does this one's work.
    let Ok(_busy) = context.disk.busy.try_lock() else { return };
    let context = context.clone();
    let kept = tokio::task::spawn_blocking(move || {
        let ground = ground(&context);
        let limits = retention(&context);
        match round(&ground, &context.disk, limits, PruneMode::Remove, now_ms(), ROUND_TIME) {
            Ok(removed) => removed.log(),
            Err(failure) => tracing::warn!(error = failure.message, "old sessions stay"),
        }
    });
    // It fails only with the runtime.
    let _ = kept.await;
}

/// A session has ended: removes what its family's directory has for nobody any more. `room` is the
/// session's first.
pub(crate) fn settle(context: &Context, room: &Path) {
    let Some((root, _)) = session_dirs::root_of(&context.config, room) else { return };
    // Most sessions were never forked, and their room is gone by now.
    let family = if root.starts_with(context.config.places_dir()) { room } else { &root };
    if !session_dirs::is_there(&context.config, family) {
        return;
    }
    let mut removal = Removal::new(PruneMode::Remove, LOOK_TIME);
    let ground = ground(context);
    if let Some(picture) = Picture::take(&ground, &[]) {
        removal.families(&ground, &picture, Families::In(&root));
    }
    removal.log();
}

fn retention(context: &Context) -> RetentionOptions {
    let config = &context.config;
    RetentionOptions { max_age: config.keep_ended, max_total_bytes: config.keep_bytes }
}

fn ground(context: &Context) -> DiskGround<'_> {
    DiskGround {
        config: &context.config,
        journal: &context.journal,
        claims: context,
        programs: context.host.workers.programs(),
    }
}

/// One removal: ended sessions that are due, and everything that no session needs.
fn round(
    ground: &DiskGround<'_>,
    state: &DiskState,
    limits: RetentionOptions,
    act: PruneMode,
    now_ms: u64,
    time: Duration,
) -> Result<Removal, Failure> {
    let mut removal = Removal::new(act, time);
    let (ended, total) = sized(ground, state, time)?;
    let due = windlass_journal::sessions_to_remove(&ended, total, limits, now_ms);
    let Some(picture) = Picture::take(ground, &due) else { return Ok(removal) };
    // Families first: what a twin's end has left goes also where its journal stays.
    removal.families(ground, &picture, Families::All);
    for id in &due {
        removal.session(ground, &picture, id);
    }
    removal.leftovers(ground, &picture);
    if act == PruneMode::Remove {
        let mut sizes = state.sizes();
        for id in &due {
            sizes.remove(id);
        }
    }
    Ok(removal)
}

/// The ended sessions with what their journals and workspaces take, and what counts in all.
fn sized(
    ground: &DiskGround<'_>,
    state: &DiskState,
    time: Duration,
) -> Result<(Vec<EndedSession>, u64), Failure> {
    let (mut ended, mut total) = ground.journal.ended().map_err(|error| {
        let message = format!("the ended sessions cannot be listed: {error}");
        Failure::new(windlass_protocol::ErrorCode::Internal, message)
    })?;
    let until = Instant::now() + time;
    let mut sizes = state.sizes();
    let mut found = HashMap::new();
    for session in &mut ended {
        let bytes = match sizes.remove(&session.id) {
            Some(bytes) => bytes,
            // The next round measures it.
            None if Instant::now() >= until => continue,
            None => {
                let mut meter = TreeMeter::new(until, ENTRIES_MAX, LinkedFiles::AtFirstName);
                needed::workspace_bytes(ground, &session.id, &mut meter)
            }
        };
        found.insert(session.id.clone(), bytes);
        session.bytes = session.bytes.saturating_add(bytes);
        total = total.saturating_add(bytes);
    }
    *sizes = found;
    Ok((ended, total))
}

/// Does something long with the disk, alone and where waiting hurts nobody.
async fn apart<T: Send + 'static>(
    context: &Arc<Context>,
    work: impl FnOnce(&Context) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let _busy = context.disk.busy.lock().await;
    let context = context.clone();
    let done = tokio::task::spawn_blocking(move || work(&context)).await;
    done.unwrap_or_else(|error| {
        let message = format!("looking at the disk ended early: {error}");
        Err(Failure::new(windlass_protocol::ErrorCode::Internal, message))
    })
}
