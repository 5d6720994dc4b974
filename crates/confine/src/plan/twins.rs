//! Separates a session from its twin. Both processes share their namespaces, so each one gets an additional
//! Landlock layer. The layer keeps signals and tracing inside each process tree, and lets neither process
//! write where the other one works.
//!
//! Example, with the workspace `/work`, the family directory `/f` and the forking worker's room `/f`:
//!
//! | process | writes before the fork | writes after the fork |
//! |---|---|---|
//! | original | `/tmp`, `/work`, `/f` | `/tmp`, `/work`, `/f/o` |
//! | twin | | `/tmp`, `/f/t` (its workspace is `/f/t/w`) |
//!
//! [`windlass_protocol::family`] names the directories. This module is pure, like all of planning. Each
//! worker enters its layer itself (`crate::ffi_twins`), before it runs any code after the fork.

use std::path::{Path, PathBuf};

use windlass_protocol::confinement::Isolation;
use windlass_protocol::family;

use super::{Attempt, LandlockRule, Mount, Plan, Ruleset, rights};

/// The additional Landlock layers of a session and its twin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TwinRulesets {
    pub original: Ruleset,
    pub twin: Ruleset,
}

/// The directories of a session that forks a twin.
#[derive(Debug, Clone, Copy)]
pub struct FamilyPaths<'a> {
    /// The original's workspace.
    pub workspace: &'a Path,
    /// The family's directory, as the original's plan names it.
    pub family: &'a Path,
    /// The room of the worker that forks: a directory in the family's directory.
    pub room: &'a Path,
}

/// This kernel cannot separate twins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kernel's Landlock cannot keep twins from signalling each other: that needs Landlock version 6"
)]
pub struct NoSignalScope;

/// The layers that separate a worker with this plan from its twin. `None` if the plan confines nothing.
pub fn twin_rulesets(
    plan: &Plan,
    paths: FamilyPaths<'_>,
) -> Result<Option<TwinRulesets>, NoSignalScope> {
    if plan.isolation == Isolation::None {
        return Ok(None);
    }
    let ruleset = plan.landlock.as_ref().ok_or(NoSignalScope)?;
    if ruleset.scopes & rights::SCOPE_SIGNAL == 0 {
        return Err(NoSignalScope);
    }
    let original = narrowed(ruleset, paths.family, &[paths.family], &family::next_room(paths.room));
    let twin = narrowed(
        ruleset,
        paths.family,
        &[paths.family, paths.workspace],
        &family::twin_dir(paths.room),
    );
    Ok(Some(TwinRulesets { original, twin }))
}

/// Changes the plan of a session that has forked twins, for a new worker of this session. The worker may
/// write to its current room only, and no longer to the whole family directory: the twins use the rest.
pub fn restrict_to_room(plan: &mut Plan, family: &Path, room: &Path) {
    for rule in plan.landlock.iter_mut().flat_map(|ruleset| &mut ruleset.rules) {
        if rule.path == family {
            rule.path = room.to_owned();
        }
    }
}

/// Changes the original's plan into a plan for a new worker of the twin. Every path in the original's
/// workspace becomes the same path in the twin's copy, and the family's directory becomes the twin's room.
/// Names that are protected in the workspace are protected in the copy, where the copy has them.
pub fn move_to_twin(plan: &mut Plan, paths: FamilyPaths<'_>) {
    let (copy, room) = (family::workspace(paths.room), family::room_of_twin(paths.room));
    let move_path = |path: &mut PathBuf| {
        if let Ok(inside) = path.strip_prefix(paths.workspace) {
            *path = copy.join(inside);
        } else if path == paths.family {
            *path = room.clone();
        }
    };
    for mount in &mut plan.view {
        if let Mount::Bind { path, .. } | Mount::Hold { path, .. } = mount {
            move_path(path);
        }
    }
    // Moved paths have another depth. Deeper mounts come later, so that they win. Mounts without a path of
    // their own stay at the beginning or at the end.
    let depth = |mount: &Mount| match mount {
        Mount::Bind { path, .. }
        | Mount::Hold { path, .. }
        | Mount::Private { path, .. }
        | Mount::Hide { path, .. }
        | Mount::Cover { path }
        | Mount::Shell { path } => path.components().count(),
        Mount::Machine { .. } | Mount::Empty => 0,
        Mount::Link { .. } | Mount::Devices { .. } | Mount::Processes => usize::MAX,
    };
    plan.view.sort_by_key(depth);
    for rule in plan.landlock.iter_mut().flat_map(|ruleset| &mut ruleset.rules) {
        move_path(&mut rule.path);
    }
    for canary in &mut plan.canaries {
        match &mut canary.attempt {
            Attempt::Read { path } | Attempt::Write { path } | Attempt::Open { path } => {
                move_path(path);
            }
            Attempt::Create { directory } => move_path(directory),
            _ => {}
        }
    }
}

