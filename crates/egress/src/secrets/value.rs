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

    /// Whether the name of a header contains the value, as text or as hexadecimal digits. Names have no upper case.
    pub(crate) fn is_in_name(&self, name: &str) -> bool {
        let hex: String = self.text.bytes().map(|byte| format!("{byte:02x}")).collect();
        name.contains(&self.text.to_ascii_lowercase()) || name.contains(&hex)
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

/// The value byte by byte, as text with escapes, as hexadecimal digits, and as base64 at each of the three offsets that
/// it can have in a longer text (`user:value`). Byte by byte too, because a value may itself look like an escape.
fn forms(text: &str) -> Vec<Form> {
    let mut forms = vec![Form::raw(text), Form::text(text), Form::hex(text)];
    forms.extend((0..3).map(|before| Form::base64(text, before)));
    forms
}

/// A form in which a response may contain a value: units that follow each other.
#[derive(Debug)]
pub(super) struct Form {
    units: Vec<FormUnit>,
    /// The bytes with which the form can begin.
    first: Vec<u8>,
    bytes_max: usize,
}

/// One character or digit of a form: its spellings. They are made once, so that a comparison costs about the same
/// whether it succeeds or not.
#[derive(Debug)]
struct FormUnit {
    /// As one byte.
    plain: Vec<u8>,
    /// As an escape of several bytes. Letters after the first byte may be in either case.
    escapes: Vec<Vec<u8>>,
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

impl Form {
    fn new(units: Vec<FormUnit>) -> Self {
        let starts = units.first().into_iter().flat_map(|unit| {
            unit.plain.iter().copied().chain(unit.escapes.iter().map(|escape| escape[0]))
        });
        let mut first: Vec<u8> = starts.collect();
        first.sort_unstable();
        first.dedup();
        let bytes_max = units.iter().map(FormUnit::bytes_max).sum();
        Self { units, first, bytes_max }
    }

    /// Each byte as it is.
    fn raw(text: &str) -> Self {
        Self::new(text.bytes().map(|byte| FormUnit::plain(&[byte])).collect())
    }

    /// Each character as it is, or escaped as URLs, JSON, JavaScript and HTML do.
    fn text(text: &str) -> Self {
        Self::new(text.bytes().map(FormUnit::escaped).collect())
    }

    /// Hexadecimal digits in either case.
    fn hex(text: &str) -> Self {
        let digits = text.bytes().flat_map(|byte| format!("{byte:02x}").into_bytes());
        Self::new(
            digits.map(|digit| FormUnit::plain(&[digit, digit.to_ascii_uppercase()])).collect(),
        )
    }

    /// Digits of either alphabet of base64, if so many bytes come before the value.
    fn base64(text: &str, before: usize) -> Self {
        let digits = inner_base64(before, text).into_iter();
        Self::new(digits.map(|digit| FormUnit::plain(&[digit, url_safe(digit)])).collect())
    }

    pub fn units(&self) -> usize {
        self.units.len()
    }

    pub fn can_begin(&self, byte: u8) -> bool {
        self.first.contains(&byte)
    }

    /// The most bytes that the form can have.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Compares a unit with the start of `bytes`.
    pub fn unit(&self, number: usize, bytes: &[u8], end: StreamEnd) -> UnitMatch {
        self.units[number].compare(bytes, end)
    }
}

impl FormUnit {
    fn plain(bytes: &[u8]) -> Self {
        Self { plain: bytes.to_vec(), escapes: Vec::new() }
    }

    fn escaped(byte: u8) -> Self {
        let mut plain = vec![byte];
        if byte == b' ' {
            plain.push(b'+');
        }
        let mut escapes = vec![
            format!("%{byte:02x}"),
            format!("\\u{byte:04x}"),
            format!("\\x{byte:02x}"),
            format!("\\{}", char::from(byte)),
            format!("&#{byte};"),
            format!("&#0{byte};"),
            format!("&#x{byte:x};"),
        ];
        let name = match byte {
            b'&' => "&amp;",
            b'<' => "&lt;",
            b'>' => "&gt;",
            b'"' => "&quot;",
            b'\'' => "&apos;",
            _ => "",
        };
        escapes.extend((!name.is_empty()).then(|| name.to_owned()));
        Self { plain, escapes: escapes.into_iter().map(String::into_bytes).collect() }
    }

    fn bytes_max(&self) -> usize {
        self.escapes.iter().map(Vec::len).max().unwrap_or(1)
    }

    fn compare(&self, bytes: &[u8], end: StreamEnd) -> UnitMatch {
        let Some(&first) = bytes.first() else { return UnitMatch::NeedsMore };
        let mut needs_more = false;
        for escape in self.escapes.iter().filter(|escape| escape[0] == first) {
            let length = bytes.len().min(escape.len());
            let is_same = bytes[..length].eq_ignore_ascii_case(&escape[..length]);
            if is_same && length == escape.len() {
                return UnitMatch::Bytes(length);
            }
            needs_more |= is_same;
        }
        if needs_more && end == StreamEnd::Open {
            return UnitMatch::NeedsMore;
        }
        if self.plain.contains(&first) { UnitMatch::Bytes(1) } else { UnitMatch::No }
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
                    let mut redactor =
                        crate::secrets::redaction::Redactor::new(vec![value.clone()]);
                    let masked =
                        crate::secrets::redaction::redacted(&mut redactor, coded.as_bytes());
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
