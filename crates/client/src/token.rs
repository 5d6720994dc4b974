//! The token of the TCP door: random, opaque, in a file that only its user can read. Owns that
//! file, and keeps the token out of debug output.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Random bytes in a token.
const TOKEN_BYTES: usize = 32;

/// Length of a token: its bytes as hexadecimal digits.
const TOKEN_LETTERS: usize = 2 * TOKEN_BYTES;

/// Read limit; a token file is shorter.
const FILE_BYTES_MAX: u64 = 4096;

/// The secret for a node's TCP door. Only [`Token::as_str`] shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Why a token cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("cannot {act} the token file {path}: {cause}")]
    Io { act: &'static str, path: PathBuf, cause: io::Error },
    #[error("the token file {path} can be read by others (mode {mode:o})")]
    Open { path: PathBuf, mode: u32 },
    #[error("the token file {path} belongs to user {owner}")]
    Foreign { path: PathBuf, owner: u32 },
    #[error("the token file {path} holds no token")]
    Malformed { path: PathBuf },
}

impl TokenError {
    pub fn remedy(&self) -> String {
        match self {
            Self::Io { path, .. } => format!("make {} readable for yourself", path.display()),
            Self::Open { .. } | Self::Foreign { .. } | Self::Malformed { .. } => {
                "make a new one with: windlass token --rotate".to_owned()
            }
        }
    }
}

impl Token {
    /// Parses a token that a user passed; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let whole = text.len() == TOKEN_LETTERS && text.bytes().all(|b| b.is_ascii_hexdigit());
        whole.then(|| Self(text.to_owned()))
    }

    /// Reads the token from its file. Only the user may have access to that file.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let text = read_private(path, FILE_BYTES_MAX)?;
        Self::parse(&text).ok_or_else(|| TokenError::Malformed { path: path.to_owned() })
    }

    /// A new random token.
    pub(crate) fn random() -> Self {
        Self(crate::random::hex::<TOKEN_BYTES>())
    }

    /// Reads the token from its file, and creates it first if the file does not exist. If several
    /// processes do so at once, the first one's token stays.
    pub fn read_or_make(path: &Path) -> Result<Self, TokenError> {
        if !fs::exists(path).unwrap_or(true) {
            let (_, made) = Self::write_beside(path)?;
            let linked = fs::hard_link(&made, path);
            let _ = fs::remove_file(&made);
            match linked {
                Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(TokenError::Io { act: "make", path: path.to_owned(), cause });
                }
                _ => {}
            }
        }
        Self::read(path)
    }

    /// Replaces the token with a new one.
    pub fn rotate(path: &Path) -> Result<Self, TokenError> {
        let (token, made) = Self::write_beside(path)?;
        match fs::rename(&made, path) {
            Ok(()) => Ok(token),
            Err(cause) => {
                let _ = fs::remove_file(&made);
                Err(TokenError::Io { act: "replace", path: path.to_owned(), cause })
            }
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Writes a new token to a temporary file, so that other processes never see half a token.
    fn write_beside(path: &Path) -> Result<(Self, PathBuf), TokenError> {
        let token = Self::random();
        let beside = write_private_beside(path, &token.0)?;
        Ok((token, beside))
    }
}

/// The text of a file to which only this user has access. A longer text is cut.
pub(crate) fn read_private(path: &Path, bytes_max: u64) -> Result<String, TokenError> {
    let failed = |cause| TokenError::Io { act: "read", path: path.to_owned(), cause };
    let opened = File::open(path).map_err(failed)?;
    let file = opened.metadata().map_err(failed)?;
    let path = path.to_owned();
    if file.uid() != rustix::process::geteuid().as_raw() {
        return Err(TokenError::Foreign { path, owner: file.uid() });
    }
    if file.mode() & 0o077 != 0 {
        return Err(TokenError::Open { path, mode: file.mode() & 0o777 });
    }
    let mut text = String::new();
    match opened.take(bytes_max).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(_) => Err(TokenError::Malformed { path }),
    }
}

/// Writes a text with a newline to a new file of mode 600 beside `path`. Returns the new file's path.
pub(crate) fn write_private_beside(path: &Path, text: &str) -> Result<PathBuf, TokenError> {
    let beside = path.with_extension(format!("new-{}", crate::random::hex::<8>()));
    let written = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| writeln!(file, "{text}"));
    match written {
        Ok(()) => Ok(beside),
        Err(cause) => {
            let _ = fs::remove_file(&beside);
            Err(TokenError::Io { act: "write", path: path.to_owned(), cause })
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_made_once_for_its_user_alone_and_replaced_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let first = Token::read_or_make(&path).unwrap();
        assert_eq!(first.as_str().len(), TOKEN_LETTERS);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Token::read_or_make(&path).unwrap(), first);
        let second = Token::rotate(&path).unwrap();
        assert_ne!(second, first);
        assert_eq!(Token::read(&path).unwrap(), second);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_token_file_that_others_can_read_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        Token::rotate(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Token::read(&path).unwrap_err();
        assert!(matches!(error, TokenError::Open { mode: 0o640, .. }), "{error:?}");
    }

    #[test]
    fn a_token_does_not_show_itself() {
        let token = Token::parse(&"ab".repeat(TOKEN_BYTES)).unwrap();
        assert_eq!(format!("{token:?}"), "Token(..)");
        for text in ["", "ab", &"g".repeat(TOKEN_LETTERS), &"a".repeat(TOKEN_LETTERS + 1)] {
            assert_eq!(Token::parse(text), None, "{text:?}");
        }
    }
}
