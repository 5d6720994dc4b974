//! The journal of a node: creates, opens, lists and removes sessions, and looks up turns. Owns the layout of
//! the state directory. The caller ensures that only one process writes to it at a time.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rusqlite::Connection;
use windlass_protocol::turn::TurnContext;
use windlass_protocol::{Seq, SessionId, TenantName, TurnId, TurnNo};

use crate::facts::{NewSession, SessionFacts, TurnRecord};
use crate::index::{self, IndexError};
use crate::indexer::{Indexer, Registry};
use crate::load::{self, LoadError};
use crate::log::{self, AppendError, NewestSegment, SessionLog};
use crate::new_dir::{FIRST_SEQ, NewSessionDir};
use crate::quota::QUOTA_BYTES_MIN;
use crate::reader::{ReadError, SessionReader};
use crate::retention::{EndedSession, LiveBytes};
use crate::segment::{self, FORMAT, Segment, SegmentHead};
use crate::shared::{IndexRow, SharedSession, lock};
use crate::startup::{self, IndexLocation, OpenIndex};

/// The prefix of a directory that is not yet a session.
pub(crate) const NEW_PREFIX: &str = ".new-";

/// The prefix of a directory that is no longer a session.
pub(crate) const GONE_PREFIX: &str = ".gone-";

/// Settings of the journal.
#[derive(Debug, Clone, Copy)]
pub struct JournalOptions {
    /// How long the index writer collects ended turns for one transaction.
    pub index_gather: Duration,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self { index_gather: Duration::from_millis(100) }
    }
}

