//! Commits changes, all or none. Every precondition is checked first. Then each staged file is
//! exchanged with the existing file. When a later change fails, the earlier changes are undone.

use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FileType, Mode, RenameFlags, Stat, fchmod, fstat, renameat, renameat_with, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::directories::make_missing;
use super::precondition::{etag, same_content};
use super::staging::{StagedFile, Staging, rename_onto_nothing};
use super::{FileError, FilePath, Precondition, Workspace};

/// The mode bits that a new file takes over from the file it replaces.
const MODE_KEPT: u32 = 0o777;

/// One change to commit.
#[derive(Debug)]
pub(super) struct StagedChange {
    pub path: FilePath,
    pub condition: Precondition,
    pub action: FileAction,
}

#[derive(Debug)]
pub(super) enum FileAction {
    Put(StagedFile),
    Delete,
}

/// The result of a change: the etag of the new file, or `None` for a delete.
pub(super) type Etag = Option<String>;

/// Commits all changes or none. Returns the result of each change, in order.
pub(super) fn commit(
    workspace: &Workspace,
    staging: &mut Staging,
    changes: &[StagedChange],
) -> Result<Vec<Etag>, FileError> {
    let _lock = workspace.lock_commits();
    let before = check(workspace, changes)?;
    let mut done = AppliedChanges { workspace, steps: Vec::new(), made: Vec::new() };
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

/// The current status of each change's path. Fails unless all preconditions hold.
pub(super) fn check(
    workspace: &Workspace,
    changes: &[StagedChange],
) -> Result<Vec<Option<Stat>>, FileError> {
    let mut conflicts = Vec::new();
    let mut found = Vec::with_capacity(changes.len());
    for (index, change) in changes.iter().enumerate() {
        let path = change.path.as_str();
        let there = match workspace.look(&change.path) {
            // The same write-back may remove the file that is in the way. It must do so before this change: until then a
            // symlink in its place could lead to a file that is closed.
            Err(FileError::Refused { .. }) if parent_is_deleted(&changes[..index], change) => None,
            looked => looked?,
        };
        if let (FileAction::Put(_), Some(stat)) = (&change.action, &there) {
            workspace.check_regular(&change.path, stat)?;
        }
        match (&change.action, &there) {
            _ if !change.condition.holds(there.as_ref()) => conflicts.push(path.to_owned()),
            (FileAction::Delete, None) => return Err(FileError::of(path, Errno::NOENT)),
            (FileAction::Delete, Some(stat)) if is_directory(stat) => {
                return Err(FileError::of(path, Errno::ISDIR));
            }
            _ => {}
        }
        found.push(there);
    }
    if conflicts.is_empty() { Ok(found) } else { Err(FileError::Conflict { paths: conflicts }) }
}

/// Whether an earlier change deletes a file at a path where this change needs a directory.
fn parent_is_deleted(earlier: &[StagedChange], wanted: &StagedChange) -> bool {
    earlier.iter().any(|other| {
        matches!(other.action, FileAction::Delete)
            && other.path != wanted.path
            && wanted.path.is_within(&other.path)
    })
}

/// Whether the old file is kept until the commit is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    Always,
    /// Only for a change with a precondition: the old file is verified, and restored if it is not the
    /// expected one.
    IfConditional,
}

/// The changes that were applied so far.
struct AppliedChanges<'w> {
    workspace: &'w Workspace,
    steps: Vec<UndoStep>,
    /// New directories, parents first.
    made: Vec<FilePath>,
}

/// How to undo one change.
enum UndoStep {
    /// The path was empty before.
    Made(FilePath),
    /// The old file is in the staging, under this name.
    Exchanged(FilePath, String),
    Removed(FilePath, String),
    /// The old file is gone. Such a change is the only one of its commit, so nothing fails after it.
    Final,
}

