//! A prompt: the text of a turn, and the files of the workspace that the text names with `@`.

use std::path::{Path, PathBuf};

/// Maximum number of files of one prompt.
const FILES_MAX: usize = 32;

/// Maximum bytes of one image.
pub const IMAGE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Image types that engines understand, by extension.
const IMAGES: [(&str, &str); 5] = [
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
];

/// What a client asks of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    pub text: String,
    pub files: Vec<PromptFile>,
}

/// A file of the workspace that a prompt names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFile {
    /// Absolute.
    pub path: PathBuf,
    /// The MIME type, if it is an image.
    pub image: Option<&'static str>,
    /// The content, if it is an image that could be read.
    pub bytes: Vec<u8>,
}

impl Prompt {
    /// Reads a prompt. A word such as `@docs/plan.png` names a file, if there is one.
    pub fn read(text: String, workspace: &Path) -> Self {
        let mut files: Vec<PromptFile> = Vec::new();
        for word in text.split_whitespace() {
            let Some(named) = word.strip_prefix('@') else { continue };
            let named = named.trim_end_matches([',', ';', ':', '!', '?', ')', '\'', '"']);
            let candidates = [named, named.trim_end_matches('.')];
            let found = candidates.iter().find_map(|named| find(workspace, named));
            let Some(path) = found else { continue };
            if files.len() < FILES_MAX && !files.iter().any(|file| file.path == path) {
                files.push(PromptFile::of(path));
            }
        }
        Self { text, files }
    }

    pub fn images(&self) -> impl Iterator<Item = (&PromptFile, &'static str)> {
        self.files.iter().filter_map(|file| Some((file, file.image?)))
    }
}

fn find(workspace: &Path, named: &str) -> Option<PathBuf> {
    let path = workspace.join(named).canonicalize().ok()?;
    let is_inside = path.starts_with(workspace.canonicalize().ok()?);
    (!named.is_empty() && is_inside && path.is_file()).then_some(path)
}

impl PromptFile {
    fn of(path: PathBuf) -> Self {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let extension = extension.unwrap_or_default().to_ascii_lowercase();
        let image = IMAGES.iter().find(|(known, _)| *known == extension).map(|(_, mime)| *mime);
        let fits = path.metadata().is_ok_and(|file| file.len() <= IMAGE_BYTES_MAX);
        let bytes = match image {
            Some(_) if fits => std::fs::read(&path).unwrap_or_default(),
            _ => Vec::new(),
        };
        let image = image.filter(|_| !bytes.is_empty());
        Self { path, image, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_an_at_sign_name_files_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::write(dir.path().join("a.png"), "img").unwrap();
        std::fs::create_dir(dir.path().join("src")).unwrap();
        std::fs::write(dir.path().join("src/b.rs"), "").unwrap();
        std::fs::write(dir.path().join("empty.png"), "").unwrap();
        let text =
            "see @a.png, @src/b.rs. @none.txt me@a.png @src @ @a.png @empty.png @/etc/passwd @../x";
        let prompt = Prompt::read(text.to_owned(), dir.path());
        let files: Vec<_> = prompt
            .files
            .iter()
            .map(|file| (file.path.strip_prefix(&real).unwrap().to_str().unwrap(), file.image))
            .collect();
        assert_eq!(files, [("a.png", Some("image/png")), ("src/b.rs", None), ("empty.png", None)]);
        assert_eq!(prompt.images().count(), 1);
        assert_eq!(prompt.text, text);
    }
}
