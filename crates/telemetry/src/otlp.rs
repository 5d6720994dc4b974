//! The bytes of an `ExportTraceServiceRequest` of OTLP in protobuf. Owns the numbers of its fields
//! (`opentelemetry/proto/trace/v1/trace.proto`). Only writes: the node reads no message of the collector.

use crate::{SpanId, TraceId};

/// A span that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedSpan {
    pub trace: TraceId,
    pub span: SpanId,
    pub parent: Option<SpanId>,
    pub name: &'static str,
    pub kind: SpanKind,
    pub began_at_ms: u64,
    pub ended_at_ms: u64,
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// A span of another trace that this one belongs to.
    pub link: Option<(TraceId, SpanId)>,
    /// Why the span failed: a stable code or outcome.
    pub failure: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    Internal = 1,
    Server = 2,
    Client = 3,
}

#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    Text(String),
    Flag(bool),
    Number(i64),
    Decimal(f64),
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for AttributeValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<f64> for AttributeValue {
    fn from(number: f64) -> Self {
        Self::Decimal(number)
    }
}

/// The name of the code that makes the spans.
const SCOPE: &str = "windlass";

/// The body of a request with these spans. `resource` says which service they are from, `version` which release made them.
pub fn request(
    resource: &[(&'static str, AttributeValue)],
    version: &str,
    spans: &[FinishedSpan],
) -> Vec<u8> {
    let mut about = ProtoMessage::default();
    for attribute in resource {
        about.message(1, &key_value(attribute));
    }
    let mut scope = ProtoMessage::default();
    scope.text(1, SCOPE);
    scope.text(2, version);
    let mut of_scope = ProtoMessage::default();
    of_scope.message(1, &scope);
    for span in spans {
        of_scope.message(2, &encoded(span));
    }
    let mut of_resource = ProtoMessage::default();
    of_resource.message(1, &about);
    of_resource.message(2, &of_scope);
    let mut request = ProtoMessage::default();
    request.message(1, &of_resource);
    request.0
}

fn encoded(span: &FinishedSpan) -> ProtoMessage {
    let mut message = ProtoMessage::default();
    message.bytes(1, &span.trace.0);
    message.bytes(2, &span.span.0);
    if let Some(parent) = span.parent {
        message.bytes(4, &parent.0);
    }
    message.text(5, span.name);
    message.number(6, span.kind as u64);
    message.fixed64(7, nanos(span.began_at_ms));
    message.fixed64(8, nanos(span.ended_at_ms.max(span.began_at_ms)));
    for attribute in &span.attributes {
        message.message(9, &key_value(attribute));
    }
    if let Some((trace, span)) = span.link {
        let mut link = ProtoMessage::default();
        link.bytes(1, &trace.0);
        link.bytes(2, &span.0);
        message.message(13, &link);
    }
    if let Some(failure) = span.failure {
        let mut status = ProtoMessage::default();
        status.text(2, failure);
        // STATUS_CODE_ERROR
        status.number(3, 2);
        message.message(15, &status);
    }
    message
}

fn key_value((key, value): &(&'static str, AttributeValue)) -> ProtoMessage {
    let mut any = ProtoMessage::default();
    match value {
        AttributeValue::Text(text) => any.text(1, text),
        AttributeValue::Flag(flag) => any.number(2, u64::from(*flag)),
        // A negative number is written as its two's complement.
        AttributeValue::Number(number) => any.number(3, number.cast_unsigned()),
        AttributeValue::Decimal(number) => any.fixed64(4, number.to_bits()),
    }
    let mut message = ProtoMessage::default();
    message.text(1, key);
    message.message(2, &any);
    message
}

fn nanos(at_ms: u64) -> u64 {
    at_ms.saturating_mul(1_000_000)
}

/// A message of protobuf that is being written.
#[derive(Default)]
struct ProtoMessage(Vec<u8>);

/// How a value follows its field's number.
#[derive(Clone, Copy)]
enum WireType {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
}

impl ProtoMessage {
    fn key(&mut self, field: u64, wire: WireType) {
        self.varint((field << 3) | wire as u64);
    }

    fn varint(&mut self, mut value: u64) {
        loop {
            let [low, ..] = value.to_le_bytes();
            value >>= 7;
            if value == 0 {
                return self.0.push(low & 0x7f);
            }
            self.0.push(low | 0x80);
        }
    }

    fn number(&mut self, field: u64, value: u64) {
        self.key(field, WireType::Varint);
        self.varint(value);
    }

    fn fixed64(&mut self, field: u64, value: u64) {
        self.key(field, WireType::Fixed64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, WireType::Bytes);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &Self) {
        self.bytes(field, &message.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that the official library writes for the same request.
    const OFFICIAL: &str = include_str!("otlp_request.hex");

    #[test]
    fn a_request_has_the_bytes_of_the_official_library() {
        let spans = [
            FinishedSpan {
                trace: TraceId([0x11; 16]),
                span: SpanId([0x22; 8]),
                parent: None,
                name: "session",
                kind: SpanKind::Internal,
                began_at_ms: 1_700_000_000_000,
                ended_at_ms: 1_700_000_001_234,
                attributes: vec![("windlass.session.id", "a".into())],
                link: None,
                failure: None,
            },
            FinishedSpan {
                trace: TraceId([0x33; 16]),
                span: SpanId([0x44; 8]),
                parent: Some(SpanId([0x55; 8])),
                name: "turn",
                kind: SpanKind::Server,
                began_at_ms: 1_700_000_000_001,
                // A clock that was set back.
                ended_at_ms: 1_699_999_999_999,
                attributes: vec![
                    ("text", "é".repeat(100).into()),
                    ("flag", true.into()),
                    ("off", false.into()),
                    ("number", 300_u64.into()),
                    ("most", u64::MAX.into()),
                    ("decimal", 0.25_f64.into()),
                ],
                link: Some((TraceId([0x11; 16]), SpanId([0x22; 8]))),
                failure: Some("timed_out"),
            },
        ];
        let written = request(&[("service.name", "windlass".into())], "0.1.0", &spans);
        let written: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(written, OFFICIAL.trim().replace('\n', ""));
    }
}
