//! Detects the protocol of a client's first bytes in a tunnel, and reads the server name of a TLS
//! hello. Pure. Expects hostile input.

use windlass_protocol::policy::normal_host;

/// The protocol of a client's first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientProtocol {
    /// More bytes are needed to decide.
    Undecided(Candidate),
    /// A TLS hello, with the server name that it requests.
    Tls {
        name: Option<String>,
    },
    /// A TLS hello that is malformed, or that two implementations could read in two ways.
    BrokenTls,
    /// An HTTP/1 request line.
    Http,
    /// The preface of HTTP/2 without TLS.
    PlainHttp2,
    Other,
}

/// What undecided bytes may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidate {
    Tls,
    /// A line of text, perhaps an HTTP request line.
    Line,
}

/// Detects the protocol from all bytes that have arrived so far.
pub fn detect(bytes: &[u8]) -> ClientProtocol {
    match bytes {
        [] => ClientProtocol::Undecided(Candidate::Line),
        [HANDSHAKE] => ClientProtocol::Undecided(Candidate::Tls),
        [HANDSHAKE, TLS_MAJOR, ..] => detect_tls(bytes),
        _ => detect_line(bytes),
    }
}

/// The type of records that carry a handshake.
const HANDSHAKE: u8 = 22;
/// The first byte of every version since SSL 3.
const TLS_MAJOR: u8 = 3;
/// The type of a handshake message that is a client's hello.
const CLIENT_HELLO: u8 = 1;
/// The longest payload of a record.
const RECORD_BYTES_MAX: usize = 16 * 1024;

/// Assembles the hello from its records; a client may spread it over several.
fn detect_tls(bytes: &[u8]) -> ClientProtocol {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        let &[kind, major, _, high, low, ref payload @ ..] = rest else {
            let torn = rest.first().is_some_and(|kind| *kind != HANDSHAKE);
            return if torn {
                ClientProtocol::BrokenTls
            } else {
                ClientProtocol::Undecided(Candidate::Tls)
            };
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if kind != HANDSHAKE || major != TLS_MAJOR || length == 0 || length > RECORD_BYTES_MAX {
            return ClientProtocol::BrokenTls;
        }
        let Some((payload, after)) = payload.split_at_checked(length) else {
            return ClientProtocol::Undecided(Candidate::Tls);
        };
        message.extend_from_slice(payload);
        if message[0] != CLIENT_HELLO {
            return ClientProtocol::BrokenTls;
        }
        if let [_, a, b, c, body @ ..] = &message[..] {
            let wanted = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if let Some(body) = body.get(..wanted) {
                return server_name(body)
                    .map_or(ClientProtocol::BrokenTls, |name| ClientProtocol::Tls { name });
            }
        }
        rest = after;
    }
}

/// Reads fields off the front of a message.
struct TlsReader<'b>(&'b [u8]);

impl<'b> TlsReader<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn short(&mut self) -> Option<usize> {
        self.take(1).map(|byte| usize::from(byte[0]))
    }

    fn long(&mut self) -> Option<usize> {
        self.take(2).map(|bytes| usize::from(u16::from_be_bytes([bytes[0], bytes[1]])))
    }

    /// A block: two bytes of length, then so many bytes.
    fn block(&mut self) -> Option<Self> {
        let length = self.long()?;
        self.take(length).map(Self)
    }
}

/// The server name in the body of a hello; the outer `None` means that the hello is malformed.
fn server_name(body: &[u8]) -> Option<Option<String>> {
    const VERSION_AND_RANDOM_BYTES: usize = 2 + 32;
    const SERVER_NAME: usize = 0;
    let mut hello = TlsReader(body);
    hello.take(VERSION_AND_RANDOM_BYTES)?;
    let session_id = hello.short()?;
    hello.take(session_id)?;
    hello.block()?; // ciphers
    let compressions = hello.short()?;
    hello.take(compressions)?;
    if hello.0.is_empty() {
        return Some(None);
    }
    let mut extensions = hello.block()?;
    if !hello.0.is_empty() {
        return None;
    }
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.long()?;
        let extension = extensions.block()?;
        if kind == SERVER_NAME {
            // A second extension violates the standard, and servers differ in which one they use.
            if name.is_some() {
                return None;
            }
            name = Some(only_name(extension)?);
        }
    }
    Some(name)
}

