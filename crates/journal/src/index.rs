//! The SQLite index: ended turns by id, sessions by age. The index is derived data; the segments can rebuild
//! it. This module owns the schema and every statement. It does not decide when statements run.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction, params};
use windlass_protocol::ids::TENANT_SEPARATOR;
use windlass_protocol::{Seq, SessionId, TenantName, TurnId};

use crate::facts::{SessionFacts, TurnRecord};
use crate::retention::{EndedSession, LiveBytes};
use crate::shared::IndexRow;

/// The schema version. An index with another version is not read but rebuilt.
const SCHEMA: i64 = 1;

/// How long a statement waits for the other connection. In WAL mode, only a checkpoint can block.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The open flags of an in-memory index.
const MEMORY_FLAGS: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE
    .union(OpenFlags::SQLITE_OPEN_CREATE)
    .union(OpenFlags::SQLITE_OPEN_URI)
    .union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

/// Copies all pages of a database in one backup step.
const ALL_PAGES: i32 = -1;

const CREATE: &str = "
    CREATE TABLE IF NOT EXISTS sessions (
        id TEXT PRIMARY KEY,
        created_at_ms INTEGER NOT NULL,
        ended_at_ms INTEGER,
        indexed_seq INTEGER NOT NULL,
        kept_bytes INTEGER NOT NULL,
        facts TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS sessions_by_age ON sessions (created_at_ms);
    CREATE TABLE IF NOT EXISTS turns (
        session TEXT NOT NULL,
        id TEXT NOT NULL,
        ended_seq INTEGER NOT NULL,
        record TEXT NOT NULL,
        PRIMARY KEY (session, id)
    ) WITHOUT ROWID;
";

/// Why the index could not answer. The segments still hold all data.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error("the journal's index {path} failed")]
    Sqlite {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
    #[error("cannot remove the damaged index {path}")]
    Io {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the journal's index writer has stopped")]
    Stopped,
}

/// A session in the index.
#[derive(Debug)]
pub(crate) struct IndexedSession {
    pub(crate) id: String,
    pub(crate) indexed_seq: Seq,
    pub(crate) ended: bool,
}

pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.set_prepared_statement_cache_capacity(16);
    Ok(connection)
}

/// Opens two connections to an in-memory index, for a disk without space for SQLite's files. The index
/// starts as a copy of the file at `path`, if that file can be read.
pub(crate) fn in_memory(path: &Path) -> rusqlite::Result<(Connection, Connection)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("file:windlass-index-{number}?mode=memory&cache=shared");
    let connect = || {
        let connection = Connection::open_with_flags(&name, MEMORY_FLAGS)?;
        connection.set_prepared_statement_cache_capacity(16);
        // Connections with a shared cache lock each other's tables. With `read_uncommitted`, a lookup does
        // not wait for the writer. It may see rows before their commit, which is safe: the segments already
        // hold the same data.
        connection.pragma_update(None, "read_uncommitted", true)?;
        Ok::<_, rusqlite::Error>(connection)
    };
    let mut writer = connect()?;
    if let Err(cause) = copy_file(path, &mut writer) {
        tracing::warn!(path = %path.display(), %cause, "cannot copy the index; rebuilding it");
        // The copy may be incomplete. An in-memory index disappears with its only connection.
        drop(writer);
        writer = connect()?;
    }
    Ok((writer, connect()?))
}

/// Copies the index file without creating a shared-memory file, because the disk has no space for one.
fn copy_file(path: &Path, to: &mut Connection) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let from = Connection::open_with_flags(path, flags)?;
    from.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    let backup = Backup::new(&from, to)?;
    match backup.step(ALL_PAGES)? {
        StepResult::Done => Ok(()),
        _ => Err(rusqlite::Error::InvalidQuery),
    }
}

/// Creates missing tables. Fails for tables of another schema version.
pub(crate) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found != SCHEMA && found != 0 {
        return Err(rusqlite::Error::InvalidQuery);
    }
    connection.execute_batch(CREATE)?;
    connection.pragma_update(None, "user_version", SCHEMA)?;
    // Reads a whole table, so that damage shows now and not during a lookup.
    connection.query_row("SELECT count(kept_bytes) FROM sessions", [], |_| Ok(()))
}

pub(crate) fn indexed_sessions(connection: &Connection) -> rusqlite::Result<Vec<IndexedSession>> {
    let sql = "SELECT id, indexed_seq, ended_at_ms IS NOT NULL FROM sessions";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([], |row| {
        let indexed_seq = Seq(row.get::<_, i64>(1)? as u64);
        Ok(IndexedSession { id: row.get(0)?, indexed_seq, ended: row.get(2)? })
    })?;
    rows.collect()
}

pub(crate) fn put_session(tx: &Transaction<'_>, row: &IndexRow) -> rusqlite::Result<()> {
    let facts = &row.facts;
    let text = serde_json::to_string(&**facts).expect("facts always serialise");
    let ended_at_ms = facts.ended.as_ref().map(|_| facts.last_at_ms as i64);
    tx.prepare_cached(
        "INSERT OR REPLACE INTO sessions
         (id, created_at_ms, ended_at_ms, indexed_seq, kept_bytes, facts)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        facts.created.id.as_str(),
        facts.created.created_at_ms as i64,
        ended_at_ms,
        facts.last_seq.0 as i64,
        row.kept_bytes as i64,
        text,
    ])?;
    Ok(())
}