/// The plan's ruleset with less access. Paths below `read_only` keep only the reading rights. `own` gets the
/// rights that the plan grants for the family's directory.
fn narrowed(ruleset: &Ruleset, family: &Path, read_only: &[&Path], own: &Path) -> Ruleset {
    let family_rule = ruleset.rules.iter().find(|rule| rule.path == family);
    let family_access = family_rule.map_or(0, |rule| rule.access);
    let mut rules: Vec<LandlockRule> = ruleset
        .rules
        .iter()
        .map(|rule| {
            let is_read_only = read_only.iter().any(|path| rule.path.starts_with(path));
            let access = if is_read_only { rule.access & rights::READ } else { rule.access };
            LandlockRule { path: rule.path.clone(), access }
        })
        .filter(|rule| rule.access != 0)
        .collect();
    rules.push(LandlockRule { path: own.to_owned(), access: family_access });
    Ruleset { files: ruleset.files, network: 0, scopes: ruleset.scopes, rules }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::NetworkPlan;

    fn plan(scopes: u64) -> Plan {
        let rule =
            |path: &str| LandlockRule { path: path.into(), access: rights::READ | rights::CHANGE };
        Plan {
            isolation: Isolation::Full,
            network: NetworkPlan::Own,
            view: Vec::new(),
            landlock: Some(Ruleset {
                files: rights::READ | rights::CHANGE,
                network: rights::CONNECT_TCP,
                scopes,
                rules: vec![rule("/tmp"), rule("/work"), rule("/f")],
            }),
            sockets: None,
            rlimits: Vec::new(),
            canaries: Vec::new(),
            controls: Vec::new(),
            required: Vec::new(),
            own_uid: None,
        }
    }

    fn writable(ruleset: &Ruleset) -> Vec<PathBuf> {
        let write = |rule: &&LandlockRule| rule.access & rights::CHANGE != 0;
        ruleset.rules.iter().filter(write).map(|rule| rule.path.clone()).collect()
    }

    #[test]
    fn neither_twin_can_write_where_the_other_works() {
        let (workspace, family) = (Path::new("/work"), Path::new("/f"));
        let paths = FamilyPaths { workspace, family, room: &family.join("o") };
        let rulesets = twin_rulesets(&plan(rights::SCOPE_SIGNAL), paths).unwrap().unwrap();
        let list = |paths: [&str; 3]| paths.map(PathBuf::from).to_vec();
        assert_eq!(writable(&rulesets.original), list(["/tmp", "/work", "/f/o/o"]));
        let twin: Vec<PathBuf> = ["/tmp", "/f/o/t"].map(PathBuf::from).to_vec();
        assert_eq!(writable(&rulesets.twin), twin);
        assert_eq!(rulesets.twin.scopes, rights::SCOPE_SIGNAL);
    }

    #[test]
    fn without_a_signal_scope_there_are_no_twins() {
        let (workspace, family) = (Path::new("/work"), Path::new("/f"));
        let paths = FamilyPaths { workspace, family, room: family };
        assert_eq!(twin_rulesets(&plan(0), paths), Err(NoSignalScope));
        let open = Plan { isolation: Isolation::None, ..plan(0) };
        assert_eq!(twin_rulesets(&open, paths), Ok(None));
    }
}
