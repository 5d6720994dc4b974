//! Identifiers as types: sessions, turns, sequence numbers. They only check their own validity.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest session or turn id.
pub const ID_CHARS_MAX: usize = 64;

/// The longest name of a tenant. It is a part of the ids of the tenant's sessions.
pub const TENANT_CHARS_MAX: usize = 32;

/// The longest name of a client.
pub const CLIENT_CHARS_MAX: usize = 64;

/// Maximum number of characters of a wrong name that its error repeats.
const ECHO_CHARS_MAX: usize = 80;

/// Stands between the name of a session or an owner and the name of its tenant.
pub const TENANT_SEPARATOR: char = '@';

/// Why a text is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("an id has 1 to {ID_CHARS_MAX} characters, not {0}")]
    Length(usize),
    #[error(
        "{0:?} is not an id: use letters, digits, '-' and '_', and start with a letter or digit"
    )]
    Character(String),
    #[error(
        "{0:?} is not a turn id that a client can choose: use at least one non-digit character"
    )]
    OnlyDigits(String),
    #[error(
        "{0:?} is not the name of a tenant: use 1 to {TENANT_CHARS_MAX} of a-z, 0-9, '-' and '_', and start with a letter or digit"
    )]
    Tenant(String),
    #[error("{0} is the name of another tenant's session or owner")]
    OtherTenant(String),
    #[error(
        "{0:?} is not the name of a client: use 1 to {CLIENT_CHARS_MAX} printable ASCII characters, without a space at an end"
    )]
    Client(String),
}

fn check(text: &str) -> Result<(), IdError> {
    if text.is_empty() || text.len() > ID_CHARS_MAX {
        return Err(IdError::Length(text.len()));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !text.bytes().all(allowed) || !text.as_bytes()[0].is_ascii_alphanumeric() {
        return Err(IdError::Character(text.to_owned()));
    }
    Ok(())
}

/// Checks the name of a session or an owner, which may end with the name of its tenant: `NAME@TENANT`.
fn check_named(text: &str) -> Result<(), IdError> {
    let Some((name, tenant)) = text.split_once(TENANT_SEPARATOR) else { return check(text) };
    if text.len() > ID_CHARS_MAX {
        return Err(IdError::Length(text.len()));
    }
    check(name)?;
    check_tenant(tenant)
}

fn check_tenant(text: &str) -> Result<(), IdError> {
    let allowed = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
    };
    let is_name = (1..=TENANT_CHARS_MAX).contains(&text.len())
        && text.bytes().all(allowed)
        && text.as_bytes()[0].is_ascii_alphanumeric();
    if is_name { Ok(()) } else { Err(IdError::Tenant(echo(text))) }
}

fn check_client(text: &str) -> Result<(), IdError> {
    let is_name = (1..=CLIENT_CHARS_MAX).contains(&text.len())
        && text.bytes().all(is_printable)
        && text.trim() == text;
    if is_name { Ok(()) } else { Err(IdError::Client(echo(text))) }
}

/// The begin of a text that a client sent, which may be of any length.
fn echo(text: &str) -> String {
    text.chars().take(ECHO_CHARS_MAX).collect()
}

fn is_printable(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte)
}

/// The name within a tenant: `NAME` and `NAME@TENANT` become `NAME@TENANT`. A name of another tenant is an error, which
/// does not depend on whether it is in use.
fn name_within(text: &str, tenant: &TenantName) -> Result<String, IdError> {
    match text.split_once(TENANT_SEPARATOR) {
        None => Ok(format!("{text}{TENANT_SEPARATOR}{tenant}")),
        Some((_, of)) if of == tenant.as_str() => Ok(text.to_owned()),
        Some(_) => Err(IdError::OtherTenant(echo(text))),
    }
}

/// The id of a session, unique in its node. The client chooses it, or the node generates it. A directory and
/// a socket have this name, so few characters are allowed. The id of a tenant's session is `NAME@TENANT`: the tenant is
/// a part of the id, so it holds wherever the id is recorded.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

/// The id of a turn, unique in its session. The client chooses it, or it is the turn's number in decimal. A
/// turn that is sent twice with the same chosen id runs once.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct TurnId(String);

impl TurnId {
    /// Checks an id that a client chose for a new turn. Ids of only digits are reserved for the node.
    pub fn chosen(text: impl Into<String>) -> Result<Self, IdError> {
        let id = Self::parse(text)?;
        if id.0.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(IdError::OnlyDigits(id.0));
        }
        Ok(id)
    }

    pub fn from_number(number: TurnNo) -> Self {
        Self(number.0.to_string())
    }
}

