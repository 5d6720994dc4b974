//! The thread that writes the log: it gives records their place in the chain, appends them, closes a file that is large or
//! old, and removes files that are no longer kept. Only this thread waits for the disk.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::entry::{AuditActor, AuditDetails, AuditEntry};
use crate::files::{self, LineWriteError, LogFile, OpenLogFile, Repair};
use crate::line::{self, ChainHead};
use crate::queue::{LogCounters, QueueItem};
use crate::retention::{self, AuditOptions, ExpiredFile};

/// A file of this size is closed, and the next one begins. Smaller if few bytes are kept at all.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
const FILE_BYTES_MIN: u64 = 64 * 1024;

/// How many files share the bytes that are kept, at least: removing one must leave most of the log.
const FILES_MIN: u64 = 4;

/// A file whose first record is this old is closed, so that its records can be removed when they are old.
const FILE_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of records in one write.
const BATCH_MAX: usize = 64;

/// Records are forced to the disk at most this often.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of facts about the log itself that wait for a record.
const NOTES_MAX: usize = 16;

/// The age of files is looked at no more often.
const RETENTION_INTERVAL: Duration = Duration::from_secs(3600);

/// See the module documentation.
pub(crate) struct AuditWriter {
    dir: PathBuf,
    options: AuditOptions,
    shared: Arc<LogCounters>,
    /// Held while this thread may write: a node that stops may still write when the next one starts.
    lock: Option<File>,
    /// The last record that is written.
    head: ChainHead,
    /// `None` until the log could be opened, and after its end could not be kept whole.
    file: Option<OpenLogFile>,
    /// What had to be repaired, until a record tells it.
    notes: Vec<AuditEntry>,
    /// When to force the records to the disk; `None` if they are there.
    sync_at: Option<Instant>,
    synced: Option<Instant>,
    retained: Option<Instant>,
    /// The last record of the last file whose removal a record tells. A file that cannot be removed is told once.
    told_through: u64,
    /// Whether the last write failed. Its failure was reported then.
    has_failed: bool,
}

impl AuditWriter {
    pub fn new(dir: PathBuf, options: AuditOptions, shared: Arc<LogCounters>) -> Self {
        Self {
            dir,
            options,
            shared,
            lock: None,
            head: ChainHead::start(),
            file: None,
            notes: Vec::new(),
            sync_at: None,
            synced: None,
            retained: None,
            told_through: 0,
            has_failed: false,
        }
    }

