//! A small collector of OTLP over HTTP: reads requests, decodes their protobuf, and hands the spans over.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use windlass_testkit::{PATIENCE, within};

/// What the collector does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectorReply {
    Take,
    Unavailable,
    Refuse,
    Garbage,
    /// It reads the request and says nothing.
    Silent,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReceivedSpan {
    pub trace: String,
    pub span: String,
    /// Empty for none.
    pub parent: String,
    pub name: String,
    pub began: u64,
    pub ended: u64,
    /// Values as text.
    pub attributes: BTreeMap<String, String>,
    /// The trace and the span of a link.
    pub link: Option<(String, String)>,
    /// Why it failed; empty if it did not.
    pub failure: String,
}

/// What arrives at the collector.
#[derive(Debug)]
pub enum ReceivedPart {
    /// The lines of a request's head.
    Head(Vec<String>),
    /// The attributes of the service.
    Resource(BTreeMap<String, String>),
    Span(Box<ReceivedSpan>),
}

pub struct TestCollector {
    pub address: SocketAddr,
    arrivals: UnboundedReceiver<ReceivedPart>,
}

impl TestCollector {
    pub async fn start(answer: CollectorReply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, arrivals) = unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answer, sender.clone()));
            }
        });
        Self { address, arrivals }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub async fn next(&mut self) -> ReceivedPart {
        within(PATIENCE, self.arrivals.recv()).await.unwrap()
    }

    /// The spans that arrive, up to the first that satisfies `last`.
    pub async fn spans_until(&mut self, last: impl Fn(&ReceivedSpan) -> bool) -> Vec<ReceivedSpan> {
        let mut spans = Vec::new();
        loop {
            if let ReceivedPart::Span(span) = self.next().await {
                let is_last = last(&span);
                spans.push(*span);
                if is_last {
                    return spans;
                }
            }
        }
    }
}

async fn serve(stream: TcpStream, answer: CollectorReply, sender: UnboundedSender<ReceivedPart>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap();
            }
            head.push(line);
        }
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        // The test may have ended.
        let _ = sender.send(ReceivedPart::Head(head));
        let answered = match answer {
            CollectorReply::Take => {
                for arrival in arrivals(&body) {
                    let _ = sender.send(arrival);
                }
                "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
            }
            CollectorReply::Unavailable => {
                "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"
            }
            CollectorReply::Refuse => "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
            CollectorReply::Garbage => "\u{0}\u{1}garbage\r\n\r\nmore garbage",
            CollectorReply::Silent => "",
        };
        if stream.get_mut().write_all(answered.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A field of a message of protobuf.
#[derive(Debug)]
enum ProtoField<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> ProtoField<'a> {
    fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Number(_) => panic!("a number in place of bytes"),
        }
    }

    fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Bytes(_) => panic!("bytes in place of a number"),
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }

    fn hex(&self) -> String {
        self.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number that does not end");
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

/// The fields of a message with their numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, ProtoField<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => ProtoField::Number(varint(&mut bytes)),
            1 => ProtoField::Number(u64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap())),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                ProtoField::Bytes(take(&mut bytes, length))
            }
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

/// What a request has in it.
fn arrivals(request: &[u8]) -> Vec<ReceivedPart> {
    let mut found = Vec::new();
    for (_, of_resource) in fields(request) {
        for (number, part) in fields(of_resource.bytes()) {
            match number {
                1 => found.push(ReceivedPart::Resource(attributes(part.bytes(), 1))),
                _ => {
                    let spans = fields(part.bytes());
                    let spans = spans.iter().filter(|(number, _)| *number == 2);
                    found.extend(
                        spans.map(|(_, one)| ReceivedPart::Span(Box::new(span(one.bytes())))),
                    );
                }
            }
        }
    }
    found
}

/// The attributes in the fields with this number.
fn attributes(message: &[u8], number: u64) -> BTreeMap<String, String> {
    let fields = fields(message);
    let pairs = fields.iter().filter(|(field, _)| *field == number);
    pairs.map(|(_, pair)| attribute(pair.bytes())).collect()
}

fn attribute(pair: &[u8]) -> (String, String) {
    let (mut name, mut text) = (String::new(), String::new());
    for (number, field) in fields(pair) {
        if number == 1 {
            name = field.text();
            continue;
        }
        for (kind, value) in fields(field.bytes()) {
            text = match kind {
                1 => value.text(),
                2 => (value.number() == 1).to_string(),
                3 => value.number().to_string(),
                4 => f64::from_bits(value.number()).to_string(),
                other => panic!("value of kind {other}"),
            };
        }
    }
    (name, text)
}

fn span(message: &[u8]) -> ReceivedSpan {
    let attributes = attributes(message, 9);
    let mut span = ReceivedSpan { attributes, ..ReceivedSpan::default() };
    for (number, field) in fields(message) {
        match number {
            1 => span.trace = field.hex(),
            2 => span.span = field.hex(),
            4 => span.parent = field.hex(),
            5 => span.name = field.text(),
            7 => span.began = field.number(),
            8 => span.ended = field.number(),
            13 => {
                let parts: BTreeMap<u64, String> =
                    fields(field.bytes()).iter().map(|(at, part)| (*at, part.hex())).collect();
                span.link = Some((parts[&1].clone(), parts[&2].clone()));
            }
            15 => {
                let parts = fields(field.bytes());
                let text = parts.iter().find(|(at, _)| *at == 2).map(|(_, text)| text.text());
                span.failure = text.unwrap_or_default();
            }
            _ => {}
        }
    }
    span
}
