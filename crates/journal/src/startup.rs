//! The start of the journal: removes unfinished directories, updates or rebuilds the index from the segments,
//! and increments the epoch. It never writes a segment.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, Transaction};
use windlass_protocol::{Epoch, Seq, SessionId};

use crate::index::{self, IndexError, IndexedSession};
use crate::indexer::rebuild_marker;
use crate::journal::{GONE_PREFIX, NEW_PREFIX};
use crate::load;
use crate::shared::IndexRow;

/// Removes the directories of a node that died while it created or removed a session.
pub(crate) fn sweep(sessions_dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(sessions_dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(NEW_PREFIX) || name.starts_with(GONE_PREFIX) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// The index, ready for use.
#[derive(Debug)]
pub(crate) struct OpenIndex {
    pub(crate) writer: Connection,
    /// The connection for lookups.
    pub(crate) reader: Connection,
    pub(crate) home: IndexLocation,
}

/// Where the index is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexLocation {
    File,
    /// In memory, because the disk was full or could not be written at the start. The next start writes the
    /// file.
    Memory,
}

/// Opens the index for the writer and for lookups, and adds everything from the segments that it misses. A
/// damaged index, or one of another schema version, is rebuilt. If the disk has no space for the index, it is
/// kept in memory.
pub(crate) fn open_index(path: &Path, sessions_dir: &Path) -> Result<OpenIndex, IndexError> {
    let failed = |cause| IndexError::Sqlite { path: path.to_owned(), cause };
    if rebuild_marker(path).exists() {
        delete_index(path)?;
    }
    let opened = match try_open(path, sessions_dir) {
        Err(cause) if index::is_damage(&cause) => {
            tracing::warn!(path = %path.display(), %cause, "the index is damaged; rebuilding it");
            delete_index(path)?;
            try_open(path, sessions_dir)
        }
        opened => opened,
    };
    match opened {
        Err(cause) if index::is_disk_unwritable(&cause) => {
            tracing::warn!(path = %path.display(), %cause,
                "cannot write the index; it stays in memory until the next start");
            in_memory(path, sessions_dir).map_err(failed)
        }
        opened => opened.map_err(failed),
    }
}

fn try_open(path: &Path, sessions_dir: &Path) -> rusqlite::Result<OpenIndex> {
    let mut writer = index::connect(path)?;
    fill(&mut writer, sessions_dir)?;
    Ok(OpenIndex { writer, reader: index::connect(path)?, home: IndexLocation::File })
}

fn in_memory(path: &Path, sessions_dir: &Path) -> rusqlite::Result<OpenIndex> {
    let (mut writer, reader) = index::in_memory(path)?;
    fill(&mut writer, sessions_dir)?;
    Ok(OpenIndex { writer, reader, home: IndexLocation::Memory })
}

/// Adds everything from the segments to the index, and deletes sessions without a directory.
fn fill(writer: &mut Connection, sessions_dir: &Path) -> rusqlite::Result<()> {
    index::prepare(writer)?;
    let known = index::indexed_sessions(writer)?;
    let mut known: HashMap<String, IndexedSession> =
        known.into_iter().map(|known| (known.id.clone(), known)).collect();
    let tx = writer.transaction()?;
    for id in session_dirs(sessions_dir) {
        match known.remove(id.as_str()) {
            Some(IndexedSession { ended: true, .. }) => {}
            Some(IndexedSession { indexed_seq, .. }) => {
                catch_up(&tx, sessions_dir, &id, indexed_seq)?
            }
            None => catch_up(&tx, sessions_dir, &id, Seq(0))?,
        }
    }
    for gone in known.keys() {
        index::delete_session(&tx, gone)?;
    }
    tx.commit()
}

fn session_dirs(sessions_dir: &Path) -> Vec<SessionId> {
    let Ok(entries) = fs::read_dir(sessions_dir) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| SessionId::parse(name).ok()).collect()
}

/// Adds the turns and facts of a session after an event to the index.
fn catch_up(
    tx: &Transaction<'_>,
    sessions_dir: &Path,
    id: &SessionId,
    after: Seq,
) -> rusqlite::Result<()> {
    let dir = sessions_dir.join(id.as_str());
    let (turns, facts) = match load::ended_turns(&dir, id, after) {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(session = %id, %error, "cannot read the session's journal");
            return Ok(());
        }
    };
    if facts.last_seq < after {
        index::delete_turns_after(tx, id, facts.last_seq)?;
    }
    for turn in &turns {
        index::put_turn(tx, id, turn)?;
    }
    index::put_session(tx, &IndexRow { facts: Arc::new(facts), kept_bytes: load::kept_bytes(&dir) })
}

fn delete_index(path: &Path) -> Result<(), IndexError> {
    let mut files = vec![path.to_owned(), rebuild_marker(path)];
    for suffix in ["-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        files.push(name.into());
    }
    for path in files {
        match fs::remove_file(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                return Err(IndexError::Io { path, cause });
            }
            _ => {}
        }
    }
    Ok(())
}

/// The size of the epoch file: 20 digits and a newline. The size is constant, so that an overwrite never
/// changes it.
const EPOCH_BYTES: u64 = 21;

/// Increments the epoch, so that two nodes never have the same one. The new number overwrites the old one, in
/// one write within one block. No sync is needed before the epoch is used: a crash of the machine also ends
/// its keepers, and only they use the epoch.
pub(crate) fn next_epoch(state_dir: &Path) -> io::Result<Epoch> {
    let path = state_dir.join("epoch");
    let last = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let message = format!("{} does not contain a number", path.display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        })?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Epoch(0).0,
        Err(cause) => return Err(cause),
    };
    let next = Epoch(last).next();
    let line = format!("{:020}\n", next.0);
    match fs::metadata(&path).map(|file| file.len()) {
        Ok(EPOCH_BYTES) => overwrite(&path, &line)?,
        // The first node, or the first node of a release that writes all 20 digits.
        _ => match replace(state_dir, &path, &line) {
            // A full disk has no space for a second file, but the first file already has its block.
            Err(cause) if cause.kind() == io::ErrorKind::StorageFull => overwrite(&path, &line)?,
            replaced => replaced?,
        },
    }
    Ok(next)
}

fn overwrite(path: &Path, line: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(line.as_bytes())
}

/// Replaces the file atomically. The new file is synced to the disk when this returns.
fn replace(state_dir: &Path, path: &Path, line: &str) -> io::Result<()> {
    let fresh = state_dir.join("epoch.new");
    let written = File::create(&fresh).and_then(|mut file| {
        file.write_all(line.as_bytes())?;
        file.sync_all()
    });
    if let Err(cause) = written {
        let _ = fs::remove_file(&fresh);
        return Err(cause);
    }
    fs::rename(&fresh, path)?;
    File::open(state_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_takes_the_next_epoch_also_after_an_earlier_release() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("epoch");
        assert_eq!(next_epoch(dir.path()).unwrap(), Epoch(1));
        assert_eq!(next_epoch(dir.path()).unwrap(), Epoch(2));
        // The format of earlier releases.
        fs::write(&file, "9\n").unwrap();
        assert_eq!(next_epoch(dir.path()).unwrap(), Epoch(10));
        assert_eq!(next_epoch(dir.path()).unwrap(), Epoch(11));
        assert_eq!(fs::metadata(&file).unwrap().len(), EPOCH_BYTES);
        fs::write(&file, "").unwrap();
        let refused = next_epoch(dir.path()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
