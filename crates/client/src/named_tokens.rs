//! Named tokens of the TCP door: each has a scope and may expire. Owns their file, which has the hashes of the tokens
//! and not the tokens. Never decides which request needs which scope.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ring::digest;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use windlass_protocol::{TenantName, TokenName};

use crate::token::{Token, TokenError, read_private, write_private_beside};

/// Maximum number of named tokens of a node.
pub const NAMED_TOKENS_MAX: usize = 64;

/// The version of a file in which no token has a tenant.
const WITHOUT_TENANTS: u32 = 1;

/// The version of a file in which a token may have a tenant. An earlier release refuses such a file: for it, the token of
/// a tenant would be one for all sessions.
const WITH_TENANTS: u32 = 2;

/// Read limit. A file with the maximum number of tokens is shorter.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// What a token allows. Each scope includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenScope {
    /// Requests that show state: lists, events, output, health, metrics.
    Read,
    /// Sessions, turns, files and tools too.
    Run,
    /// Everything.
    Admin,
}

impl TokenScope {
    pub const ALL: [Self; 3] = [Self::Read, Self::Run, Self::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for TokenScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a client may do: the scope of its token, and the tenant to which the token is limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRights {
    pub scope: TokenScope,
    /// Absent: the client is limited to no tenant.
    pub tenant: Option<TenantName>,
}

impl TokenRights {
    /// The rights of a client that is limited to no tenant.
    pub fn of_node(scope: TokenScope) -> Self {
        Self { scope, tenant: None }
    }

    /// Reads what [`fmt::Display`] writes, and nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        let (scope, tenant) = match text.split_once(RIGHTS_SEPARATOR) {
            Some((scope, tenant)) => (scope, Some(TenantName::parse(tenant).ok()?)),
            None => (text, None),
        };
        let scope = TokenScope::ALL.into_iter().find(|one| one.as_str() == scope)?;
        Some(Self { scope, tenant })
    }
}

/// Stands between scope and tenant in the text of [`TokenRights`].
const RIGHTS_SEPARATOR: char = '@';

/// `SCOPE`, or `SCOPE@TENANT`.
impl fmt::Display for TokenRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tenant {
            None => write!(f, "{}", self.scope),
            Some(tenant) => write!(f, "{}{RIGHTS_SEPARATOR}{tenant}", self.scope),
        }
    }
}

/// What is known of a named token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedToken {
    pub name: TokenName,
    pub scope: TokenScope,
    /// Absent: the token is limited to no tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantName>,
    /// SHA-256 of the token, as hexadecimal digits.
    pub sha256: String,
    pub created_at_ms: u64,
    /// From then on the token is refused. Absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
}

/// The named tokens of a node, as their file has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedTokens {
    version: u32,
    tokens: Vec<NamedToken>,
}

/// Why the named tokens cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum NamedTokenError {
    #[error(transparent)]
    File(#[from] TokenError),
    #[error("the file {path} is not a list of tokens: {cause}")]
    Malformed { path: PathBuf, cause: serde_json::Error },
    #[error(
        "the file {path} has version {version}; this release knows versions up to {WITH_TENANTS}"
    )]
    Version { path: PathBuf, version: u32 },
    #[error("there is a token named {0}")]
    Exists(TokenName),
    #[error("there is no token named {0}")]
    NotFound(TokenName),
    #[error("there are {NAMED_TOKENS_MAX} tokens, and no more can be made")]
    TooMany,
}

impl NamedTokenError {
    /// A name that does not change between releases.
    pub fn code(&self) -> &'static str {
        match self {
            Self::File(_) | Self::Malformed { .. } | Self::Version { .. } => "bad_token_file",
            Self::Exists(_) => "token_exists",
            Self::NotFound(_) => "token_not_found",
            Self::TooMany => "too_many_tokens",
        }
    }

    pub fn remedy(&self) -> String {
        match self {
            Self::File(error @ TokenError::Io { .. }) => error.remedy(),
            Self::File(TokenError::Open { path, .. }) => {
                format!("run: chmod 600 {}", path.display())
            }
            Self::File(_) | Self::Malformed { .. } => {
                "remove the file, and make the tokens again with: windlass token create".to_owned()
            }
            Self::Version { .. } => "use the release that wrote it".to_owned(),
            Self::Exists(name) => {
                format!("choose another name, or remove the token with: windlass token rm {name}")
            }
            Self::NotFound(_) => "list the tokens with: windlass token list".to_owned(),
            Self::TooMany => "remove one with: windlass token rm NAME".to_owned(),
        }
    }
}

