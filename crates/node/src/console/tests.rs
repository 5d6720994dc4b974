//! Logins of the console over the life of a node and its successors.

use std::cell::Cell;

use windlass_client::{NamedTokens, NewToken, Token};
use windlass_protocol::{TenantName, TokenName};

use super::*;

const HOST: &str = "127.0.0.1:1";

fn console(dir: &std::path::Path) -> ConsoleAccess {
    let tokens = DoorTokens::new(dir.join("token"), dir.join("tokens"));
    ConsoleAccess::open(dir.join("console.json"), tokens)
}

/// The address and the code of a login for the owner.
fn offered(console: &ConsoleAccess) -> (String, String) {
    let url = console.offer_login(LoginClient::Owner).unwrap().url;
    let rest = url.strip_prefix("http://").unwrap();
    let (address, code) = rest.split_once("/console/#login=").unwrap();
    (address.to_owned(), code.to_owned())
}

fn begin(console: &ConsoleAccess) -> BegunLogin {
    begin_at(console, HOST)
}

fn begin_at(console: &ConsoleAccess, host: &str) -> BegunLogin {
    let (_, code) = offered(console);
    console
        .log_in(LoginCredential::Code(code), host, &[])
        .unwrap_or_else(|error| panic!("{error:?}"))
}

fn rights(console: &ConsoleAccess, login: &BegunLogin) -> Option<String> {
    rights_at(console, login, HOST)
}

fn rights_at(console: &ConsoleAccess, login: &BegunLogin, host: &str) -> Option<String> {
    let key = Some(&*login.session.key);
    let visit = console.check([&*login.cookie].into_iter(), key, host);
    visit.ok().map(|visit| visit.rights.to_string())
}

/// Makes every write of the login file fail.
fn block_writes(dir: &std::path::Path) {
    std::fs::create_dir(dir.join("console.json.new")).unwrap();
}

#[test]
fn only_the_cookie_and_the_key_of_one_login_at_its_host_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let console = console(dir.path());
    let (one, two) = (begin(&console), begin(&console));
    let (cookie, key) = (&*one.cookie, Some(&*one.session.key));
    for (cookies, key, host, expected) in [
        (vec![cookie], key, HOST, true),
        (vec!["x", &*two.cookie, cookie], key, HOST, true),
        (vec![], key, HOST, false),
        (vec![cookie], None, HOST, false),
        (vec![cookie], Some(""), HOST, false),
        (vec![cookie], Some(&*two.session.key), HOST, false),
        (vec![&*two.cookie], key, HOST, false),
        (vec![&cookie[1..]], key, HOST, false),
        (vec![cookie], key, "127.0.0.1:2", false),
        (vec![cookie], key, "", false),
    ] {
        let checked = console.check(cookies.iter().copied(), key, host);
        assert_eq!(checked.is_ok(), expected, "{cookies:?} {key:?} {host}");
        if let Err(failure) = checked {
            assert_eq!(failure.code, ErrorCode::Unauthorized);
        }
    }
    let visit = console.check([cookie].into_iter(), key, HOST).unwrap();
    console.log_out(&visit.login).unwrap();
    assert_eq!(rights(&console, &one), None);
    assert_eq!(rights(&console, &two).as_deref(), Some("admin"));
}

