//! A table of malformed requests. The node must refuse each with an error code or answer it correctly, and go
//! on running.

use super::raw_http::{NodeEndpoint, RawRequest};

/// The answers that a malformed request may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedAnswer {
    /// An answer of the node. A refusal has an error code.
    WithCode,
    /// The bytes are not HTTP or exceed its limits: the HTTP library answers, or closes the connection.
    NotHttp,
    /// The request may start a turn.
    Turn,
    /// The node may wait for the rest of the request.
    MayWait,
}

#[derive(Debug, Clone)]
pub struct MalformedRequest {
    pub name: &'static str,
    pub allowed: AllowedAnswer,
    content: RequestContent,
}

#[derive(Debug, Clone)]
enum RequestContent {
    Raw(Vec<u8>),
    Http(RawRequest),
}

impl MalformedRequest {
    pub fn bytes(&self, endpoint: &NodeEndpoint) -> Vec<u8> {
        match &self.content {
            RequestContent::Raw(bytes) => bytes.clone(),
            RequestContent::Http(request) => request.bytes(endpoint),
        }
    }
}

/// All malformed requests, for one session.
pub fn rows(session: &str) -> Vec<MalformedRequest> {
    let mut rows = Vec::new();
    not_http(session, &mut rows);
    odd_paths(session, &mut rows);
    odd_bodies(session, &mut rows);
    rows
}

fn not_http(session: &str, rows: &mut Vec<MalformedRequest>) {
    let mut raw = |name, allowed, bytes: Vec<u8>| {
        rows.push(MalformedRequest { name, allowed, content: RequestContent::Raw(bytes) });
    };
    let turns = format!("POST /v1/sessions/{session}/turns HTTP/1.1\r\nHost: x\r\n");
    let chunked = format!("{turns}Transfer-Encoding: chunked\r\n\r\n");
    let health = "GET /v1/health HTTP/1.1\r\nHost: x\r\n";
    raw("garbage", AllowedAnswer::NotHttp, b"\x00\xff\x16\x03\x01garbage\r\n\r\n".to_vec());
    raw("no version", AllowedAnswer::NotHttp, b"GET /v1/health\r\n\r\n".to_vec());
    raw("preface of http 2", AllowedAnswer::NotHttp, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec());
    raw("http 9", AllowedAnswer::NotHttp, b"GET /v1/health HTTP/9.9\r\n\r\n".to_vec());
    let long = format!("{health}X: {}\r\n\r\n", "a".repeat(100_000));
    raw("long header", AllowedAnswer::NotHttp, long.into_bytes());
    let many: String = (0..2000).map(|n| format!("X-{n}: a\r\n")).collect();
    raw("many headers", AllowedAnswer::NotHttp, format!("{health}{many}\r\n").into_bytes());
    raw(
        "nul in path",
        AllowedAnswer::NotHttp,
        b"GET /v1/a\x00b HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
    );
    let length = |text: &str| format!("{turns}Content-Length: {text}\r\n\r\n{{}}").into_bytes();
    raw("negative length", AllowedAnswer::NotHttp, length("-1"));
    raw("huge length", AllowedAnswer::NotHttp, length("99999999999999999999999"));
    raw("two lengths", AllowedAnswer::NotHttp, length("2\r\nContent-Length: 3"));
    let both = "2\r\nTransfer-Encoding: chunked";
    raw("length and chunks", AllowedAnswer::NotHttp, length(both));
    raw(
        "bad chunk",
        AllowedAnswer::NotHttp,
        format!("{chunked}ZZ\r\nabc\r\n0\r\n\r\n").into_bytes(),
    );
    let overflow = format!("{chunked}ffffffffffffffffff\r\nabc\r\n0\r\n\r\n");
    raw("chunk overflow", AllowedAnswer::NotHttp, overflow.into_bytes());
    raw("half a head", AllowedAnswer::MayWait, b"GET /v1/health HTTP/1.1\r\nHo".to_vec());
    let connect = b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    raw("connect", AllowedAnswer::NotHttp, connect.to_vec());
}

