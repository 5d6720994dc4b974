//! What of a view can be built before its session is known: everything but what lies in the session's
//! own directories. Those are mounted last, when there is a session.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::confinement::Isolation;

use super::{Mount, Plan};
use crate::mounted::Mounted;
use crate::survey::around::Around;
use crate::which::Which;

/// A view without a session, and what the machine was like when it was thought of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ahead {
    pub plan: Plan,
    seen: Seen,
    /// What was known already of the files that it shows or hides.
    around: Arc<Around>,
}

/// What a view shows, or hides, is a file and not its name: another one of the same name is not it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    files: Vec<File>,
    mounted: Mounted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct File {
    path: PathBuf,
    which: Option<Which>,
    /// Nobody else would notice that it is another.
    alone: bool,
}

impl Ahead {
    /// What sessions like one with this plan have in common, whose own directories are these, and which
    /// was made from what lies around them. Nothing where there is no view.
    pub fn of(plan: &Plan, own: &[PathBuf], around: &Arc<Around>) -> Option<Self> {
        if plan.isolation != Isolation::Full {
            return None;
        }
        let is_own = |mount: &Mount| {
            mount.path().is_some_and(|path| own.iter().any(|own| path.starts_with(own)))
        };
        let view = plan.view.iter().filter(|mount| !is_own(mount)).cloned().collect();
        let plan = Plan { view, controls: Vec::new(), ..plan.clone() };
        let seen = Seen::now(&plan.view, around);
        Some(Self { plan, seen, around: around.clone() })
    }

    /// Whether a session with this plan can have it, as the machine is now. What the plan was made from
    /// is known to be so at this moment.
    pub fn suits(&self, plan: &Plan, around: &Arc<Around>) -> bool {
        let still = |file: &File| {
            // What is known to lie around as it did needs no second look.
            !file.alone && Arc::ptr_eq(&self.around, around)
                || Which::is_at(&file.path) == file.which
        };
        plan.isolation == Isolation::Full
            && late(&self.plan.view, &plan.view).is_some()
            && self.seen.files.iter().all(still)
            && self.seen.mounted.is_current()
    }
}

impl Seen {
    fn now(view: &[Mount], around: &Around) -> Self {
        let mounted = Mounted::now();
        let file = |path: &Path| File {
            path: path.to_owned(),
            which: Which::is_at(path),
            alone: !around.speaks_of(path),
        };
        Self { files: view.iter().filter_map(Mount::path).map(file).collect(), mounted }
    }
}

/// Which steps of `view` are still to be done where those of `base` are done; nothing if that would
/// not come to the same.
pub fn late(base: &[Mount], view: &[Mount]) -> Option<Vec<usize>> {
    let mut done = base.iter().peekable();
    let mut late = Vec::new();
    for (place, mount) in view.iter().enumerate() {
        // What the session has mounted over a part of the base stands for it.
        while done.next_if(|next| *next != mount && is_covered(next, view)).is_some() {}
        if done.next_if_eq(&mount).is_none() {
            late.push(place);
        }
    }
    let complete = done.all(|left| is_covered(left, view));
    let below = |outer: &Path, mount: &Mount| {
        mount.path().is_some_and(|path| path != outer && path.starts_with(outer))
    };
    let harmless = |place: &usize| match &view[*place] {
        Mount::Bind { path, .. }
        | Mount::Hold { path, .. }
        | Mount::Hide { path, .. }
        | Mount::Cover { path } => {
            // It would cover what is there already.
            !base.iter().any(|mount| below(path, mount))
        }
        _ => false,
    };
    (complete && late.iter().all(harmless)).then_some(late)
}

