//! Session names. A name is made of the client, its directory and its policy. So the next process
//! of the same agent in the same directory finds the same session, and another client does not find
//! it by chance.
//!
//! `claude-code-shop-1f2e3d4c` is a client's default session, `claude-code-shop-1f2e3d4c-plots` its
//! session `plots`. Ids are used once; `..._2` is the second session of a name.

use std::ffi::OsStr;
use std::path::Path;

use windlass_protocol::agent::PermissionPolicy;
use windlass_protocol::ids::TENANT_SEPARATOR;
use windlass_protocol::policy::PolicyRequest;
use windlass_protocol::{SessionId, TenantName};

use crate::fault::Fault;

/// The longest parts of a name. Together with the digest they fit into an id.
const CLIENT_CHARS_MAX: usize = 12;
const PLACE_CHARS_MAX: usize = 16;
const OWN_CHARS_MAX: usize = 20;

/// Separates a name from its use number. No name contains it.
const AGAIN: char = '_';

/// The common prefix of a client's session names, and the tenant of the door's token. The node adds the tenant to the ids
/// of its sessions. Without a tenant, a session of some tenant is never the client's own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SessionScope(String, Option<TenantName>);

/// Which session a call refers to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum SessionTarget {
    /// A session of the client, by its name without a number. If there is none, the session of any
    /// client whose whole id is `or`.
    Own { name: String, or: Option<SessionId> },
    /// A session of any client, by its full id.
    ById(SessionId),
}

impl SessionScope {
    pub fn of(client: &str, workspace: Option<&Path>, policy: Option<&PolicyRequest>) -> Self {
        let client = plain(client.trim_end_matches("-mcp-client"), CLIENT_CHARS_MAX, "mcp");
        let path = workspace.map(Path::to_string_lossy).unwrap_or_default();
        let name = workspace.and_then(Path::file_name).map(OsStr::to_string_lossy);
        let place = plain(&name.unwrap_or_default(), PLACE_CHARS_MAX, "shared");
        // Another policy means another session, so all of the policy goes into the digest.
        let policy = policy.map_or_else(String::new, |policy| {
            serde_json::to_string(policy).expect("a policy always serialises")
        });
        let digest = crc32fast::hash(format!("{path}\n{policy}").as_bytes());
        Self(format!("{client}-{place}-{digest:08x}"), None)
    }

    /// The scope of the same client whose token has this tenant.
    pub fn with_tenant(self, tenant: Option<&TenantName>) -> Self {
        Self(self.0, tenant.cloned())
    }

    /// The scope of the same client for agents whose permissions somebody else answers.
    pub fn with_permissions(self, permissions: Option<PermissionPolicy>) -> Self {
        let Some(permissions) = permissions else { return self };
        self.distinguished_by(&permissions.to_string())
    }

    /// The scope of the same client for sessions whose code may install packages.
    pub fn with_packages(self, allow_packages: bool) -> Self {
        if allow_packages { self.distinguished_by("allow_packages") } else { self }
    }

    /// Another scope with the same readable part.
    fn distinguished_by(self, setting: &str) -> Self {
        let digest = crc32fast::hash(format!("{}\n{setting}", self.0).as_bytes());
        let place = self.0.rsplit_once('-').map_or("", |(place, _)| place);
        Self(format!("{place}-{digest:08x}"), self.1)
    }

    /// The sessions that run the code of a session's agent.
    pub fn of_children(parent: &SessionId) -> Self {
        let place = plain(parent.as_str(), PLACE_CHARS_MAX, "agent");
        Self(format!("{place}-{:08x}", crc32fast::hash(parent.as_str().as_bytes())), None)
    }