    /// Writes until the node stops.
    pub fn run(mut self, inbox: &Receiver<QueueItem>) {
        self.shared.set_busy(Some(Instant::now()));
        // A repair is told even if no record follows.
        self.write(&[]);
        loop {
            self.shared.set_busy(None);
            let is_stopping = self.shared.is_stopping.load(Ordering::Acquire);
            let first = match self.sync_at {
                _ if is_stopping => inbox.try_recv().map_err(|_| RecvTimeoutError::Disconnected),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            self.shared.set_busy(Some(Instant::now()));
            match first {
                Ok(first) => {
                    let mut batch = Vec::new();
                    let more = inbox.try_iter().take(BATCH_MAX - 1);
                    for item in std::iter::once(first).chain(more) {
                        match item {
                            QueueItem::Entry(entry) => batch.push(*entry),
                            QueueItem::Wake => {}
                        }
                    }
                    self.write(&batch);
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.sync();
                    if self.file.is_none() {
                        // The log was removed, which a record of the new file tells.
                        self.write(&[]);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.end();
                    return self.shared.set_busy(None);
                }
            }
        }
    }

    /// Writes what no record tells yet, and forces all records to the disk.
    pub fn end(&mut self) {
        self.sync();
        if self.file.is_none() || self.shared.untold.load(Ordering::Relaxed) > 0 {
            self.write(&[]);
            self.sync();
        }
    }

    /// Writes entries, or counts them as dropped.
    pub fn write(&mut self, entries: &[AuditEntry]) {
        let untold = self.shared.untold.load(Ordering::Relaxed);
        let written = self.try_write(entries, untold);
        for entry in entries {
            self.shared.forget_code(entry);
        }
        let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        match written {
            Ok(()) => {
                self.shared.written.fetch_add(count, Ordering::Relaxed);
                self.shared.untold.fetch_sub(untold, Ordering::Relaxed);
                if std::mem::take(&mut self.has_failed) {
                    tracing::info!("the audit log can be written again");
                }
            }
            Err(error) => {
                self.shared.drop_records(count);
                if !std::mem::replace(&mut self.has_failed, true) {
                    let dir = self.dir.display();
                    tracing::error!(%dir, %error, "cannot write the audit log: records are dropped and counted");
                }
            }
        }
    }

    fn try_write(&mut self, entries: &[AuditEntry], untold: u64) -> io::Result<()> {
        self.open()?;
        let mut notes = self.notes.clone();
        let told = notes.len();
        if untold > 0 {
            notes.push(note("audit.dropped", AuditDetails::default().with("records", untold)));
        }
        if notes.is_empty() && entries.is_empty() {
            return Ok(());
        }
        if self.is_full() {
            self.begin_file()?;
            self.retain();
        } else if self.retained.is_none_or(|at| at.elapsed() >= RETENTION_INTERVAL) {
            self.retain();
        }
        // The file may be gone: see `sync`.
        self.open()?;
        self.append(notes.iter().chain(entries))?;
        // Later notes are told by the next records.
        self.notes.drain(..told);
        Ok(())
    }

    /// Opens the log, if it is not open.
    fn open(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let dir = files::make_dir(&self.dir)?;
        if self.lock.is_none() {
            self.lock = Some(lock(dir, &self.dir)?);
        }
        let end = files::open_end(&self.dir)?;
        for note in end.repairs.into_iter().map(note_of) {
            self.add_note(note);
        }
        let mut file = end.file;
        if end.head.seq > self.head.seq || end.head == self.head {
            self.head = end.head;
        } else {
            // Records that this thread has written are gone. The chain goes on after them, so that the gap is found.
            file = None;
        }
        self.file = match file {
            Some(file) => Some(file),
            None => Some(OpenLogFile::create(&LogFile::after(&self.dir, &self.head))?),
        };
        Ok(())
    }

    fn add_note(&mut self, note: AuditEntry) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note);
        }
    }

    /// Whether the next record begins a file.
    fn is_full(&self) -> bool {
        let Some(file) = &self.file else { return false };
        let bytes_max = (self.options.max_total_bytes / FILES_MIN).max(FILE_BYTES_MIN);
        let age_max = FILE_AGE_MAX.min(self.options.max_age);
        let began = file.began_at_ms.map(|at_ms| UNIX_EPOCH + Duration::from_millis(at_ms));
        let age = began.and_then(|began| SystemTime::now().duration_since(began).ok());
        file.bytes >= bytes_max.min(FILE_BYTES_MAX)
            || (file.bytes > 0 && age.is_some_and(|age| age > age_max))
    }

    fn begin_file(&mut self) -> io::Result<()> {
        self.sync();
        // After a failure `open` begins anew with what is on the disk.
        if self.file.take().is_none() {
            return self.open();
        }
        self.file = Some(OpenLogFile::create(&LogFile::after(&self.dir, &self.head))?);
        Ok(())
    }

    fn append<'e>(&mut self, entries: impl Iterator<Item = &'e AuditEntry>) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let (mut text, mut head, mut began_at_ms) = (String::new(), self.head.clone(), None);
        for entry in entries {
            head = line::append(&mut text, &head, entry);
            began_at_ms.get_or_insert(entry.at_ms);
        }
        match file.append(text.as_bytes()) {
            Ok(()) => {
                file.began_at_ms = file.began_at_ms.or(began_at_ms);
                self.head = head;
                let synced = self.synced.unwrap_or_else(Instant::now);
                self.sync_at.get_or_insert(synced + SYNC_INTERVAL);
                if self.sync_at.is_some_and(|at| at <= Instant::now()) {
                    self.sync();
                }
                Ok(())
            }
            Err(LineWriteError::Undone(cause)) => Err(cause),
            Err(LineWriteError::Torn(cause)) => {
                self.file = None;
                Err(cause)
            }
        }
    }

    /// Forces the records to the disk. Closes a file that another program has removed or replaced, so that `open` begins
    /// a new one.
    fn sync(&mut self) {
        if self.sync_at.take().is_none() {
            return;
        }
        self.synced = Some(Instant::now());
        if let Some(Err(error)) = self.file.as_ref().map(OpenLogFile::sync) {
            tracing::warn!(%error, "records of the audit log may not be on the disk yet");
        }
        let Some(file) = &self.file else { return };
        match file.has_name() {
            Ok(true) => {}
            Ok(false) => {
                let name = file.name();
                tracing::error!(
                    file = name,
                    "another program has removed or replaced the audit log"
                );
                let what = AuditDetails::default().with("file", name).with("last", self.head.seq);
                self.add_note(note("audit.lost", what));
                (self.file, self.lock) = (None, None);
            }
            Err(error) => tracing::warn!(%error, "cannot check that the audit log is in its place"),
        }
    }

    /// Removes files that are no longer kept. Each removal is on the disk before its file is gone, so a log without its
    /// beginning says why.
    fn retain(&mut self) {
        self.retained = Some(Instant::now());
        let removed = self
            .expired()
            .and_then(|expired| expired.iter().try_for_each(|file| self.remove(file)));
        if let Err(error) = removed {
            tracing::warn!(%error, "cannot remove old files of the audit log");
        }
    }

    fn expired(&self) -> io::Result<Vec<ExpiredFile>> {
        let files = retention::measure(files::list(&self.dir)?, SystemTime::now())?;
        let AuditOptions { max_age, max_total_bytes, .. } = self.options;
        Ok(retention::expired(&files, max_age, max_total_bytes))
    }

    fn remove(&mut self, expired: &ExpiredFile) -> io::Result<()> {
        let ExpiredFile { file, bytes, through } = expired;
        if *through <= self.told_through {
            return fs::remove_file(&file.path);
        }
        let next = LogFile::after(&self.dir, &ChainHead { seq: *through, hash: String::new() });
        // Without a record in the next file, the file to be removed has the last record.
        let hash = next.first_prev()?.unwrap_or_else(|| self.head.hash.clone());
        let what = AuditDetails::default()
            .with("file", file.name())
            .with("through", *through)
            .with("hash", hash)
            .with("bytes", *bytes);
        self.append(std::iter::once(&note("audit.removed", what)))?;
        self.sync_at.get_or_insert_with(Instant::now);
        self.sync();
        if self.file.is_none() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the log was removed or replaced"));
        }
        self.told_through = *through;
        fs::remove_file(&file.path)
    }
}

/// Waits for the lock of the log's directory. A node that stops may still write; another one that runs keeps the lock.
fn lock(dir: File, path: &Path) -> io::Result<File> {
    match dir.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let dir_path = path.display();
            tracing::warn!(dir = %dir_path, "another node has the audit log of this state directory: records wait for it");
            dir.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    Ok(dir)
}

fn note_of(repair: Repair) -> AuditEntry {
    let details = AuditDetails::default();
    match repair {
        Repair::Cut { file, bytes } => {
            tracing::warn!(
                file,
                bytes,
                "an incomplete line at the end of the audit log was cut off"
            );
            note("audit.repaired", details.with("file", file).with("cut_bytes", bytes))
        }
        Repair::Damaged { file, lines } => {
            tracing::error!(file, lines, "lines at the end of the audit log are damaged");
            note("audit.damaged", details.with("file", file).with("lines", lines))
        }
    }
}

/// A record about the log itself.
fn note(did: &'static str, what: AuditDetails) -> AuditEntry {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    AuditEntry { at_ms, who: AuditActor::node(), did, session: None, what }
}
