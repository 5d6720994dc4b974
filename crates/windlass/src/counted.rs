//! Counts with a noun: `1 session`, `2 sessions`.

use std::fmt::Display;

/// The nouns for output that the journal did not keep.
pub const OUTPUT_BYTE_DROPPED: &str = "byte of output was dropped";
pub const OUTPUT_BYTES_DROPPED: &str = "bytes of output were dropped";

/// `1 ONE`, or `NUMBER MANY`. The nouns may carry a verb that depends on the number.
pub fn counted<N: Display + PartialEq + From<u8>>(number: N, one: &str, many: &str) -> String {
    let noun = if number == N::from(1) { one } else { many };
    format!("{number} {noun}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_singular() {
        for (number, expected) in [(0, "0 bytes were"), (1, "1 byte was"), (2, "2 bytes were")] {
            assert_eq!(counted(number, "byte was", "bytes were"), expected);
        }
    }
}