impl Default for NamedTokens {
    fn default() -> Self {
        Self { version: WITHOUT_TENANTS, tokens: Vec::new() }
    }
}

impl NamedTokens {
    /// Reads the file. There are no tokens if the file does not exist. Only the user may have access to the file.
    pub fn read(path: &Path) -> Result<Self, NamedTokenError> {
        let text = match read_private(path, FILE_BYTES_MAX) {
            Ok(text) => text,
            Err(TokenError::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(error.into()),
        };
        let malformed = |cause| NamedTokenError::Malformed { path: path.to_owned(), cause };
        // The version first: another version may have other fields.
        let VersionOnly { version } = serde_json::from_str(&text).map_err(malformed)?;
        if !(WITHOUT_TENANTS..=WITH_TENANTS).contains(&version) {
            return Err(NamedTokenError::Version { path: path.to_owned(), version });
        }
        serde_json::from_str(&text).map_err(malformed)
    }

    /// Makes a token and stores its hash. The token itself is nowhere else.
    pub fn create(path: &Path, new: NewToken) -> Result<Token, NamedTokenError> {
        let _lock = lock(path)?;
        let mut all = Self::read(path)?;
        if all.tokens.iter().any(|token| token.name == new.name) {
            return Err(NamedTokenError::Exists(new.name));
        }
        if all.tokens.len() >= NAMED_TOKENS_MAX {
            return Err(NamedTokenError::TooMany);
        }
        let token = Token::random();
        let NewToken { name, scope, tenant, created_at_ms, expires_at_ms } = new;
        let sha256 = sha256(token.as_str());
        all.tokens.push(NamedToken { name, scope, tenant, sha256, created_at_ms, expires_at_ms });
        all.write(path)?;
        Ok(token)
    }

    pub fn remove(path: &Path, name: &TokenName) -> Result<(), NamedTokenError> {
        let _lock = lock(path)?;
        let mut all = Self::read(path)?;
        let before = all.tokens.len();
        all.tokens.retain(|token| token.name != *name);
        if all.tokens.len() == before {
            return Err(NamedTokenError::NotFound(name.clone()));
        }
        all.write(path)
    }

    pub fn list(&self) -> &[NamedToken] {
        &self.tokens
    }

    /// The rights of this token, if it is known and has not expired. The time does not depend on the token.
    pub fn rights_of(&self, candidate: &str, now_ms: u64) -> Option<TokenRights> {
        let token = self.find(candidate, now_ms)?;
        Some(TokenRights { scope: token.scope, tenant: token.tenant.clone() })
    }

    /// What is known of this token, if it has not expired. The time does not depend on the token.
    pub fn find(&self, candidate: &str, now_ms: u64) -> Option<&NamedToken> {
        let hash = sha256(candidate);
        let mut found = None;
        for token in &self.tokens {
            let matches: bool = token.sha256.as_bytes().ct_eq(hash.as_bytes()).into();
            let valid = token.expires_at_ms.is_none_or(|expiry| now_ms < expiry);
            if matches && valid {
                found = Some(token);
            }
        }
        found
    }

    /// Writes the file, with the lowest version that can hold the tokens.
    fn write(&mut self, path: &Path) -> Result<(), NamedTokenError> {
        let has_tenants = self.tokens.iter().any(|token| token.tenant.is_some());
        self.version = if has_tenants { WITH_TENANTS } else { WITHOUT_TENANTS };
        let text = serde_json::to_string_pretty(self).expect("names and numbers are JSON");
        let made = write_private_beside(path, &text)?;
        fs::rename(&made, path).map_err(|cause| {
            let _ = fs::remove_file(&made);
            TokenError::Io { act: "replace", path: path.to_owned(), cause }.into()
        })
    }
}

/// The request for a token.
#[derive(Debug, Clone)]
pub struct NewToken {
    pub name: TokenName,
    pub scope: TokenScope,
    /// The tenant to which the token is limited.
    pub tenant: Option<TenantName>,
    pub created_at_ms: u64,
    pub expires_at_ms: Option<u64>,
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// Lets one process change the file at a time. Dropping the file releases the lock.
fn lock(path: &Path) -> Result<File, TokenError> {
    let failed = |cause| TokenError::Io { act: "lock", path: path.to_owned(), cause };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path.with_extension("lock"))
        .map_err(failed)?;
    let locked = rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
    locked.map_err(|errno| failed(errno.into()))?;
    Ok(file)
}

fn sha256(text: &str) -> String {
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn new(name: &str, scope: TokenScope, expires_at_ms: Option<u64>) -> NewToken {
        let name = TokenName::parse(name).unwrap();
        NewToken { name, scope, tenant: None, created_at_ms: 10, expires_at_ms }
    }

    #[test]
    fn a_token_has_its_scope_until_it_expires_or_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        assert_eq!(NamedTokens::read(&path).unwrap(), NamedTokens::default());
        let grafana = new("grafana", TokenScope::Read, Some(100));
        let read = NamedTokens::create(&path, grafana).unwrap();
        let run = NamedTokens::create(&path, new("ci", TokenScope::Run, None)).unwrap();
        let again = NamedTokens::create(&path, new("ci", TokenScope::Admin, None)).unwrap_err();
        assert_eq!(again.code(), "token_exists");

        let all = NamedTokens::read(&path).unwrap();
        for (token, now_ms, scope) in [
            (read.as_str(), 99, Some(TokenScope::Read)),
            (read.as_str(), 100, None),
            (run.as_str(), u64::MAX, Some(TokenScope::Run)),
            ("", 0, None),
            (&*all.list()[0].sha256, 0, None),
        ] {
            let rights = scope.map(TokenRights::of_node);
            assert_eq!(all.rights_of(token, now_ms), rights, "{token} at {now_ms}");
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(read.as_str()) && !text.contains(run.as_str()), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);

        let ci = TokenName::parse("ci").unwrap();
        NamedTokens::remove(&path, &ci).unwrap();
        assert_eq!(NamedTokens::read(&path).unwrap().rights_of(run.as_str(), 0), None);
        assert_eq!(NamedTokens::remove(&path, &ci).unwrap_err().code(), "token_not_found");
    }

