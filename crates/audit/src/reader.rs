//! Finds records for a person. Checks no chain.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use crate::files;
use crate::line::{self, AuditRecord};
use crate::line_reader::{FileLine, LineReader};

/// Which records are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only records of this session.
    pub session: Option<String>,
    /// Only these acts: `session.create`, or `session` for all of its kind.
    pub did: Option<String>,
    /// Only records from this moment on: milliseconds since the Unix epoch.
    pub since_ms: Option<u64>,
    /// Only the last ones.
    pub limit: usize,
}

impl AuditFilter {
    fn takes(&self, record: &AuditRecord) -> bool {
        let is_act = |wanted: &str| {
            let rest = record.did.strip_prefix(wanted);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.session.as_ref().is_none_or(|wanted| record.session.as_ref() == Some(wanted))
            && self.did.as_deref().is_none_or(is_act)
            && self.since_ms.is_none_or(|since| record.at_ms >= since)
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FoundRecords {
    /// In the order of the log.
    pub records: Vec<AuditRecord>,
    /// Lines that are no valid records.
    pub damaged_lines: u64,
}

/// The last records of the log in `dir` that the filter takes. Blocks.
pub fn find(dir: &Path, filter: &AuditFilter) -> io::Result<FoundRecords> {
    let mut found = FoundRecords::default();
    let mut files = Vec::new();
    let mut count = 0;
    for file in files::list(dir)?.into_iter().rev() {
        if count >= filter.limit {
            break;
        }
        let lines = match LineReader::open(&file.path) {
            Ok(lines) => lines,
            // The node has removed the file meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let (records, damaged_lines) = find_in(lines, filter, filter.limit - count)?;
        found.damaged_lines += damaged_lines;
        count += records.len();
        files.push(records);
    }
    found.records = files.into_iter().rev().flatten().collect();
    Ok(found)
}

/// The last records of a file, at most `limit`, and how many lines are no valid records.
fn find_in(
    mut lines: LineReader,
    filter: &AuditFilter,
    limit: usize,
) -> io::Result<(VecDeque<AuditRecord>, u64)> {
    let (mut records, mut damaged_lines) = (VecDeque::new(), 0);
    while let Some(read) = lines.next_line()? {
        match read {
            FileLine::Whole(text) => match line::read(text) {
                Ok(record) if filter.takes(&record) => {
                    if records.len() >= limit {
                        records.pop_front();
                    }
                    records.push_back(record);
                }
                Ok(_) => {}
                Err(_) => damaged_lines += 1,
            },
            FileLine::TooLong => damaged_lines += 1,
            // The node writes this line now.
            FileLine::Incomplete(_) => {}
        }
    }
    Ok((records, damaged_lines))
}
