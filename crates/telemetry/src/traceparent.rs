//! Ids of traces and spans, and the header `traceparent` of W3C Trace Context, which any client may send. Parsing is
//! strict: a header that does not follow the standard counts as absent.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The length of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// The bit of the flags that says that the caller records the trace.
const SAMPLED: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(pub [u8; 16]);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub [u8; 8]);

/// The caller's span, under which a span of the node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceParent {
    pub trace: TraceId,
    pub span: SpanId,
    pub sampled: bool,
}

/// The text is not a `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the text is not a traceparent of W3C Trace Context")]
pub struct NoTraceParent;

impl TraceParent {
    /// Reads the value of the header.
    pub fn parse(text: &str) -> Option<Self> {
        let (known, rest) = text.as_bytes().split_at_checked(LENGTH)?;
        let version = hex::<1>(known.get(..2)?)?;
        // Version 255 is forbidden. A later version may append fields, and version 00 has none.
        let is_whole = match version {
            [0] => rest.is_empty(),
            [255] => false,
            _ => rest.is_empty() || rest.first() == Some(&b'-'),
        };
        let are_separate = [2, 35, 52].iter().all(|at| known.get(*at) == Some(&b'-'));
        let trace = hex::<16>(known.get(3..35)?)?;
        let span = hex::<8>(known.get(36..52)?)?;
        let [flags] = hex::<1>(known.get(53..55)?)?;
        let are_valid = trace != [0; 16] && span != [0; 8];
        (is_whole && are_separate && are_valid).then_some(Self {
            trace: TraceId(trace),
            span: SpanId(span),
            sampled: flags & SAMPLED != 0,
        })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(f, "00-{}-{}-{flags:02x}", self.trace, self.span)
    }
}

impl TryFrom<String> for TraceParent {
    type Error = NoTraceParent;

    fn try_from(text: String) -> Result<Self, NoTraceParent> {
        Self::parse(&text).ok_or(NoTraceParent)
    }
}

impl From<TraceParent> for String {
    fn from(parent: TraceParent) -> Self {
        parent.to_string()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes in lower-case hexadecimal digits. The standard allows no others.
fn hex<const BYTES: usize>(digits: &[u8]) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    if digits.len() != 2 * BYTES {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            *byte = *byte * 16 + value;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn only_headers_of_the_standard_are_taken() {
        let usual = format!("00-{TRACE}-{SPAN}-01");
        for (text, sampled) in [
            (usual.clone(), Some(true)),
            (format!("00-{TRACE}-{SPAN}-00"), Some(false)),
            (format!("00-{TRACE}-{SPAN}-ff"), Some(true)),
            (format!("00-{TRACE}-{SPAN}-02"), Some(false)),
            // A later version may be longer.
            (format!("01-{TRACE}-{SPAN}-01"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01-more"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01more"), None),
            (format!("00-{TRACE}-{SPAN}-01-more"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("0-{TRACE}-{SPAN}-01"), None),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None),
            (format!("00-{}-{SPAN}-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("00_{TRACE}_{SPAN}_01"), None),
            (format!("00-{TRACE}-{SPAN}-0"), None),
            (format!("00-{TRACE}-{SPAN}-0g"), None),
            (format!("00-{TRACE}-{SPAN}"), None),
            (format!(" {usual}"), None),
            (format!("{usual} "), None),
            (usual.replace('b', "é"), None),
            ("-".repeat(55), None),
            ("é".repeat(60), None),
            (String::new(), None),
            ("0".repeat(100_000), None),
        ] {
            let found = TraceParent::parse(&text).map(|parent| parent.sampled);
            let shown: String = text.chars().take(80).collect();
            assert_eq!(found, sampled, "{shown}");
        }
    }

    #[test]
    fn a_header_is_written_as_it_was_read() {
        for flags in ["00", "01"] {
            let text = format!("00-{TRACE}-{SPAN}-{flags}");
            let parent = TraceParent::parse(&text).unwrap();
            assert_eq!(parent.to_string(), text);
            assert_eq!(TraceParent::try_from(text).ok(), Some(parent));
        }
    }
}
