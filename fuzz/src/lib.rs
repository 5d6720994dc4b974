//! What the fuzz targets have in common: how an input becomes a stream of messages. An input is text,
//! so that libFuzzer finds its way through headers and a person can read and write a corpus.
//!
//! A line is one message: its header, and after a tab its body. A body of `*` and digits is that many
//! bytes; `@` and digits in a header are that many letters. An input that begins with a zero byte is
//! taken as it is.

/// The longest body that a `*` asks for: over every limit, and little memory.
const REPEATED_BYTES_MAX: usize = 300_000;

/// One message of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub header: Vec<u8>,
    pub body: Vec<u8>,
}

/// What an input is.
#[derive(Debug)]
pub enum Input<'a> {
    /// Bytes as they are.
    Raw(&'a [u8]),
    Messages(Vec<Message>),
}

impl<'a> Input<'a> {
    pub fn of(bytes: &'a [u8]) -> Self {
        match bytes.split_first() {
            Some((0, raw)) => Self::Raw(raw),
            _ => Self::Messages(bytes.split(|byte| *byte == b'\n').map(message).collect()),
        }
    }

    /// The bytes of a connection: each message a frame, of whatever length.
    pub fn frames(&self) -> Vec<u8> {
        match self {
            Self::Raw(bytes) => bytes.to_vec(),
            Self::Messages(messages) => messages.iter().map(frame).collect::<Vec<_>>().concat(),
        }
    }
}

fn message(line: &[u8]) -> Message {
    let mut parts = line.splitn(2, |byte| *byte == b'\t');
    let header = parts.next().unwrap_or_default();
    let body = parts.next().unwrap_or_default();
    Message { header: expanded(header), body: repeated(body).unwrap_or_else(|| body.to_vec()) }
}

/// A header in which `@` and digits stand for that many letters.
fn expanded(header: &[u8]) -> Vec<u8> {
    let Some(at) = header.iter().position(|byte| *byte == b'@') else { return header.to_vec() };
    let digits = header[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let count = number(&header[at + 1..at + 1 + digits]);
    [&header[..at], &vec![b'x'; count][..], &header[at + 1 + digits..]].concat()
}

fn repeated(body: &[u8]) -> Option<Vec<u8>> {
    let digits = body.strip_prefix(b"*")?;
    digits.iter().all(u8::is_ascii_digit).then(|| vec![b'b'; number(digits)])
}

fn number(digits: &[u8]) -> usize {
    let text = std::str::from_utf8(digits).unwrap_or_default();
    text.parse().unwrap_or(0).min(REPEATED_BYTES_MAX)
}

/// A frame with lengths that are right, and not limited.
fn frame(Message { header, body }: &Message) -> Vec<u8> {
    let word = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    let rest = 4 + header.len() + body.len();
    [&word(rest)[..], &word(header.len()), header, body].concat()
}
