//! Lists a workspace page by page. Memory use depends on the page size, not on the directories.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Stat, statat};
use windlass_protocol::api::{ENTRIES_MAX, FileEntry, FileKind, FileList, FilesQuery};

use super::precondition::etag;
use super::staging::is_staged;
use super::{FileError, FilePath, Workspace};
use windlass_beneath::entries;

/// Maximum depth of a recursive list.
const DEPTH_MAX: usize = 64;

pub fn list(workspace: &Workspace, query: &FilesQuery) -> Result<FileList, FileError> {
    let path = FilePath::directory(&query.path)?;
    let directory = workspace.directory(&path)?;
    let after = query.after.as_deref().map(|after| below(after, &path)).transpose()?;
    let mut page = Page {
        workspace,
        limit: query.limit.unwrap_or(ENTRIES_MAX).clamp(1, ENTRIES_MAX),
        recursive: query.recursive,
        list: FileList::default(),
    };
    page.walk(&directory, &path, after, 0)?;
    Ok(page.list)
}

/// The position to resume at, relative to the directory.
fn below<'a>(after: &'a str, directory: &FilePath) -> Result<&'a str, FileError> {
    let inside = match directory.as_str() {
        "" => Some(after),
        above => after.strip_prefix(above).and_then(|rest| rest.strip_prefix('/')),
    };
    inside.filter(|rest| !rest.is_empty()).ok_or_else(|| {
        FileError::BadRequest(format!("`after` is {after:?}, which is not in the listed directory"))
    })
}

struct Page<'w> {
    workspace: &'w Workspace,
    limit: usize,
    recursive: bool,
    list: FileList,
}

impl Page<'_> {
    /// Adds the entries after `after`, until the page is full.
    fn walk(
        &mut self,
        directory: &OwnedFd,
        path: &FilePath,
        after: Option<&str>,
        depth: usize,
    ) -> Result<(), FileError> {
        let (first, rest) = match after.map(|after| after.split_once('/').unwrap_or((after, ""))) {
            Some((first, rest)) => (Some(first), Some(rest).filter(|rest| !rest.is_empty())),
            None => (None, None),
        };
        for name in self.names(directory, path, first)? {
            let here = path.join(&name);
            let Ok(stat) = statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let begun = first == Some(&name);
            if !begun {
                if self.list.entries.len() == self.limit {
                    self.list.more = true;
                    return Ok(());
                }
                self.list.entries.push(entry(&here, &stat));
            }
            let enters = self.recursive && depth < DEPTH_MAX && is_directory(&stat);
            // A directory that is gone or unreadable is listed without its entries.
            if enters && let Ok(inner) = self.workspace.directory(&here) {
                self.walk(&inner, &here, rest.filter(|_| begun), depth + 1)?;
            }
            if self.list.more {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The names in a directory from `first` on, sorted, as many as the page can need.
    fn names(
        &self,
        directory: &OwnedFd,
        path: &FilePath,
        first: Option<&str>,
    ) -> Result<BTreeSet<String>, FileError> {
        let failed = |cause| FileError::of(path.as_str(), cause);
        // The rest of the page, the entry where the last page ended, and one to detect that there are more.
        let names_max = self.limit - self.list.entries.len() + 2;
        let mut names = BTreeSet::new();
        for entry in entries(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") || is_staged(name) || first.is_some_and(|f| name < f) {
                continue;
            }
            if self.workspace.is_hidden(&path.join(name)) {
                continue;
            }
            names.insert(name.to_owned());
            if names.len() > names_max {
                names.pop_last();
            }
        }
        Ok(names)
    }
}

fn entry(path: &FilePath, stat: &Stat) -> FileEntry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Link,
        _ => FileKind::Other,
    };
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    FileEntry {
        path: path.as_str().to_owned(),
        kind,
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
        modified_ms: seconds * 1000 + stat.st_mtime_nsec / 1_000_000,
        etag: (kind == FileKind::File).then(|| etag(stat)),
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}
