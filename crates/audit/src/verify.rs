//! Checks the chain of a log: every line by itself, its place, and the beginning of the log. A log whose last records are
//! missing, or that was written anew, has a chain too: only an [`Anchor`] that was noted elsewhere finds that.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::files::{self, LogFile};
use crate::line::{self, AuditRecord, ChainHead, LineFault};
use crate::line_reader::{FileLine, LineReader};

/// A record that must be in the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    pub seq: u64,
    pub hash: String,
}

/// A log without a fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifiedChain {
    /// The number of the oldest record; 0 if there is none.
    pub first: u64,
    pub head: ChainHead,
    pub records: u64,
    pub files: u64,
}

/// What is wrong with a log. Lines are counted from 1.
#[derive(Debug, thiserror::Error)]
pub enum AuditProblem {
    #[error("there is no log: the directory or its files are missing")]
    NoLog,
    #[error("cannot read {path}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
    #[error("{file} line {line}: {fault}")]
    Line { file: String, line: u64, fault: LineFault },
    #[error(
        "{file} line {line}: the last line is incomplete ({bytes} bytes); if the node was killed, its next start cuts the \
         line off and records that; if it runs, check again"
    )]
    Incomplete { file: String, line: u64, bytes: u64 },
    #[error(
        "{file} line {line}: record {expected} is missing or out of order: record {found} stands there"
    )]
    Order { file: String, line: u64, expected: u64, found: u64 },
    #[error(
        "{file} line {line}: record {seq} does not follow the record before it, which was changed or replaced"
    )]
    Link { file: String, line: u64, seq: u64 },
    #[error(
        "{file} line {line}: by its name the file begins with record {named}, and it begins with {found}"
    )]
    FileName { file: String, line: u64, named: u64, found: u64 },
    #[error(
        "{file} line {line}: the records before {first} are missing, and no record says that the node has removed them"
    )]
    Beginning { file: String, line: u64, first: u64 },
    #[error(
        "the log ends with record {last}, and record {seq} of the anchor is missing: the end was cut off"
    )]
    AnchorAfterEnd { seq: u64, last: u64 },
    #[error(
        "record {seq} of the anchor is older than the oldest record, {first}: record {told_by} says that the node removed it \
         when its retention was over; the log cannot be checked against this anchor"
    )]
    AnchorRemoved { seq: u64, first: u64, told_by: u64 },
    #[error(
        "record {seq} has the hash {found}, and the anchor has {wanted}: the log was written anew"
    )]
    AnchorHash { seq: u64, found: String, wanted: String },
}

/// A removal that a record of the log tells.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ToldRemoval {
    /// The record that tells it.
    told_by: u64,
    through: u64,
    hash: String,
}

/// The walk along a chain.
#[derive(Debug)]
struct ChainWalk<'a> {
    anchor: Option<&'a Anchor>,
    /// Where the oldest record is, and its `prev`.
    begin: Option<ChainBegin>,
    head: ChainHead,
    removals: Vec<ToldRemoval>,
    anchor_hash: Option<String>,
    records: u64,
}

#[derive(Debug, Clone)]
struct ChainBegin {
    file: String,
    seq: u64,
    prev: String,
}

/// Checks the log in `dir`, and that it has the anchor. Blocks.
pub fn verify(dir: &Path, anchor: Option<&Anchor>) -> Result<VerifiedChain, AuditProblem> {
    let failed = |cause| AuditProblem::Io { path: dir.to_owned(), cause };
    let files = files::list(dir).map_err(failed)?;
    if files.is_empty() {
        return Err(AuditProblem::NoLog);
    }
    let mut walk = ChainWalk {
        anchor,
        begin: None,
        head: ChainHead::start(),
        removals: Vec::new(),
        anchor_hash: None,
        records: 0,
    };
    for file in &files {
        walk.file(file)?;
    }
    walk.check_begin()?;
    walk.check_anchor()?;
    Ok(VerifiedChain {
        first: walk.begin.map_or(0, |begin| begin.seq),
        head: walk.head,
        records: walk.records,
        files: u64::try_from(files.len()).unwrap_or(u64::MAX),
    })
}

