//! Placeholders at protected names that do not exist in a client's directory. A placeholder is something to
//! mount on, so that a session cannot create the name. Placeholders are made before a session is planned,
//! and removed with the last session of this node that needs them.
//!
//! The record of a session's placeholders is on disk before they are made. A starting node removes the
//! placeholders of sessions that are gone. A placeholder that the user has replaced or filled stays.
//!
//! Every path is opened without following symlinks, and every change is made relative to a descriptor of the
//! directory.

mod stock;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, mkdirat, openat2, readlinkat, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use windlass_beneath as beneath;
use windlass_confine::{Placeholder, ProtectedNames};
use windlass_protocol::SessionId;

use self::stock::Stock;

/// The target of a symlink placeholder: it does not exist, and nothing can create it.
const NOWHERE: &str = "/proc/windlass-placeholder";

/// The placeholders of all sessions of a node.
#[derive(Debug)]
pub(crate) struct Placeholders {
    /// One file for each session that has placeholders.
    records: PathBuf,
    stock: Stock,
    table: Mutex<PlaceholderTable>,
}

#[derive(Debug, Default)]
struct PlaceholderTable {
    /// Each placeholder, and how many sessions need it.
    needed: HashMap<PathBuf, (PlaceholderRecord, usize)>,
    sessions: HashMap<SessionId, Vec<PathBuf>>,
}

/// One placeholder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PlaceholderRecord {
    path: PathBuf,
    placeholder: Placeholder,
    /// Identifies the file after it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<FileId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(about: &Stat) -> Self {
        Self { device: about.st_dev, inode: about.st_ino }
    }
}

impl Placeholders {
    /// `records` and `stock` are directories in which no session can write.
    pub fn new(records: PathBuf, stock: PathBuf) -> Self {
        Self { records, stock: Stock::at(stock), table: Mutex::default() }
    }

    /// Refills the stock of directories for the next sessions. Called when no session waits.
    pub fn stock_up(&self) {
        self.stock.fill();
    }

    /// Whether the stock may be too small for the next session.
    pub fn are_few(&self) -> bool {
        self.stock.is_low()
    }

    /// Surveys a new session's protected names with `look` and makes placeholders for the missing ones. If
    /// that fails, the returned names say why.
    pub fn acquire(&self, id: &SessionId, look: impl FnOnce() -> ProtectedNames) -> ProtectedNames {
        // Locked before the survey, so that the end of another session does not remove what it finds.
        let mut table = self.lock();
        let mut names = look();
        let known = names.protected.keys().filter_map(|path| table.needed.get(path));
        let missing: Vec<PlaceholderRecord> = names
            .missing()
            .map(|(path, placeholder)| PlaceholderRecord {
                path: path.clone(),
                placeholder,
                file: None,
            })
            .collect();
        let is_missing =
            |made: &PlaceholderRecord| missing.iter().any(|other| other.path == made.path);
        let mut all: Vec<PlaceholderRecord> =
            known.map(|(made, _)| made.clone()).filter(|made| !is_missing(made)).collect();
        if all.is_empty() && missing.is_empty() {
            return names;
        }
        match self.record_and_make(id, &mut all, missing) {
            Ok(()) => {}
            Err(why) => names.without_missing(why),
        }
        for made in &all {
            let entry = table.needed.entry(made.path.clone());
            let (known, sessions) = entry.or_insert_with(|| (made.clone(), 0));
            known.clone_from(made);
            *sessions += 1;
        }
        table.sessions.insert(id.clone(), all.into_iter().map(|made| made.path).collect());
        names
    }

    /// Records and makes the missing placeholders, and adds them to `all`.
    fn record_and_make(
        &self,
        id: &SessionId,
        all: &mut Vec<PlaceholderRecord>,
        missing: Vec<PlaceholderRecord>,
    ) -> Result<(), String> {
        let planned: Vec<&PlaceholderRecord> = all.iter().chain(&missing).collect();
        let unrecorded = |error: std::io::Error| {
            format!("cannot record the placeholders of session {id}: {error}")
        };
        let mut record = self.begin_record(id).map_err(unrecorded)?;
        write_line(&mut record, &planned).map_err(unrecorded)?;
        if missing.is_empty() {
            return Ok(());
        }
        let mut new = Vec::with_capacity(missing.len());
        let made = make_all(missing, &mut new, &self.stock);
        if made.is_err() {
            Self::remove_all(&new);
            new.clear();
        }
        all.extend(new);
        write_line(&mut record, &all.iter().collect::<Vec<_>>()).map_err(unrecorded)?;
        made
    }

    pub fn are_needed_by(&self, id: &SessionId) -> bool {
        self.lock().sessions.contains_key(id)
    }

    /// Removes the placeholders of an ended session that no other session needs.
    pub fn release(&self, id: &SessionId) {
        let mut table = self.lock();
        let Some(paths) = table.sessions.remove(id) else { return };
        let mut unneeded = Vec::new();
        for path in paths {
            let Some((_, sessions)) = table.needed.get_mut(&path) else { continue };
            *sessions -= 1;
            if *sessions == 0 {
                unneeded.extend(table.needed.remove(&path).map(|(made, _)| made));
            }
        }
        Self::remove_all(&unneeded);
        let _ = std::fs::remove_file(self.record_of(id));
    }

