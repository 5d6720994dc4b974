//! What the journal does before its first session: sweeps half-made directories away, brings the
//! index up to the segments or makes it anew, counts the epoch. Never writes a segment.

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
use crate::shared::SessionRow;

/// Removes what a node left that died while it made or removed a session.
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
    /// For lookups.
    pub(crate) reader: Connection,
    pub(crate) home: IndexLocation,
}

/// Where the index is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexLocation {
    File,
    /// The disk was full or could not be written when the node started. The next start writes the file.
    Memory,
}

/// Opens the index for the writer and for lookups, with everything in it that the segments hold.
/// An index that is damaged or of another schema is made anew; one that the disk has no room for is
/// held in memory.
pub(crate) fn open_index(path: &Path, sessions_dir: &Path) -> Result<OpenIndex, IndexError> {
    let failed = |cause| IndexError::Sqlite { path: path.to_owned(), cause };
    if rebuild_marker(path).exists() {
        delete_index(path)?;
    }
    let opened = match try_open(path, sessions_dir) {
        Err(cause) if index::is_damage(&cause) => {
            tracing::warn!(path = %path.display(), %cause, "the index is damaged; making it anew");
            delete_index(path)?;
            try_open(path, sessions_dir)
        }
        opened => opened,
    };
    match opened {
        Err(cause) if index::is_disk_unwritable(&cause) => {
            tracing::warn!(path = %path.display(), %cause,
                "the index cannot be written; it is in memory until the next start");
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

/// Takes everything into the index that the segments hold.
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

/// Takes into the index what a session has after an event.
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
            tracing::warn!(session = %id, %error, "a session's journal cannot be read");
            return Ok(());
        }
    };
    if facts.last_seq < after {
        index::delete_turns_after(tx, id, facts.last_seq)?;
    }
    for turn in &turns {
        index::put_turn(tx, id, turn)?;
    }
    index::put_session(
        tx,
        &SessionRow { facts: Arc::new(facts), kept_bytes: load::kept_bytes(&dir) },
    )
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

/// The bytes of an epoch in its file: as many digits for each number, so that its file never changes in
/// size, and an end of line.
const EPOCH_BYTES: u64 = 21;

/// Counts the epoch up: two nodes never have the same. The number is written over the old one, in one write
/// within one block. The disk need not have it before it is used: what ends the machine ends its keepers too,
/// and only to them the number matters.
pub(crate) fn next_epoch(state_dir: &Path) -> io::Result<Epoch> {
    let path = state_dir.join("epoch");
    let last = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let message = format!("{} does not hold a number", path.display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        })?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Epoch(0).0,
        Err(cause) => return Err(cause),
    };
    let next = Epoch(last).next();
    let line = format!("{:020}\n", next.0);
    match fs::metadata(&path).map(|file| file.len()) {
        Ok(EPOCH_BYTES) => overwrite(&path, &line)?,
        // The first node here, or the first of a release that writes all digits.
        _ => match replace(state_dir, &path, &line) {
            // A full disk has no room for a second file, but the first has its room already.
            Err(cause) if cause.kind() == io::ErrorKind::StorageFull => overwrite(&path, &line)?,
            replaced => replaced?,
        },
    }
    Ok(next)
}

fn overwrite(path: &Path, line: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(line.as_bytes())
}

/// Puts a new file in the place of the old one, on the disk when this returns.
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
    fn each_start_takes_the_next_epoch_whoever_wrote_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("epoch");
        assert_eq!(next_epoch(dir.path()).unwrap(), Epoch(1));
        assert_eq!(next_epoch(dir.path()).unwrap(), Epoch(2));
        // As earlier releases wrote it.
        fs::write(&file, "9\n").unwrap();
        assert_eq!(next_epoch(dir.path()).unwrap(), Epoch(10));
        assert_eq!(next_epoch(dir.path()).unwrap(), Epoch(11));
        assert_eq!(fs::metadata(&file).unwrap().len(), EPOCH_BYTES);
        fs::write(&file, "").unwrap();
        let refused = next_epoch(dir.path()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
