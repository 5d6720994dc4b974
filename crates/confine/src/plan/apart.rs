//! What keeps a session and its twin apart, who are in the same namespaces: one more Landlock layer
//! for each. It holds signals and tracing within, and writing to what is the process's own.
//!
//! Pure, like all of planning. The worker enters its layer by itself (`crate::ffi`), before it runs
//! any code after the fork.

use std::path::{Path, PathBuf};

use windlass_protocol::confinement::Isolation;
use windlass_protocol::family;

use super::{Attempt, Mount, Plan, Rule, Ruleset, rights};

/// The layers of the two, or nothing where nothing confines them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apart {
    pub original: Ruleset,
    pub twin: Ruleset,
}

/// Where a session works, and where its twins do.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    pub workspace: &'a Path,
    /// The family's directory as the plan has it.
    pub family: &'a Path,
    /// The room of the process that forks.
    pub room: &'a Path,
}

/// Why twins cannot be kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kernel's Landlock cannot keep twins from signalling each other: that needs version 6 of it"
)]
pub struct NotApart;

/// The layers for a worker that was started by `plan`.
pub fn apart(plan: &Plan, places: Places<'_>) -> Result<Option<Apart>, NotApart> {
    if plan.isolation == Isolation::None {
        return Ok(None);
    }
    let ruleset = plan.landlock.as_ref().ok_or(NotApart)?;
    if ruleset.scopes & rights::SCOPE_SIGNAL == 0 {
        return Err(NotApart);
    }
    let original = layer(ruleset, &[places.family], places, &family::next_room(places.room));
    let both = [places.family, places.workspace];
    let twin = layer(ruleset, &both, places, &family::twin_dir(places.room));
    Ok(Some(Apart { original, twin }))
}

/// The rules of a worker that is started anew after forks: its twins' places are no longer its own.
pub fn leave_room(plan: &mut Plan, family: &Path, room: &Path) {
    for rule in plan.landlock.iter_mut().flat_map(|ruleset| &mut ruleset.rules) {
        if rule.path == family {
            rule.path = room.to_owned();
        }
    }
}

/// The plan for a worker that takes the place of the twin: where the original worked is where the copy
/// is. Names that are protected in a workspace are so in the copy, as far as it has them.
pub fn moved(plan: &mut Plan, places: Places<'_>) {
    let (copy, room) = (family::workspace(places.room), family::room_of_twin(places.room));
    let move_path = |path: &mut PathBuf| {
        if let Ok(inside) = path.strip_prefix(places.workspace) {
            *path = copy.join(inside);
        } else if path == places.family {
            *path = room.clone();
        }
    };
    for mount in &mut plan.view {
        if let Mount::Bind { path, .. } | Mount::Hold { path, .. } = mount {
            move_path(path);
        }
    }
    // Deeper ones come later, and so win; what is not at a path of its own stays where it is.
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

/// The plan's own rules, with only reading in what is `others`', and `own` as the family's was.
fn layer(ruleset: &Ruleset, others: &[&Path], places: Places<'_>, own: &Path) -> Ruleset {
    let whole = ruleset.rules.iter().find(|rule| rule.path == places.family);
    let granted = whole.map_or(0, |rule| rule.access);
    let mut rules: Vec<Rule> = ruleset
        .rules
        .iter()
        .map(|rule| {
            let others = others.iter().any(|path| rule.path.starts_with(path));
            let access = if others { rule.access & rights::READ } else { rule.access };
            Rule { path: rule.path.clone(), access }
        })
        .filter(|rule| rule.access != 0)
        .collect();
    rules.push(Rule { path: own.to_owned(), access: granted });
    Ruleset { files: ruleset.files, network: 0, scopes: ruleset.scopes, rules }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::NetworkPlan;

    fn plan(scopes: u64) -> Plan {
        let rule = |path: &str| Rule { path: path.into(), access: rights::READ | rights::CHANGE };
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
        }
    }

    fn writable(ruleset: &Ruleset) -> Vec<PathBuf> {
        let write = |rule: &&Rule| rule.access & rights::CHANGE != 0;
        ruleset.rules.iter().filter(write).map(|rule| rule.path.clone()).collect()
    }

    #[test]
    fn neither_can_write_where_the_other_works() {
        let (workspace, family) = (Path::new("/work"), Path::new("/f"));
        let places = Places { workspace, family, room: &family.join("o") };
        let made = apart(&plan(rights::SCOPE_SIGNAL), places).unwrap().unwrap();
        let paths = |paths: [&str; 3]| paths.map(PathBuf::from).to_vec();
        assert_eq!(writable(&made.original), paths(["/tmp", "/work", "/f/o/o"]));
        let twin: Vec<PathBuf> = ["/tmp", "/f/o/t"].map(PathBuf::from).to_vec();
        assert_eq!(writable(&made.twin), twin);
        assert_eq!(made.twin.scopes, rights::SCOPE_SIGNAL);
    }

    #[test]
    fn without_a_scope_for_signals_there_are_no_twins() {
        let (workspace, family) = (Path::new("/work"), Path::new("/f"));
        let places = Places { workspace, family, room: family };
        assert_eq!(apart(&plan(0), places), Err(NotApart));
        let open = Plan { isolation: Isolation::None, ..plan(0) };
        assert_eq!(apart(&open, places), Ok(None));
    }
}
