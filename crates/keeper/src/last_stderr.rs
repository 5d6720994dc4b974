//! The end of what a turn writes to its standard error. A turn that its worker does not survive is shown it.

use windlass_protocol::limits::LAST_STDERR_BYTES_MAX;

#[derive(Debug, Default)]
pub(crate) struct LastStderr(Vec<u8>);

impl LastStderr {
    pub fn push(&mut self, bytes: &[u8]) {
        let new = &bytes[bytes.len().saturating_sub(LAST_STDERR_BYTES_MAX)..];
        let over = (self.0.len() + new.len()).saturating_sub(LAST_STDERR_BYTES_MAX);
        self.0.drain(..over);
        self.0.extend_from_slice(new);
    }

    /// The bytes as text of at most [`LAST_STDERR_BYTES_MAX`] bytes. Invalid UTF-8 is replaced.
    pub fn to_text(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let mut from = text.len().saturating_sub(LAST_STDERR_BYTES_MAX);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text[from..].trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept_as_text() {
        let many = "x".repeat(LAST_STDERR_BYTES_MAX);
        let wide = "\u{20ac}".repeat(LAST_STDERR_BYTES_MAX);
        for (pieces, text) in [
            (vec![], ""),
            (vec![&b"one\n"[..], b"two\n"], "one\ntwo"),
            (vec![b"lost ", many.as_bytes()], many.as_str()),
            (vec![many.as_bytes(), b"yz"], &format!("{}yz", &many[2..])),
        ] {
            let mut last = LastStderr::default();
            pieces.into_iter().for_each(|piece| last.push(piece));
            assert_eq!(last.to_text(), text);
        }
        for bytes in [wide.as_bytes(), &[0xff; 10_000], &[0; 10_000]] {
            let mut last = LastStderr::default();
            last.push(bytes);
            assert!(last.to_text().len() <= LAST_STDERR_BYTES_MAX);
        }
    }
}
