//! The record of the roots in which sessions could write, in a file of the state directory. Each root has one
//! line, which is written before the first session with this root starts. Lines are never removed, because
//! the files that a session left stay. docs/environments.md describes the format.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The name of the record's file in the state directory.
pub(crate) const FILE: &str = "writable-roots";

/// The version of the file's format.
const VERSION: u32 = 1;

/// Maximum number of roots. Over the limit, roots in the same directory are replaced by that directory.
const ROOTS_MAX: usize = 4096;

/// Maximum size of the file.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// The file's first line.
#[derive(Debug, Serialize, Deserialize)]
struct RecordHeader {
    version: u32,
}

/// The record, as it was read from its file.
#[derive(Debug)]
pub(super) struct RootsRecord {
    file: PathBuf,
    /// All roots, or why the file cannot be read.
    roots: Result<BTreeSet<PathBuf>, String>,
}

impl RootsRecord {
    /// Reads `file`, or creates it with the roots of `earlier`.
    pub fn open(file: &Path, earlier: impl FnOnce() -> Result<Vec<PathBuf>, String>) -> Self {
        let roots = match read(file) {
            Ok(Some(roots)) => Ok(roots),
            Ok(None) => earlier().and_then(|earlier| {
                let roots = bounded(earlier.iter().map(|root| as_text(root)).collect());
                write(file, &roots).map(|()| roots).map_err(|error| error.to_string())
            }),
            Err(why) => Err(why),
        };
        Self { file: file.to_owned(), roots }
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn roots(&self) -> Result<&BTreeSet<PathBuf>, &str> {
        self.roots.as_ref().map_err(String::as_str)
    }

    /// Whether the record contains `root` or one of its parents. An unreadable record counts as containing
    /// everything.
    pub fn has(&self, root: &Path) -> bool {
        match &self.roots {
            Ok(roots) => root.ancestors().any(|above| roots.contains(above)),
            Err(_) => true,
        }
    }

    /// Adds a root, first on the disk, then in memory.
    pub fn add(&mut self, root: &Path) -> io::Result<()> {
        let root = as_text(root);
        let Ok(roots) = &mut self.roots else { return Ok(()) };
        if roots.len() < ROOTS_MAX {
            append(&self.file, &root)?;
            roots.insert(root);
            return Ok(());
        }
        let mut more = roots.clone();
        more.insert(root);
        let fewer = bounded(more);
        write(&self.file, &fewer)?;
        *roots = fewer;
        Ok(())
    }
}

/// The root in a form that the file can hold: for a path that is not UTF-8, the nearest parent that is.
fn as_text(root: &Path) -> PathBuf {
    let text = root.ancestors().find(|above| above.to_str().is_some());
    text.unwrap_or(Path::new("/")).to_owned()
}

/// Reduces the roots to the limit. The remaining roots contain all former ones.
fn bounded(mut roots: BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    while roots.len() > ROOTS_MAX {
        let mut below: BTreeMap<&Path, usize> = BTreeMap::new();
        for parent in roots.iter().filter_map(|root| root.parent()) {
            *below.entry(parent).or_default() += 1;
        }
        let fullest = below.into_iter().max_by_key(|(_, count)| *count);
        let Some(parent) = fullest.map(|(parent, _)| parent.to_owned()) else { break };
        roots.retain(|root| !root.starts_with(&parent));
        roots.insert(parent);
    }
    roots
}

/// The roots in a file; `None` if the file does not exist.
fn read(file: &Path) -> Result<Option<BTreeSet<PathBuf>>, String> {
    let mut text = String::new();
    match File::open(file) {
        Ok(opened) => opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error),
    }
    .map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it is longer than {FILE_BYTES_MAX} bytes"));
    }
    // An incomplete last line means that its session has not started.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines();
    let head = lines.next().ok_or("it is empty")?;
    let RecordHeader { version } =
        serde_json::from_str(head).map_err(|error| format!("line 1: {error}"))?;
    if version != VERSION {
        return Err(format!("its version is {version}, but this release reads version {VERSION}"));
    }
    let mut roots = BTreeSet::new();
    for (number, line) in lines.enumerate() {
        let root: PathBuf =
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 2))?;
        if !root.is_absolute() {
            return Err(format!("line {}: the path is not absolute", number + 2));
        }
        roots.insert(root);
    }
    if text.len() > whole.len() + 1 {
        write(file, &roots).map_err(|error| error.to_string())?;
    }
    Ok(Some(roots))
}