/// Why the journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot use the state directory {path}")]
    Io {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// Why a session was not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("session {0} exists already")]
    AlreadyExists(SessionId),
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error("cannot create {path}")]
    Io {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

/// Why a session cannot be opened for writing.
#[derive(Debug, thiserror::Error)]
pub enum OpenSessionError {
    #[error("session {0} is open already")]
    InUse(SessionId),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// Why a session was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("session {0} is open")]
    InUse(SessionId),
    #[error("cannot remove {path}")]
    Io {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// What recovery found when a session was opened, in addition to its facts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveredSession {
    /// The code of each open turn, in the order accepted.
    pub code: Vec<(TurnNo, Bytes)>,
    /// The context of each open turn that has one.
    pub contexts: Vec<(TurnNo, Box<TurnContext>)>,
    /// Bytes after the last whole record, which recovery cut off.
    pub cut_bytes: u64,
}

/// The journal. Clones are cheap and share one journal.
#[derive(Debug, Clone)]
pub struct Journal {
    inner: Arc<JournalInner>,
}

#[derive(Debug)]
struct JournalInner {
    state_dir: PathBuf,
    sessions_dir: PathBuf,
    index_path: PathBuf,
    indexer: Arc<Indexer>,
    registry: Arc<Registry>,
    /// The connection for lookups. The index writer has its own connection.
    index: Mutex<Connection>,
    index_location: IndexLocation,
    /// Locked while a session is created, opened or removed, and while the epoch changes.
    changing: Mutex<()>,
    next_name: AtomicU64,
}

impl Journal {
    /// Opens the journal in a directory and updates the index from the segments. Creates the directory if it
    /// is missing.
    pub fn open(state_dir: impl Into<PathBuf>, options: JournalOptions) -> Result<Self, OpenError> {
        let state_dir = state_dir.into();
        let sessions_dir = state_dir.join("sessions");
        let index_path = state_dir.join("index.db");
        let failed = |cause| OpenError::Io { path: sessions_dir.clone(), cause };
        fs::create_dir_all(&sessions_dir).map_err(failed)?;
        startup::sweep(&sessions_dir).map_err(failed)?;
        let OpenIndex { writer, reader, home } = startup::open_index(&index_path, &sessions_dir)?;
        let registry = Arc::<Registry>::default();
        let indexer = Indexer::start(writer, &index_path, registry.clone(), options.index_gather)
            .map_err(failed)?;
        let inner = JournalInner {
            state_dir,
            sessions_dir,
            index_path,
            indexer: Arc::new(indexer),
            registry,
            index: Mutex::new(reader),
            index_location: home,
            changing: Mutex::new(()),
            next_name: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub fn state_dir(&self) -> &Path {
        &self.inner.state_dir
    }

    /// Where the index is. This does not change while the journal is open.
    pub fn index_location(&self) -> IndexLocation {
        self.inner.index_location
    }

    /// Claims the next epoch. The epoch file holds it when this call returns.
    pub fn next_epoch(&self) -> io::Result<windlass_protocol::Epoch> {
        let _changing = lock(&self.inner.changing);
        startup::next_epoch(&self.inner.state_dir)
    }

    /// Whether the journal has a live or ended session with this id.
    pub fn has_session(&self, id: &SessionId) -> bool {
        self.session_dir(id).exists()
    }

    /// Creates a session. If anything fails, no part of the session remains.
    pub fn create(&self, mut created: NewSession) -> Result<SessionLog, CreateError> {
        let new = NewSessionDir::make(self.temporary_path(NEW_PREFIX, created.id.as_str()))?;
        created.quota_bytes = created.quota_bytes.max(QUOTA_BYTES_MIN);
        let id = created.id.clone();
        let dir = self.session_dir(&id);
        let _changing = lock(&self.inner.changing);
        if dir.exists() {
            return Err(CreateError::AlreadyExists(id));
        }
        let facts = SessionFacts::new(created);
        let head = SegmentHead {
            journal: FORMAT,
            session: id.clone(),
            first_seq: FIRST_SEQ,
            out: 0,
            prev: None,
            drops: Vec::new(),
        };
        let newest = new.become_session(&dir, &head, &facts)?;
        let segments = vec![Segment::new(&head, newest.bytes)];
        Ok(self.register(id, dir, segments, facts, newest))
    }

    /// Opens a session for writing. Cuts off the torn tail, and returns the code of the open turns.
    pub fn open_session(
        &self,
        id: &SessionId,
    ) -> Result<(SessionLog, RecoveredSession), OpenSessionError> {
        let _changing = lock(&self.inner.changing);
        let mut unindexed = false;
        if let Some(known) = self.registered(id) {
            if known.open.load(Ordering::Acquire) {
                return Err(OpenSessionError::InUse(id.clone()));
            }
            // The previous log may have left turns that are not indexed yet.
            self.inner.indexer.flush()?;
            unindexed = !known.backlog().is_empty();
        }
        let dir = self.session_dir(id);
        let mut loaded = load::load(&dir, id)?;
        let mut recovered = RecoveredSession::default();
        let newest = recover(&dir, &mut loaded, &mut recovered)?;
        let facts = loaded.facts;
        let log = self.register(id.clone(), dir, loaded.segments, facts, newest);
        if unindexed {
            // Indexing those turns failed, so the index writer must read them from the segments.
            log.index_from_segments();
        }
        let reader = log.reader();
        for turn in &log.facts().open_turns {
            let (code, context) =
                reader.request(turn.number, turn.accepted_seq, turn.code_to_seq)?;
            recovered.code.push((turn.number, code));
            recovered.contexts.extend(context.map(|context| (turn.number, context)));
        }
        Ok((log, recovered))
    }

    /// The sessions that have not ended, sorted by id.
    pub fn live_sessions(&self) -> Result<Vec<SessionId>, IndexError> {
        let pending = self.pending_rows();
        let found = self.query(index::live)?;
        let mut live: BTreeSet<SessionId> =
            found.into_iter().filter_map(|id| SessionId::parse(id).ok()).collect();
        for row in pending {
            match row.facts.ended {
                Some(_) => live.remove(&row.facts.created.id),
                None => live.insert(row.facts.created.id.clone()),
            };
        }
        Ok(live.into_iter().collect())
    }

    /// The sessions, newest first, including ended ones. The facts of an open session may be as old as its
    /// last segment; only its log has the current facts.
    pub fn sessions(&self, limit: usize) -> Result<Vec<SessionFacts>, IndexError> {
        self.sessions_of(None, limit)
    }

    /// The same for the sessions of one tenant; of all without a tenant.
    pub fn sessions_of(
        &self,
        tenant: Option<&TenantName>,
        limit: usize,
    ) -> Result<Vec<SessionFacts>, IndexError> {
        let mut pending = self.pending_rows();
        pending.retain(|row| tenant.is_none() || row.facts.created.id.is_of(tenant));
        let mut found = self.query(|index| index::sessions(index, tenant, limit))?;
        for row in pending {
            match found.iter_mut().find(|facts| facts.created.id == row.facts.created.id) {
                Some(old) => *old = (*row.facts).clone(),
                None => found.push((*row.facts).clone()),
            }
        }
        found.sort_by(|a, b| {
            let age = b.created.created_at_ms.cmp(&a.created.created_at_ms);
            age.then_with(|| a.created.id.cmp(&b.created.id))
        });
        found.truncate(limit);
        Ok(found)
    }

    /// The facts of one session, as current as in [`Journal::sessions`].
    pub fn session(&self, id: &SessionId) -> Result<Option<SessionFacts>, IndexError> {
        if let Some(row) = self.registered(id).and_then(|known| known.backlog().row.clone()) {
            return Ok(Some((*row.facts).clone()));
        }
        self.query(|index| index::session(index, id))
    }

    /// An ended turn. It is found as soon as its end is appended.
    pub fn turn(&self, session: &SessionId, id: &TurnId) -> Result<Option<TurnRecord>, IndexError> {
        // Look into the backlog first, then into the index: a turn leaves the backlog only after the index
        // has it.
        let known = self.registered(session);
        let mut behind = false;
        if let Some(known) = known {
            if let Some(turn) = known.pending_turn(id) {
                return Ok(Some((*turn).clone()));
            }
            behind = known.backlog().dropped_turns > 0;
        }
        let found = self.query(|index| index::turn(index, session, id));
        if !behind && found.is_ok() || matches!(found, Ok(Some(_))) {
            return found;
        }
        match load::ended_turns(&self.session_dir(session), session, Seq(0)) {
            Ok((turns, _)) => Ok(turns.into_iter().rev().find(|turn| turn.id == *id)),
            Err(LoadError::NotFound(_)) => Ok(None),
            Err(_) => found,
        }
    }

    /// A reader of a session, whether its log is open or not.
    pub fn reader(&self, id: &SessionId) -> Result<SessionReader, LoadError> {
        if let Some(known) = self.registered(id) {
            return Ok(SessionReader::new(known));
        }
        let dir = self.session_dir(id);
        let loaded = load::load(&dir, id)?;
        let shared = SharedSession::new(id.clone(), dir, loaded.segments, &loaded.facts);
        Ok(SessionReader::new(Arc::new(shared)))
    }

    /// Waits until the index writer has processed everything that was appended before this call.
    pub fn flush_index(&self) -> Result<(), IndexError> {
        self.inner.indexer.flush()
    }

    /// The ended sessions, each with the bytes of its journal, and the bytes of the journals of live sessions.
    pub fn ended(&self) -> Result<(Vec<EndedSession>, LiveBytes), IndexError> {
        self.flush_index()?;
        self.query(index::ended)
    }

    /// The sessions that have a directory, even if their journal cannot be read.
    pub fn directories(&self) -> io::Result<BTreeSet<SessionId>> {
        let names = fs::read_dir(&self.inner.sessions_dir)?;
        let ids = names
            .filter_map(|name| SessionId::parse(name.ok()?.file_name().into_string().ok()?).ok());
        Ok(ids.collect())
    }

    /// Whether a session has a directory. Returns true if the check itself fails.
    pub fn has_directory(&self, id: &SessionId) -> bool {
        !matches!(self.session_dir(id).try_exists(), Ok(false))
    }

    /// Removes a session from the disk and from the index. Returns the freed disk bytes. A missing session
    /// is not an error.
    pub fn remove(&self, id: &SessionId) -> Result<u64, RemoveError> {
        let _changing = lock(&self.inner.changing);
        {
            let mut registry = lock(&self.inner.registry);
            if registry.get(id).is_some_and(|known| known.open.load(Ordering::Acquire)) {
                return Err(RemoveError::InUse(id.clone()));
            }
            registry.remove(id);
        }
        let (dir, gone) = (self.session_dir(id), self.temporary_path(GONE_PREFIX, id.as_str()));
        let mut freed = 0;
        match fs::rename(&dir, &gone) {
            Ok(()) => {
                freed = disk_bytes(&gone);
                fs::remove_dir_all(&gone).map_err(|cause| RemoveError::Io { path: gone, cause })?;
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(RemoveError::Io { path: dir, cause }),
        }
        self.inner.indexer.remove_session(id.clone())?;
        Ok(freed)
    }

    fn register(
        &self,
        id: SessionId,
        dir: PathBuf,
        segments: Vec<Segment>,
        facts: SessionFacts,
        newest: NewestSegment,
    ) -> SessionLog {
        let shared = Arc::new(SharedSession::new(id.clone(), dir, segments, &facts));
        let row = IndexRow { facts: Arc::new(facts.clone()), kept_bytes: shared.kept_bytes() };
        shared.backlog().row = Some(row);
        let log = SessionLog::new(self.inner.indexer.clone(), shared.clone(), facts, newest);
        lock(&self.inner.registry).insert(id, shared.clone());
        self.inner.indexer.notify(&shared);
        log
    }

    fn registered(&self, id: &SessionId) -> Option<Arc<SharedSession>> {
        lock(&self.inner.registry).get(id).cloned()
    }

    fn pending_rows(&self) -> Vec<IndexRow> {
        let registry = lock(&self.inner.registry);
        registry.values().filter_map(|known| known.backlog().row.clone()).collect()
    }

    fn query<T>(
        &self,
        ask: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, IndexError> {
        let path = &self.inner.index_path;
        ask(&lock(&self.inner.index))
            .map_err(|cause| IndexError::Sqlite { path: path.clone(), cause })
    }

    fn session_dir(&self, id: &SessionId) -> PathBuf {
        self.inner.sessions_dir.join(id.as_str())
    }

    /// A unique path next to the sessions' directories.
    fn temporary_path(&self, prefix: &str, name: &str) -> PathBuf {
        let number = self.inner.next_name.fetch_add(1, Ordering::Relaxed);
        self.inner.sessions_dir.join(format!("{prefix}{name}.{number}"))
    }
}

/// The disk space of a session's directory and the files in it.
fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let bytes = |path: &Path| fs::symlink_metadata(path).map_or(0, |meta| meta.blocks() * 512);
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.map(|file| bytes(&file.path())).sum::<u64>() + bytes(dir)
}

/// Prepares the files of a loaded session for appends: removes torn and dropped segments, and cuts off the
/// torn tail.
fn recover(
    dir: &Path,
    loaded: &mut load::LoadedSession,
    recovered: &mut RecoveredSession,
) -> Result<NewestSegment, LoadError> {
    for path in &loaded.torn {
        recovered.cut_bytes += fs::metadata(path).map_or(0, |meta| meta.len());
        log::remove_segment(path);
    }
    for first_seq in &loaded.head.drops {
        log::remove_segment(&segment::path(dir, *first_seq));
    }
    let first_seq = loaded.head.first_seq;
    let path = segment::path(dir, first_seq);
    let bytes = loaded.segments.last().map_or(0, |segment| segment.bytes);
    let failed = |cause| LoadError::io(&path, cause);
    let file = File::options().write(true).open(&path).map_err(failed)?;
    if loaded.file_bytes > bytes {
        file.set_len(bytes).map_err(failed)?;
        recovered.cut_bytes += loaded.file_bytes - bytes;
    }
    // A turn with incomplete code was never accepted. Its parts stay in this segment. The next segment
    // starts without them, so that a resent turn does not continue the old parts.
    let must_roll = loaded.facts.accepting.take().is_some();
    Ok(NewestSegment {
        file,
        path,
        first_seq,
        bytes,
        grown_from: 0,
        has_torn_tail: false,
        must_roll,
    })
}
