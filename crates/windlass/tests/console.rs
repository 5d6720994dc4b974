//! The web console at a real node, with requests as a browser sends them: its files, who can log in, what a login allows,
//! and which requests are refused.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use windlass_client::protocol::{TenantName, TokenName};
use windlass_client::{NamedTokens, NewToken, Token, TokenScope};
use windlass_testkit::{PATIENCE, TestNode};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Names a file with milliseconds that the node adds to its clock.
const CLOCK_FILE: &str = "WINDLASS_TEST_CLOCK_OFFSET_FILE";

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

/// The answer to a request.
struct PageAnswer {
    status: u16,
    head: String,
    text: String,
}

impl PageAnswer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// The value of the console's cookie, if the answer sets it.
    fn cookie(&self) -> Option<String> {
        let (value, _) = self.header("set-cookie")?.split_once(';')?;
        value.strip_prefix("windlass_console=").map(str::to_owned)
    }
}

/// Sends a request on a new connection. `headers` are whole lines.
fn send(address: &str, method: &str, path: &str, headers: &str, body: &str) -> PageAnswer {
    send_and_keep(address, method, path, &format!("{headers}connection: close\r\n"), body)
}

/// The same, and lets the node keep the connection. Returns when the node has ended it.
fn send_and_keep(address: &str, method: &str, path: &str, headers: &str, body: &str) -> PageAnswer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{headers}content-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (head, text) = answer.split_once("\r\n\r\n").unwrap_or_default();
    PageAnswer { status: status.unwrap(), head: head.to_owned(), text: text.to_owned() }
}

/// A page that has logged in.
#[derive(Clone)]
struct LoggedIn {
    address: String,
    cookie: String,
    key: String,
}

impl LoggedIn {
    /// The page that logs in at the address of `windlass console`.
    async fn by_code(node: &TestNode) -> Self {
        let (address, code) = offered(node).await;
        let answer = log_in(&address, &json!({"code": code}));
        Self::of(address, &answer)
    }

    fn by_token(address: &str, token: &Token) -> Self {
        let answer = log_in(address, &json!({"token": token.as_str()}));
        Self::of(address.to_owned(), &answer)
    }

    fn of(address: String, answer: &PageAnswer) -> Self {
        assert_eq!(answer.status, 200, "{}", answer.text);
        let key = answer.json()["key"].as_str().unwrap().to_owned();
        Self { address, cookie: answer.cookie().unwrap(), key }
    }

    fn headers(&self) -> String {
        let Self { address, cookie, key } = self;
        format!(
            "host: {address}\r\norigin: http://{address}\r\nsec-fetch-site: same-origin\r\n\
             cookie: windlass_console={cookie}\r\nx-windlass-console: {key}\r\n"
        )
    }

    fn ask(&self, method: &str, path: &str) -> PageAnswer {
        send(&self.address, method, path, &self.headers(), "")
    }

    fn is_in(&self) -> bool {
        let answer = self.ask("GET", "/v1/health");
        assert!([200, 401].contains(&answer.status), "{}", answer.text);
        answer.status == 200
    }
}

/// The address and the code of a new login.
async fn offered(node: &TestNode) -> (String, String) {
    let login = node.client().await.unwrap().console_login().await.unwrap();
    let rest = login.url.strip_prefix("http://").unwrap();
    let (address, code) = rest.split_once("/console/#login=").unwrap();
    (address.to_owned(), code.to_owned())
}

fn log_in(address: &str, body: &Value) -> PageAnswer {
    log_in_with(address, "", body)
}

/// The same with more headers, as whole lines.
fn log_in_with(address: &str, more: &str, body: &Value) -> PageAnswer {
    let headers = format!("host: {address}\r\norigin: http://{address}\r\n{more}");
    send(address, "POST", "/v1/console/session", &headers, &body.to_string())
}

/// A node whose clock the test can set forward.
async fn node_with_clock() -> (TestNode, PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let clock = dir.path().join("offset");
    let node = TestNode::builder(PROGRAM).env(CLOCK_FILE, &clock).start().await.unwrap();
    (node, clock, dir)
}

fn set_forward(clock: &Path, by_ms: u64) {
    fs::write(clock, by_ms.to_string()).unwrap();
}

