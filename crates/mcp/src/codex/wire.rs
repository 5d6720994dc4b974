//! Codex's sandbox settings, as the message holds them. An unknown field beside a profile is
//! ignored. An unknown field inside a profile is an error, since it may forbid something.

use serde::Deserialize;
use windlass_protocol::policy::Network;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxState {
    #[serde(default)]
    pub permission_profile: Option<Profile>,
    /// Used instead of a profile by older versions (Codex up to 0.12x).
    #[serde(default)]
    pub sandbox_policy: Option<LegacyPolicy>,
    /// A `file:` URI, or a path in older versions.
    #[serde(default)]
    pub sandbox_cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Profile {
    Managed { file_system: FileSystem, network: NetworkAccess },
    Disabled {},
    External { network: NetworkAccess },
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum FileSystem {
    Restricted {
        entries: Vec<ProfileEntry>,
        /// Search depth of patterns. Ignored, since patterns are refused.
        #[serde(default, rename = "glob_scan_max_depth")]
        _glob_scan_max_depth: Option<u64>,
    },
    Unrestricted {},
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProfileEntry {
    pub path: EntryPath,
    pub access: EntryAccess,
    #[serde(default, rename = "missing_path_behavior")]
    _missing_path_behavior: Option<MissingPath>,
}

impl ProfileEntry {
    fn new(path: EntryPath, access: EntryAccess) -> Self {
        Self { path, access, _missing_path_behavior: None }
    }
}

/// What to do with an entry whose path does not exist. A session always skips it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MissingPath {
    Skip,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum EntryPath {
    Path { path: String },
    GlobPattern { pattern: String },
    Special { value: Special },
}

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Special {
    Root {},
    /// The system's programs and libraries.
    Minimal {},
    #[serde(alias = "current_working_directory")]
    ProjectRoots {
        #[serde(default)]
        subpath: Option<String>,
    },
    /// The directory in Codex's `TMPDIR`.
    Tmpdir {},
    SlashTmp {},
}

/// Ordered: the greater one wins at the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EntryAccess {
    Read,
    Write,
    #[serde(alias = "none")]
    Deny,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NetworkAccess {
    #[default]
    Restricted,
    Enabled,
}

impl From<NetworkAccess> for Network {
    fn from(access: NetworkAccess) -> Self {
        match access {
            NetworkAccess::Restricted => Self::None,
            NetworkAccess::Enabled => Self::Open,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum LegacyPolicy {
    DangerFullAccess {},
    ReadOnly {
        #[serde(default, rename = "access")]
        _access: Option<LegacyReading>,
        #[serde(default)]
        network_access: bool,
    },
    ExternalSandbox {
        #[serde(default)]
        network_access: NetworkAccess,
    },
    WorkspaceWrite {
        #[serde(default)]
        writable_roots: Vec<String>,
        #[serde(default, rename = "read_only_access")]
        _read_only_access: Option<LegacyReading>,
        #[serde(default)]
        network_access: bool,
        // A session has private temporary directories, whatever these fields say about the
        // machine's.
        #[serde(default, rename = "exclude_tmpdir_env_var")]
        _exclude_tmpdir_env_var: bool,
        #[serde(default, rename = "exclude_slash_tmp")]
        _exclude_slash_tmp: bool,
    },
}

/// What may be read, in a few old versions. Their other variant is refused.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum LegacyReading {
    FullAccess {},
}

/// Names that Codex protects in each writable root without listing them in a policy.
const PROTECTED: [&str; 3] = [".git", ".agents", ".codex"];

impl LegacyPolicy {
    /// The equivalent profile.
    pub fn into_profile(self) -> Profile {
        let root =
            || ProfileEntry::new(EntryPath::Special { value: Special::Root {} }, EntryAccess::Read);
        match self {
            Self::DangerFullAccess {} => Profile::Disabled {},
            Self::ExternalSandbox { network_access } => {
                Profile::External { network: network_access }
            }
            Self::ReadOnly { network_access, .. } => managed(vec![root()], network_access),
            Self::WorkspaceWrite { writable_roots, network_access, .. } => {
                let project = Special::ProjectRoots { subpath: None };
                let project =
                    ProfileEntry::new(EntryPath::Special { value: project }, EntryAccess::Write);
                let kept_here = PROTECTED.iter().map(|name| {
                    let value = Special::ProjectRoots { subpath: Some((*name).to_owned()) };
                    ProfileEntry::new(EntryPath::Special { value }, EntryAccess::Read)
                });
                let at = |path: String, access| ProfileEntry::new(EntryPath::Path { path }, access);
                let roots = writable_roots.into_iter().flat_map(|root| {
                    let kept = PROTECTED
                        .iter()
                        .map(|name| at(format!("{root}/{name}"), EntryAccess::Read));
                    let kept: Vec<ProfileEntry> = kept.collect();
                    std::iter::once(at(root, EntryAccess::Write)).chain(kept)
                });
                let first = [root(), project].into_iter();
                managed(first.chain(kept_here).chain(roots).collect(), network_access)
            }
        }
    }
}

fn managed(entries: Vec<ProfileEntry>, network_access: bool) -> Profile {
    let file_system = FileSystem::Restricted { entries, _glob_scan_max_depth: None };
    let network = match network_access {
        true => NetworkAccess::Enabled,
        false => NetworkAccess::Restricted,
    };
    Profile::Managed { file_system, network }
}