impl AppliedChanges<'_> {
    fn apply(
        &mut self,
        staging: &mut Staging,
        change: &StagedChange,
        before: Option<&Stat>,
        keep: Keep,
    ) -> Result<Etag, FileError> {
        let keeps = keep == Keep::Always || change.condition != Precondition::Any;
        let Some((above, name)) = change.path.split() else {
            return Err(FileError::of("", Errno::ISDIR));
        };
        let failed = |cause: Errno| match cause {
            // The path changed after its precondition was checked.
            Errno::NOENT | Errno::EXIST => FileError::conflict(change.path.as_str()),
            other => FileError::of(change.path.as_str(), other),
        };
        match &change.action {
            FileAction::Put(staged) => {
                let directory = make_missing(self.workspace, &above, &mut self.made)?;
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
                        .map(|()| UndoStep::Final)
                };
                self.steps.push(step.map_err(failed)?);
                Ok(Some(etag(&fstat(&file).map_err(failed)?)))
            }
            FileAction::Delete => {
                let directory = self.workspace.directory(&above)?;
                let target = Target { directory, name, path: &change.path };
                let step = match before {
                    Some(before) if keeps => target.take_away(staging, before, &change.condition),
                    _ => {
                        let gone = unlinkat(&target.directory, name, AtFlags::empty());
                        gone.map(|()| UndoStep::Final)
                    }
                };
                self.steps.push(step.map_err(failed)?);
                Ok(None)
            }
        }
    }

    /// Undoes all changes. Returns the error for the client.
    fn undo(self, staging: &Staging, error: FileError) -> FileError {
        let mut left = Vec::new();
        for step in self.steps.into_iter().rev() {
            let undone = match &step {
                UndoStep::Made(path) => in_parent(self.workspace, path, |dir, name| {
                    unlinkat(dir, name, AtFlags::empty())
                }),
                UndoStep::Exchanged(path, kept) => in_parent(self.workspace, path, |dir, name| {
                    match exchange(staging, kept, dir, name) {
                        Err(Errno::INVAL) => renameat(staging.directory(), kept, dir, name),
                        done => done,
                    }
                }),
                UndoStep::Removed(path, kept) => in_parent(self.workspace, path, |dir, name| {
                    rename_onto_nothing(staging, kept, dir, name)
                }),
                UndoStep::Final => Ok(()),
            };
            if undone.is_err()
                && let UndoStep::Made(path)
                | UndoStep::Exchanged(path, _)
                | UndoStep::Removed(path, _) = step
            {
                left.push(path.as_str().to_owned());
            }
        }
        for path in self.made.iter().rev() {
            // Somebody else uses a directory that is not empty any more.
            let _ = in_parent(self.workspace, path, |dir, name| {
                unlinkat(dir, name, AtFlags::REMOVEDIR)
            });
        }
        if left.is_empty() {
            return error;
        }
        FileError::HalfDone { paths: left, cause: Box::new(error) }
    }
}

/// Opens the parent directory of a path and applies `action` to the last part.
fn in_parent(
    workspace: &Workspace,
    path: &FilePath,
    action: impl FnOnce(&OwnedFd, &str) -> rustix::io::Result<()>,
) -> Result<(), FileError> {
    let Some((above, name)) = path.split() else { return Ok(()) };
    let directory = workspace.directory(&above)?;
    action(&directory, name).map_err(|cause| FileError::of(path.as_str(), cause))
}

/// The path of a change, as an open parent directory and a name in it.
struct Target<'c> {
    directory: OwnedFd,
    name: &'c str,
    path: &'c FilePath,
}

impl Target<'_> {
    /// Moves a staged file into place. The old file goes into the staging.
    fn place(
        &self,
        staging: &mut Staging,
        staged: &str,
        before: Option<&Stat>,
        condition: &Precondition,
    ) -> rustix::io::Result<UndoStep> {
        let Some(before) = before else {
            match rename_onto_nothing(staging, staged, &self.directory, self.name) {
                // Another writer won the race; this write is unconditional, so overwrite.
                Err(Errno::EXIST) if *condition == Precondition::Any => {}
                done => return done.map(|()| UndoStep::Made(self.path.clone())),
            }
            exchange(staging, staged, &self.directory, self.name)?;
            return self.accept(staging, staged, staged, None, condition);
        };
        match exchange(staging, staged, &self.directory, self.name) {
            Ok(()) => self.accept(staging, staged, staged, Some(before), condition),
            // The file system cannot exchange: move in two steps. In between, the path is empty.
            Err(Errno::INVAL) => {
                let kept = staging.fresh()?;
                renameat(&self.directory, self.name, staging.directory(), &kept)?;
                renameat(staging.directory(), staged, &self.directory, self.name)?;
                self.accept(staging, staged, &kept, Some(before), condition)
            }
            Err(cause) => Err(cause),
        }
    }

    /// Verifies that the replaced file is the expected one; otherwise restores it and fails.
    fn accept(
        &self,
        staging: &Staging,
        staged: &str,
        kept: &str,
        before: Option<&Stat>,
        condition: &Precondition,
    ) -> rustix::io::Result<UndoStep> {
        let came = statat(staging.directory(), kept, AtFlags::SYMLINK_NOFOLLOW)?;
        let expected = before.is_some_and(|before| same_content(before, &came));
        let regular = FileType::from_raw_mode(came.st_mode) == FileType::RegularFile;
        if expected || (regular && *condition == Precondition::Any) {
            return Ok(UndoStep::Exchanged(self.path.clone(), kept.to_owned()));
        }
        if kept == staged {
            exchange(staging, kept, &self.directory, self.name)?;
        } else {
            renameat(&self.directory, self.name, staging.directory(), staged)?;
            renameat(staging.directory(), kept, &self.directory, self.name)?;
        }
        Err(Errno::EXIST)
    }

    /// Moves a file from its place into the staging.
    fn take_away(
        &self,
        staging: &mut Staging,
        before: &Stat,
        condition: &Precondition,
    ) -> rustix::io::Result<UndoStep> {
        let kept = staging.fresh()?;
        renameat(&self.directory, self.name, staging.directory(), &kept)?;
        let came = statat(staging.directory(), &kept, AtFlags::SYMLINK_NOFOLLOW)?;
        let wrong = *condition != Precondition::Any && !same_content(before, &came);
        if wrong || is_directory(&came) {
            rename_onto_nothing(staging, &kept, &self.directory, self.name)?;
            return Err(Errno::EXIST);
        }
        Ok(UndoStep::Removed(self.path.clone(), kept))
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
