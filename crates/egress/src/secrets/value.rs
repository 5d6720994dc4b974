//! The value of a secret, and the forms in which a response may contain it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};

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
    forms: Vec<Form>,
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
        let forms = forms(&text);
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
    pub(super) fn forms(&self) -> &[Form] {
        &self.forms
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(***)")
    }
}

/// The value as text, as hexadecimal digits, and as base64 at each of the three offsets that it can have in a longer
/// text (`user:value`).
fn forms(text: &str) -> Vec<Form> {
    let hex = text.bytes().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect();
    let base64 = (0..3).map(|before| Form::new(inner_base64(before, text), FormKind::Base64));
    let plain =
        [Form::new(text.as_bytes().to_vec(), FormKind::Text), Form::new(hex, FormKind::Hex)];
    plain.into_iter().chain(base64).collect()
}

/// A form in which a response may contain a value: units that follow each other.
#[derive(Debug)]
pub(super) struct Form {
    units: Vec<u8>,
    kind: FormKind,
    /// The bytes with which the form can begin.
    first: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormKind {
    /// Each character as it is, or escaped as URLs, JSON, JavaScript and HTML do.
    Text,
    /// Hexadecimal digits in either case.
    Hex,
    /// Digits of either alphabet of base64.
    Base64,
}

/// How the next unit of a form compares with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnitMatch {
    Bytes(usize),
    NeedsMore,
    No,
}

/// Whether more bytes can follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnd {
    Open,
    Reached,
}

/// The longest escape of one character: `\u002F`, `&#x2F;` or `&quot;`.
const ESCAPE_BYTES_MAX: usize = 6;

impl Form {
    fn new(units: Vec<u8>, kind: FormKind) -> Self {
        let first = match kind {
            FormKind::Text => vec![units[0], b'%', b'\\', b'&', b'+'],
            FormKind::Hex => vec![units[0], units[0].to_ascii_uppercase()],
            FormKind::Base64 => vec![units[0], url_safe(units[0])],
        };
        Self { units, kind, first }
    }

    pub fn units(&self) -> usize {
        self.units.len()
    }

    pub fn can_begin(&self, byte: u8) -> bool {
        self.first.contains(&byte)
    }

    /// The most bytes that the form can have.
    pub fn bytes_max(&self) -> usize {
        match self.kind {
            FormKind::Text => self.units.len() * ESCAPE_BYTES_MAX,
            FormKind::Hex | FormKind::Base64 => self.units.len(),
        }
    }

    /// Compares a unit with the start of `bytes`.
    pub fn unit(&self, number: usize, bytes: &[u8], end: StreamEnd) -> UnitMatch {
        let unit = self.units[number];
        let Some(&first) = bytes.first() else { return UnitMatch::NeedsMore };
        let one = |is_same: bool| if is_same { UnitMatch::Bytes(1) } else { UnitMatch::No };
        match self.kind {
            FormKind::Hex => one(first.eq_ignore_ascii_case(&unit)),
            FormKind::Base64 => one(first == unit || first == url_safe(unit)),
            // A last `&` is no escape that goes on.
            FormKind::Text => match (text_unit(unit, first, bytes), end) {
                (UnitMatch::NeedsMore, StreamEnd::Reached) => same(unit, first, 1),
                (found, _) => found,
            },
        }
    }
}

/// A digit of base64 in the alphabet for URLs.
fn url_safe(digit: u8) -> u8 {
    match digit {
        b'+' => b'-',
        b'/' => b'_',
        other => other,
    }
}

/// Compares a character with bytes that are the character or an escape of it.
fn text_unit(unit: u8, first: u8, bytes: &[u8]) -> UnitMatch {
    // The escape comes first: a value may itself have a `%`, a backslash or an ampersand.
    let escaped = match first {
        b'%' => hex_escape(unit, bytes, 1, 2, ""),
        b'\\' => match bytes.get(1) {
            None => UnitMatch::NeedsMore,
            Some(b'u') => either(hex_escape(unit, bytes, 2, 4, ""), same(unit, b'u', 2)),
            Some(b'x') => either(hex_escape(unit, bytes, 2, 2, ""), same(unit, b'x', 2)),
            Some(&next) => same(unit, next, 2),
        },
        b'&' => entity(unit, bytes),
        b'+' if unit == b' ' => UnitMatch::Bytes(1),
        _ => UnitMatch::No,
    };
    either(escaped, same(unit, first, 1))
}

fn same(unit: u8, byte: u8, length: usize) -> UnitMatch {
    if unit == byte { UnitMatch::Bytes(length) } else { UnitMatch::No }
}

/// The first of two comparisons that is not `No`.
fn either(one: UnitMatch, other: UnitMatch) -> UnitMatch {
    if one == UnitMatch::No { other } else { one }
}

/// An escape of `digits` hexadecimal digits after `skip` bytes.
fn hex_escape(unit: u8, bytes: &[u8], skip: usize, digits: usize, end: &str) -> UnitMatch {
    let expected = format!("{:0digits$x}{end}", unit);
    literal(expected.as_bytes(), bytes, skip)
}

/// Compares bytes after `skip` with a text, whose letters may be in either case.
fn literal(expected: &[u8], bytes: &[u8], skip: usize) -> UnitMatch {
    let there = &bytes[skip.min(bytes.len())..];
    let length = there.len().min(expected.len());
    if !there[..length].eq_ignore_ascii_case(&expected[..length]) {
        return UnitMatch::No;
    }
    if length < expected.len() { UnitMatch::NeedsMore } else { UnitMatch::Bytes(skip + length) }
}

/// An HTML entity: a decimal number, a hexadecimal number or a name.
fn entity(unit: u8, bytes: &[u8]) -> UnitMatch {
    let name = match unit {
        b'&' => "&amp;",
        b'<' => "&lt;",
        b'>' => "&gt;",
        b'"' => "&quot;",
        b'\'' => "&apos;",
        _ => "",
    };
    let spellings = [format!("&#{unit};"), format!("&#x{unit:x};"), name.to_owned()];
    let mut found = UnitMatch::No;
    for spelling in spellings.iter().filter(|spelling| !spelling.is_empty()) {
        match literal(spelling.as_bytes(), bytes, 0) {
            UnitMatch::No => {}
            UnitMatch::NeedsMore => found = UnitMatch::NeedsMore,
            whole @ UnitMatch::Bytes(_) => return whole,
        }
    }
    found
}

/// The digits of base64 that depend on the value only, if so many bytes come before it.
fn inner_base64(before: usize, text: &str) -> Vec<u8> {
    let mut bytes = vec![0; before];
    bytes.extend_from_slice(text.as_bytes());
    let digits = STANDARD_NO_PAD.encode(&bytes).into_bytes();
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
    fn every_base64_text_around_a_value_is_masked() {
        use base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let value = std::sync::Arc::new(SecretValue::new("s3cret/value+=x".to_owned()).unwrap());
        for before in 0..7 {
            for after in 0..4 {
                let text = format!("{}{}{}", "u".repeat(before), value.text(), "v".repeat(after));
                for coded in [STANDARD_NO_PAD.encode(&text), URL_SAFE_NO_PAD.encode(&text)] {
                    let masked = crate::secrets::redaction::redacted(
                        std::slice::from_ref(&value),
                        coded.as_bytes(),
                    );
                    let stars = masked.iter().filter(|byte| **byte == b'*').count();
                    assert!(
                        stars >= value.text().len() * 4 / 3 - 2,
                        "{before} {after} {coded} {masked:?}"
                    );
                }
            }
        }
    }
}