/// A node with a TCP door, and the address of the door.
async fn listening() -> (TestNode, String) {
    let node = TestNode::builder(PROGRAM).arg("--listen").arg("127.0.0.1:0").start().await.unwrap();
    let status = node.client().await.unwrap().node_status().await.unwrap();
    (node, status.listen.unwrap())
}

fn named_token(node: &TestNode, name: &str, scope: TokenScope, tenant: Option<&str>) -> Token {
    let new = NewToken {
        name: TokenName::parse(name).unwrap(),
        scope,
        tenant: tenant.map(|tenant| TenantName::parse(tenant).unwrap()),
        created_at_ms: 0,
        expires_at_ms: None,
    };
    NamedTokens::create(&node.dirs().named_tokens(), new).unwrap()
}

/// The addresses at which a process listens, as the kernel writes them, and the inodes of their sockets.
fn listening_sockets(pid: u32) -> Vec<(String, String)> {
    let mut listening = Vec::new();
    for family in ["tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{family}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // The state of a listening socket.
            if fields[3] == "0A" {
                listening.push((fields[1].to_owned(), format!("socket:[{}]", fields[9])));
            }
        }
    }
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links: Vec<PathBuf> =
        descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    listening.retain(|(_, inode)| links.iter().any(|link| link.as_os_str() == inode.as_str()));
    listening
}

/// Number of TCP ports at which a process listens, at one address or several.
fn listening_ports(pid: u32) -> usize {
    let sockets = listening_sockets(pid);
    let ports: BTreeSet<&str> =
        sockets.iter().filter_map(|(address, _)| Some(address.rsplit_once(':')?.1)).collect();
    ports.len()
}

#[tokio::test]
async fn a_node_opens_no_port_before_somebody_asks_for_the_console() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    assert_eq!(listening_ports(node.pid()), 0);
    let (first, _) = offered(&node).await;
    assert!(first.starts_with("127.0.0.1:"), "{first}");
    assert_eq!(listening_ports(node.pid()), 1);
    let (second, _) = offered(&node).await;
    assert_eq!(second, first);
    assert_eq!(listening_ports(node.pid()), 1);
}

#[tokio::test]
async fn the_console_has_its_port_at_both_loopback_addresses() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (address, code) = offered(&node).await;
    let (_, port) = address.split_once(':').unwrap();
    let other = format!("[::1]:{port}");
    if let Err(error) = TcpListener::bind("[::1]:0") {
        eprintln!("skipped: this machine has no IPv6: {error}");
        return;
    }
    assert!(TcpListener::bind(&*other).is_err());
    let by_name = format!("host: localhost:{port}\r\n");
    assert_eq!(send(&other, "GET", "/console/", &by_name, "").status, 200);
    assert_eq!(log_in(&other, &json!({"code": code})).status, 200);
}

#[tokio::test]
async fn the_command_prints_the_address_of_a_login() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    for option in ["--url-only", "--no-browser"] {
        let output = node.command(&["console", option]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let url = String::from_utf8(output.stdout).unwrap();
        let (address, code) =
            url.trim().strip_prefix("http://").unwrap().split_once("/console/#login=").unwrap();
        assert_eq!(log_in(address, &json!({"code": code})).status, 200);
    }
}

#[tokio::test]
async fn a_code_works_once_and_for_a_minute() {
    let (node, clock, _dir) = node_with_clock().await;
    let (address, code) = offered(&node).await;
    let first = log_in(&address, &json!({"code": code}));
    assert_eq!(first.status, 200, "{}", first.text);
    let session = first.json();
    assert_eq!((&session["scope"], &session["tenant"]), (&json!("admin"), &Value::Null));
    let cookie = first.header("set-cookie").unwrap();
    let expected = "; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200";
    assert!(cookie.ends_with(expected), "{cookie}");
    let again = log_in(&address, &json!({"code": code}));
    assert_eq!((again.status, &*again.code()), (401, "unauthorized"));

    let (_, late) = offered(&node).await;
    set_forward(&clock, MINUTE_MS);
    assert_eq!(log_in(&address, &json!({"code": late})).status, 401);

    let other = "0".repeat(code.len());
    for (body, status) in [
        (json!({"code": other}), 401),
        (json!({"token": other}), 401),
        (json!({"code": ""}), 401),
        (json!({}), 400),
        (json!({"code": code, "token": code}), 400),
        (json!({"other": code}), 400),
        (json!({"code": "0".repeat(8192)}), 400),
    ] {
        let answer = log_in(&address, &body);
        assert_eq!(answer.status, status, "{}", answer.text);
        assert!(!answer.text.contains(&other), "{}", answer.text);
    }
}

