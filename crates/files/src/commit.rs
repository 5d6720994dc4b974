//! Puts staged files in their places, all or none: every condition is checked first, each file is
//! exchanged with what was there, and what was done is undone when a later one fails.

use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FileType, Mode, RenameFlags, Stat, fchmod, fstat, renameat, renameat_with, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::condition::{etag, same_content};
use super::staging::{Staged, Staging};
use super::{Condition, FileError, FilePath, Workspace};

/// The bits of a file's mode that the next file of its name gets.
const MODE_KEPT: u32 = 0o777;

/// One file that is to be another, or none.
#[derive(Debug)]
pub(super) struct Change {
    pub path: FilePath,
    pub condition: Condition,
    pub act: Act,
}

#[derive(Debug)]
pub(super) enum Act {
    Put(Staged),
    Delete,
}

/// What became of a change: the etag of what was put.
pub(super) type Etag = Option<String>;

/// Does all changes or none, and says each one's outcome, in order.
pub(super) fn commit(
    workspace: &Workspace,
    staging: &mut Staging,
    changes: &[Change],
) -> Result<Vec<Etag>, FileError> {
    let _alone = workspace.alone();
    let before = check(workspace, changes)?;
    let mut done = Done { workspace, steps: Vec::new(), made: Vec::new() };
    let mut etags = Vec::with_capacity(changes.len());
    let keep = if changes.len() == 1 { Keep::IfConditional } else { Keep::Always };
    for (change, before) in changes.iter().zip(before) {
        match done.apply(staging, change, before.as_ref(), keep) {
            Ok(etag) => etags.push(etag),
            Err(error) => return Err(done.undo(staging, error)),
        }
    }
    Ok(etags)
}

/// What is at each change's path, if all conditions hold.
pub(super) fn check(
    workspace: &Workspace,
    changes: &[Change],
) -> Result<Vec<Option<Stat>>, FileError> {
    let mut conflicts = Vec::new();
    let mut found = Vec::with_capacity(changes.len());
    for change in changes {
        let path = change.path.as_str();
        let there = match workspace.look(&change.path) {
            // A file on the way may be one that this very write-back removes.
            Err(FileError::Refused { .. }) if changes.len() > 1 && on_the_way(changes, change) => {
                None
            }
            looked => looked?,
        };
        if let (Act::Put(_), Some(stat)) = (&change.act, &there) {
            workspace.check_plain(&change.path, stat)?;
        }
        match (&change.act, &there) {
            _ if !change.condition.holds(there.as_ref()) => conflicts.push(path.to_owned()),
            (Act::Delete, None) => return Err(FileError::of(path, Errno::NOENT)),
            (Act::Delete, Some(stat)) if is_directory(stat) => {
                return Err(FileError::of(path, Errno::ISDIR));
            }
            _ => {}
        }
        found.push(there);
    }
    if conflicts.is_empty() { Ok(found) } else { Err(FileError::Conflict { paths: conflicts }) }
}

/// Whether another change removes a file that is where this one needs a directory.
fn on_the_way(changes: &[Change], wanted: &Change) -> bool {
    changes.iter().any(|other| {
        matches!(other.act, Act::Delete)
            && other.path != wanted.path
            && wanted.path.is_within(&other.path)
    })
}

/// Whether what was there is kept until all is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    Always,
    /// It is compared with what was expected, and put back if it is something else.
    IfConditional,
}

/// What was done so far.
struct Done<'w> {
    workspace: &'w Workspace,
    steps: Vec<Step>,
    /// Directories, the upper ones first.
    made: Vec<FilePath>,
}

/// How to undo one change.
enum Step {
    /// There was nothing.
    Made(FilePath),
    /// What was there is in the staging, under this name.
    Exchanged(FilePath, String),
    Removed(FilePath, String),
    /// What was there is gone; nothing comes after it.
    Final,
}

impl Done<'_> {
    fn apply(
        &mut self,
        staging: &mut Staging,
        change: &Change,
        before: Option<&Stat>,
        keep: Keep,
    ) -> Result<Etag, FileError> {
        let keeps = keep == Keep::Always || change.condition != Condition::Any;
        let Some((above, name)) = change.path.split() else {
            return Err(FileError::of("", Errno::ISDIR));
        };
        let failed = |cause: Errno| match cause {
            // It was there, or was not, a moment ago.
            Errno::NOENT | Errno::EXIST => FileError::conflict(change.path.as_str()),
            other => FileError::of(change.path.as_str(), other),
        };
        match &change.act {
            Act::Put(staged) => {
                let directory = self.workspace.make_directory(&above, &mut self.made)?;
                let file = staging.open(staged).map_err(failed)?;
                if let Some(before) = before {
                    let mode = Mode::from_raw_mode(before.st_mode & MODE_KEPT);
                    fchmod(&file, mode).map_err(failed)?;
                }
                let target = Target { directory, name, path: &change.path };
                let step = if keeps || before.is_none() {
                    target.place(staging, &staged.name, before, &change.condition)
                } else {
                    renameat(staging.directory(), &staged.name, &target.directory, name)
                        .map(|()| Step::Final)
                };
                self.steps.push(step.map_err(failed)?);
                Ok(Some(etag(&fstat(&file).map_err(failed)?)))
            }
            Act::Delete => {
                let directory = self.workspace.directory(&above)?;
                let target = Target { directory, name, path: &change.path };
                let step = match before {
                    Some(before) if keeps => target.take_away(staging, before, &change.condition),
                    _ => {
                        let gone = unlinkat(&target.directory, name, AtFlags::empty());
                        gone.map(|()| Step::Final)
                    }
                };
                self.steps.push(step.map_err(failed)?);
                Ok(None)
            }
        }
    }

    /// Puts everything back, and says what to tell.
    fn undo(self, staging: &Staging, error: FileError) -> FileError {
        let mut left = Vec::new();
        for step in self.steps.into_iter().rev() {
            let undone =
                match &step {
                    Step::Made(path) => take(self.workspace, path, |dir, name| {
                        unlinkat(dir, name, AtFlags::empty())
                    }),
                    Step::Exchanged(path, kept) => take(self.workspace, path, |dir, name| {
                        match exchange(staging, kept, dir, name) {
                            Err(Errno::INVAL) => renameat(staging.directory(), kept, dir, name),
                            done => done,
                        }
                    }),
                    Step::Removed(path, kept) => take(self.workspace, path, |dir, name| {
                        rename_onto_nothing(staging, kept, dir, name)
                    }),
                    Step::Final => Ok(()),
                };
            if undone.is_err()
                && let Step::Made(path) | Step::Exchanged(path, _) | Step::Removed(path, _) = step
            {
                left.push(path.as_str().to_owned());
            }
        }
        for path in self.made.iter().rev() {
            // One that is not empty any more is somebody's.
            let _ = take(self.workspace, path, |dir, name| unlinkat(dir, name, AtFlags::REMOVEDIR));
        }
        if left.is_empty() {
            return error;
        }
        FileError::HalfDone { paths: left, cause: Box::new(error) }
    }
}

