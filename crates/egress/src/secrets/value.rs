//! The value of a secret, and the forms in which a response may contain it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use memchr::memmem::Finder;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Maximum bytes of a value: the longest header that most servers accept.
pub const VALUE_BYTES_MAX: usize = 8 * 1024;

/// Minimum bytes of a value. A shorter value may be a part of any response, which its redaction would destroy.
pub const VALUE_BYTES_MIN: usize = 8;

/// What is escaped in a query: everything but the unreserved characters.
pub(super) const QUERY: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A text cannot be the value of a secret. The message never contains the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSecretValue {
    #[error(
        "the value has fewer than {VALUE_BYTES_MIN} bytes; it could not be hidden in responses"
    )]
    TooShort,
    #[error("the value has more than {VALUE_BYTES_MAX} bytes")]
    TooLong,
    #[error(
        "the value has a line break, a space at an end or another character that no header can carry"
    )]
    Characters,
}

/// The value of a secret. It is never printed.
pub struct SecretValue {
    text: String,
    forms: Vec<Finder<'static>>,
}

impl SecretValue {
    pub fn new(text: String) -> Result<Self, BadSecretValue> {
        match text.len() {
            ..VALUE_BYTES_MIN => return Err(BadSecretValue::TooShort),
            VALUE_BYTES_MIN..=VALUE_BYTES_MAX => {}
            _ => return Err(BadSecretValue::TooLong),
        }
        if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) || text.trim() != text {
            return Err(BadSecretValue::Characters);
        }
        let forms = forms(&text).into_iter().map(|form| Finder::new(&form).into_owned()).collect();
        Ok(Self { text, forms })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the name of a header contains the value. Names have no upper case.
    pub(crate) fn is_in_name(&self, name: &str) -> bool {
        name.contains(&self.text.to_ascii_lowercase())
    }

    /// The forms in which a response may contain the value.
    pub(super) fn forms(&self) -> &[Finder<'static>] {
        &self.forms
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(***)")
    }
}

/// The value as it is, escaped for URLs and JSON, as hexadecimal digits, and as base64 at each of the three offsets
/// that it can have in a longer text (`user:value`).
fn forms(text: &str) -> Vec<Vec<u8>> {
    let hex = |digits: &[u8; 16]| -> Vec<u8> {
        text.bytes()
            .flat_map(|byte| [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]])
            .collect()
    };
    let escaped = utf8_percent_encode(text, QUERY).to_string();
    let json = text.replace('\\', "\\\\").replace('"', "\\\"");
    let mut forms = vec![
        text.as_bytes().to_vec(),
        escaped.replace("%20", "+").into_bytes(),
        lower_escapes(&escaped).into_bytes(),
        escaped.into_bytes(),
        json.replace('/', "\\/").into_bytes(),
        json.into_bytes(),
        hex(b"0123456789abcdef"),
        hex(b"0123456789ABCDEF"),
    ];
    for before in 0..3 {
        forms.push(inner_base64(&STANDARD_NO_PAD, before, text));
        forms.push(inner_base64(&URL_SAFE_NO_PAD, before, text));
    }
    forms.sort();
    forms.dedup();
    forms
}

/// An escaped text with the digits of its escapes in lower case.
fn lower_escapes(escaped: &str) -> String {
    let mut parts = escaped.split('%');
    let mut lower = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_at(2);
        lower.extend(["%", &digits.to_ascii_lowercase(), rest]);
    }
    lower
}

/// The digits of base64 that depend on the value only, if so many bytes come before it.
fn inner_base64(engine: &impl Engine, before: usize, text: &str) -> Vec<u8> {
    let mut bytes = vec![0; before];
    bytes.extend_from_slice(text.as_bytes());
    let digits = engine.encode(&bytes).into_bytes();
    let start = (before * 8).div_ceil(6);
    let end = bytes.len() * 8 / 6;
    digits[start..end].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_what_a_header_can_carry() {
        for (text, expected) in [
            ("sk-12345678", Ok(())),
            ("with a space", Ok(())),
            ("short", Err(BadSecretValue::TooShort)),
            ("line\nbreak", Err(BadSecretValue::Characters)),
            ("spaceafter ", Err(BadSecretValue::Characters)),
            ("schlüssel", Err(BadSecretValue::Characters)),
        ] {
            assert_eq!(SecretValue::new(text.to_owned()).map(drop), expected, "{text}");
        }
        let long = "x".repeat(VALUE_BYTES_MAX + 1);
        assert_eq!(SecretValue::new(long).map(drop), Err(BadSecretValue::TooLong));
    }

    #[test]
    fn a_value_is_never_printed() {
        let value = SecretValue::new("sk-12345678".to_owned()).unwrap();
        assert_eq!(format!("{value:?}"), "SecretValue(***)");
    }

    #[test]
    fn every_base64_text_around_a_value_has_one_of_its_forms() {
        let value = SecretValue::new("s3cret/value+=x".to_owned()).unwrap();
        for before in 0..7 {
            for after in 0..4 {
                let text = format!("{}{}{}", "u".repeat(before), value.text(), "v".repeat(after));
                for coded in [STANDARD_NO_PAD.encode(&text), URL_SAFE_NO_PAD.encode(&text)] {
                    let found =
                        value.forms().iter().any(|form| form.find(coded.as_bytes()).is_some());
                    assert!(found, "{before} {after} {coded}");
                }
            }
        }
    }
}
