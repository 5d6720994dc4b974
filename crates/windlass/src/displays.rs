//! Saves displays as files, because a terminal cannot show images. A display that replaces another
//! overwrites its file.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use windlass_protocol::{Seq, SessionId};

/// The directory with the displays of one session.
#[derive(Debug)]
pub struct DisplayFiles {
    directory: PathBuf,
    /// Files by display id, for displays that can be replaced.
    by_id: HashMap<String, PathBuf>,
}

impl DisplayFiles {
    pub fn new(state: &Path, session: &SessionId) -> Self {
        Self { directory: state.join("displays").join(session.as_str()), by_id: HashMap::new() }
    }

    pub fn save(
        &mut self,
        seq: Seq,
        mime: &str,
        id: Option<&str>,
        bytes: &[u8],
    ) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.directory)?;
        let fresh = self.directory.join(format!("{seq}.{}", extension(mime)));
        let path = match id.and_then(|id| self.by_id.get(id)) {
            Some(before) if before.extension() == fresh.extension() => before.clone(),
            _ => fresh,
        };
        fs::write(&path, bytes)?;
        if let Some(id) = id {
            self.by_id.insert(id.to_owned(), path.clone());
        }
        Ok(path)
    }
}

fn extension(mime: &str) -> &'static str {
    let bare = mime.split(';').next().unwrap_or_default().trim();
    match bare {
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/svg+xml" => "svg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "application/pdf" => "pdf",
        "text/html" => "html",
        "text/markdown" => "md",
        "text/latex" => "tex",
        "text/csv" => "csv",
        _ if bare.ends_with("json") => "json",
        _ if bare.starts_with("text/") => "txt",
        _ => "bin",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_updated_display_takes_the_file_of_the_first() {
        let base = tempfile::tempdir().unwrap();
        let mut files = DisplayFiles::new(base.path(), &SessionId::parse("s").unwrap());
        let first = files.save(Seq(3), "image/png", Some("a"), b"1").unwrap();
        let second = files.save(Seq(5), "image/png", Some("a"), b"2").unwrap();
        let other = files.save(Seq(6), "application/geo+json", None, b"3").unwrap();
        assert_eq!(first, second);
        assert_eq!(fs::read(first).unwrap(), b"2");
        assert!(other.ends_with("displays/s/6.json"));
    }
}