/// Does something with a name in its directory.
fn take(
    workspace: &Workspace,
    path: &FilePath,
    act: impl FnOnce(&OwnedFd, &str) -> rustix::io::Result<()>,
) -> Result<(), FileError> {
    let Some((above, name)) = path.split() else { return Ok(()) };
    let directory = workspace.directory(&above)?;
    act(&directory, name).map_err(|cause| FileError::of(path.as_str(), cause))
}

/// A name in its directory.
struct Target<'c> {
    directory: OwnedFd,
    name: &'c str,
    path: &'c FilePath,
}

impl Target<'_> {
    /// Puts a staged file in place. What was there goes into the staging.
    fn place(
        &self,
        staging: &mut Staging,
        staged: &str,
        before: Option<&Stat>,
        condition: &Condition,
    ) -> rustix::io::Result<Step> {
        let Some(before) = before else {
            match rename_onto_nothing(staging, staged, &self.directory, self.name) {
                // Somebody was quicker, and that is nobody's condition.
                Err(Errno::EXIST) if *condition == Condition::Any => {}
                done => return done.map(|()| Step::Made(self.path.clone())),
            }
            exchange(staging, staged, &self.directory, self.name)?;
            return self.accept(staging, staged, staged, None, condition);
        };
        match exchange(staging, staged, &self.directory, self.name) {
            Ok(()) => self.accept(staging, staged, staged, Some(before), condition),
            // A file system that cannot: in two steps, with nothing there between them.
            Err(Errno::INVAL) => {
                let kept = staging.fresh()?;
                renameat(&self.directory, self.name, staging.directory(), &kept)?;
                renameat(staging.directory(), staged, &self.directory, self.name)?;
                self.accept(staging, staged, &kept, Some(before), condition)
            }
            Err(cause) => Err(cause),
        }
    }

    /// Whether what came out of the place is what was expected there; if not, it goes back.
    fn accept(
        &self,
        staging: &Staging,
        staged: &str,
        kept: &str,
        before: Option<&Stat>,
        condition: &Condition,
    ) -> rustix::io::Result<Step> {
        let came = statat(staging.directory(), kept, AtFlags::SYMLINK_NOFOLLOW)?;
        let expected = before.is_some_and(|before| same_content(before, &came));
        let plain = FileType::from_raw_mode(came.st_mode) == FileType::RegularFile;
        if expected || (plain && *condition == Condition::Any) {
            return Ok(Step::Exchanged(self.path.clone(), kept.to_owned()));
        }
        if kept == staged {
            exchange(staging, kept, &self.directory, self.name)?;
        } else {
            renameat(&self.directory, self.name, staging.directory(), staged)?;
            renameat(staging.directory(), kept, &self.directory, self.name)?;
        }
        Err(Errno::EXIST)
    }

    /// Takes a file out of its place, into the staging.
    fn take_away(
        &self,
        staging: &mut Staging,
        before: &Stat,
        condition: &Condition,
    ) -> rustix::io::Result<Step> {
        let kept = staging.fresh()?;
        renameat(&self.directory, self.name, staging.directory(), &kept)?;
        let came = statat(staging.directory(), &kept, AtFlags::SYMLINK_NOFOLLOW)?;
        let wrong = *condition != Condition::Any && !same_content(before, &came);
        if wrong || is_directory(&came) {
            rename_onto_nothing(staging, &kept, &self.directory, self.name)?;
            return Err(Errno::EXIST);
        }
        Ok(Step::Removed(self.path.clone(), kept))
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn exchange(
    staging: &Staging,
    staged: &str,
    directory: &OwnedFd,
    name: &str,
) -> rustix::io::Result<()> {
    renameat_with(staging.directory(), staged, directory, name, RenameFlags::EXCHANGE)
}

/// Where the file system cannot refuse to replace, what is made at the same moment is replaced.
fn rename_onto_nothing(
    staging: &Staging,
    staged: &str,
    directory: &OwnedFd,
    name: &str,
) -> rustix::io::Result<()> {
    match renameat_with(staging.directory(), staged, directory, name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL) => renameat(staging.directory(), staged, directory, name),
        done => done,
    }
}
