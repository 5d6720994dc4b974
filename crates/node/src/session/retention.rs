//! What goes with the journal of an ended session: its workspace, if that is the node's own, and the
//! directory of its family once nobody needs that. A workspace that the client named is not removed.

use std::path::{Path, PathBuf};

use windlass_protocol::SessionId;

use super::fork::rooms;
use crate::context::Context;

/// Removes what a session has left whose journal is gone.
pub(crate) fn remove(context: &Context, id: &SessionId) {
    let config = &context.config;
    let own = config.workspace_of(id);
    let linked =
        rooms::state(config).and_then(|state| state.read_link(rooms::inside(config, &own)?)).ok();
    rooms::remove_workspace(config, id);
    // A session can leave anything in its family's directory; it goes with the family's last.
    let families = rooms::of_id(config, id).into_iter();
    let of_copy = linked.and_then(|linked| rooms::root_of(config, &linked));
    let of_copy =
        of_copy.filter(|(_, first)| !first.as_ref().is_some_and(|id| is_known(context, id)));
    for root in families.chain(of_copy.map(|(root, _)| root)) {
        if !is_needed(context, &root) {
            rooms::remove(config, &root);
        }
    }
}

/// Whether the journal has, or may have, a session of that id.
fn is_known(context: &Context, id: &SessionId) -> bool {
    context.knows(id) || !matches!(context.journal.session(id), Ok(None))
}

/// Whether a session works in a family's directory, or has its copy of a workspace there.
fn is_needed(context: &Context, root: &Path) -> bool {
    let Ok(linked) = rooms::linked(&context.config) else { return true };
    let rooms = context.handles().into_iter().filter_map(|handle| handle.room);
    linked.into_iter().chain(rooms).any(|path: PathBuf| path.starts_with(root))
}
