//! What Codex says of a sandbox, as it stands in the message. A field that is not known is no
//! reason to refuse beside a profile, and is one inside of it, where it may forbid something.

use serde::Deserialize;
use windlass_protocol::policy::Network;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxState {
    #[serde(default)]
    pub permission_profile: Option<Profile>,
    /// In place of a profile, before there were any (Codex up to 0.12x).
    #[serde(default)]
    pub sandbox_policy: Option<LegacyPolicy>,
    /// A `file:` URI, and a path in older versions.
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
        /// How deep patterns are looked for, and patterns are refused.
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

/// What becomes of an entry whose path does not exist. A session leaves it out in any case.
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
    /// What Codex's own `TMPDIR` names.
    Tmpdir {},
    SlashTmp {},
}

/// In the order in which one wins over another at the same path.
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
        // A session's temporary directories are its own, whatever is said of the machine's.
        #[serde(default, rename = "exclude_tmpdir_env_var")]
        _exclude_tmpdir_env_var: bool,
        #[serde(default, rename = "exclude_slash_tmp")]
        _exclude_slash_tmp: bool,
    },
}

/// What could be read, for a few versions. The other kind there was is refused.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum LegacyReading {
    FullAccess {},
}

/// What Codex keeps from being written in each writable root, without saying so in a policy.
const KEPT: [&str; 3] = [".git", ".agents", ".codex"];

impl LegacyPolicy {
    /// The profile that says the same.
    pub fn into_profile(self) -> Profile {
        let root = || ProfileEntry::new(EntryPath::Special { value: Special::Root {} }, EntryAccess::Read);
        match self {
            Self::DangerFullAccess {} => Profile::Disabled {},
            Self::ExternalSandbox { network_access } => {
                Profile::External { network: network_access }
            }
            Self::ReadOnly { network_access, .. } => managed(vec![root()], network_access),
            Self::WorkspaceWrite { writable_roots, network_access, .. } => {
                let project = Special::ProjectRoots { subpath: None };
                let project = ProfileEntry::new(EntryPath::Special { value: project }, EntryAccess::Write);
                let kept_here = KEPT.iter().map(|name| {
                    let value = Special::ProjectRoots { subpath: Some((*name).to_owned()) };
                    ProfileEntry::new(EntryPath::Special { value }, EntryAccess::Read)
                });
                let at = |path: String, access| ProfileEntry::new(EntryPath::Path { path }, access);
                let roots = writable_roots.into_iter().flat_map(|root| {
                    let kept = KEPT.iter().map(|name| at(format!("{root}/{name}"), EntryAccess::Read));
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
