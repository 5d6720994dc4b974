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

#[cfg(test)]
mod tests {
    use super::*;

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
