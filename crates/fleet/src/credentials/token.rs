//! The token of an invitation: what a machine needs to join a fleet, as one line of text. Whoever has it can join once,
//! until it expires.

use std::fmt;

use serde::{Deserialize, Serialize};
use windlass_protocol::NodeName;

use super::random::{Fingerprint, base64url, bytes_of, from_base64url};

/// How every token begins. The digit is the version of what follows.
const PREFIX: &str = "wlfleet1.";

/// Maximum length of a token.
const TOKEN_CHARS_MAX: usize = 2_048;

/// An invitation, as the invited machine gets it.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// HOST:PORT of the node that has the fleet's authority.
    pub address: String,
    /// The name of that node.
    pub authority: NodeName,
    /// Of the certificate of the fleet's authority.
    pub ca: Fingerprint,
    pub(super) secret: [u8; 32],
}

/// Why a text is not a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no token of a fleet: a token begins with `{PREFIX}`; copy the whole line that `windlass fleet invite` \
     printed"
)]
pub struct JoinTokenError;

#[derive(Serialize, Deserialize)]
struct TokenBody {
    address: String,
    node: NodeName,
    ca: String,
    secret: String,
}

impl JoinToken {
    pub fn parse(text: &str) -> Result<Self, JoinTokenError> {
        Self::read(text.trim()).ok_or(JoinTokenError)
    }

    fn read(text: &str) -> Option<Self> {
        let body = text.strip_prefix(PREFIX).filter(|_| text.len() <= TOKEN_CHARS_MAX)?;
        let body: TokenBody = serde_json::from_slice(&from_base64url(body)?).ok()?;
        let TokenBody { address, node: authority, ca, secret } = body;
        Some(Self { address, authority, ca: bytes_of(&ca)?, secret: bytes_of(&secret)? })
    }

    /// The token as one line, which holds the secret.
    pub fn to_line(&self) -> String {
        let body = TokenBody {
            address: self.address.clone(),
            node: self.authority.clone(),
            ca: base64url(&self.ca),
            secret: base64url(&self.secret),
        };
        let body = serde_json::to_vec(&body).expect("texts are JSON");
        format!("{PREFIX}{}", base64url(&body))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("JoinToken");
        shown.field("address", &self.address).field("authority", &self.authority);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken {
            address: "10.0.0.1:7421".to_owned(),
            authority: NodeName::parse("n1").unwrap(),
            ca: [7; 32],
            secret: [9; 32],
        }
    }

    #[test]
    fn a_token_is_one_line_that_reads_back() {
        let line = token().to_line();
        assert!(line.starts_with(PREFIX) && !line.contains(char::is_whitespace), "{line}");
        assert_eq!(JoinToken::parse(&format!("  {line}\n")), Ok(token()));
    }

    #[test]
    fn a_token_that_is_not_whole_is_refused() {
        let line = token().to_line();
        let cut = &line[..line.len() - 3];
        let other = line.replace("wlfleet1", "wlfleet2");
        let long = format!("{PREFIX}{}", "A".repeat(TOKEN_CHARS_MAX));
        for text in ["", PREFIX, cut, &other, &long, "wlfleet1.e30"] {
            assert_eq!(JoinToken::parse(text), Err(JoinTokenError), "{text}");
        }
    }

    #[test]
    fn a_token_does_not_show_its_secret() {
        let shown = format!("{:?}", token());
        assert!(!shown.contains('9') && !shown.contains(&base64url(&[9; 32])), "{shown}");
    }
}