/// The only name of a server name extension; `None` if there is not exactly one.
fn only_name(mut extension: TlsReader<'_>) -> Option<String> {
    const HOST_NAME: usize = 0;
    let mut names = extension.block()?;
    let kind = names.short()?;
    let name = names.block()?.0;
    if kind != HOST_NAME || !names.0.is_empty() || !extension.0.is_empty() {
        return None;
    }
    normal_host(std::str::from_utf8(name).ok()?)
}

/// Detects an HTTP request line. Servers are lenient, so this function accepts any method and any white
/// space.
fn detect_line(bytes: &[u8]) -> ClientProtocol {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let Some(start) = bytes.iter().position(|byte| !is_space(byte)) else {
        return ClientProtocol::Undecided(Candidate::Line);
    };
    let text = &bytes[start..];
    match text.iter().find(|byte| !is_token(**byte)) {
        None => return ClientProtocol::Undecided(Candidate::Line),
        Some(byte) if is_space(byte) => {}
        Some(_) => return ClientProtocol::Other,
    }
    let Some(end) = text.iter().position(|byte| *byte == b'\n') else {
        return ClientProtocol::Undecided(Candidate::Line);
    };
    let starts = |word: &[u8], with: &[u8]| {
        word.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with))
    };
    let mut words = text[..end].split(is_space).filter(|word| !word.is_empty()).skip(1);
    match words.find(|word| starts(word, b"HTTP/")) {
        None => ClientProtocol::Other,
        Some(version) if starts(version, b"HTTP/2") => ClientProtocol::PlainHttp2,
        Some(_) => ClientProtocol::Http,
    }
}

/// Whether an HTTP method may contain this byte.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// TLS hellos for tests.
#[cfg(test)]
pub(super) mod fixtures {
    /// A hello that requests `name`, in one record.
    pub fn hello(name: &str) -> Vec<u8> {
        record(&message(&[server_name(&[(0, name)])]))
    }

    pub fn server_name(names: &[(u8, &str)]) -> Vec<u8> {
        let mut list = Vec::new();
        for (kind, name) in names {
            list.push(*kind);
            list.extend(block(name.as_bytes()));
        }
        [vec![0, 0], block(&block(&list))].concat()
    }

