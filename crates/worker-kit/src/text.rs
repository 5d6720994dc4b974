//! Shortens texts, so that a header with them keeps its limit.

/// The end of a text that was cut.
const CUT: &str = "...";

/// The text, or its beginning and `...`, so that its form in JSON takes at most `json_bytes_max` bytes without
/// the quotes.
pub fn shortened(text: &str, json_bytes_max: usize) -> String {
    // Most texts are short. No character takes more than six bytes in JSON.
    if text.len() <= json_bytes_max / 6 {
        return text.to_owned();
    }
    let mut used = 0;
    let mut cut_at = 0;
    for (at, character) in text.char_indices() {
        if used + CUT.len() <= json_bytes_max {
            cut_at = at;
        }
        used += json_bytes(character);
        if used > json_bytes_max {
            let end = if CUT.len() <= json_bytes_max { CUT } else { "" };
            return format!("{}{end}", &text[..cut_at]);
        }
    }
    text.to_owned()
}

/// Bytes of a character within a JSON text, as serde_json writes it.
fn json_bytes(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        other => other.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        for (text, limit, short) in [
            ("plain", 5, "plain"),
            ("plainer", 6, "pla..."),
            ("\u{1}\u{1}", 12, "\u{1}\u{1}"),
            ("\u{1}\u{1}\u{1}", 12, "\u{1}..."),
            ("\"\"\"\"", 7, "\"\"..."),
            ("\u{e9}\u{e9}\u{e9}\u{e9}", 7, "\u{e9}\u{e9}..."),
            ("long", 2, ""),
            ("", 0, ""),
        ] {
            assert_eq!(shortened(text, limit), short, "{text:?} {limit}");
        }
    }

    proptest! {
        #[test]
        fn a_shortened_text_fits(text in "\\PC*|[\\x00-\\x7f]*", limit in 0usize..40) {
            let short = shortened(&text, limit);
            let json = serde_json::to_string(&short).unwrap();
            prop_assert!(json.len() - 2 <= limit);
            if serde_json::to_string(&text).unwrap().len() - 2 <= limit {
                prop_assert_eq!(short, text);
            }
        }
    }
}