#[tokio::test]
async fn only_so_many_logins_wait() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    for _ in 0..16 {
        client.console_login().await.unwrap();
    }
    let refused = client.console_login().await.unwrap_err();
    assert_eq!(refused.code(), "overloaded");
}

#[tokio::test]
async fn a_page_needs_its_cookie_its_key_and_the_address_of_the_node() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (page, other) = (LoggedIn::by_code(&node).await, LoggedIn::by_code(&node).await);
    assert!(page.is_in() && other.is_in());
    let whole = page.headers();
    let without = |name: &str| -> String {
        whole
            .lines()
            .filter(|line| !line.starts_with(name))
            .map(|line| format!("{line}\r\n"))
            .collect()
    };
    let (_, port) = page.address.split_once(':').unwrap();
    let token = Token::read_or_make(&node.dirs().token()).unwrap();
    let bearer = format!("host: {}\r\nauthorization: Bearer {}\r\n", page.address, token.as_str());
    for (headers, status) in [
        (without("origin"), 200),
        (without("sec-fetch"), 200),
        (without("cookie"), 401),
        (without("x-windlass-console"), 401),
        (whole.replace(&page.key, &other.key), 401),
        (whole.replace(&page.key, ""), 401),
        (whole.replace(&page.cookie, &other.cookie), 401),
        (whole.replace(&page.cookie, &page.cookie[1..]), 401),
        (without("host"), 403),
        (format!("host: evil.test:{port}\r\n{}", without("host")), 403),
        (format!("host: 127.0.0.1:1\r\n{}", without("host")), 403),
        // Another name of the same address, with which the page did not log in.
        (
            format!(
                "host: localhost:{port}\r\n{}",
                without("host").replace("127.0.0.1", "localhost")
            ),
            401,
        ),
        (format!("origin: http://evil.test\r\n{}", without("origin")), 403),
        (format!("origin: null\r\n{}", without("origin")), 403),
        (format!("origin: http://127.0.0.1:1\r\n{}", without("origin")), 403),
        (whole.replace("same-origin", "cross-site"), 403),
        (whole.replace("same-origin", "same-site"), 403),
        (
            whole.replace(
                "same-origin",
                "cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document",
            ),
            403,
        ),
        // This address is for pages.
        (bearer, 401),
    ] {
        for path in ["/v1/health", "/v1/sessions"] {
            let answer = send(&page.address, "GET", path, &headers, "");
            assert_eq!(answer.status, status, "{headers:?}: {}", answer.text);
            match status {
                401 => assert_eq!(answer.code(), "unauthorized"),
                403 => assert_eq!(answer.code(), "foreign_site"),
                _ => {}
            }
        }
    }
    assert!(page.is_in());
    assert_eq!(page.ask("DELETE", "/v1/console/session").status, 204);
    assert!(!page.is_in() && other.is_in());
    // A login can ask for another one, with the same rights.
    let more = other.ask("POST", "/v1/console/logins");
    assert_eq!(more.status, 201, "{}", more.text);
}