    /// Takes over the placeholders of live sessions, and removes all others. Called once, before the first
    /// new session.
    pub fn take_over(&self, lives: impl Fn(&SessionId) -> bool) {
        let Ok(entries) = std::fs::read_dir(&self.records) else { return };
        let mut table = self.lock();
        let mut gone = Vec::new();
        for entry in entries.flatten() {
            let id = entry.file_name().into_string().ok().and_then(|id| SessionId::parse(id).ok());
            let all = read_record(&entry.path());
            match id.filter(&lives) {
                Some(id) => {
                    for made in &all {
                        let needed = table.needed.entry(made.path.clone());
                        needed.or_insert_with(|| (made.clone(), 0)).1 += 1;
                    }
                    table.sessions.insert(id, all.into_iter().map(|made| made.path).collect());
                }
                None => gone.push((entry.path(), all)),
            }
        }
        for (record, all) in gone {
            let unneeded = all.iter().filter(|made| !table.needed.contains_key(&made.path));
            Self::remove_all(unneeded);
            let _ = std::fs::remove_file(record);
        }
    }

    /// Removes the placeholders of a session's workspace from a copy of the workspace.
    pub fn leave_out(&self, id: &SessionId, workspace: &Path, copy: &beneath::Directory) {
        let table = self.lock();
        for path in table.sessions.get(id).into_iter().flatten() {
            let Ok(inside) = path.strip_prefix(workspace) else { continue };
            let removed = match copy.read_link(inside) {
                Ok(target) if target == Path::new(NOWHERE) => copy.remove_file(inside),
                _ => copy.remove_directory(inside),
            };
            // On an error it is a file or a directory with content, so it is not a placeholder.
            let _ = removed;
        }
    }

    fn remove_all<'a>(all: impl IntoIterator<Item = &'a PlaceholderRecord>) {
        let mut opened = ParentDirCache::default();
        for made in all {
            let Some(name) = made.path.file_name() else { continue };
            let Ok(directory) = opened.above(&made.path) else { continue };
            remove(made, directory, name);
        }
    }

    fn begin_record(&self, id: &SessionId) -> std::io::Result<std::fs::File> {
        let path = self.record_of(id);
        let create = || std::fs::File::create(&path);
        match create() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                std::fs::create_dir_all(&self.records)?;
                create()
            }
            other => other,
        }
    }

    fn record_of(&self, id: &SessionId) -> PathBuf {
        self.records.join(id.as_str())
    }

    fn lock(&self) -> MutexGuard<'_, PlaceholderTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Appends the current state of a session's placeholders as one line. The last complete line counts.
fn write_line(record: &mut std::fs::File, all: &[&PlaceholderRecord]) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(all)?;
    line.push(b'\n');
    record.write_all(&line)
}

fn read_record(path: &Path) -> Vec<PlaceholderRecord> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // If the node died while it wrote the last line, the line before counts.
    text.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_default()
}

/// Caches the open directory of the last placeholder, because the next one is most likely in it too.
#[derive(Debug, Default)]
struct ParentDirCache(Option<(PathBuf, OwnedFd)>);

impl ParentDirCache {
    /// The directory that holds `path`.
    fn above(&mut self, path: &Path) -> Result<&OwnedFd, Errno> {
        let above = path.parent().ok_or(Errno::INVAL)?;
        let known = self.0.take().filter(|(opened, _)| opened == above);
        let opened = match known {
            Some(known) => known,
            None => (above.to_owned(), open_directory(above)?),
        };
        Ok(&self.0.insert(opened).1)
    }
}

/// Makes the missing placeholders. `new` gets those that were made, also after an error.
fn make_all(
    missing: Vec<PlaceholderRecord>,
    new: &mut Vec<PlaceholderRecord>,
    stock: &Stock,
) -> Result<(), String> {
    let mut opened = ParentDirCache::default();
    for mut made in missing {
        let failed =
            |errno: Errno| format!("cannot make a placeholder at {}: {errno}", made.path.display());
        let Some(name) = made.path.file_name() else { continue };
        let directory = opened.above(&made.path).map_err(failed)?;
        match make(directory, name, made.placeholder, stock) {
            Ok(file) => made.file = Some(file),
            // The name exists now. It is protected as it is.
            Err(Errno::EXIST) => continue,
            Err(errno) => return Err(failed(errno)),
        }
        new.push(made);
    }
    Ok(())
}

fn make(
    directory: &OwnedFd,
    name: &OsStr,
    placeholder: Placeholder,
    stock: &Stock,
) -> Result<FileId, Errno> {
    match placeholder {
        Placeholder::Directory if stock.move_one_to(directory, name)? => {}
        Placeholder::Directory => mkdirat(directory, name, Mode::from(stock::MODE))?,
        Placeholder::Link => symlinkat(NOWHERE, directory, name)?,
    }
    Ok(FileId::of(&statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?))
}

/// Opens a directory by a path that contains no symlinks.
fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path, flags, Mode::empty(), resolve)
}

/// Removes a placeholder, if it is still the same file and is empty.
fn remove(made: &PlaceholderRecord, directory: &OwnedFd, name: &OsStr) {
    let Ok(about) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return };
    if made.file.is_some_and(|made| made != FileId::of(&about)) {
        return;
    }
    let kind = FileType::from_raw_mode(about.st_mode);
    let removed = match (made.placeholder, kind) {
        // Fails for a directory that is not empty.
        (Placeholder::Directory, FileType::Directory) => {
            unlinkat(directory, name, AtFlags::REMOVEDIR)
        }
        (Placeholder::Link, FileType::Symlink) => match readlinkat(directory, name, Vec::new()) {
            Ok(target) if target.as_bytes() == NOWHERE.as_bytes() => {
                unlinkat(directory, name, AtFlags::empty())
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    };
    match removed {
        Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => {}
        Err(error) => {
            tracing::warn!(path = %made.path.display(), %error, "cannot remove a placeholder");
        }
    }
}

#[cfg(test)]
mod tests;
