//! Converts a managed permission profile to a policy. In a profile, the deepest entry at or above a
//! path decides. A path without such an entry is closed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use windlass_protocol::confinement::{Control, Isolation};
use windlass_protocol::policy::{PolicyRequest, Preset, TRUSTED_ANYWHERE};

use super::wire::{EntryAccess, EntryPath, FileSystem, NetworkAccess, ProfileEntry, Special};
use super::{BadSandbox, ENTRIES_MAX, paths, repeated, simple};

/// The paths that Codex's special entry `minimal` means.
const MINIMAL: [&str; 8] =
    ["/bin", "/sbin", "/usr", "/etc", "/lib", "/lib64", "/nix/store", "/run/current-system/sw"];

/// Name prefix of the directory that each Codex process creates for itself and may read. In a
/// policy it would give every Codex process a different session.
const OWN_DIRECTORY: &str = "codex-arg0";

/// A policy at least as strict as the profile of a call in `workspace`.
pub(super) fn managed(
    file_system: FileSystem,
    network: NetworkAccess,
    workspace: &Path,
) -> Result<PolicyRequest, BadSandbox> {
    match file_system {
        FileSystem::Unrestricted {} => Ok(simple(Preset::Open, network)),
        FileSystem::Restricted { entries, .. } => {
            let rules = PathRules::of(entries, workspace)?;
            let policy = simple(rules.preset(workspace)?, network);
            rules.fill(policy, workspace)
        }
    }
}

/// The access of each path in a profile.
struct PathRules(BTreeMap<PathBuf, EntryAccess>);

impl PathRules {
    fn of(entries: Vec<ProfileEntry>, workspace: &Path) -> Result<Self, BadSandbox> {
        if entries.len() > ENTRIES_MAX {
            return Err(BadSandbox::TooMany { what: "entries", max: ENTRIES_MAX });
        }
        let mut rules = Self(BTreeMap::new());
        for ProfileEntry { path, access, .. } in entries {
            match path {
                EntryPath::Path { path } => rules.add(paths::absolute(&path)?, access),
                EntryPath::Special { value } => rules.add_special(&value, access, workspace)?,
                EntryPath::GlobPattern { pattern } => {
                    return Err(BadSandbox::NotHeld {
                        what: format!("the pattern {:?}", repeated(&pattern)),
                        remedy: "name the paths one by one in the profile",
                    });
                }
            }
        }
        Ok(rules)
    }

    fn add_special(
        &mut self,
        special: &Special,
        access: EntryAccess,
        workspace: &Path,
    ) -> Result<(), BadSandbox> {
        let not_held = |what: &str, remedy| BadSandbox::NotHeld { what: what.to_owned(), remedy };
        match (special, access) {
            (Special::Root {}, access) => self.add("/".into(), access),
            (Special::Minimal {}, EntryAccess::Read) => {
                for path in MINIMAL {
                    self.add(path.into(), access);
                }
            }
            (Special::Minimal {}, EntryAccess::Write | EntryAccess::Deny) => {
                let what = "the system's own files, other than to read";
                return Err(not_held(what, "name the paths one by one in the profile"));
            }
            (Special::ProjectRoots { subpath: None }, access) => {
                self.add(workspace.to_owned(), access);
            }
            (Special::ProjectRoots { subpath: Some(subpath) }, access) => {
                self.add(paths::below(workspace, subpath)?, access);
            }
            (Special::SlashTmp {}, EntryAccess::Deny) => self.add("/tmp".into(), access),
            (Special::Tmpdir {}, EntryAccess::Deny) => {
                let what = "TMPDIR, which it denies without saying where it is";
                return Err(not_held(what, "name the path in the profile"));
            }
            // A session has private temporary directories and cannot use the machine's.
            (Special::SlashTmp {} | Special::Tmpdir {}, EntryAccess::Read | EntryAccess::Write) => {
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf, access: EntryAccess) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if access == EntryAccess::Read && name.starts_with(OWN_DIRECTORY) {
            return;
        }
        let said = self.0.entry(path).or_insert(access);
        *said = access.max(*said);
    }

    fn at(&self, path: &Path) -> Option<EntryAccess> {
        self.0.get(path).copied()
    }

    fn root(&self) -> Option<EntryAccess> {
        self.at(Path::new("/"))
    }

    /// The first rule on these paths, which go from the deepest up.
    fn deepest<'a>(
        &self,
        mut paths: impl Iterator<Item = &'a Path>,
    ) -> Option<(&'a Path, EntryAccess)> {
        paths.find_map(|path| Some((path, self.at(path)?)))
    }