#[test]
fn a_code_logs_in_once_and_a_token_as_long_as_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let console = console(dir.path());
    let (_, code) = offered(&console);
    assert!(console.log_in(LoginCredential::Code(code.clone()), HOST, &[]).is_ok());
    assert!(console.log_in(LoginCredential::Code(code), HOST, &[]).is_err());
    let name = TokenName::parse("acme").unwrap();
    let tenant = Some(TenantName::parse("acme").unwrap());
    let new = NewToken {
        name: name.clone(),
        scope: TokenScope::Run,
        tenant,
        created_at_ms: 0,
        expires_at_ms: None,
    };
    let named = NamedTokens::create(&dir.path().join("tokens"), new).unwrap();
    let own = Token::read_or_make(&dir.path().join("token")).unwrap();
    let by_token = |token: &Token| {
        console.log_in(LoginCredential::Token(token.as_str().to_owned()), HOST, &[])
    };
    let (named_login, own_login) = (by_token(&named).ok().unwrap(), by_token(&own).ok().unwrap());
    assert_eq!(named_login.session.scope, "run");
    assert_eq!(named_login.session.tenant.as_ref().map(TenantName::as_str), Some("acme"));
    assert_eq!(rights(&console, &named_login).as_deref(), Some("run@acme"));
    assert_eq!(rights(&console, &own_login).as_deref(), Some("admin"));
    NamedTokens::remove(&dir.path().join("tokens"), &name).unwrap();
    Token::rotate(&dir.path().join("token")).unwrap();
    assert_eq!(rights(&console, &named_login), None);
    assert_eq!(rights(&console, &own_login), None);
    assert!(by_token(&named).is_err() && by_token(&own).is_err());
}

#[test]
fn the_next_node_has_the_logins_and_the_address() {
    let dir = tempfile::tempdir().unwrap();
    let first = console(dir.path());
    let (address, _) = offered(&first);
    let login = begin_at(&first, &address);
    drop(first);
    let second = console(dir.path());
    assert_eq!(rights_at(&second, &login, &address).as_deref(), Some("admin"));
    assert!(second.lock().door.take_listeners().is_some());
    assert_eq!(offered(&second).0, address);
}

#[test]
fn a_node_that_stops_leaves_the_logins_and_the_address_to_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let first = console(dir.path());
    let (address, _) = offered(&first);
    let login = begin_at(&first, &address);
    first.stop_listening();
    assert!(first.has_stopped_listening());
    let refused = first.offer_login(LoginClient::Owner).unwrap_err();
    assert_eq!(refused.code, ErrorCode::ShuttingDown);
    let second = console(dir.path());
    assert_eq!(rights_at(&second, &login, &address).as_deref(), Some("admin"));
    assert_eq!(offered(&second).0, address);
}

#[test]
fn the_logins_end_for_good_if_another_program_has_the_port() {
    for is_blocked in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let first = console(dir.path());
        let (address, _) = offered(&first);
        let login = begin_at(&first, &address);
        if is_blocked {
            block_writes(dir.path());
        }
        // `first` still listens.
        let second = console(dir.path());
        assert_eq!(rights_at(&second, &login, &address), None);
        assert_ne!(offered(&second).0, address);
        drop(first);
        drop(second);
        let third = console(dir.path());
        assert_eq!(rights_at(&third, &login, &address), None, "blocked: {is_blocked}");
    }
}

#[test]
fn logins_at_the_tcp_door_do_not_depend_on_the_port_of_the_console() {
    let dir = tempfile::tempdir().unwrap();
    let first = console(dir.path());
    let at_tcp = begin_at(&first, "node.example:8000");
    let (address, _) = offered(&first);
    drop(first);
    // Nothing needs the port.
    let second = console(dir.path());
    assert!(second.lock().door.take_listeners().is_none());
    assert_eq!(offered(&second).0, address);
    let at_door = begin_at(&second, &address);
    // `second` still listens.
    for _ in 0..2 {
        let next = console(dir.path());
        assert_eq!(rights_at(&next, &at_door, &address), None);
        let kept = rights_at(&next, &at_tcp, "node.example:8000");
        assert_eq!(kept.as_deref(), Some("admin"));
    }
}

#[test]
fn a_login_that_cannot_be_stored_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let console = console(dir.path());
    let all: Vec<BegunLogin> = (0..16).map(|_| begin(&console)).collect();
    block_writes(dir.path());
    let (_, code) = offered(&console);
    assert!(console.log_in(LoginCredential::Code(code), HOST, &[]).is_err());
    for login in &all {
        assert!(rights(&console, login).is_some());
    }
    assert_eq!(console.lock().logins.active().len(), all.len());
}

