//! The files of the log: `audit-SEQ.jsonl`, where SEQ is the number of the first record in the file. Only the user of
//! the node can read them.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::line::{self, ChainHead};
use crate::line_reader::{FileLine, LineReader, open_regular};

/// A file of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFile {
    pub path: PathBuf,
    /// The number of its first record, by its name.
    pub first: u64,
}

impl LogFile {
    /// The file whose first record follows `head`.
    pub fn after(dir: &Path, head: &ChainHead) -> Self {
        let first = head.seq.saturating_add(1);
        Self { path: dir.join(format!("audit-{first}.jsonl")), first }
    }

    /// The name, for people.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The `prev` of the first record: the hash of the last record of the file before. `None` if the file is empty.
    pub fn first_prev(&self) -> io::Result<Option<String>> {
        let mut lines = LineReader::open(&self.path)?;
        let Some(FileLine::Whole(line)) = lines.next_line()? else { return Ok(None) };
        Ok(line::read(line).ok().map(|record| record.prev))
    }
}

/// The files of a log, oldest first. Other files are left out, and whatever is no regular file.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<LogFile>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let path = entry.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix("audit-")?.strip_suffix(".jsonl"));
        // A number with a sign or with zeros before it is not a name that the node gives, nor is one that no record
        // could follow.
        let first = number.and_then(|digits| {
            let first = digits.parse::<u64>().ok()?;
            ((1..u64::MAX).contains(&first) && first.to_string() == digits).then_some(first)
        });
        files.extend(first.map(|first| LogFile { path, first }));
    }
    files.sort_by_key(|file| file.first);
    Ok(files)
}

/// Makes the directory, and keeps other users out of it. Refuses a symlink: its target is not the node's.
pub(crate) fn make_dir(path: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let flags = (OFlags::NOFOLLOW | OFlags::DIRECTORY).bits().cast_signed();
    let dir = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if dir.metadata()?.permissions().mode() & 0o777 != 0o700 {
        dir.set_permissions(Permissions::from_mode(0o700))?;
    }
    Ok(dir)
}

/// The file that records are appended to.
#[derive(Debug)]
pub(crate) struct OpenLogFile {
    file: File,
    path: PathBuf,
    /// Size of the file: all of it is whole lines.
    pub bytes: u64,
    /// When its first record was made; `None` if it has none.
    pub began_at_ms: Option<u64>,
}

/// What was found at the end of the log.
#[derive(Debug)]
pub(crate) struct LogEnd {
    pub head: ChainHead,
    /// The file to go on with; `None` if a new file must begin.
    pub file: Option<OpenLogFile>,
    /// What the node found and changed.
    pub repairs: Vec<Repair>,
}

/// Something that the next record tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Repair {
    /// An incomplete line at the end of a file was cut off: the node was killed while it wrote it.
    Cut { file: String, bytes: u64 },
    /// The last lines of a file are no records. They stay, and a new file begins.
    Damaged { file: String, lines: u64 },
}

impl OpenLogFile {
    pub fn create(at: &LogFile) -> io::Result<Self> {
        // The directory is opened first: a file must not be left behind when no descriptor is free for the directory.
        let dir = at.path.parent().map(File::open).transpose()?;
        let mut options = OpenOptions::new();
        let file = options.append(true).create_new(true).mode(0o600).open(&at.path)?;
        // The name must not be lost with the power, or the next file would follow a gap.
        if let Some(dir) = dir {
            dir.sync_all()?;
        }
        Ok(Self { file, path: at.path.clone(), bytes: 0, began_at_ms: None })
    }

    fn open(at: &LogFile, bytes: u64) -> io::Result<Self> {
        let file = open_regular(OpenOptions::new().append(true), &at.path)?;
        Ok(Self { file, path: at.path.clone(), bytes, began_at_ms: None })
    }