macro_rules! text_id {
    ($name:ident, $check:ident) => {
        impl $name {
            pub fn parse(text: impl Into<String>) -> Result<Self, IdError> {
                let text = text.into();
                $check(&text)?;
                Ok(Self(text))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }
    };
}
/// The owner of sessions: a name that a client gives to its sessions, so that it can offer tools to all of
/// them. An owner of a tenant is `NAME@TENANT`.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct Owner(String);

/// The name that a program gives itself when it creates a session. It is shown to people and decides nothing.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct ClientName(String);

impl ClientName {
    /// The part of a program's own name that can be a client's name. `None` if nothing of it can.
    pub fn of_program(text: &str) -> Option<Self> {
        let printable = text.chars().filter(|c| c.is_ascii() && !c.is_ascii_control());
        let cut: String = printable.take(CLIENT_CHARS_MAX).collect();
        Self::parse(cut.trim()).ok()
    }
}

/// The name of a token of the TCP door.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenName(String);

/// The name of a node in its fleet. It is a part of subjects and of certificates' names, so few characters are allowed.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

/// The name of a tenant: clients that see and use only what is their own.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct TenantName(String);

text_id!(ClientName, check_client);
text_id!(NodeName, check);
text_id!(Owner, check_named);
text_id!(SessionId, check_named);
text_id!(TenantName, check_tenant);
text_id!(TokenName, check);
text_id!(TurnId, check);

macro_rules! of_tenant {
    ($name:ident) => {
        impl $name {
            /// What this text names for a client of a tenant, which may leave the tenant's name out.
            pub fn within(text: &str, tenant: &TenantName) -> Result<Self, IdError> {
                Self::parse(name_within(text, tenant)?)
            }

            pub fn tenant(&self) -> Option<TenantName> {
                let (_, tenant) = self.0.split_once(TENANT_SEPARATOR)?;
                Some(TenantName(tenant.to_owned()))
            }

            /// Whether it belongs to this tenant, or to none.
            pub fn is_of(&self, tenant: Option<&TenantName>) -> bool {
                let own = self.0.split_once(TENANT_SEPARATOR).map(|(_, tenant)| tenant);
                own == tenant.map(TenantName::as_str)
            }
        }
    };
}
of_tenant!(Owner);
of_tenant!(SessionId);

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize,
            Deserialize, JsonSchema, ToSchema,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
counter!(
    /// The number of a turn in its session, from 1, in the order accepted. Workers know turns by this number.
    TurnNo
);
counter!(
    /// The number of a host tool call, which the worker assigns. A fresh worker starts from 1 again, so only
    /// turn and call together identify a call.
    CallNo
);
counter!(
    /// The sequence number of an event in its session, from 1. Clients resume from it.
    Seq
);
counter!(
    /// The sequence number of an event among the events of one keeper, from 1. The node acknowledges events
    /// by it.
    LinkSeq
);
counter!(
    /// The fencing token of a session's owner: a keeper obeys no node with a lower epoch. A node that takes
    /// over a session raises it.
    Epoch
);
counter!(
    /// How often a node has begun anew in its fleet, from 1. All sessions of an earlier generation have ended.
    Generation
);
counter!(
    /// The revision of a record in the fleet's store. 0 means that there is no record.
    Revision
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_hold_only_what_a_file_name_and_a_url_can_carry() {
        for good in ["a", "A-1_b", "0", &"x".repeat(64)] {
            assert!(SessionId::parse(good).is_ok(), "{good:?}");
        }
        for bad in ["", "-a", "_a", "a/b", "a.b", "é", "a b", &"x".repeat(65)] {
            assert!(SessionId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_id_of_a_tenants_session_ends_with_the_tenant() {
        let longest = "t".repeat(TENANT_CHARS_MAX);
        for good in ["a@b", "A-1_b@acme-2", &format!("a@{longest}")] {
            assert!(SessionId::parse(good).is_ok() && Owner::parse(good).is_ok(), "{good:?}");
            assert!(NodeName::parse(good).is_err() && TurnId::parse(good).is_err(), "{good:?}");
        }
        let long = format!("{}@{longest}", "x".repeat(32));
        for bad in ["@a", "a@", "a@B", "a@b@c", "a@-b", "a@b c", &format!("a@{longest}t"), &long] {
            assert!(SessionId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_error_repeats_only_the_begin_of_a_long_name() {
        let long = "é".repeat(30_000);
        let echoed = "é".repeat(ECHO_CHARS_MAX);
        assert_eq!(ClientName::parse(&*long), Err(IdError::Client(echoed.clone())));
        assert_eq!(TenantName::parse(&*long), Err(IdError::Tenant(echoed)));
    }

    #[test]
    fn a_tenant_names_only_what_is_its_own() {
        let acme = TenantName::parse("acme").unwrap();
        for (text, expected) in [
            ("dev", Some("dev@acme")),
            ("dev@acme", Some("dev@acme")),
            ("dev@other", None),
            ("dev@acme@other", None),
            ("dev@other@acme", None),
            ("dev@ACME", None),
            ("@acme", None),
            ("", None),
        ] {
            let found = SessionId::within(text, &acme).ok();
            assert_eq!(found.as_ref().map(SessionId::as_str), expected, "{text:?}");
            assert!(found.is_none_or(|id| id.tenant().as_ref() == Some(&acme)), "{text:?}");
        }
        let (own, none) = (SessionId::parse("a@acme").unwrap(), SessionId::parse("a").unwrap());
        assert!(own.is_of(Some(&acme)) && !own.is_of(None));
        assert!(none.is_of(None) && !none.is_of(Some(&acme)) && none.tenant().is_none());
    }

    #[test]
    fn the_name_of_a_client_can_be_a_header_and_a_line_of_a_terminal() {
        let long = "x".repeat(CLIENT_CHARS_MAX + 1);
        for (text, is_name, of_program) in [
            ("claude-code", true, Some("claude-code")),
            ("My Agent/1.2 (x)", true, Some("My Agent/1.2 (x)")),
            ("", false, None),
            (" ", false, None),
            (" a ", false, Some("a")),
            ("a\u{1b}[2Jb", false, Some("a[2Jb")),
            ("größe", false, Some("gre")),
            ("日本", false, None),
            (long.as_str(), false, Some(&long[1..])),
        ] {
            assert_eq!(ClientName::parse(text).is_ok(), is_name, "{text:?}");
            let found = ClientName::of_program(text);
            assert_eq!(found.as_ref().map(ClientName::as_str), of_program, "{text:?}");
        }
    }

    #[test]
    fn a_chosen_turn_id_never_looks_like_a_number() {
        assert!(TurnId::chosen("12").is_err());
        assert!(TurnId::chosen("t12").is_ok());
        assert_eq!(TurnId::from_number(TurnNo(12)).as_str(), "12");
    }
}