impl ChainWalk<'_> {
    fn file(&mut self, file: &LogFile) -> Result<(), AuditProblem> {
        let failed = |cause| AuditProblem::Io { path: file.path.clone(), cause };
        let name = file.name();
        let mut lines = LineReader::open(&file.path).map_err(failed)?;
        let mut line = 0;
        while let Some(read) = lines.next_line().map_err(failed)? {
            line += 1;
            let read = match read {
                FileLine::Whole(text) => line::read(text),
                FileLine::TooLong => Err(LineFault::Form),
                FileLine::Incomplete(bytes) => {
                    return Err(AuditProblem::Incomplete { file: name, line, bytes });
                }
            };
            let record =
                read.map_err(|fault| AuditProblem::Line { file: name.clone(), line, fault })?;
            if line == 1 && record.seq != file.first {
                let (named, found) = (file.first, record.seq);
                return Err(AuditProblem::FileName { file: name, line, named, found });
            }
            self.record(record, &name, line)?;
        }
        Ok(())
    }

    fn record(&mut self, record: AuditRecord, file: &str, line: u64) -> Result<(), AuditProblem> {
        let AuditRecord { seq, prev, hash, did, what, .. } = record;
        let file = || file.to_owned();
        match &self.begin {
            None => self.begin = Some(ChainBegin { file: file(), seq, prev }),
            Some(_) => {
                let expected = self.head.seq.saturating_add(1);
                if seq != expected {
                    return Err(AuditProblem::Order { file: file(), line, expected, found: seq });
                }
                if prev != self.head.hash {
                    return Err(AuditProblem::Link { file: file(), line, seq });
                }
            }
        }
        if did == "audit.removed" {
            let through = what.get("through").and_then(Value::as_u64);
            let told = through.zip(what.get("hash").and_then(Value::as_str));
            let told = told.map(|(through, hash)| ToldRemoval {
                told_by: seq,
                through,
                hash: hash.to_owned(),
            });
            self.removals.extend(told);
        }
        if self.anchor.is_some_and(|anchor| anchor.seq == seq) {
            self.anchor_hash = Some(hash.clone());
        }
        self.records += 1;
        self.head = ChainHead { seq, hash };
        Ok(())
    }

    /// A log begins with the first record, or where a record says that the node has removed what was before.
    fn check_begin(&self) -> Result<(), AuditProblem> {
        let Some(begin) = &self.begin else { return Ok(()) };
        let before = ChainHead { seq: begin.seq.saturating_sub(1), hash: begin.prev.clone() };
        let is_told = |one: &ToldRemoval| one.through == before.seq && one.hash == before.hash;
        if before == ChainHead::start() || self.removals.iter().any(is_told) {
            return Ok(());
        }
        Err(AuditProblem::Beginning { file: begin.file.clone(), line: 1, first: begin.seq })
    }

    fn check_anchor(&self) -> Result<(), AuditProblem> {
        let Some(Anchor { seq, hash }) = self.anchor else { return Ok(()) };
        let start = ChainHead::start();
        if (*seq, hash) == (start.seq, &start.hash) {
            return Ok(());
        }
        let (seq, last) = (*seq, self.head.seq);
        let first = self.begin.as_ref().map_or(1, |begin| begin.seq);
        if seq > last {
            return Err(AuditProblem::AnchorAfterEnd { seq, last });
        }
        let at_anchor = self.removals.iter().find(|one| one.through == seq);
        let removal = at_anchor.or(self.removals.iter().find(|one| one.through > seq));
        // Who can write the files can also write such a record, so it proves nothing about the anchor.
        let told_by = removal.map_or(0, |one| one.told_by);
        let found = self.anchor_hash.as_ref().or(at_anchor.map(|one| &one.hash));
        match found {
            Some(found) if found == hash && self.anchor_hash.is_some() => Ok(()),
            Some(found) if found != hash => {
                let (found, wanted) = (found.clone(), hash.clone());
                Err(AuditProblem::AnchorHash { seq, found, wanted })
            }
            _ => Err(AuditProblem::AnchorRemoved { seq, first, told_by }),
        }
    }
}
