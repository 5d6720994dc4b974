//! The base of a view: all mounts except those in a session's own directories. A pooled worker builds the
//! base before it has a session. The session's own directories are mounted last.

use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_protocol::confinement::Isolation;

use super::{Mount, Plan};
use crate::file_fingerprint::FileFingerprint;
use crate::mount_table::MountTable;
use crate::survey::shared::SharedSurvey;

/// The base of a view, and the state of the machine when the base was made.
#[derive(Debug)]
pub struct BaseView {
    pub plan: Plan,
    /// The files that the view shows or hides. Another file at the same path does not count as the same file.
    files: Vec<ViewFile>,
    mount_table: MountTable,
    /// The survey that the plan was made from.
    shared: Arc<SharedSurvey>,
}

#[derive(Debug)]
struct ViewFile {
    path: PathBuf,
    fingerprint: Option<FileFingerprint>,
    /// The shared survey does not notice changes of this file: the base must check the file itself.
    must_check: bool,
    /// A covered socket of the machine. A socket that has been removed needs no cover.
    is_socket: bool,
}

impl ViewFile {
    fn is_same(&self) -> bool {
        let now = FileFingerprint::at(&self.path);
        now == self.fingerprint || self.is_socket && now.is_none()
    }
}

impl BaseView {
    /// The base of a session's plan. `own` are the session's own directories, and `shared` is the survey that
    /// the plan was made from. `None` if the plan has no view.
    pub fn of(plan: &Plan, own: &[&Path], shared: &Arc<SharedSurvey>) -> Option<Self> {
        if plan.isolation != Isolation::Full {
            return None;
        }
        let is_own = |mount: &Mount| {
            mount.path().is_some_and(|path| own.iter().any(|own| path.starts_with(own)))
        };
        let view: Vec<Mount> = plan.view.iter().filter(|mount| !is_own(mount)).cloned().collect();
        let file = |mount: &Mount| {
            let path = mount.path()?;
            Some(ViewFile {
                path: path.to_owned(),
                fingerprint: FileFingerprint::at(path),
                must_check: !shared.covers(path),
                is_socket: matches!(mount, Mount::Cover { .. }),
            })
        };
        let mount_table = MountTable::now();
        let files = view.iter().filter_map(file).collect();
        let plan = Plan { view, controls: Vec::new(), ..plan.clone() };
        Some(Self { plan, files, mount_table, shared: shared.clone() })
    }

    /// A hash of the base's steps and files.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        serde_json::to_string(&self.plan).unwrap_or_default().hash(&mut hasher);
        self.files.iter().for_each(|file| file.fingerprint.hash(&mut hasher));
        hasher.finish()
    }

    /// Whether a session with this plan can use the base. A socket that the base covers and the plan does not
    /// must have been removed.
    pub fn is_base_of(&self, plan: &Plan) -> bool {
        let is_gone = |mount: &Mount| match mount {
            Mount::Cover { path } => {
                plan.view.contains(mount) || FileFingerprint::at(path).is_none()
            }
            _ => true,
        };
        plan.isolation == Isolation::Full
            && remaining_steps(&self.plan.view, &plan.view).is_some()
            && self.plan.view.iter().all(is_gone)
    }

    /// Whether the base's files and the mount table are unchanged. `shared` is the current survey: if the
    /// base was made from it, the files that it covers need no second check.
    pub fn is_current(&self, shared: &Arc<SharedSurvey>) -> bool {
        let is_surveyed = Arc::ptr_eq(&self.shared, shared);
        let still = |file: &ViewFile| !file.must_check && is_surveyed || file.is_same();
        self.files.iter().all(still) && self.mount_table.is_current()
    }
}

/// The indices of the steps of `view` that remain after the steps of `base` are done. `None` if the result
/// would differ from building `view` alone.
pub fn remaining_steps(base: &[Mount], view: &[Mount]) -> Option<Vec<usize>> {
    let mut done = base.iter().peekable();
    let mut remaining = Vec::new();
    for (index, mount) in view.iter().enumerate() {
        // Skip steps of the base that the session's own mounts replace.
        while done.next_if(|next| *next != mount && can_ignore(next, view)).is_some() {}
        if done.next_if_eq(&mount).is_none() {
            remaining.push(index);
        }
    }
    let complete = done.all(|left| can_ignore(left, view));
    let below = |outer: &Path, mount: &Mount| {
        mount.path().is_some_and(|path| path != outer && path.starts_with(outer))
    };
    let harmless = |index: &usize| match &view[*index] {
        Mount::Bind { path, .. }
        | Mount::Hold { path, .. }
        | Mount::Hide { path, .. }
        | Mount::Cover { path } => {
            // Otherwise this mount would cover a deeper mount of the base.
            !base.iter().any(|mount| below(path, mount))
        }
        _ => false,
    };
    (complete && remaining.iter().all(harmless)).then_some(remaining)
}