    #[test]
    fn a_file_with_the_token_of_a_tenant_is_refused_by_earlier_releases() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let acme = TenantName::parse("acme").unwrap();
        let version = || NamedTokens::read(&path).unwrap().version;
        NamedTokens::create(&path, new("own", TokenScope::Run, None)).unwrap();
        assert_eq!(version(), WITHOUT_TENANTS);
        let of_acme = NewToken { tenant: Some(acme.clone()), ..new("a", TokenScope::Admin, None) };
        let token = NamedTokens::create(&path, of_acme).unwrap();
        assert_eq!(version(), WITH_TENANTS);
        let rights = NamedTokens::read(&path).unwrap().rights_of(token.as_str(), 0);
        assert_eq!(rights, Some(TokenRights { scope: TokenScope::Admin, tenant: Some(acme) }));
        NamedTokens::remove(&path, &TokenName::parse("a").unwrap()).unwrap();
        assert_eq!(version(), WITHOUT_TENANTS);
    }

    #[test]
    fn rights_are_read_as_they_are_written_and_in_no_other_form() {
        for text in ["read", "run", "admin", "read@acme", "admin@a-1"] {
            assert_eq!(TokenRights::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "Run", "run ", "run@", "run@Acme", "run@a@b", "@acme", "acme", "run,run"] {
            assert_eq!(TokenRights::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_number_of_tokens_is_bounded_and_the_file_is_readable_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let token = |number: usize| NamedToken {
            name: TokenName::parse(format!("{number:0>64}")).unwrap(),
            scope: TokenScope::Admin,
            tenant: TenantName::parse("t".repeat(32)).ok(),
            sha256: "0".repeat(64),
            created_at_ms: u64::MAX,
            expires_at_ms: Some(u64::MAX),
        };
        let tokens = (0..NAMED_TOKENS_MAX).map(token).collect();
        NamedTokens { version: WITH_TENANTS, tokens }.write(&path).unwrap();
        assert_eq!(NamedTokens::read(&path).unwrap().list().len(), NAMED_TOKENS_MAX);
        let more = NamedTokens::create(&path, new("more", TokenScope::Read, None));
        assert_eq!(more.unwrap_err().code(), "too_many_tokens");
    }

    #[test]
    fn a_file_of_another_version_or_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        for (text, mode, expected) in [
            ("{\"version\":3,\"tokens\":7}", 0o600, "has version 3"),
            ("{\"version\":1,\"tokens\":7}", 0o600, "not a list of tokens"),
            ("", 0o600, "not a list of tokens"),
            ("{\"version\":1,\"tokens\":[]}", 0o640, "can be read by others"),
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = NamedTokens::read(&path).unwrap_err();
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }
}
