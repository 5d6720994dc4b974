//! Paths in Codex's format: absolute, or a `file:` URI, without `..`.

use std::path::{Component, Path, PathBuf};

use super::{BadSandbox, repeated};

/// The kernel's limit for a path.
const PATH_BYTES_MAX: usize = 4096;

/// A directory given as a `file:` URI or as a path.
pub(super) fn directory(text: &str) -> Result<PathBuf, BadSandbox> {
    let Some(rest) = text.strip_prefix("file://") else { return absolute(text) };
    let bad = |why| Err(BadSandbox::Path { path: repeated(&text), why });
    let encoded = rest.strip_prefix("localhost").unwrap_or(rest);
    if !encoded.starts_with('/') {
        return bad("is on another machine");
    }
    // Each byte of a path takes at most three bytes in its URI.
    if encoded.len() > 3 * PATH_BYTES_MAX {
        return bad("is too long");
    }
    if encoded.contains(['?', '#']) {
        return bad("is no URI of a file");
    }
    match decode(encoded) {
        Some(path) => absolute(&path),
        None => bad("is not encoded as a URI is"),
    }
}

/// An absolute path without `.` and doubled slashes.
pub(super) fn absolute(text: &str) -> Result<PathBuf, BadSandbox> {
    let bad = |why| Err(BadSandbox::Path { path: repeated(&text), why });
    if text.len() > PATH_BYTES_MAX {
        return bad("is too long");
    }
    if text.contains('\0') {
        return bad("has a NUL in it");
    }
    if !text.starts_with('/') {
        return bad("is not absolute");
    }
    let path = Path::new(text);
    if path.components().any(|part| part == Component::ParentDir) {
        return bad("leads back up");
    }
    Ok(path.components().collect())
}

/// A path below `root`.
pub(super) fn below(root: &Path, text: &str) -> Result<PathBuf, BadSandbox> {
    if text.starts_with('/') {
        return Err(BadSandbox::Path { path: repeated(&text), why: "is not relative" });
    }
    match root.to_str() {
        Some(root) => absolute(&format!("{root}/{text}")),
        None => Err(BadSandbox::Path { path: repeated(&text), why: "is not text" }),
    }
}

fn decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => 16 * digit(bytes.next()?)? + digit(bytes.next()?)?,
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}
