//! Identifiers, as types: a session, a turn, a place in a sequence. They carry no behaviour but
//! their own validity.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest session or turn id.
pub const ID_CHARS_MAX: usize = 64;

/// Why a text cannot be an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("an id is 1 to {ID_CHARS_MAX} characters long, not {0}")]
    Length(usize),
    #[error(
        "an id holds letters, digits, '-' and '_' and starts with a letter or digit, unlike {0:?}"
    )]
    Character(String),
    #[error("a chosen turn id holds at least one character that is not a digit, unlike {0:?}")]
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

/// A session's name, unique in its node: chosen by the client or made by the node. It names a
/// directory and a socket, so its characters are few.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

/// A turn's name, unique in its session: chosen by the client (then sending it twice runs it once)
/// or its number in decimal.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct TurnId(String);

impl TurnId {
    /// An id for a new turn chosen by a client. Numbers alone are kept for the node's own ids.
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
/// Whose sessions these are: a name that a client gives to those it makes, so that it can offer tools
/// to all of them.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct Owner(String);

text_id!(Owner);
text_id!(SessionId);
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
    /// A turn's place in its session, from 1, in the order accepted. Workers know turns by it.
    TurnNo
);
counter!(
    /// A host tool call's number, the worker's own. A fresh worker counts from 1 again, so only a
    /// turn and a call together name one.
    CallNo
);
counter!(
    /// An event's place in its session, from 1. What clients see and resume from.
    Seq
);
counter!(
    /// An event's place in what one keeper has said, from 1. What node and keeper acknowledge by.
    LinkSeq
);
counter!(
    /// The fencing token of a session's owner: a keeper obeys no node of a lower epoch. A node that takes a session
    /// over raises it.
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