#[tokio::test]
async fn the_files_need_no_login_and_come_with_a_strict_policy() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (address, _) = offered(&node).await;
    let host = format!("host: {address}\r\n");
    let page = send(&address, "GET", "/console/", &host, "");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'; script-src 'self';"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(page.header(name), Some(value), "{name}");
    }
    let moved = send(&address, "GET", "/console", &host, "");
    assert_eq!((moved.status, moved.header("location")), (302, Some("/console/")));
    let assets: Vec<&str> = page.text.split('"').filter(|part| part.contains("assets/")).collect();
    assert!(!assets.is_empty(), "{}", page.text);
    for asset in assets {
        let name = asset.rsplit('/').next().unwrap();
        let answer = send(&address, "GET", &format!("/console/assets/{name}"), &host, "");
        assert_eq!(answer.status, 200, "{asset}");
        assert!(answer.header("content-security-policy").is_some(), "{asset}");
    }
    for (path, headers, status) in [
        ("/console/assets/nothing.js", host.clone(), 404),
        ("/console/../v1/sessions", host.clone(), 404),
        ("/console/", format!("{host}sec-fetch-site: cross-site\r\n"), 403),
        ("/console/", format!("{host}origin: http://evil.test\r\n"), 403),
        ("/console/", "host: evil.test\r\n".to_owned(), 403),
        ("/v1/health", host.clone(), 401),
    ] {
        assert_eq!(send(&address, "GET", path, &headers, "").status, status, "{path} {headers:?}");
    }
    let from_elsewhere = format!(
        "{host}sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n"
    );
    assert_eq!(send(&address, "GET", "/console/", &from_elsewhere, "").status, 200);
}

#[tokio::test]
async fn a_client_without_a_login_keeps_no_connection() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (address, _) = offered(&node).await;
    let host = format!("host: {address}\r\n");
    let wrong = json!({"code": "0"}).to_string();
    for (method, path, body, status) in [
        ("GET", "/console", "", 302),
        ("GET", "/console/", "", 200),
        ("GET", "/console/nothing", "", 404),
        ("POST", "/v1/console/session", &*wrong, 401),
        ("POST", "/v1/console/session", "{}", 400),
        ("GET", "/v1/health", "", 401),
    ] {
        let answer = send_and_keep(&address, method, path, &host, body);
        assert_eq!(answer.status, status, "{method} {path}");
        assert_eq!(answer.header("connection"), Some("close"), "{method} {path}");
    }
}

#[tokio::test]
async fn a_login_and_its_address_survive_a_restart_of_the_node() {
    let mut node = TestNode::start(PROGRAM).await.unwrap();
    let page = LoggedIn::by_code(&node).await;
    assert!(page.is_in());
    node.restart().await.unwrap();
    assert!(page.is_in());
    assert_eq!(offered(&node).await.0, page.address);
    assert_eq!(page.ask("DELETE", "/v1/console/session").status, 204);
    node.restart().await.unwrap();
    // Without a login there is no port, and the next login is at the same one.
    assert_eq!(listening_ports(node.pid()), 0);
    assert_eq!(offered(&node).await.0, page.address);
    assert!(!page.is_in());
}

#[tokio::test]
async fn a_browser_that_logs_in_twice_stays_logged_in_on_both_pages() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let page = LoggedIn::by_code(&node).await;
    let (address, code) = offered(&node).await;
    let cookie = format!("cookie: windlass_console={}\r\n", page.cookie);
    let again = LoggedIn::of(address, &log_in_with(&page.address, &cookie, &json!({"code": code})));
    assert_eq!((&again.cookie, &again.key), (&page.cookie, &page.key));
    assert!(page.is_in() && again.is_in());
    assert_eq!(again.ask("DELETE", "/v1/console/session").status, 204);
    // The cookie of a login that has ended begins no other one.
    let (address, code) = offered(&node).await;
    let next = LoggedIn::of(address, &log_in_with(&page.address, &cookie, &json!({"code": code})));
    assert_ne!(next.cookie, page.cookie);
    assert!(next.is_in() && !page.is_in());
}

#[tokio::test]
async fn a_page_is_found_among_thousands_of_cookies_of_other_programs() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let page = LoggedIn::by_code(&node).await;
    let others = "windlass_console=x;".repeat(3000);
    let headers = page.headers().replace("cookie: ", &format!("cookie: {others}"));
    assert_eq!(send(&page.address, "GET", "/v1/health", &headers, "").status, 200);
}

#[tokio::test]
async fn the_console_s_own_address_takes_no_tokens() {
    let (node, tcp) = listening().await;
    let token = Token::read(&node.dirs().token()).unwrap();
    let body = json!({"token": token.as_str()});
    let (address, code) = offered(&node).await;
    let refused = log_in(&address, &body);
    assert_eq!((refused.status, &*refused.code()), (401, "unauthorized"));
    assert!(refused.text.contains("takes no tokens"), "{}", refused.text);
    assert_eq!(log_in(&address, &json!({"code": code})).status, 200);
    assert_eq!(log_in(&tcp, &body).status, 200);
}