#[test]
fn a_disk_that_is_slow_keeps_no_request_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let console = console(dir.path());
    let login = begin(&console);
    let (_, code) = offered(&console);
    let count = || console.lock().logins.active().len();
    std::thread::scope(|scope| {
        let writing = console.file.lock();
        let begun = scope.spawn(|| console.log_in(LoginCredential::Code(code), HOST, &[]).is_ok());
        while count() < 2 {
            std::thread::yield_now();
        }
        assert_eq!(rights(&console, &login).as_deref(), Some("admin"));
        assert!(!begun.is_finished(), "its login is not stored yet");
        drop(writing);
        assert!(begun.join().unwrap());
    });
}

#[test]
fn a_second_login_of_a_browser_goes_on_with_the_first_one() {
    let dir = tempfile::tempdir().unwrap();
    let console = console(dir.path());
    let first = begin(&console);
    let own = Token::read_or_make(&dir.path().join("token")).unwrap();
    let again = |credential, host: &str, cookie: &str| {
        let cookies = ["x".to_owned(), cookie.to_owned()];
        let begun = console.log_in(credential, host, &cookies).ok().unwrap();
        begun.cookie == first.cookie && begun.session.key == first.session.key
    };
    let code = || LoginCredential::Code(offered(&console).1);
    let token = || LoginCredential::Token(own.as_str().to_owned());
    assert!(again(code(), HOST, &first.cookie));
    assert!(!again(code(), "127.0.0.1:2", &first.cookie), "another host");
    assert!(!again(token(), HOST, &first.cookie), "another client");
    assert!(!again(code(), HOST, &first.cookie[1..]), "not its cookie");
    assert!(rights(&console, &first).is_some());
    let key = Some(&*first.session.key);
    let visit = console.check([&*first.cookie].into_iter(), key, HOST).unwrap();
    console.log_out(&visit.login).unwrap();
    assert!(!again(code(), HOST, &first.cookie), "it has ended");
}

#[test]
fn there_is_no_port_and_no_file_before_the_first_login() {
    let dir = tempfile::tempdir().unwrap();
    let console = console(dir.path());
    assert!(console.lock().door.take_listeners().is_none());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_cannot_be_read_ends_all_logins() {
    let dir = tempfile::tempdir().unwrap();
    let first = console(dir.path());
    let login = begin(&first);
    drop(first);
    let file = dir.path().join("console.json");
    let text = std::fs::read_to_string(&file).unwrap();
    for damaged in [&text[1..], "", "{}", &text.replace("\"version\":1", "\"version\":2")] {
        std::fs::write(&file, damaged).unwrap();
        assert_eq!(rights(&console(dir.path()), &login), None, "{damaged}");
    }
}

#[test]
fn a_login_is_checked_once_however_many_cookies_name_it() {
    let dir = tempfile::tempdir().unwrap();
    let console = console(dir.path());
    let login = begin(&console);
    let state = console.lock();
    let (id, signature) = cookie_parts(&login.cookie).unwrap();
    let wrong = format!("{id}.{}", "0".repeat(signature.len()));
    let unknown = format!("{}.{signature}", "0".repeat(id.len()));
    let mut all = [&*wrong, &*unknown, "x"].repeat(500);
    all.push(&login.cookie);
    for (host, accepts, expected_checks, is_found) in
        [(HOST, true, 1, true), (HOST, false, 1, false), ("127.0.0.1:2", true, 0, false)]
    {
        let checks = Cell::new(0);
        let found = state.login_of(all.iter().copied(), host, clock::now_ms(), |_| {
            checks.set(checks.get() + 1);
            accepts
        });
        assert_eq!((checks.get(), found.is_some()), (expected_checks, is_found), "{host}");
    }
}