    /// The session for the given name, or the default session if there is none. Text that can only
    /// be a full id is used as an id.
    pub fn session(&self, name: Option<&str>) -> Result<SessionTarget, Fault> {
        let own = |name: &str| SessionTarget::Own { name: name.to_owned(), or: None };
        let Some(name) = name else { return Ok(own(&self.0)) };
        let name = self.without_tenant(name);
        let below = name.strip_prefix(&self.0).unwrap_or_default();
        if name == self.0 {
            return Ok(own(name));
        }
        if below.starts_with(AGAIN) || (below.starts_with('-') && below.contains(AGAIN)) {
            return SessionId::parse(name).map(SessionTarget::ById).map_err(|_| bad_name(name));
        }
        if below.starts_with('-') {
            return Ok(own(name));
        }
        let short = name.len() <= OWN_CHARS_MAX
            && !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        match short {
            true => {
                let or = SessionId::parse(name).ok();
                Ok(SessionTarget::Own { name: format!("{}-{name}", self.0), or })
            }
            // Not a valid name, but perhaps a full id.
            false => SessionId::parse(name).map(SessionTarget::ById).map_err(|_| bad_name(name)),
        }
    }

    pub fn owns(&self, id: &SessionId) -> bool {
        let id = self.without_tenant(id.as_str());
        let rest = id.strip_prefix(&self.0).filter(|_| !id.contains(TENANT_SEPARATOR));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', AGAIN]))
    }

    /// The use number of `name` in an id; `None` if the id has another name.
    pub fn use_of(&self, name: &str, id: &SessionId) -> Option<u32> {
        match self.without_tenant(id.as_str()).strip_prefix(name)? {
            "" => Some(1),
            rest => rest.strip_prefix(AGAIN)?.parse().ok(),
        }
    }

    /// An id without the tenant of the door's token.
    fn without_tenant<'a>(&self, id: &'a str) -> &'a str {
        let Some(tenant) = &self.1 else { return id };
        let name =
            id.strip_suffix(tenant.as_str()).and_then(|id| id.strip_suffix(TENANT_SEPARATOR));
        name.unwrap_or(id)
    }
}

fn bad_name(name: &str) -> Fault {
    Fault::Arguments(format!(
        "a session's name has up to {OWN_CHARS_MAX} letters, digits and '-', unlike {name:?}"
    ))
}

/// The session id for use number `number` of a name.
pub(crate) fn id_of(name: &str, number: u32) -> Result<SessionId, Fault> {
    let text = if number <= 1 { name.to_owned() } else { format!("{name}{AGAIN}{number}") };
    SessionId::parse(text).map_err(|_| bad_name(name))
}

