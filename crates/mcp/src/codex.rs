//! Reads Codex's sandbox settings from a call's `_meta` and converts them to a policy. Pure: it
//! looks only at the message.
//!
//! The policy never grants more than Codex does. If a setting is not understood, or cannot be
//! enforced at least as strictly, the call is refused and nothing runs.

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

/// The experimental capability that a server declares to receive the settings, and their key in
/// `_meta`.
pub(crate) const CAPABILITY: &str = "codex/sandbox-state-meta";

/// A second key, where newer versions repeat the settings.
const SAME_AGAIN: &str = "codex/sandbox-state";

/// The hosts that Codex's proxy allows, in versions that send them.
const HOSTS: &str = "codex/network-policy-meta";

/// Most entries of one permission profile. Codex makes about five per writable root.
const ENTRIES_MAX: usize = 2048;

/// Longest text of the input that an error message repeats.
const REPEATED_CHARS_MAX: usize = 160;

/// How Codex confines the call: the directory and the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallSandbox {
    /// `None` only if Codex confines nothing and names no directory.
    pub workspace: Option<PathBuf>,
    pub policy: PolicyRequest,
}

/// Why a session cannot enforce Codex's sandbox.
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

/// The sandbox in a call's `_meta`; `None` if there is none.
pub(crate) fn sandbox_of(meta: &Map<String, Value>) -> Result<Option<CallSandbox>, BadSandbox> {
    let said = match (meta.get(CAPABILITY), meta.get(SAME_AGAIN)) {
        (None, None) => return Ok(None),
        (Some(one), Some(other)) if one != other => return Err(BadSandbox::Contradiction),
        (Some(said), _) | (None, Some(said)) => said,
    };
    // The derived deserializer would accept a list as well.
    if !said.is_object() {
        return Err(BadSandbox::NotUnderstood("it is no object".to_owned()));
    }
    let state = SandboxState::deserialize(said)
        .map_err(|error| BadSandbox::NotUnderstood(repeated(&error)))?;
    let mut sandbox = confine(state)?;
    if meta.contains_key(HOSTS) {
        // The format of the hosts differs between versions, so allow none.
        sandbox.policy.network = Some(Network::None);
    }
    check_lengths(&sandbox.policy)?;
    Ok(Some(sandbox))
}

fn confine(state: SandboxState) -> Result<CallSandbox, BadSandbox> {
    let missing = |field: &str| BadSandbox::NotUnderstood(format!("it has no {field}"));
    let profile = match (state.permission_profile, state.sandbox_policy) {
        // The policy repeats the profile for servers that do not know profiles.
        (Some(profile), _) => profile,
        (None, Some(policy)) => policy.into_profile(),
        (None, None) => return Err(missing("permissionProfile")),
    };
    let workspace = state.sandbox_cwd.as_deref().map(paths::directory).transpose()?;
    let needed = || workspace.as_deref().ok_or_else(|| missing("sandboxCwd"));
    let policy = match profile {
        Profile::Disabled {} => simple(Preset::Open, NetworkAccess::Enabled),
        Profile::External { network } => {
            // An unknown outer sandbox confines Codex. That is no reason to confine the session
            // less.
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

/// Input text for an error message, shortened.
fn repeated(what: &impl ToString) -> String {
    let text = what.to_string();
    match text.char_indices().nth(REPEATED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
