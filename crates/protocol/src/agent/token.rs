//! The token that resumes an agent's conversation: the engine and the engine's own id, as `codex:0199a213`.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A worker claims a token with a call of the node's tool of this name, followed by the token. The name is in the
/// journal before the call is answered, so the next node knows which turn holds which token.
pub const CLAIM_PREFIX: &str = "windlass.agent_claim/";

/// Maximum bytes of an engine's name.
const ENGINE_BYTES_MAX: usize = 40;

/// Maximum bytes of a token. With [`CLAIM_PREFIX`] it is the name of a tool.
const TOKEN_BYTES_MAX: usize = 104;

/// Names one conversation of one engine. At most one turn of a conversation runs at any time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
pub struct ResumeToken(String);

/// Why a text is not a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResumeTokenError {
    #[error("{0:?} is not a resume token: it has the form ENGINE:ID, as in codex:0199a213")]
    Form(String),
    #[error(
        "the resume token {0:?} is too long: an engine's name has at most {ENGINE_BYTES_MAX} bytes, a token \
         {TOKEN_BYTES_MAX}"
    )]
    Length(String),
}

impl ResumeToken {
    /// The token of an engine's own id. Bytes of the id that a token cannot have are written as `%XX`.
    pub fn new(engine: &str, id: &str) -> Result<Self, ResumeTokenError> {
        use fmt::Write as _;
        let mut text = format!("{engine}:");
        for byte in id.bytes() {
            if is_plain(byte) {
                text.push(char::from(byte));
            } else {
                // Writing to a String cannot fail.
                let _ = write!(text, "%{byte:02x}");
            }
        }
        Self::parse(text)
    }

    pub fn parse(text: impl Into<String>) -> Result<Self, ResumeTokenError> {
        let text = text.into();
        let Some((engine, id)) = text.rsplit_once(':') else {
            return Err(ResumeTokenError::Form(text));
        };
        let is_engine = |byte: u8| is_plain(byte) || byte == b':';
        let is_id = |byte: u8| is_plain(byte) || byte == b'%';
        if engine.is_empty()
            || id.is_empty()
            || !id.bytes().all(is_id)
            || !engine.bytes().all(is_engine)
        {
            return Err(ResumeTokenError::Form(text));
        }
        if engine.len() > ENGINE_BYTES_MAX || text.len() > TOKEN_BYTES_MAX {
            return Err(ResumeTokenError::Length(text));
        }
        Ok(Self(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the engine.
    pub fn engine(&self) -> &str {
        self.0.rsplit_once(':').map_or("", |(engine, _)| engine)
    }

    /// The engine's own id.
    pub fn id(&self) -> String {
        let encoded = self.0.rsplit_once(':').map_or("", |(_, id)| id).as_bytes();
        let mut bytes = Vec::with_capacity(encoded.len());
        let mut at = 0;
        while at < encoded.len() {
            let hex = encoded.get(at + 1..at + 3).filter(|_| encoded[at] == b'%');
            let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok());
            match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => {
                    bytes.push(byte);
                    at += 3;
                }
                None => {
                    bytes.push(encoded[at]);
                    at += 1;
                }
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The name of the tool call that claims this token.
    pub fn claim_name(&self) -> String {
        format!("{CLAIM_PREFIX}{}", self.0)
    }

    /// The token that a tool call of this name claims.
    pub fn of_claim(name: &str) -> Option<Self> {
        Self::parse(name.strip_prefix(CLAIM_PREFIX)?).ok()
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ResumeToken {
    type Error = ResumeTokenError;

    fn try_from(text: String) -> Result<Self, ResumeTokenError> {
        Self::parse(text)
    }
}

impl From<ResumeToken> for String {
    fn from(token: ResumeToken) -> Self {
        token.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TOOL_NAME_BYTES_MAX;

    #[test]
    fn a_token_is_the_engine_and_its_id() {
        for (engine, id, text) in [
            ("codex", "0199a213-81c0-7800", "codex:0199a213-81c0-7800"),
            ("acp:fake", "s:1/ä", "acp:fake:s%3a1%2f%c3%a4"),
            ("claude", "a%b", "claude:a%25b"),
        ] {
            let token = ResumeToken::new(engine, id).unwrap();
            assert_eq!(token.as_str(), text);
            assert_eq!((token.engine(), token.id().as_str()), (engine, id));
            assert_eq!(ResumeToken::of_claim(&token.claim_name()), Some(token));
        }
    }

    #[test]
    fn other_texts_are_no_tokens_and_a_claim_is_the_name_of_a_tool() {
        for bad in ["", "codex", ":x", "codex:", "codex:a b", "a b:c", "codex:a\n"] {
            assert_eq!(ResumeToken::parse(bad), Err(ResumeTokenError::Form(bad.to_owned())));
        }
        assert!(ResumeToken::new("codex", &"a".repeat(99)).is_err());
        assert!(ResumeToken::new(&"e".repeat(41), "a").is_err());
        assert!(CLAIM_PREFIX.len() + TOKEN_BYTES_MAX <= TOOL_NAME_BYTES_MAX);
        assert_eq!(ResumeToken::of_claim("windlass.list"), None);
    }
}