#[tokio::test]
async fn a_login_has_no_host_of_any_length() {
    let arguments = ["--listen", "0.0.0.0:0", "--listen-anywhere"];
    let builder =
        arguments.iter().fold(TestNode::builder(PROGRAM), |builder, one| builder.arg(one));
    let node = builder.start().await.unwrap();
    let status = node.client().await.unwrap().node_status().await.unwrap();
    let (_, port) = status.listen.as_deref().unwrap().rsplit_once(':').unwrap();
    let token = Token::read(&node.dirs().token()).unwrap();
    let body = json!({"token": token.as_str()}).to_string();
    for (length, expected) in [(300, 200), (301, 400), (60_000, 400)] {
        let host = format!("host: {}\r\n", "h".repeat(length));
        let address = format!("127.0.0.1:{port}");
        let answer = send(&address, "POST", "/v1/console/session", &host, &body);
        assert_eq!(answer.status, expected, "{length}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_login_ends_twelve_hours_after_its_last_use() {
    let (node, clock, _dir) = node_with_clock().await;
    let (used, unused) = (LoggedIn::by_code(&node).await, LoggedIn::by_code(&node).await);
    assert_eq!(used.ask("GET", "/v1/health").cookie(), None);
    set_forward(&clock, 11 * HOUR_MS);
    let renewed = used.ask("GET", "/v1/health").cookie();
    assert_eq!(renewed.as_deref(), Some(&*used.cookie));
    set_forward(&clock, 13 * HOUR_MS);
    assert!(used.is_in() && !unused.is_in());
    set_forward(&clock, 26 * HOUR_MS);
    assert!(!used.is_in());
}

#[tokio::test]
async fn a_login_by_token_has_the_scope_of_the_token_and_ends_with_it() {
    let (node, address) = listening().await;
    let own = Token::read(&node.dirs().token()).unwrap();
    let owner = LoggedIn::by_token(&address, &own);
    let reader_token = named_token(&node, "reader", TokenScope::Read, None);
    let reader = LoggedIn::by_token(&address, &reader_token);
    for (page, method, path, status) in [
        (&owner, "GET", "/v1/secrets", 200),
        (&owner, "POST", "/v1/console/logins", 201),
        (&reader, "GET", "/v1/sessions", 200),
        (&reader, "GET", "/v1/secrets", 403),
        (&reader, "POST", "/v1/sessions", 403),
        (&reader, "POST", "/v1/console/logins", 403),
    ] {
        let answer = page.ask(method, path);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text);
    }
    NamedTokens::remove(&node.dirs().named_tokens(), &TokenName::parse("reader").unwrap()).unwrap();
    assert!(!reader.is_in() && owner.is_in());
    Token::rotate(&node.dirs().token()).unwrap();
    assert!(!owner.is_in());
    assert_eq!(log_in(&address, &json!({"token": own.as_str()})).status, 401);
}

#[tokio::test]
async fn a_login_of_a_tenant_sees_nothing_of_others() {
    let (node, address) = listening().await;
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let token = named_token(&node, "acme", TokenScope::Admin, Some("acme"));
    let page = LoggedIn::by_token(&address, &token);
    let owner = LoggedIn::by_code(&node).await;
    let listed = |page: &LoggedIn| page.ask("GET", "/v1/sessions").json()["sessions"].clone();
    assert_eq!(listed(&owner)[0]["id"], json!(session));
    assert_eq!(listed(&page), json!([]));
    for (method, path, status) in [
        ("GET", format!("/v1/sessions/{session}"), 404),
        ("GET", "/v1/node/disk".to_owned(), 403),
        ("POST", "/v1/console/logins".to_owned(), 403),
        ("DELETE", "/v1/console/session".to_owned(), 204),
    ] {
        assert_eq!(page.ask(method, &path).status, status, "{method} {path}");
    }
    assert!(!page.is_in());
}
