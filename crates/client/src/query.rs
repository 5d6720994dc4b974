//! Builds request paths: one string, one allocation. Never sends anything.

use std::fmt::{Display, Write};

/// Capacity for a path with two ids and a query of typical size.
const PATH_BYTES_USUAL: usize = 192;

/// Builds a path with its query.
#[derive(Debug)]
pub(crate) struct RequestPath {
    text: String,
    has_query: bool,
}

impl RequestPath {
    /// Joins `parts` with slashes after `/v1`. Ids need no escaping, by their type.
    pub(crate) fn new(parts: &[&str]) -> Self {
        let mut text = String::with_capacity(PATH_BYTES_USUAL);
        text.push_str("/v1");
        for part in parts {
            text.push('/');
            text.push_str(part);
        }
        Self { text, has_query: false }
    }

    /// Appends a file's path. Its slashes stay slashes.
    pub(crate) fn below(mut self, path: &str) -> Self {
        for part in path.split('/') {
            self.text.push('/');
            escape(&mut self.text, part);
        }
        self
    }

    pub(crate) fn number(mut self, name: &str, value: Option<impl Display>) -> Self {
        if let Some(value) = value {
            self.name(name);
            write!(self.text, "{value}").expect("writing to a string cannot fail");
        }
        self
    }

    pub(crate) fn text(mut self, name: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.name(name);
            escape(&mut self.text, value);
        }
        self
    }

    pub(crate) fn done(self) -> String {
        self.text
    }

    fn name(&mut self, name: &str) {
        self.text.push(if self.has_query { '&' } else { '?' });
        self.has_query = true;
        self.text.push_str(name);
        self.text.push('=');
    }
}

/// Percent-encodes every byte that is not unreserved in a URL.
fn escape(into: &mut String, value: &str) {
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                into.push(char::from(byte));
            }
            _ => write!(into, "%{byte:02X}").expect("writing to a string cannot fail"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_parameters_are_left_out_and_text_is_escaped() {
        let bare = RequestPath::new(&["sessions"]).number("wait_ms", None::<u64>);
        assert_eq!(bare.done(), "/v1/sessions");
        let full = RequestPath::new(&["sessions", "s", "output"])
            .text("query", Some("a b&c=é"))
            .number("limit", Some(3));
        assert_eq!(full.done(), "/v1/sessions/s/output?query=a%20b%26c%3D%C3%A9&limit=3");
        let file = RequestPath::new(&["files"]).below("a b/c?.txt").text("content", Some("true"));
        assert_eq!(file.done(), "/v1/files/a%20b/c%3F.txt?content=true");
    }
}
