//! Bounds text from other processes before it goes into a Windlass message.

/// The end of a text that was cut.
const CUT: &str = "...";

/// The text without control characters, cut to `bytes_max` bytes. Its JSON form is at most twice as
/// long and two quotes longer.
pub fn bounded(text: &str, bytes_max: usize) -> String {
    let mut short = String::with_capacity(text.len().min(bytes_max));
    for character in text.chars() {
        let shown = if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
        if short.len() + shown.len_utf8() > bytes_max {
            while short.len() + CUT.len() > bytes_max && short.pop().is_some() {}
            return if CUT.len() <= bytes_max { short + CUT } else { short };
        }
        short.push(shown);
    }
    short
}

/// Bytes of another process as text for one line: control characters are escaped, invalid UTF-8 is replaced,
/// and a text longer than `chars_max` characters is cut.
pub fn excerpt(bytes: &[u8], chars_max: usize) -> String {
    // A character has at most four bytes. The rest of a large body is not converted.
    let near = &bytes[..bytes.len().min(4 * chars_max + 4)];
    let mut line = String::new();
    let mut chars = 0;
    for character in String::from_utf8_lossy(near).chars() {
        let plain = matches!(character, '\\' | '"' | '\'').then_some(character);
        let escaped = character.escape_debug().filter(|_| plain.is_none());
        let length = plain.iter().count() + escaped.clone().count();
        if chars + length > chars_max {
            return line + CUT;
        }
        chars += length;
        line.extend(plain.into_iter().chain(escaped));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_line_and_cut() {
        assert_eq!(excerpt(b"a\nb\x1b", 10), "a\\nb\\u{1b}");
        assert_eq!(excerpt(b"{\"a\": 'b'}", 10), "{\"a\": 'b'}");
        assert_eq!(excerpt(b"abcdef", 3), "abc...");
        assert_eq!(excerpt(b"abc\n", 4), "abc...");
        assert_eq!(excerpt(b"\xff", 3), "\u{fffd}");
        assert_eq!(excerpt(&[0; 100_000], 8), "\\0\\0\\0\\0...");
        assert_eq!(excerpt(b"", 0), "");
    }

    #[test]
    fn a_text_is_cut_between_characters_and_has_no_control_characters() {
        assert_eq!(bounded("plain", 5), "plain");
        assert_eq!(bounded("plainer", 5), "pl...");
        assert_eq!(bounded("a\nb", 10), "a\u{fffd}b");
        assert_eq!(bounded("\u{e9}\u{e9}\u{e9}\u{e9}", 7), "\u{e9}\u{e9}...");
        assert_eq!(bounded("long", 2), "");
        assert_eq!(bounded("", 0), "");
        for limit in 0..20 {
            let cut = bounded("\u{1}\u{10ffff}abc\u{7f}\u{e9}xyz", limit);
            assert!(cut.len() <= limit, "{limit}: {cut:?}");
        }
    }
}
