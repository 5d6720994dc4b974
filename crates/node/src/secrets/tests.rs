//! The store of secrets on a real disk.

use std::os::unix::fs::PermissionsExt as _;

use windlass_protocol::SessionId;
use windlass_protocol::policy::{PolicyRequest, SecretRule};

use super::*;

fn name(text: &str) -> SecretName {
    SecretName::parse(text).unwrap()
}

#[test]
fn a_value_survives_the_node_and_is_readable_by_its_user_only() {
    let state = tempfile::tempdir().unwrap();
    let secrets = Secrets::open(state.path()).unwrap();
    secrets.set(&name("API_KEY"), "topsecret-value".to_owned()).unwrap();
    let file = state.path().join("secrets/values/API_KEY");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let dir = file.parent().unwrap();
    assert_eq!(std::fs::metadata(dir).unwrap().permissions().mode() & 0o777, 0o700);
    let next = Secrets::open(state.path()).unwrap();
    assert_eq!(next.list().secrets[0].name, "API_KEY");
    assert!(next.store.value(&name("API_KEY")).is_some());
    next.remove(&name("API_KEY")).unwrap();
    assert!(!file.exists());
    assert_eq!(next.remove(&name("API_KEY")).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn no_error_tells_a_value() {
    let state = tempfile::tempdir().unwrap();
    let secrets = Secrets::open(state.path()).unwrap();
    let failure = secrets.set(&name("API_KEY"), "bad\nvalue-here".to_owned()).unwrap_err();
    assert!(!failure.message.contains("value-here"), "{}", failure.message);
    secrets.set(&name("API_KEY"), "topsecret-value".to_owned()).unwrap();
    assert!(!format!("{secrets:?}").contains("topsecret"), "{secrets:?}");
    // A directory stands where the file would be: the error names the secret, not its value.
    std::fs::create_dir_all(state.path().join("secrets/values/OTHER.new")).unwrap();
    let failure = secrets.set(&name("OTHER"), "othersecret-value".to_owned()).unwrap_err();
    assert!(!failure.message.contains("othersecret"), "{}", failure.message);
}

#[test]
fn the_authority_is_made_once_and_its_key_is_private() {
    let state = tempfile::tempdir().unwrap();
    let bundle =
        |state: &Path| std::fs::read_to_string(state.join("trusted").join(BUNDLE)).unwrap();
    Secrets::open(state.path()).unwrap().prepare().unwrap();
    let first = bundle(state.path());
    Secrets::open(state.path()).unwrap().prepare().unwrap();
    assert_eq!(bundle(state.path()), first, "the next node has the same authority");
    let key = state.path().join("secrets/authority.key");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!first.contains("PRIVATE KEY"));
}

#[test]
fn only_a_session_with_secrets_trusts_the_authority() {
    let state = tempfile::tempdir().unwrap();
    let secrets = Secrets::open(state.path()).unwrap();
    let policy = |request: &str| -> Policy {
        serde_json::from_str::<PolicyRequest>(request).unwrap().resolve().unwrap()
    };
    let without = policy(r#"{"network": {"hosts": ["a.test"]}}"#);
    assert_eq!(secrets.environment(&without), []);
    assert_eq!(secrets.trusted_dir(&without), None);
    let with = policy(r#"{"secrets": [{"name": "K", "to": "https://a.test/", "env": "TOKEN"}]}"#);
    let variables = secrets.environment(&with);
    let of = |name: &str| &variables.iter().find(|(other, _)| other == name).unwrap().1;
    assert_eq!(of("TOKEN"), "windlass-secret-K-placeholder");
    assert!(of("SSL_CERT_FILE").starts_with(state.path().to_str().unwrap()));
}

#[test]
fn changed_rules_stay_until_the_session_is_gone() {
    let state = tempfile::tempdir().unwrap();
    let rules = Secrets::open(state.path()).unwrap().live_rules;
    let [one, two] = ["s1", "s2"].map(|id| SessionId::parse(id.to_owned()).unwrap());
    let rule = |path: &str| SecretRule::parse(&format!("K=https://a.test{path}")).unwrap();
    let made_with = SecretRuleSet { rules: vec![rule("/v1")], past: Vec::new() };
    let changed = made_with.replaced_by(vec![rule("/v2")]).replaced_by(Vec::new());
    assert_eq!(changed.past, [rule("/v1")], "one earlier rule for each secret and host");
    for id in [&one, &two] {
        rules.store(id, &changed).unwrap();
    }
    rules.sweep(|id| *id == one);
    assert_eq!(rules.load(&one).unwrap().unwrap(), changed);
    assert_eq!(rules.load(&two).unwrap(), None);
    rules.remove(&one);
    assert_eq!(rules.load(&one).unwrap(), None);
}

#[test]
fn a_damaged_authority_refuses_new_sessions_and_leaves_old_ones_without_tls() {
    let state = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(state.path().join("secrets/values")).unwrap();
    std::fs::write(state.path().join("secrets/authority.key"), "no key").unwrap();
    std::fs::write(state.path().join("secrets/values/BROKEN"), b"\xff\xfe not text").unwrap();
    let secrets = Secrets::open(state.path()).unwrap();
    assert!(secrets.prepare().unwrap_err().message.contains("cannot send secrets"));
    // The session's own rules still hold, without TLS.
    let id = SessionId::parse("s1".to_owned()).unwrap();
    let one = secrets.for_family(&id, Vec::new());
    assert!(Arc::ptr_eq(&one, &secrets.for_family(&id, Vec::new())), "twins share them");
    assert_eq!(secrets.list().secrets, []);
}