/// Reduces `text` to lowercase letters, digits and single dashes.
fn plain(text: &str, chars_max: usize, otherwise: &str) -> String {
    let mut plain = String::new();
    for letter in text.chars().map(|letter| letter.to_ascii_lowercase()) {
        if letter.is_ascii_alphanumeric() {
            plain.push(letter);
        } else if !plain.is_empty() && !plain.ends_with('-') {
            plain.push('-');
        }
    }
    plain.truncate(chars_max);
    let plain = plain.trim_matches('-');
    if plain.is_empty() { otherwise.to_owned() } else { plain.to_owned() }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::policy::Preset;

    use super::*;

    fn own(scope: &SessionScope, name: Option<&str>) -> String {
        match scope.session(name) {
            Ok(SessionTarget::Own { name, .. }) => name,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_scope_is_of_a_client_a_place_and_a_policy() {
        let at = |client, path: &str| SessionScope::of(client, Some(Path::new(path)), None);
        let shop = at("codex-mcp-client", "/srv/My Shop");
        assert!(shop.0.starts_with("codex-my-shop-"), "{}", shop.0);
        assert_eq!(shop, at("codex-mcp-client", "/srv/My Shop"));
        assert_ne!(shop, at("codex-mcp-client", "/opt/My Shop"));
        assert_ne!(shop, at("claude-code", "/srv/My Shop"));
        let policy = PolicyRequest { preset: Some(Preset::ReadOnly), ..PolicyRequest::default() };
        let strict =
            SessionScope::of("codex-mcp-client", Some(Path::new("/srv/My Shop")), Some(&policy));
        assert_ne!(shop, strict);
        assert!(SessionScope::of("Ünïcode!", None, None).0.starts_with("n-code-shared-"));
        assert!(SessionScope::of("", None, None).0.starts_with("mcp-shared-"));
        let parent = |text: &str| SessionScope::of_children(&SessionId::parse(text).unwrap());
        assert!(parent("sabc").0.starts_with("sabc-"), "{:?}", parent("sabc"));
        assert_ne!(parent("sabc"), parent("SABC"));
        let asks = shop.clone().with_permissions(Some(PermissionPolicy::Ask));
        assert_ne!(shop, asks);
        assert_eq!(shop.0.len(), asks.0.len());
        assert_eq!(shop.clone().with_permissions(None), shop);
        // A session whose code installs packages is no session of a door that does not allow that.
        assert_ne!(shop.clone().with_packages(true), shop);
        assert_eq!(shop.clone().with_packages(false), shop);
    }

    #[test]
    fn every_name_in_a_scope_fits_into_an_id() {
        let long = "x".repeat(300);
        let scope = SessionScope::of(&long, Some(Path::new(&format!("/{long}"))), None);
        let name = own(&scope, Some(&"y".repeat(OWN_CHARS_MAX)));
        assert!(id_of(&name, 9999).is_ok(), "{name}");
    }

    #[test]
    fn a_name_is_meant_in_the_scope_and_a_whole_id_as_it_is() {
        let scope = SessionScope::of("a", Some(Path::new("/b")), None);
        let default = own(&scope, None);
        assert_eq!(own(&scope, Some("plots")), format!("{default}-plots"));
        assert_eq!(own(&scope, Some(&default)), default);
        assert_eq!(own(&scope, Some(&format!("{default}-plots"))), format!("{default}-plots"));
        let second = format!("{default}_2");
        assert_eq!(
            scope.session(Some(&second)).unwrap(),
            SessionTarget::ById(SessionId::parse(second).unwrap())
        );
        let other = "another-client-somewhere-12345678";
        assert_eq!(
            scope.session(Some(other)).unwrap(),
            SessionTarget::ById(SessionId::parse(other).unwrap())
        );
        // A short word may be a name or an id.
        let either = scope.session(Some("sabcdefghij")).unwrap();
        let (name, or) = (format!("{default}-sabcdefghij"), SessionId::parse("sabcdefghij").ok());
        assert_eq!(either, SessionTarget::Own { name, or });
        assert!(scope.session(Some("a/b")).is_err());
        assert!(scope.session(Some("")).is_err());
    }

    #[test]
    fn the_uses_of_a_name_are_counted() {
        let id = |text: &str| SessionId::parse(text).unwrap();
        let scope = SessionScope::of("a", None, None);
        assert_eq!(scope.use_of("a-b", &id("a-b")), Some(1));
        assert_eq!(scope.use_of("a-b", &id("a-b_12")), Some(12));
        assert_eq!(scope.use_of("a-b", &id("a-b-c")), None);
        assert_eq!(scope.use_of("a-b", &id("a-bc")), None);
        assert_eq!(id_of("a-b", 1).unwrap(), id("a-b"));
        assert_eq!(id_of("a-b", 3).unwrap(), id("a-b_3"));
    }

    #[test]
    fn the_ids_of_a_tenant_are_own_ones_only_with_a_token_of_the_tenant() {
        let id = |text: String| SessionId::parse(text).unwrap();
        let acme = TenantName::parse("acme").unwrap();
        let of_node = SessionScope::of("a", None, None);
        let of_acme = of_node.clone().with_tenant(Some(&acme));
        let default = own(&of_node, None);
        for (text, expected) in [
            (format!("{default}@acme"), Some(1)),
            (format!("{default}_2@acme"), Some(2)),
            (format!("{default}@other"), None),
        ] {
            let id = id(text);
            assert_eq!(of_acme.use_of(&default, &id), expected, "{id}");
            assert_eq!(of_acme.owns(&id), expected.is_some(), "{id}");
            assert_eq!(of_node.use_of(&default, &id), None, "{id}");
        }
        for text in [format!("{default}@acme"), format!("{default}-plots@acme")] {
            assert!(!of_node.owns(&id(text)));
        }
        // A whole id, as replies show it.
        assert_eq!(
            own(&of_acme, Some(&format!("{default}-plots@acme"))),
            format!("{default}-plots")
        );
    }
}
