//! Identifiers as types: sessions, turns, sequence numbers. They only check their own validity.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest session or turn id.
pub const ID_CHARS_MAX: usize = 64;

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

/// The id of a session, unique in its node. The client chooses it, or the node generates it. A directory and
/// a socket have this name, so few characters are allowed.
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
    ($name:ident) => {
        impl $name {
            pub fn parse(text: impl Into<String>) -> Result<Self, IdError> {
                let text = text.into();
                check(&text)?;
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
/// them.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct Owner(String);

/// The name of a token of the TCP door.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenName(String);

text_id!(Owner);
text_id!(SessionId);
text_id!(TokenName);
text_id!(TurnId);

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
    fn a_chosen_turn_id_never_looks_like_a_number() {
        assert!(TurnId::chosen("12").is_err());
        assert!(TurnId::chosen("t12").is_ok());
        assert_eq!(TurnId::from_number(TurnNo(12)).as_str(), "12");
    }
}