/// Whether `view` can ignore this step of a base: the step covers a socket that `view` does not mention, or
/// `view` binds the same path in another way.
fn can_ignore(of_base: &Mount, view: &[Mount]) -> bool {
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
    use crate::plan::{MountAccess, PathKind};

    fn bind(path: &str, access: MountAccess) -> Mount {
        Mount::Bind { path: path.into(), kind: PathKind::Directory, access }
    }

    fn hide(path: &str) -> Mount {
        Mount::Hide { path: path.into(), kind: PathKind::Directory }
    }

    fn machine() -> Mount {
        Mount::Machine { access: MountAccess::Read }
    }

    #[test]
    fn a_sessions_own_directories_come_last() {
        let base = [machine(), hide("/state"), hide("/people/me/.ssh"), Mount::Processes];
        let mut view = base.to_vec();
        view.insert(3, bind("/own", MountAccess::Write));
        view.insert(4, bind("/own/.git", MountAccess::Read));
        assert_eq!(remaining_steps(&base, &view), Some(vec![3, 4]));
        assert_eq!(remaining_steps(&base, &base), Some(vec![]));
    }

    #[test]
    fn a_later_mount_does_not_uncover_what_the_base_hides() {
        let base = [machine(), hide("/people/me/.ssh"), Mount::Processes];
        let view = [
            machine(),
            bind("/people/me", MountAccess::Write),
            hide("/people/me/.ssh"),
            Mount::Processes,
        ];
        assert_eq!(remaining_steps(&base, &view), None);
    }

    #[test]
    fn a_view_with_fewer_hidden_paths_or_another_root_needs_another_base() {
        let base = [machine(), hide("/a"), hide("/b")];
        assert_eq!(remaining_steps(&base, &[machine(), hide("/a")]), None);
        assert_eq!(remaining_steps(&base, &[Mount::Empty, hide("/a"), hide("/b")]), None);
        assert_eq!(
            remaining_steps(&base, &[machine(), hide("/b"), hide("/a")]),
            None,
            "in another order"
        );
    }

    #[test]
    fn a_workspace_is_bound_over_what_the_base_shows_there() {
        let base = [machine(), bind("/people/me/code", MountAccess::Read), hide("/z/z/z")];
        let view = [machine(), bind("/people/me/code", MountAccess::Write), hide("/z/z/z")];
        assert_eq!(remaining_steps(&base, &view), Some(vec![1]));
    }

    #[test]
    fn a_removed_socket_needs_no_cover_and_an_existing_one_does() {
        let (nothing, dir) = (Arc::new(SharedSurvey::default()), tempfile::tempdir().unwrap());
        let path = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut plan = super::super::unconfined();
        plan.isolation = Isolation::Full;
        plan.view = vec![machine(), Mount::Cover { path: path.clone() }];
        let base = BaseView::of(&plan, &[], &nothing).unwrap();
        let mut without = super::super::unconfined();
        without.isolation = Isolation::Full;
        without.view = vec![machine()];
        assert!(
            base.is_base_of(&plan) && !base.is_base_of(&without),
            "the base would hide a socket"
        );
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        assert!(base.is_base_of(&without) && base.is_current(&nothing));
        let _another = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!base.is_current(&nothing), "another socket is not covered");
    }

    #[test]
    fn a_replaced_file_is_another_file() {
        let (nothing, dir) = (Arc::new(SharedSurvey::default()), tempfile::tempdir().unwrap());
        let file = dir.path().join("secret");
        std::fs::write(&file, "old").unwrap();
        let mut plan = super::super::unconfined();
        plan.isolation = Isolation::Full;
        plan.view = vec![machine(), Mount::Hide { path: file.clone(), kind: PathKind::File }];
        let base = BaseView::of(&plan, &[], &nothing).unwrap();
        assert!(base.is_base_of(&plan) && base.is_current(&nothing));
        std::fs::write(&file, "longer than before").unwrap();
        assert!(base.is_base_of(&plan) && base.is_current(&nothing), "it is still the same file");
        let base = BaseView::of(&plan, &[], &nothing).unwrap();
        std::fs::rename(&file, dir.path().join("old")).unwrap();
        std::fs::write(&file, "new").unwrap();
        assert!(!base.is_current(&nothing));
        // Removed and made again: on many file systems the new file gets the same inode number.
        let base = BaseView::of(&plan, &[], &nothing).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "newer").unwrap();
        assert!(!base.is_current(&nothing));
    }

    #[test]
    fn the_sessions_own_directories_are_left_out() {
        let nothing = Arc::new(SharedSurvey::default());
        let mut plan = super::super::unconfined();
        assert!(BaseView::of(&plan, &[], &nothing).is_none(), "there is no view");
        plan.isolation = Isolation::Full;
        plan.view =
            vec![machine(), bind("/own", MountAccess::Write), bind("/own/.git", MountAccess::Read)];
        let base = BaseView::of(&plan, &[Path::new("/own")], &nothing).unwrap();
        assert_eq!(base.plan.view, [machine()]);
        assert!(base.is_base_of(&plan) && base.is_current(&nothing));
    }
}