    /// A handshake message with these extensions.
    pub fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([4, 1, 2, 3, 4]);
        body.extend(block(&[0x13, 0x01, 0x13, 0x02]));
        body.extend([1, 0]);
        body.extend(block(&extensions.concat()));
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[1, length[1], length[2], length[3]][..], &body].concat()
    }

    pub fn record(payload: &[u8]) -> Vec<u8> {
        [&[22, 3, 1][..], &block(payload)].concat()
    }

    pub fn block(bytes: &[u8]) -> Vec<u8> {
        [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::{block, hello, message, record, server_name};
    use super::*;

    fn named(name: &str) -> ClientProtocol {
        ClientProtocol::Tls { name: Some(name.to_owned()) }
    }

    #[test]
    fn a_hello_s_server_name_is_read() {
        assert_eq!(detect(&hello("a.org")), named("a.org"));
        assert_eq!(detect(&hello("A.oRg.")), named("a.org"));
        let grease = [vec![0x0a, 0x0a], block(&[])].concat();
        let with_others = record(&message(&[grease.clone(), server_name(&[(0, "a.org")]), grease]));
        assert_eq!(detect(&with_others), named("a.org"));
        assert_eq!(detect(&record(&message(&[]))), ClientProtocol::Tls { name: None });
        let then_more = [hello("a.org"), vec![20, 3, 3, 0, 1, 1]].concat();
        assert_eq!(detect(&then_more), named("a.org"));
    }

    #[test]
    fn a_hello_that_is_cut_anywhere_is_undecided_and_never_another_name() {
        let whole = hello("a.org");
        for cut in 1..whole.len() {
            assert_eq!(
                detect(&whole[..cut]),
                ClientProtocol::Undecided(Candidate::Tls),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn a_hello_may_be_spread_over_records_of_any_size() {
        let whole = message(&[server_name(&[(0, "a.org")])]);
        for size in 1..whole.len() {
            let records: Vec<u8> = whole.chunks(size).flat_map(record).collect();
            assert_eq!(detect(&records), named("a.org"), "records of {size}");
            let cut = detect(&records[..records.len() - 1]);
            assert_eq!(cut, ClientProtocol::Undecided(Candidate::Tls), "records of {size}");
        }
    }

    #[test]
    fn a_hello_that_two_implementations_could_read_differently_is_broken() {
        let twice = [server_name(&[(0, "a.org")]), server_name(&[(0, "b.org")])];
        let cases = [
            message(&twice),
            message(&[server_name(&[(0, "a.org"), (0, "b.org")])]),
            message(&[server_name(&[(1, "a.org")])]),
            message(&[server_name(&[])]),
            message(&[server_name(&[(0, "")])]),
            message(&[server_name(&[(0, "a.org\0.b.org")])]),
            message(&[server_name(&[(0, "a.org")]), vec![0]]),
            message(&[vec![0, 0, 0xff, 0xff]]),
            vec![2, 0, 0, 1, 0],
            vec![1, 0, 0, 1, 0],
        ];
        for case in cases {
            assert_eq!(detect(&record(&case)), ClientProtocol::BrokenTls, "{case:?}");
        }
        let whole = message(&[server_name(&[(0, "a.org")])]);
        let other_record = [record(&whole[..9]), vec![23, 3, 3, 0, 1, 0]].concat();
        assert_eq!(detect(&other_record), ClientProtocol::BrokenTls);
        assert_eq!(detect(&[22, 3, 1, 0, 0]), ClientProtocol::BrokenTls);
        assert_eq!(detect(&[22, 3, 1, 0xff, 0xff]), ClientProtocol::BrokenTls);
    }

    #[test]
    fn no_single_changed_byte_makes_the_parser_panic() {
        let whole = hello("a.org");
        for place in 0..whole.len() {
            for value in 0..=255 {
                let mut changed = whole.clone();
                changed[place] = value;
                for cut in [changed.len(), place + 1] {
                    // Any result is fine; the call must not panic.
                    let _ = detect(&changed[..cut]);
                }
            }
        }
    }

    #[test]
    fn request_lines_are_distinguished_from_other_protocols() {
        for (text, seen) in [
            ("", ClientProtocol::Undecided(Candidate::Line)),
            ("GET", ClientProtocol::Undecided(Candidate::Line)),
            ("\r\n\r\n", ClientProtocol::Undecided(Candidate::Line)),
            ("GET / HTTP/1.1", ClientProtocol::Undecided(Candidate::Line)),
            ("GET / HTTP/1.1\r\n", ClientProtocol::Http),
            ("\r\n GET / HTTP/1.1\r\n", ClientProtocol::Http),
            ("get  /\tHttp/1.0\n", ClientProtocol::Http),
            ("M-SEARCH * HTTP/1.1\r\nHost: x\r\n", ClientProtocol::Http),
            ("GET /a\u{1}b HTTP/1.1\nHost: x", ClientProtocol::Http),
            ("GET /\r HTTP/1.1\nHost: x", ClientProtocol::Http),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ClientProtocol::PlainHttp2),
            ("GET /\r\n", ClientProtocol::Other),
            ("SSH-2.0-OpenSSH_9.2 Debian\r\n", ClientProtocol::Other),
            ("SSH-2.0-OpenSSH_9.2\r\n", ClientProtocol::Other),
            ("EHLO me\r\n", ClientProtocol::Other),
            ("*1\r\n$4\r\nPING\r\n", ClientProtocol::Other),
            ("{\"a\": 1}", ClientProtocol::Other),
            ("\0\0\0\u{8}", ClientProtocol::Other),
            ("\u{16}", ClientProtocol::Undecided(Candidate::Tls)),
            ("\u{16}\u{4}", ClientProtocol::Other),
        ] {
            assert_eq!(detect(text.as_bytes()), seen, "{text:?}");
        }
    }
}
