//! Tables of requests: what the proxy makes of them.

use std::collections::HashMap;
use std::sync::Arc;

use hyper::Request;
use windlass_protocol::policy::{SecretName, SecretRuleSet, SecretScheme};

use super::*;
use crate::secrets::{Authority, SecretSource, SessionSecrets};

/// Values by name.
#[derive(Debug)]
struct Values(HashMap<&'static str, &'static str>);

impl SecretSource for Values {
    fn value(&self, name: &SecretName) -> Option<Arc<SecretValue>> {
        let value = self.0.get(name.as_str())?;
        Some(Arc::new(SecretValue::new((*value).to_owned()).unwrap()))
    }
}

const PLACEHOLDER: &str = "windlass-secret-K-placeholder";

fn secrets(rules: &[&str]) -> SessionSecrets {
    let rules = rules.iter().map(|rule| SecretRule::parse(rule).unwrap()).collect();
    let key = Authority::new_key().unwrap();
    let authority = Authority::with_roots(&key, &mut None, Vec::new()).unwrap();
    let values = Values([("K", "topsecret/1"), ("L", "othersecret")].into());
    let rules = SecretRuleSet { rules, past: Vec::new() };
    SessionSecrets::new(rules, Arc::new(values), Some(Arc::new(authority)))
}

/// Screens `METHOD PATH`, then `header: value` lines. Returns the path and the headers, or the reason of the refusal.
fn screened(rules: &[&str], request: &str) -> Result<String, RefusalReason> {
    let mut lines = request.lines();
    let (method, path) = lines.next().unwrap().split_once(' ').unwrap();
    let mut builder = Request::builder().method(method).uri(path);
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        builder = builder.header(name, value);
    }
    let (mut head, ()) = builder.body(()).unwrap().into_parts();
    let origin = Origin { scheme: SecretScheme::Https, host: "a.test", port: 443 };
    secrets(rules).for_request().screen(&mut head, &origin)?;
    head.headers.remove(ACCEPT_ENCODING);
    let headers = head.headers.iter().map(|(name, value)| {
        assert!(value.is_sensitive() || !value.to_str().unwrap().contains("secret"), "{name}");
        format!("\n{name}: {}", value.to_str().unwrap())
    });
    Ok(format!("{}{}", head.uri, headers.collect::<String>()))
}

#[test]
fn a_value_goes_where_its_rule_says() {
    let bearer = "K=https://a.test/v1";
    let basic = format!("Basic {}", STANDARD.encode("git:topsecret/1"));
    let cases: &[(&str, &str, &str)] = &[
        // Added.
        (bearer, "GET /v1/x", "/v1/x\nauthorization: Bearer topsecret/1"),
        ("K=https://a.test/,header=X-Api-Key", "GET /", "/\nx-api-key: topsecret/1"),
        (
            "K=https://a.test/,header=x-key,template=id=7;key={secret}",
            "GET /",
            "/\nx-key: id=7;key=topsecret/1",
        ),
        ("K=https://a.test/,query=key", "GET /x?a=1", "/x?a=1&key=topsecret%2F1"),
        ("K=https://a.test/,query=key", "GET /x", "/x?key=topsecret%2F1"),
        ("K=https://a.test/,basic_user=git", "GET /", &format!("/\nauthorization: {basic}")),
        // In place of the placeholder.
        (
            bearer,
            &format!("GET /v1\nauthorization: token {PLACEHOLDER}"),
            "/v1\nauthorization: token topsecret/1",
        ),
        (
            bearer,
            &format!(
                "GET /v1\nauthorization: Basic {}",
                STANDARD.encode(format!("git:{PLACEHOLDER}"))
            ),
            &format!("/v1\nauthorization: {basic}"),
        ),
        (
            "K=https://a.test/,query=key",
            &format!("GET /?key={PLACEHOLDER}&b"),
            "/?key=topsecret%2F1&b",
        ),
        (
            "K=https://a.test/,query=key",
            "GET /?key=windlass%2Dsecret-K-placeholder",
            "/?key=topsecret%2F1",
        ),
        // The code's own header stays.
        (bearer, "GET /v1\nauthorization: Bearer mine", "/v1\nauthorization: Bearer mine"),
        // A narrow rule: no other path or method by a header.
        (bearer, "GET /v1\nx-original-url: /v2", "/v1\nauthorization: Bearer topsecret/1"),
        // Not matched: nothing is added.
        (bearer, "GET /v2", "/v2"),
        ("K=https://a.test/v1,methods=POST", "GET /v1", "/v1"),
        ("K=https://b.test/", "GET /", "/"),
        // A response must be whole and readable.
        (bearer, "GET /v2\nrange: bytes=0-3\naccept-encoding: gzip", "/v2"),
    ];
    for (rule, request, expected) in cases {
        assert_eq!(screened(&[rule], request).as_deref(), Ok(*expected), "{rule} {request}");
    }
}

#[test]
fn a_placeholder_anywhere_else_is_refused() {
    let rules = ["K=https://a.test/v1,methods=GET", "L=https://b.test/"];
    for request in [
        format!("GET /v2\nauthorization: Bearer {PLACEHOLDER}"),
        format!("POST /v1\nauthorization: Bearer {PLACEHOLDER}"),
        format!("GET /v1\nx-other: {PLACEHOLDER}"),
        format!("GET /v1\nx-other: Basic {}", STANDARD.encode(format!("u:{PLACEHOLDER}"))),
        format!("GET /v1?q={PLACEHOLDER}"),
        format!("GET /v1/{PLACEHOLDER}"),
        "GET /v1/windlass%2dsecret-K-placeholder".to_owned(),
        format!("GET /v1/../v2\nauthorization: Bearer {PLACEHOLDER}"),
        // Of a secret that goes to another host.
        "GET /v1\nauthorization: Bearer windlass-secret-L-placeholder".to_owned(),
        // Of a secret that no rule names.
        "GET /v1\nx-other: windlass-secret-M-placeholder".to_owned(),
        "GET /v1\nwindlass-secret-k-placeholder: x".to_owned(),
        format!("{PLACEHOLDER} /v2"),
        format!(
            "GET /v2\nauthorization: Basic {}",
            STANDARD.encode(format!("u:{PLACEHOLDER}")).trim_end_matches('=')
        ),
        format!(
            "GET /v1\nauthorization: basic\t{}",
            STANDARD.encode("u\n:windlass-secret-L-placeholder")
        ),
    ] {
        assert_eq!(screened(&rules, &request), Err(RefusalReason::SecretPlaceholder), "{request}");
    }
}

#[test]
fn a_secret_that_is_not_set_is_named() {
    let found = screened(&["MISSING=https://a.test/"], "GET /");
    assert_eq!(found, Err(RefusalReason::SecretMissing));
}

#[test]
fn two_secrets_go_into_one_request() {
    let rules = ["K=https://a.test/", "L=https://a.test/,header=x-app"];
    let found = screened(&rules, "GET /").unwrap();
    assert!(found.contains("authorization: Bearer topsecret/1"), "{found}");
    assert!(found.contains("x-app: othersecret"), "{found}");
}

#[test]
fn another_parameter_of_a_query_rule_is_searched_decoded() {
    let rules = ["K=https://a.test/,query=key"];
    let refused = Err(RefusalReason::SecretPlaceholder);
    assert_eq!(screened(&rules, "GET /?a=%77indlass-secret-K-placeholder"), refused);
    assert_eq!(screened(&rules, "GET /?%77indlass-secret-K-placeholder=a"), refused);
}
