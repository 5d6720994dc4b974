//! The tokens that a door accepts. They are read again whenever their file changes, so a token that was rotated or
//! removed is refused from the next request on.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ring::digest;
use subtle::ConstantTimeEq;
use windlass_audit::{AuditActor, AuditDetails, AuditEntry, AuditLog};
use windlass_client::{NamedTokens, Token, TokenRights, TokenScope};
use windlass_protocol::TokenName;

use super::file_version::FileVersion;
use crate::audit::note_token_changes;
use crate::clock;

/// The node's own token and the named tokens.
#[derive(Debug)]
pub(crate) struct DoorTokens {
    own: CachedFile<Token>,
    named: CachedFile<NamedTokens>,
    audit: AuditLog,
}

/// A valid token that a client has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdmittedToken {
    /// `None` for the node's own token.
    pub name: Option<TokenName>,
    pub rights: TokenRights,
}

impl DoorTokens {
    /// `own` is the file of the node's token and `named` that of the named tokens.
    pub fn new(own: PathBuf, named: PathBuf) -> Self {
        let audit = AuditLog::disabled();
        Self { own: CachedFile::new(own), named: CachedFile::new(named), audit }
    }

    /// Records in this log how the tokens change. A change is seen with the next request.
    pub fn record_changes(&mut self, audit: &AuditLog) {
        self.audit = audit.clone();
        // What the files hold now is no change.
        self.own.with(Token::read, |_, _| {}, |_| {});
        self.named.with(NamedTokens::read, |_, _| {}, |_| {});
    }

    /// A token, if it is one of these and has not expired. The node's own token allows everything.
    pub fn find(&self, token: &str) -> Option<AdmittedToken> {
        let is_own = self.own.with(
            Token::read,
            |_, _| self.note_rotation(),
            |own| bool::from(own.as_str().as_bytes().ct_eq(token.as_bytes())),
        );
        if is_own == Some(true) {
            let rights = TokenRights::of_node(TokenScope::Admin);
            return Some(AdmittedToken { name: None, rights });
        }
        let find = |all: &NamedTokens| {
            let found = all.find(token, clock::now_ms())?;
            let rights = TokenRights { scope: found.scope, tenant: found.tenant.clone() };
            Some(AdmittedToken { name: Some(found.name.clone()), rights })
        };
        let list = |all: Option<&NamedTokens>| all.map(|all| all.list().to_vec());
        let changed = |before: Option<&NamedTokens>, after: Option<&NamedTokens>| {
            let (before, after) = (list(before), list(after));
            note_token_changes(
                &self.audit,
                &before.unwrap_or_default(),
                &after.unwrap_or_default(),
            );
        };
        self.named.with(NamedTokens::read, changed, find).flatten()
    }

    fn note_rotation(&self) {
        let (at_ms, who, what) = (clock::now_ms(), AuditActor::node(), AuditDetails::default());
        self.audit.record(AuditEntry { at_ms, who, did: "token.rotate", session: None, what });
    }

    /// What a client with the token of this hash may do.
    pub fn rights_of_hash(&self, hash: &str) -> Option<TokenRights> {
        let is_own = self.own.with(Token::read, |_, _| {}, |own| sha256(own.as_str()) == hash);
        if is_own == Some(true) {
            return Some(TokenRights::of_node(TokenScope::Admin));
        }
        let now_ms = clock::now_ms();
        let find = |all: &NamedTokens| {
            let mut valid = all.list().iter().filter(|token| token.sha256 == hash);
            let token =
                valid.find(|token| token.expires_at_ms.is_none_or(|expiry| now_ms < expiry))?;
            Some(TokenRights { scope: token.scope, tenant: token.tenant.clone() })
        };
        self.named.with(NamedTokens::read, |_, _| {}, find).flatten()
    }
}

/// The hash of a token, as the file of the named tokens has it.
pub(crate) fn sha256(token: &str) -> String {
    let hash = digest::digest(&digest::SHA256, token.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a file of tokens holds, and the version of the file that it was read from.
#[derive(Debug)]
struct CachedFile<T> {
    path: PathBuf,
    cached: Mutex<CachedContent<T>>,
}

#[derive(Debug)]
struct CachedContent<T> {
    content: Option<T>,
    version: Option<FileVersion>,
}

impl<T> CachedFile<T> {
    fn new(path: PathBuf) -> Self {
        Self { path, cached: Mutex::new(CachedContent { content: None, version: None }) }
    }

    /// Uses what the file holds now. `None` if the file does not exist or cannot be used. `changed` gets what the file
    /// held before, and what it holds, if that is not the same file.
    fn with<E: std::fmt::Display, R>(
        &self,
        read: impl FnOnce(&Path) -> Result<T, E>,
        changed: impl FnOnce(Option<&T>, Option<&T>),
        ask: impl FnOnce(&T) -> R,
    ) -> Option<R> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let version = FileVersion::of(&self.path);
        if version != cached.version {
            let content = version.is_some().then(|| read(&self.path));
            if let Some(Err(error)) = &content {
                tracing::warn!(%error, "cannot read the tokens: the TCP door refuses them");
            }
            let content = content.and_then(Result::ok);
            changed(cached.content.as_ref(), content.as_ref());
            *cached = CachedContent { content, version };
        }
        cached.content.as_ref().map(ask)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use windlass_client::NewToken;
    use windlass_protocol::{TenantName, TokenName};

    use super::*;

    #[test]
    fn a_hash_has_the_rights_of_its_token_until_the_token_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (own, named) = (dir.path().join("token"), dir.path().join("tokens"));
        let tokens = DoorTokens::new(own.clone(), named.clone());
        let node = Token::read_or_make(&own).unwrap();
        let make = |name: &str, tenant: Option<&str>, expires_at_ms| {
            let name = TokenName::parse(name).unwrap();
            let tenant = tenant.map(|tenant| TenantName::parse(tenant).unwrap());
            let scope = TokenScope::Run;
            let new = NewToken { name, scope, tenant, created_at_ms: 0, expires_at_ms };
            NamedTokens::create(&named, new).unwrap()
        };
        let acme = make("acme", Some("acme"), None);
        let past = make("past", None, Some(1));
        let rights = |token: &str| {
            let by_hash = tokens.rights_of_hash(&sha256(token));
            assert_eq!(by_hash, tokens.find(token).map(|found| found.rights));
            by_hash.map(|rights| rights.to_string())
        };
        assert_eq!(rights(node.as_str()).as_deref(), Some("admin"));
        assert_eq!(rights(acme.as_str()).as_deref(), Some("run@acme"));
        assert_eq!(rights(past.as_str()), None);
        assert_eq!(rights(""), None);
        NamedTokens::remove(&named, &TokenName::parse("acme").unwrap()).unwrap();
        assert_eq!(rights(acme.as_str()), None);
        let next = Token::rotate(&own).unwrap();
        assert_eq!(rights(node.as_str()), None);
        assert_eq!(rights(next.as_str()).as_deref(), Some("admin"));
        fs::remove_file(&own).unwrap();
        assert_eq!(rights(next.as_str()), None);
    }
}
