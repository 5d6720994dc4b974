//! Codex's word about the sandbox of one call, read from the call's `_meta` and made into a policy.
//! Pure: it looks at nothing but the message.
//!
//! It never grants more than Codex does. What is not understood, or cannot be held at least as
//! strictly, is an error: the call is refused and nothing runs.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value};
use windlass_protocol::policy::{LIST_MAX, Network, PolicyRequest, Preset};

mod paths;
mod profile;
#[cfg(test)]
mod tests;
mod wire;
mod within;

use wire::{NetworkAccess, Profile, SandboxState};

/// What a server declares among its experimental capabilities to be told, and where it is told.
pub(crate) const CAPABILITY: &str = "codex/sandbox-state-meta";

/// Where newer versions say the same once more.
const SAME_AGAIN: &str = "codex/sandbox-state";

/// Hosts that Codex's own proxy keeps to, where a version says so.
const HOSTS: &str = "codex/network-policy-meta";

/// Entries of one permission profile. Codex makes about five of each writable root.
const ENTRIES_MAX: usize = 2048;

/// What an error repeats of what it is about.
const REPEATED_CHARS_MAX: usize = 160;

/// How Codex confines the call: where, and what may be touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallSandbox {
    /// Absent only where Codex confines nothing and names no directory.
    pub workspace: Option<PathBuf>,
    pub policy: PolicyRequest,
}

/// Why a sandbox that Codex names is not one a session can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadSandbox {
    #[error("Codex's sandbox for this call is not understood: {0}; {UPDATE}")]
    NotUnderstood(String),
    #[error("{CAPABILITY} and {SAME_AGAIN} of this call say different things; {UPDATE}")]
    Contradiction,
    #[error("{path:?} in Codex's sandbox {why}; {UPDATE}")]
    Path { path: String, why: &'static str },
    #[error(
        "Codex's sandbox has more than {max} {what}; nothing ran; shorten the permission profile"
    )]
    TooMany { what: &'static str, max: usize },
    #[error(
        "Codex's permission profile gives no access to its directory {0:?}, which a session needs \
         to read; nothing ran; allow reading it in the profile"
    )]
    WorkspaceClosed(PathBuf),
    #[error(
        "a session cannot hold this part of Codex's permission profile: {what}; nothing ran; \
         {remedy}"
    )]
    NotHeld { what: String, remedy: &'static str },
}

const UPDATE: &str = "nothing ran; use versions of Codex and windlass that know each other";

/// The sandbox that Codex names for a call with this `_meta`; none where it names none.
pub(crate) fn sandbox_of(meta: &Map<String, Value>) -> Result<Option<CallSandbox>, BadSandbox> {
    let said = match (meta.get(CAPABILITY), meta.get(SAME_AGAIN)) {
        (None, None) => return Ok(None),
        (Some(one), Some(other)) if one != other => return Err(BadSandbox::Contradiction),
        (Some(said), _) | (None, Some(said)) => said,
    };
    // Derived, it could be a list as well.
    if !said.is_object() {
        return Err(BadSandbox::NotUnderstood("it is no object".to_owned()));
    }
    let state = SandboxState::deserialize(said)
        .map_err(|error| BadSandbox::NotUnderstood(repeated(&error)))?;
    let mut sandbox = confine(state)?;
    if meta.contains_key(HOSTS) {
        // Which hosts is not known to be said the same way by any two versions: none, then.
        sandbox.policy.network = Some(Network::None);
    }
    check_lengths(&sandbox.policy)?;
    Ok(Some(sandbox))
}

fn confine(state: SandboxState) -> Result<CallSandbox, BadSandbox> {
    let missing = |field: &str| BadSandbox::NotUnderstood(format!("it has no {field}"));
    let profile = match (state.permission_profile, state.sandbox_policy) {
        // The policy is what the profile looks like to those who do not know profiles.
        (Some(profile), _) => profile,
        (None, Some(policy)) => policy.into_profile(),
        (None, None) => return Err(missing("permissionProfile")),
    };
    let workspace = state.sandbox_cwd.as_deref().map(paths::directory).transpose()?;
    let needed = || workspace.as_deref().ok_or_else(|| missing("sandboxCwd"));
    let policy = match profile {
        Profile::Disabled {} => simple(Preset::Open, NetworkAccess::Enabled),
        Profile::External { network } => {
            // Somebody else confines Codex, and how is not said: no reason to do without.
            needed()?;
            simple(Preset::Workspace, network)
        }
        Profile::Managed { file_system, network } => {
            profile::managed(file_system, network, needed()?)?
        }
    };
    Ok(CallSandbox { workspace, policy })
}

fn simple(preset: Preset, network: NetworkAccess) -> PolicyRequest {
    let network = Some(network.into());
    PolicyRequest { preset: Some(preset), network, ..PolicyRequest::default() }
}

fn check_lengths(policy: &PolicyRequest) -> Result<(), BadSandbox> {
    let readable = policy.readable.as_ref().map_or(0, Vec::len);
    let lists = [
        ("readable paths", readable),
        ("writable paths", policy.writable.len()),
        ("hidden paths", policy.hidden.len()),
    ];
    match lists.into_iter().find(|(_, length)| *length > LIST_MAX) {
        Some((what, _)) => Err(BadSandbox::TooMany { what, max: LIST_MAX }),
        None => Ok(()),
    }
}

/// What an error says again of what it is about, however long that is.
fn repeated(what: &impl ToString) -> String {
    let text = what.to_string();
    match text.char_indices().nth(REPEATED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