fn odd_paths(session: &str, rows: &mut Vec<MalformedRequest>) {
    let mut get = |name, path: String| {
        rows.push(MalformedRequest {
            name,
            allowed: AllowedAnswer::WithCode,
            content: RequestContent::Http(RawRequest::get(path)),
        });
    };
    const MAX: u64 = u64::MAX;
    let s = format!("/v1/sessions/{session}");
    get("long id", format!("/v1/sessions/{}", "a".repeat(30_000)));
    get("path that is no UTF-8", "/v1/sessions/%ff%fe/turns/1".to_owned());
    get("path with nul", "/v1/sessions/%00".to_owned());
    get("path upwards", "/v1/sessions/..%2f..%2fetc".to_owned());
    get("no such page", "/v1/nothing".to_owned());
    get("output from the end", format!("{s}/output?from={MAX}&to=1"));
    get("output to the end", format!("{s}/output?from=0&to={MAX}"));
    get("output tail", format!("{s}/output?tail={MAX}"));
    get("output of no turn", format!("{s}/output?turn=none"));
    get("output from text", format!("{s}/output?from=abc"));
    get("events after the end", format!("{s}/events?after={MAX}"));
    get("no events", format!("{s}/events?limit=0"));
    get("events limit below zero", format!("{s}/events?limit=-1"));
    get("events twice", format!("{s}/events?after=1&after=2"));
    get("display 0", format!("{s}/displays/0"));
    get("display at the end", format!("{s}/displays/{MAX}"));
    get("display beyond numbers", format!("{s}/displays/99999999999999999999999"));
    get("search for nothing", format!("{s}/output/search?query="));
    get("search for no UTF-8", format!("{s}/output/search?query=%ff%fe"));
    get("file upwards", format!("{s}/files/%2e%2e/%2e%2e/etc/passwd"));
    get("file that is no UTF-8", format!("{s}/files/%ff%fe"));
    get("turn that is not there", format!("{s}/turns/none"));
    let odd = |request: RawRequest| RequestContent::Http(request);
    let mut add = |name, content| {
        rows.push(MalformedRequest { name, allowed: AllowedAnswer::WithCode, content })
    };
    let version = RawRequest::get("/v1/health").header("windlass-api", "99.0");
    add("another version", odd(version));
    let last = RawRequest::get(format!("{s}/events")).header("last-event-id", "zz");
    add("last event that is no number", odd(last));
    let range = RawRequest::get(format!("{s}/files/none"));
    add("range", odd(range.header("range", "bytes=99999999999999999999-")));
    let within = RawRequest::get(format!("{s}/turns/none")).header("windlass-within", "x");
    add("within nothing", odd(within));
    add("odd method", odd(RawRequest { method: "BREW", path: s, ..RawRequest::default() }));
}

fn odd_bodies(session: &str, rows: &mut Vec<MalformedRequest>) {
    let mut post = |name, allowed, path: &str, body: Vec<u8>| {
        let path = path.to_owned();
        let request = RawRequest { method: "POST", path, body, ..RawRequest::default() };
        rows.push(MalformedRequest { name, allowed, content: RequestContent::Http(request) });
    };
    let turns = format!("/v1/sessions/{session}/turns");
    let text = |text: &str| text.as_bytes().to_vec();
    let with_code = AllowedAnswer::WithCode;
    post("no json", with_code, &turns, text("{nope"));
    post("null", with_code, &turns, text("null"));
    post("a list", with_code, "/v1/sessions", text("[1,2]"));
    post("no UTF-8", with_code, &turns, b"{\"code\":\"\xff\xfe\"}".to_vec());
    post("half a surrogate", with_code, &turns, text(r#"{"code":"1#\ud800","wait_ms":1000}"#));
    post("nul in code", AllowedAnswer::Turn, &turns, text(r#"{"code":"1#\u0000","wait_ms":2000}"#));
    post("deep", with_code, &turns, text(&format!("{{\"code\":{}", "[".repeat(200_000))));
    let closed = format!("{{\"x\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    post("deep and closed", with_code, &turns, text(&closed));
    post("a number beyond floats", with_code, &turns, text(r#"{"code":"1","wait_ms":1e400}"#));
    post("a wait below zero", with_code, &turns, text(r#"{"code":"1","wait_ms":-1}"#));
    let forever = r#"{"code":"1","wait_ms":18446744073709551615}"#;
    post("the longest wait", AllowedAnswer::Turn, &turns, text(forever));
    let late = r#"{"code":"1","deadline_ms":18446744073709551615}"#;
    post("the longest deadline", AllowedAnswer::Turn, &turns, text(late));
    post("an unknown field", with_code, &turns, text(r#"{"code":"1","colour":"red"}"#));
    post("a turn id of digits", with_code, &turns, text(r#"{"id":"1","code":"1"}"#));
    let long = format!("{{\"id\":\"{}\",\"code\":\"1\"}}", "a".repeat(5000));
    post("a long turn id", with_code, &turns, text(&long));
    let create = "/v1/sessions";
    post("an id of dots", with_code, create, text(r#"{"id":".."}"#));
    post("a variable without a name", with_code, create, text(r#"{"env":{"":"z","C=D":"y"}}"#));
    post("no interpreter", with_code, create, text(r#"{"interpreter":"/no/such"}"#));
    post("a workspace with nul", with_code, create, text(r#"{"workspace":"/tmp\u0000x"}"#));
    post("a workspace that is not there", with_code, create, text(r#"{"workspace":"/no/such"}"#));
    post("a policy of nothing", with_code, create, text(r#"{"policy":{"limits":{"cpu":-1}}}"#));
    let many = r#"{"policy":{"limits":{"processes":4294967295,"open_files":4294967295}}}"#;
    post("more processes than there can be", with_code, create, text(many));
    let none = r#"{"policy":{"limits":{"processes":0,"memory_bytes":0,"open_files":0}}}"#;
    post("limits of nothing", with_code, create, text(none));
    post("a stop without a word", with_code, "/v1/node/stop", text("{}"));
    let input = format!("{turns}/none/input");
    post("input for no turn", with_code, &input, text(r#"{"text":"x"}"#));
    post("input that is no base64", with_code, &input, text(r#"{"base64":"!!!"}"#));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows = rows("s");
        let names: std::collections::BTreeSet<_> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
        assert!(rows.len() > 60, "{}", rows.len());
    }
}