/// Whether `view` binds something else at the place of this part of a base.
fn is_covered(of_base: &Mount, view: &[Mount]) -> bool {
    let bound = |path: &PathBuf| {
        let other = |mount: &Mount| matches!(mount, Mount::Bind { path: at, .. } if at == path);
        view.iter().any(|mount| other(mount) && mount != of_base) && !view.contains(of_base)
    };
    matches!(of_base, Mount::Bind { path, .. } if bound(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Access, Kind};

    fn bind(path: &str, access: Access) -> Mount {
        Mount::Bind { path: path.into(), kind: Kind::Directory, access }
    }

    fn hide(path: &str) -> Mount {
        Mount::Hide { path: path.into(), kind: Kind::Directory }
    }

    fn machine() -> Mount {
        Mount::Machine { access: Access::Read }
    }

    #[test]
    fn a_sessions_own_directories_come_last() {
        let base = [machine(), hide("/state"), hide("/people/me/.ssh"), Mount::Processes];
        let mut view = base.to_vec();
        view.insert(3, bind("/own", Access::Write));
        view.insert(4, bind("/own/.git", Access::Read));
        assert_eq!(late(&base, &view), Some(vec![3, 4]));
        assert_eq!(late(&base, &base), Some(vec![]));
    }

    #[test]
    fn what_was_hidden_ahead_is_not_uncovered_by_what_comes_last() {
        let base = [machine(), hide("/people/me/.ssh"), Mount::Processes];
        let view = [
            machine(),
            bind("/people/me", Access::Write),
            hide("/people/me/.ssh"),
            Mount::Processes,
        ];
        assert_eq!(late(&base, &view), None);
    }

    #[test]
    fn a_view_that_hides_less_or_is_of_another_root_is_another() {
        let base = [machine(), hide("/a"), hide("/b")];
        assert_eq!(late(&base, &[machine(), hide("/a")]), None);
        assert_eq!(late(&base, &[Mount::Empty, hide("/a"), hide("/b")]), None);
        assert_eq!(late(&base, &[machine(), hide("/b"), hide("/a")]), None, "in another order");
    }

    #[test]
    fn a_workspace_is_bound_over_what_the_base_shows_there() {
        let base = [machine(), bind("/people/me/code", Access::Read), hide("/z/z/z")];
        let view = [machine(), bind("/people/me/code", Access::Write), hide("/z/z/z")];
        assert_eq!(late(&base, &view), Some(vec![1]));
    }

    #[test]
    fn a_file_that_was_replaced_is_not_the_one_that_was_seen() {
        let (nothing, dir) = (Arc::new(Around::default()), tempfile::tempdir().unwrap());
        let file = dir.path().join("secret");
        std::fs::write(&file, "old").unwrap();
        let mut plan = super::super::unconfined();
        plan.isolation = Isolation::Full;
        plan.view = vec![machine(), Mount::Hide { path: file.clone(), kind: Kind::File }];
        let ahead = Ahead::of(&plan, &[], &nothing).unwrap();
        assert!(ahead.suits(&plan, &nothing));
        std::fs::write(&file, "longer than before").unwrap();
        assert!(ahead.suits(&plan, &nothing), "it is still the same file");
        let ahead = Ahead::of(&plan, &[], &nothing).unwrap();
        std::fs::rename(&file, dir.path().join("old")).unwrap();
        std::fs::write(&file, "new").unwrap();
        assert!(!ahead.suits(&plan, &nothing));
        // Removed and made again, which gets the same number on many file systems.
        let ahead = Ahead::of(&plan, &[], &nothing).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "newer").unwrap();
        assert!(!ahead.suits(&plan, &nothing));
    }

    #[test]
    fn the_sessions_own_directories_are_left_out() {
        let nothing = Arc::new(Around::default());
        let mut plan = super::super::unconfined();
        assert_eq!(Ahead::of(&plan, &[], &nothing), None, "there is no view");
        plan.isolation = Isolation::Full;
        plan.view = vec![machine(), bind("/own", Access::Write), bind("/own/.git", Access::Read)];
        let ahead = Ahead::of(&plan, &["/own".into()], &nothing).unwrap();
        assert_eq!(ahead.plan.view, [machine()]);
        assert!(ahead.suits(&plan, &nothing));
    }
}