pub(crate) fn put_turn(
    tx: &Transaction<'_>,
    session: &SessionId,
    turn: &TurnRecord,
) -> rusqlite::Result<()> {
    let text = serde_json::to_string(turn).expect("turn records always serialise");
    tx.prepare_cached(
        "INSERT OR REPLACE INTO turns (session, id, ended_seq, record) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![session.as_str(), turn.id.as_str(), turn.ended_seq.0 as i64, text])?;
    Ok(())
}

/// Records that the index has all turns of a session up to an event.
pub(crate) fn set_indexed(
    tx: &Transaction<'_>,
    session: &SessionId,
    seq: Seq,
) -> rusqlite::Result<()> {
    tx.prepare_cached("UPDATE sessions SET indexed_seq = max(indexed_seq, ?2) WHERE id = ?1")?
        .execute(params![session.as_str(), seq.0 as i64])?;
    Ok(())
}

pub(crate) fn indexed_seq(
    connection: &Connection,
    session: &SessionId,
) -> rusqlite::Result<Option<Seq>> {
    connection
        .prepare_cached("SELECT indexed_seq FROM sessions WHERE id = ?1")?
        .query_row([session.as_str()], |row| Ok(Seq(row.get::<_, i64>(0)? as u64)))
        .optional()
}

/// Deletes turns that the segments do not have, for example after a power loss.
pub(crate) fn delete_turns_after(
    tx: &Transaction<'_>,
    session: &SessionId,
    seq: Seq,
) -> rusqlite::Result<()> {
    tx.execute(
        "DELETE FROM turns WHERE session = ?1 AND ended_seq > ?2",
        params![session.as_str(), seq.0 as i64],
    )?;
    Ok(())
}

pub(crate) fn delete_session(tx: &Transaction<'_>, session: &str) -> rusqlite::Result<()> {
    tx.execute("DELETE FROM turns WHERE session = ?1", [session])?;
    tx.execute("DELETE FROM sessions WHERE id = ?1", [session])?;
    Ok(())
}

pub(crate) fn turn(
    connection: &Connection,
    session: &SessionId,
    id: &TurnId,
) -> rusqlite::Result<Option<TurnRecord>> {
    let found: Option<String> = connection
        .prepare_cached("SELECT record FROM turns WHERE session = ?1 AND id = ?2")?
        .query_row([session.as_str(), id.as_str()], |row| row.get(0))
        .optional()?;
    found.map(|text| read(&text)).transpose()
}

pub(crate) fn session(
    connection: &Connection,
    session: &SessionId,
) -> rusqlite::Result<Option<SessionFacts>> {
    let found: Option<String> = connection
        .prepare_cached("SELECT facts FROM sessions WHERE id = ?1")?
        .query_row([session.as_str()], |row| row.get(0))
        .optional()?;
    found.map(|text| read(&text)).transpose()
}

/// Parses a stored record. A damaged record is an error: a session with damaged facts must not look like a
/// session that does not exist.
fn read<T: serde::de::DeserializeOwned>(text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })
}

/// The sessions that have not ended.
pub(crate) fn live(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("SELECT id FROM sessions WHERE ended_at_ms IS NULL")?;
    let rows = statement.query_map([], |row| row.get(0))?;
    rows.collect()
}

/// The sessions of a tenant or of all, newest first.
pub(crate) fn sessions(
    connection: &Connection,
    tenant: Option<&TenantName>,
    limit: usize,
) -> rusqlite::Result<Vec<SessionFacts>> {
    let sql = "SELECT facts FROM sessions WHERE ?2 = '' OR substr(id, -length(?2)) = ?2
               ORDER BY created_at_ms DESC, id LIMIT ?1";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let ending = tenant.map(|tenant| format!("{TENANT_SEPARATOR}{tenant}")).unwrap_or_default();
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params![limit, ending], |row| row.get::<_, String>(0))?;
    let mut found = Vec::new();
    for text in rows {
        found.extend(serde_json::from_str::<SessionFacts>(&text?).ok());
    }
    Ok(found)
}

/// The ended sessions in the order in which they ended, and the bytes of the live sessions of each tenant.
pub(crate) fn ended(connection: &Connection) -> rusqlite::Result<(Vec<EndedSession>, LiveBytes)> {
    let sql = "SELECT id, ended_at_ms, kept_bytes FROM sessions
               WHERE ended_at_ms IS NOT NULL ORDER BY ended_at_ms, id";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        let (id, ended_at_ms) = (row.get::<_, String>(0)?, row.get::<_, i64>(1)? as u64);
        let bytes = row.get::<_, i64>(2)? as u64;
        Ok(SessionId::parse(id).ok().map(|id| EndedSession { id, ended_at_ms, bytes }))
    })?;
    let ended = rows.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?;
    let sql = "SELECT id, kept_bytes FROM sessions WHERE ended_at_ms IS NULL";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)? as u64)))?;
    let mut live = LiveBytes::new();
    for row in rows {
        let (id, bytes) = row?;
        let tenant = SessionId::parse(id).ok().and_then(|id| id.tenant());
        let held = live.entry(tenant).or_default();
        *held = held.saturating_add(bytes);
    }
    Ok((ended, live))
}

/// Whether the disk is the problem and not the file: the disk is full or cannot be written.
pub(crate) fn is_disk_unwritable(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{CannotOpen, DiskFull, ReadOnly, SystemIoFailure};
    error
        .sqlite_error_code()
        .is_some_and(|code| matches!(code, CannotOpen | DiskFull | ReadOnly | SystemIoFailure))
}

/// Whether the file itself is damaged, so that only a rebuild helps.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => {
            // An error without a specific code means that a statement does not match the tables.
            matches!(failure.code, DatabaseCorrupt | NotADatabase | rusqlite::ErrorCode::Unknown)
        }
        rusqlite::Error::InvalidQuery
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::FromSqlConversionFailure(..) => true,
        _ => false,
    }
}
