//! Turns the kernel's MIME bundles and texts into what a display and a stream carry. Does no I/O.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;

pub const PLAIN: &str = "text/plain";
pub const HTML: &str = "text/html";

/// The forms of a display, the richest first. Other forms come after these, and plain text is the last.
const PREFERRED: [&str; 7] = [
    "image/png",
    "image/jpeg",
    "image/svg+xml",
    HTML,
    "text/markdown",
    "text/latex",
    "application/json",
];

/// Accepts base64 with and without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The richest form in a bundle that is not plain text.
pub fn richest(bundle: &Value) -> Option<(&str, Vec<u8>)> {
    let forms = bundle.as_object()?;
    let preferred = PREFERRED.iter().filter_map(|mime| forms.get_key_value(*mime));
    let others = forms.iter().filter(|(mime, _)| {
        !PREFERRED.contains(&mime.as_str()) && mime.as_str() != PLAIN && mime.contains('/')
    });
    preferred
        .chain(others)
        .find(|(_, content)| !content.is_null())
        .map(|(mime, content)| (mime.as_str(), content_of(mime, content)))
}

/// The plain text of a bundle.
pub fn plain_text(bundle: &Value) -> Option<String> {
    bundle.get(PLAIN).and_then(text_of)
}

/// The bytes of a form. Binary content is base64 in a text, structured content is JSON.
fn content_of(mime: &str, content: &Value) -> Vec<u8> {
    let Some(text) = text_of(content) else { return content.to_string().into_bytes() };
    let is_json = mime.ends_with("json");
    if is_json {
        return content.to_string().into_bytes();
    }
    let is_text =
        mime.starts_with("text/") || mime.ends_with("xml") || mime.ends_with("javascript");
    if is_text {
        return text.into_bytes();
    }
    let packed: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let decoded = LENIENT.decode(&packed).or_else(|_| STANDARD.decode(&packed));
    decoded.unwrap_or_else(|_| text.into_bytes())
}

/// A text, which may be a list of lines.
fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) => {
            lines.iter().map(|line| line.as_str()).collect::<Option<Vec<_>>>().map(|l| l.concat())
        }
        _ => None,
    }
}

/// The text without ANSI escape sequences.
pub fn without_ansi(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        if character != '\u{1b}' {
            plain.push(character);
            continue;
        }
        match rest.next() {
            // A control sequence ends with a character from `@` to `~`.
            Some('[') => while rest.next().is_some_and(|c| !('@'..='~').contains(&c)) {},
            // An operating system command ends with BEL or `ESC \`.
            Some(']') => {
                while let Some(character) = rest.next() {
                    if character == '\u{7}' {
                        break;
                    }
                    if character == '\u{1b}' {
                        rest.next_if_eq(&'\\');
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_richest_form_is_chosen_and_decoded() {
        for (bundle, mime, body) in [
            (json!({"text/plain": "x", "image/png": "aGk=\n"}), "image/png", &b"hi"[..]),
            (json!({"image/png": "aGk"}), "image/png", b"hi"),
            (json!({"image/png": "not base64!"}), "image/png", b"not base64!"),
            (json!({"text/html": ["<b>", "</b>"], "text/latex": "l"}), "text/html", b"<b></b>"),
            (json!({"image/svg+xml": "<svg/>"}), "image/svg+xml", b"<svg/>"),
            (json!({"application/json": {"a": [1]}}), "application/json", b"{\"a\":[1]}"),
            (json!({"application/json": "t"}), "application/json", b"\"t\""),
            (json!({"application/vnd.x+json": [1]}), "application/vnd.x+json", b"[1]"),
            (json!({"image/png": null, "application/pdf": "aGk="}), "application/pdf", b"hi"),
        ] {
            assert_eq!(richest(&bundle), Some((mime, body.to_vec())), "{bundle}");
        }
        for bundle in [json!({"text/plain": "x"}), json!(null), json!([1]), json!({"odd": "x"})] {
            assert_eq!(richest(&bundle), None, "{bundle}");
        }
        assert_eq!(plain_text(&json!({"text/plain": ["a\n", "b"]})).as_deref(), Some("a\nb"));
        assert_eq!(plain_text(&json!({"text/plain": 1})), None);
    }

    #[test]
    fn escape_sequences_are_removed() {
        for (text, plain) in [
            ("plain", "plain"),
            ("\u{1b}[0;31mred\u{1b}[0m!", "red!"),
            ("a\u{1b}[38;5;241;43mb", "ab"),
            ("\u{1b}]8;;link\u{1b}\\text\u{1b}]8;;\u{7}", "text"),
            ("\u{1b}", ""),
            ("\u{1b}[", ""),
            ("\u{1b}(Bx", "Bx"),
            ("é\u{1b}[1mü", "éü"),
        ] {
            assert_eq!(without_ansi(text), plain, "{text:?}");
        }
    }
}