fn append(file: &Path, root: &Path) -> io::Result<()> {
    let mut line = serde_json::to_vec(root)?;
    line.push(b'\n');
    let mut opened = OpenOptions::new().append(true).open(file)?;
    let before = opened.metadata()?.len();
    // Synced, because the record must survive a power failure like the files of the session.
    let written = opened.write_all(&line).and_then(|()| opened.sync_data());
    written.inspect_err(|_| drop(opened.set_len(before)))
}

/// Writes the whole file and replaces the old one.
fn write(file: &Path, roots: &BTreeSet<PathBuf>) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(&RecordHeader { version: VERSION })?;
    bytes.push(b'\n');
    for root in roots {
        bytes.extend(serde_json::to_vec(root)?);
        bytes.push(b'\n');
    }
    let new = file.with_extension("new");
    let mut options = OpenOptions::new();
    let mut opened = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    opened.write_all(&bytes)?;
    opened.sync_data()?;
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Result<Vec<PathBuf>, String> {
        Ok(Vec::new())
    }

    #[test]
    fn the_next_node_reads_the_roots_that_were_added() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let mut record = RootsRecord::open(&file, || Ok(vec![PathBuf::from("/old")]));
        record.add(Path::new("/p/one \"two\"\n")).unwrap();
        assert!(record.has(Path::new("/p/one \"two\"\n/deep")) && record.has(Path::new("/old/a")));
        assert!(!record.has(Path::new("/p")) && !record.has(Path::new("/older")));
        let next = RootsRecord::open(&file, || panic!("there is a record"));
        assert_eq!(next.roots(), record.roots());
    }

    #[test]
    fn a_record_that_cannot_be_read_is_not_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let bad = [
            "",
            "[]\n",
            "{\"version\":2}\n",
            "{\"version\":1}\nwork\n",
            "{\"version\":1}\n\"work\"\n",
            "{\"version\":1}\n\"/a\"\n\n\"/b\"\n",
        ];
        for text in bad {
            std::fs::write(&file, text).unwrap();
            let mut record = RootsRecord::open(&file, none);
            assert!(record.roots().is_err(), "{text:?}");
            record.add(Path::new("/new")).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "the file is not changed");
        }
        let record = RootsRecord::open(&dir.path().join("other"), || Err("no journal".to_owned()));
        assert_eq!(record.roots(), Err("no journal"));
    }

    #[test]
    fn an_incomplete_last_line_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        std::fs::write(&file, "{\"version\":1}\n\"/a\"\n\"/half").unwrap();
        let mut record = RootsRecord::open(&file, none);
        assert_eq!(record.roots().unwrap().len(), 1);
        record.add(Path::new("/b")).unwrap();
        assert_eq!(RootsRecord::open(&file, none).roots(), record.roots());
    }

    #[test]
    fn too_many_roots_are_replaced_by_their_parent() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let many = (0..ROOTS_MAX).map(|number| PathBuf::from(format!("/t/{number}"))).collect();
        let mut record = RootsRecord::open(&file, || Ok(many));
        assert_eq!(record.roots().unwrap().len(), ROOTS_MAX);
        record.add(Path::new("/p/one")).unwrap();
        let expected = [PathBuf::from("/p/one"), PathBuf::from("/t")].into();
        assert_eq!(record.roots(), Ok(&expected));
        assert_eq!(RootsRecord::open(&file, none).roots(), Ok(&expected));
    }
}