    fn preset(&self, workspace: &Path) -> Result<Preset, BadSandbox> {
        let here = self.deepest(workspace.ancestors()).map(|(_, access)| access);
        match (here, self.root()) {
            (None | Some(EntryAccess::Deny), _) => {
                Err(BadSandbox::WorkspaceClosed(workspace.to_owned()))
            }
            (Some(EntryAccess::Write), Some(EntryAccess::Write)) => Ok(Preset::Open),
            (Some(EntryAccess::Write), _) => Ok(Preset::Workspace),
            (Some(EntryAccess::Read), Some(EntryAccess::Write)) => {
                Err(read_only_in_open(workspace))
            }
            (Some(EntryAccess::Read), _) => Ok(Preset::ReadOnly),
        }
    }

    fn fill(
        &self,
        mut policy: PolicyRequest,
        workspace: &Path,
    ) -> Result<PolicyRequest, BadSandbox> {
        let mut readable = Vec::new();
        let mut required = Control::REQUIRED.to_vec();
        let below_root = || self.0.iter().filter(|(path, _)| path.parent().is_some());
        if below_root().any(|(_, access)| *access == EntryAccess::Write) {
            // Codex protects some names in writable directories, even if its profile does not list
            // them.
            required.push(Control::Protected);
        }
        for (path, access) in below_root() {
            let above = self.deepest(path.ancestors().skip(1));
            let text = || path.to_string_lossy().into_owned();
            match (*access, above) {
                (EntryAccess::Deny, _) => policy.hidden.push(text()),
                (EntryAccess::Write, _) if path == workspace => {}
                (EntryAccess::Write, _) => policy.writable.push(text()),
                (EntryAccess::Read, Some((above, EntryAccess::Write)))
                    if above.parent().is_none() =>
                {
                    return Err(read_only_in_open(path));
                }
                (EntryAccess::Read, Some((_, EntryAccess::Write)))
                    if self.is_protected(path, workspace) => {}
                (EntryAccess::Read, Some((_, EntryAccess::Write))) => {
                    // Only a mount namespace can do this; Landlock rules alone cannot.
                    policy.isolation = Some(Isolation::Full);
                    readable.push(text());
                }
                (EntryAccess::Read, Some((_, EntryAccess::Read))) => {}
                (EntryAccess::Read, None | Some((_, EntryAccess::Deny))) if path == workspace => {}
                (EntryAccess::Read, None | Some((_, EntryAccess::Deny))) => readable.push(text()),
            }
        }
        if matches!(self.root(), None | Some(EntryAccess::Deny)) {
            required.push(Control::Read);
            policy.readable = Some(readable);
        } else if !readable.is_empty() {
            readable.insert(0, "/".to_owned());
            policy.readable = Some(readable);
        }
        if required.len() > Control::REQUIRED.len() {
            policy.required = Some(required);
        }
        Ok(policy)
    }

    /// Whether every session protects this path from writes anyway.
    fn is_protected(&self, path: &Path, workspace: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let in_a_root = path
            .parent()
            .is_some_and(|root| root == workspace || self.at(root) == Some(EntryAccess::Write));
        // Names that are trusted only in a home directory can be created elsewhere, so they do not
        // count.
        in_a_root && TRUSTED_ANYWHERE.contains(&name)
    }
}

fn read_only_in_open(path: &Path) -> BadSandbox {
    BadSandbox::NotHeld {
        what: format!("{:?} is read-only where all else can be written", repeated(&path.display())),
        remedy: "make less than the whole machine writable in the profile",
    }
}
