//! The base of a view: everything but what lies in a session's own directories. A pooled worker builds it
//! before there is a session. The session's own directories are mounted last.

use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::confinement::Isolation;

use super::{Mount, Plan};
use crate::mounted::Mounted;
use crate::survey::around::Around;
use crate::which::Which;

/// A base, and what the machine was like when it was made.
#[derive(Debug)]
pub struct BaseView {
    pub plan: Plan,
    /// The files that the view shows or hides. A file is the same only by its identity: another file of
    /// the same name is not.
    files: Vec<File>,
    mounted: Mounted,
    /// What was known already of those files.
    around: Arc<Around>,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    which: Option<Which>,
    /// The survey does not speak of this file, so that only a look at it tells whether it changed.
    alone: bool,
    /// A socket of the machine that is covered. Sockets come and go; one that is gone needs no cover.
    is_socket: bool,
}

impl File {
    fn is_same(&self) -> bool {
        let now = Which::is_at(&self.path);
        now == self.which || self.is_socket && now.is_none()
    }
}

impl BaseView {
    /// The base of a session's plan. `own` are the session's own directories, and `around` is the survey
    /// that the plan was made from. Nothing where the plan has no view.
    pub fn of(plan: &Plan, own: &[&Path], around: &Arc<Around>) -> Option<Self> {
        if plan.isolation != Isolation::Full {
            return None;
        }
        let is_own = |mount: &Mount| {
            mount.path().is_some_and(|path| own.iter().any(|own| path.starts_with(own)))
        };
        let view: Vec<Mount> = plan.view.iter().filter(|mount| !is_own(mount)).cloned().collect();
        let file = |mount: &Mount| {
            let path = mount.path()?;
            Some(File {
                path: path.to_owned(),
                which: Which::is_at(path),
                alone: !around.speaks_of(path),
                is_socket: matches!(mount, Mount::Cover { .. }),
            })
        };
        let mounted = Mounted::now();
        let files = view.iter().filter_map(file).collect();
        let plan = Plan { view, controls: Vec::new(), ..plan.clone() };
        Some(Self { plan, files, mounted, around: around.clone() })
    }

    /// A number that another base has only if it was made of the same steps and the same files.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        serde_json::to_string(&self.plan).unwrap_or_default().hash(&mut hasher);
        self.files.iter().for_each(|file| file.which.hash(&mut hasher));
        hasher.finish()
    }

    /// Whether a session with this plan can have the base. What the base covers and the plan does not
    /// must be gone.
    pub fn is_base_of(&self, plan: &Plan) -> bool {
        let is_gone = |mount: &Mount| match mount {
            Mount::Cover { path } => plan.view.contains(mount) || Which::is_at(path).is_none(),
            _ => true,
        };
        plan.isolation == Isolation::Full
            && late(&self.plan.view, &plan.view).is_some()
            && self.plan.view.iter().all(is_gone)
    }

    /// Whether the machine is still as it was. `around` is the survey of this moment: files that it speaks
    /// of need no second look if it is the one that the base was made from.
    pub fn is_current(&self, around: &Arc<Around>) -> bool {
        let is_surveyed = Arc::ptr_eq(&self.around, around);
        let still = |file: &File| !file.alone && is_surveyed || file.is_same();
        self.files.iter().all(still) && self.mounted.is_current()
    }
}

/// Which steps of `view` are still to be done where those of `base` are done; nothing if that would
/// not come to the same.
pub fn late(base: &[Mount], view: &[Mount]) -> Option<Vec<usize>> {
    let mut done = base.iter().peekable();
    let mut late = Vec::new();
    for (place, mount) in view.iter().enumerate() {
        // What the session has mounted over a part of the base stands for it.
        while done.next_if(|next| *next != mount && is_immaterial(next, view)).is_some() {}
        if done.next_if_eq(&mount).is_none() {
            late.push(place);
        }
    }
    let complete = done.all(|left| is_immaterial(left, view));
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

/// Whether this part of a base does not matter to `view`: it covers a socket, which only hides more, or
/// `view` binds something else at its place.
fn is_immaterial(of_base: &Mount, view: &[Mount]) -> bool {
    if matches!(of_base, Mount::Cover { .. }) && !view.contains(of_base) {
        return true;
    }
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
    fn a_socket_that_is_gone_needs_no_cover_and_one_that_is_there_does() {
        let (nothing, dir) = (Arc::new(Around::default()), tempfile::tempdir().unwrap());
        let path = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut plan = super::super::unconfined();
        plan.isolation = Isolation::Full;
        plan.view = vec![machine(), Mount::Cover { path: path.clone() }];
        let base = BaseView::of(&plan, &[], &nothing).unwrap();
        let mut without = super::super::unconfined();
        without.isolation = Isolation::Full;
        without.view = vec![machine()];
        assert!(base.is_base_of(&plan) && !base.is_base_of(&without), "it would hide a socket");
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        assert!(base.is_base_of(&without) && base.is_current(&nothing));
        let _another = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!base.is_current(&nothing), "another socket is not covered");
    }

    #[test]
    fn a_file_that_was_replaced_is_not_the_one_that_was_seen() {
        let (nothing, dir) = (Arc::new(Around::default()), tempfile::tempdir().unwrap());
        let file = dir.path().join("secret");
        std::fs::write(&file, "old").unwrap();
        let mut plan = super::super::unconfined();
        plan.isolation = Isolation::Full;
        plan.view = vec![machine(), Mount::Hide { path: file.clone(), kind: Kind::File }];
        let base = BaseView::of(&plan, &[], &nothing).unwrap();
        assert!(base.is_base_of(&plan) && base.is_current(&nothing));
        std::fs::write(&file, "longer than before").unwrap();
        assert!(base.is_base_of(&plan) && base.is_current(&nothing), "it is still the same file");
        let base = BaseView::of(&plan, &[], &nothing).unwrap();
        std::fs::rename(&file, dir.path().join("old")).unwrap();
        std::fs::write(&file, "new").unwrap();
        assert!(!base.is_current(&nothing));
        // Removed and made again, which gets the same number on many file systems.
        let base = BaseView::of(&plan, &[], &nothing).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "newer").unwrap();
        assert!(!base.is_current(&nothing));
    }

    #[test]
    fn the_sessions_own_directories_are_left_out() {
        let nothing = Arc::new(Around::default());
        let mut plan = super::super::unconfined();
        assert!(BaseView::of(&plan, &[], &nothing).is_none(), "there is no view");
        plan.isolation = Isolation::Full;
        plan.view = vec![machine(), bind("/own", Access::Write), bind("/own/.git", Access::Read)];
        let base = BaseView::of(&plan, &[Path::new("/own")], &nothing).unwrap();
        assert_eq!(base.plan.view, [machine()]);
        assert!(base.is_base_of(&plan) && base.is_current(&nothing));
    }
}
