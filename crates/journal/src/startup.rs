//! What the journal does before its first session: sweeps half-made directories away, brings the
//! index up to the segments or makes it anew, counts the epoch. Never writes a segment.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, Transaction};
use windlass_protocol::{Epoch, Seq, SessionId};

use crate::index::{self, IndexError, Known};
use crate::indexer::rebuild_marker;
use crate::journal::{GONE_PREFIX, NEW_PREFIX};
use crate::load;
use crate::shared::Row;

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

/// Opens the index for the writer and for lookups, with everything in it that the segments hold.
/// An index that is damaged or of another schema is made anew.
pub(crate) fn open_index(
    path: &Path,
    sessions_dir: &Path,
) -> Result<(Connection, Connection), IndexError> {
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
    opened.map_err(failed)
}

fn try_open(path: &Path, sessions_dir: &Path) -> rusqlite::Result<(Connection, Connection)> {
    let mut writer = index::connect(path)?;
    index::prepare(&writer)?;
    let known = index::known(&writer)?;
    let mut known: HashMap<String, Known> =
        known.into_iter().map(|known| (known.id.clone(), known)).collect();
    let tx = writer.transaction()?;
    for id in session_dirs(sessions_dir) {
        match known.remove(id.as_str()) {
            Some(Known { ended: true, .. }) => {}
            Some(Known { indexed_seq, .. }) => catch_up(&tx, sessions_dir, &id, indexed_seq)?,
            None => catch_up(&tx, sessions_dir, &id, Seq(0))?,
        }
    }
    for gone in known.keys() {
        index::delete_session(&tx, gone)?;
    }
    tx.commit()?;
    Ok((writer, index::connect(path)?))
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
    index::put_session(tx, &Row { facts: Arc::new(facts), kept_bytes: load::kept_bytes(&dir) })
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

/// Counts the epoch up, on the disk before it is used: two nodes never have the same.
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
    let fresh = state_dir.join("epoch.new");
    let mut file = File::create(&fresh)?;
    writeln!(file, "{next}")?;
    file.sync_all()?;
    fs::rename(&fresh, &path)?;
    File::open(state_dir)?.sync_all()?;
    Ok(next)
}