    /// Whether the file still has its name. Otherwise another program has removed or replaced the file or the directory,
    /// and records would be written to a file that nobody finds.
    pub fn has_name(&self) -> io::Result<bool> {
        let found = match fs::symlink_metadata(&self.path) {
            Ok(found) => found,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let open = self.file.metadata()?;
        Ok((found.dev(), found.ino()) == (open.dev(), open.ino()))
    }

    /// The name, for people.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Appends whole lines. After an error the file ends as before, or the error is [`Self::cut`]'s.
    pub fn append(&mut self, lines: &[u8]) -> Result<(), LineWriteError> {
        match self.file.write_all(lines) {
            Ok(()) => {
                self.bytes += u64::try_from(lines.len()).unwrap_or_default();
                Ok(())
            }
            Err(cause) => match self.cut() {
                Ok(()) => Err(LineWriteError::Undone(cause)),
                Err(_) => Err(LineWriteError::Torn(cause)),
            },
        }
    }

    /// Removes what an interrupted write has left.
    fn cut(&self) -> io::Result<()> {
        self.file.set_len(self.bytes)
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Why records could not be appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineWriteError {
    #[error("{0}")]
    Undone(#[source] io::Error),
    /// A part of the lines may be at the end of the file, which must be opened anew.
    #[error("{0}")]
    Torn(#[source] io::Error),
}

/// Finds the end of the log, and cuts an incomplete last line off.
pub(crate) fn open_end(dir: &Path) -> io::Result<LogEnd> {
    let mut repairs = Vec::new();
    for at in list(dir)?.into_iter().rev() {
        let tail = FileTail::read(&at)?;
        if tail.incomplete_bytes > 0 {
            let file = open_regular(OpenOptions::new().write(true), &at.path)?;
            file.set_len(tail.whole_bytes)?;
            repairs.push(Repair::Cut { file: at.name(), bytes: tail.incomplete_bytes });
        }
        if tail.whole_bytes == 0 {
            // The node was killed before the first record was in the file.
            fs::remove_file(&at.path)?;
            continue;
        }
        return end_of(at, &tail, repairs);
    }
    Ok(LogEnd { head: ChainHead::start(), file: None, repairs })
}

/// What a file has at its end.
#[derive(Debug, Default)]
struct FileTail {
    /// Size of the whole lines.
    whole_bytes: u64,
    incomplete_bytes: u64,
    /// When the first line's record was made, if that line is a record.
    began_at_ms: Option<u64>,
    /// The last record.
    last: Option<ChainHead>,
    /// Lines after the last record.
    damaged: u64,
}

impl FileTail {
    fn read(at: &LogFile) -> io::Result<Self> {
        let mut lines = LineReader::open(&at.path)?;
        let mut tail = Self::default();
        let mut is_first = true;
        while let Some(read) = lines.next_line()? {
            let record = match read {
                FileLine::Whole(text) => line::read(text).ok(),
                FileLine::TooLong => None,
                FileLine::Incomplete(bytes) => {
                    tail.incomplete_bytes = bytes;
                    break;
                }
            };
            if std::mem::take(&mut is_first) {
                tail.began_at_ms = record.as_ref().map(|record| record.at_ms);
            }
            match record {
                Some(record) => {
                    tail.last = Some(ChainHead { seq: record.seq, hash: record.hash });
                    tail.damaged = 0;
                }
                None => tail.damaged += 1,
            }
        }
        tail.whole_bytes = lines.whole_bytes;
        Ok(tail)
    }
}

/// The end of a log whose last file ends so.
fn end_of(at: LogFile, tail: &FileTail, mut repairs: Vec<Repair>) -> io::Result<LogEnd> {
    let damaged = tail.damaged;
    let head = match &tail.last {
        Some(last) => ChainHead { seq: last.seq.saturating_add(damaged), hash: last.hash.clone() },
        None => {
            let seq = at.first.saturating_sub(1).saturating_add(damaged);
            ChainHead { seq, ..ChainHead::start() }
        }
    };
    if damaged > 0 {
        repairs.push(Repair::Damaged { file: at.name(), lines: damaged });
        return Ok(LogEnd { head, file: None, repairs });
    }
    let file = OpenLogFile::open(&at, tail.whole_bytes)?;
    let file = OpenLogFile { began_at_ms: tail.began_at_ms, ..file };
    Ok(LogEnd { head, file: Some(file), repairs })
}
