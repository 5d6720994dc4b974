//! Files that make later workers of a kind start faster, such as a memory snapshot. A session of its own makes such
//! a file, in the sandbox of its kind, and never runs a client's code. The node copies the file beside the worker's
//! program, where no session can write.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use windlass_beneath::Directory;
use windlass_protocol::api::SessionState;

use super::start::{self, SessionOrigin};
use super::{Request, SessionHandle, ids};
use crate::context::Context;
use crate::failure::Failure;
use crate::workers::Preparation;

/// How long a session may take to make the file.
const MAKE_MAX: Duration = Duration::from_secs(180);

/// The maximum size of the file.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// A session that runs on its own, because its node was killed, ends after this time.
const IDLE_S: u64 = 300;

/// Makes a file that a kind is missing, in the background. `first` is a session that was just created; its own start
/// comes first.
pub(super) fn make_missing(context: &Arc<Context>, first: &SessionHandle) {
    let kind = first.info().kind;
    let Ok(launcher) = context.host.workers.launcher(&kind) else { return };
    let Some(mut preparation) = launcher.preparation() else { return };
    preparation.wanted.idle_s = Some(IDLE_S);
    let (context, first) = (context.clone(), first.clone());
    tokio::spawn(async move {
        // The file is worth making even if this worker does not become ready.
        let _ = timeout(MAKE_MAX, until_ready(first)).await;
        let target = preparation.target.display().to_string();
        match make(&context, preparation).await {
            Ok(()) => tracing::info!("made {target}"),
            Err(failure) => tracing::warn!("cannot make {target}: {}", failure.message),
        }
    });
}

async fn make(context: &Arc<Context>, preparation: Preparation) -> Result<(), Failure> {
    let Preparation { wanted, file, target } = preparation;
    let origin = SessionOrigin::default();
    let handle = start::create(context, ids::new_id(), wanted, origin, None).await?.handle;
    let made = timeout(MAKE_MAX, until_ready(handle.clone())).await.unwrap_or(false);
    let workspace = PathBuf::from(handle.info().workspace);
    let copied = match made {
        true => tokio::task::spawn_blocking(move || copy(&workspace, file, &target))
            .await
            .map_err(io::Error::other)
            .flatten(),
        false => Err(io::Error::other("its session did not make it")),
    };
    // The session may have ended by itself.
    let _ = handle.ask(|reply| Request::Close { grace_ms: 0, reply }).await;
    copied.map_err(|error| Failure::while_making(format_args!("a file of its kind"), &error))
}

/// Whether the session's worker became ready.
async fn until_ready(handle: SessionHandle) -> bool {
    let mut seen = handle.seen.clone();
    loop {
        let info = handle.info();
        match info.state {
            SessionState::Ended => return false,
            _ if info.worker_pid.is_some() => return true,
            _ if info.restarts > 0 => return false,
            _ => {}
        }
        if seen.changed().await.is_err() {
            return false;
        }
    }
}

/// Copies the file, whole or not at all.
fn copy(workspace: &Path, file: &str, target: &Path) -> io::Result<()> {
    let from = Directory::recorded(workspace)?.file(file)?;
    let missing = || io::Error::other("the target has no directory");
    let (directory, name) = (target.parent().ok_or_else(missing)?, target.file_name());
    let name = name.ok_or_else(missing)?.to_owned();
    let above = directory.parent().ok_or_else(missing)?;
    let beside = Directory::trusted(above)?
        .make_directory(directory.file_name().ok_or_else(missing)?, 0o755)?;
    let mut partial = name.clone();
    partial.push(format!(".{}.tmp", std::process::id()));
    let copied = beside.create_file(&partial, 0o644).and_then(|mut to| {
        let bytes = io::copy(&mut from.take(FILE_BYTES_MAX + 1), &mut to)?;
        if bytes > FILE_BYTES_MAX {
            return Err(io::Error::other("the file is too large"));
        }
        beside.rename(&partial, &beside, &name)
    });
    if copied.is_err() {
        // A file that is not there is as good as a removed one.
        let _ = beside.remove_file(&partial);
    }
    copied
}
