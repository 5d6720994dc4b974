//! Contract lines 97 to 99: a secret's value never enters the session, a placeholder goes only where its rule says, and
//! hosts without a rule stay end-to-end encrypted. Real programs talk TLS to a host of the test.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clients;
mod host;

use std::path::Path;

use windlass_client::Client;
use windlass_client::ClientError;
use windlass_client::protocol::api::{CreateSession, SetSecretRules};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::policy::{HostRule, HostRules, Network, PolicyRequest, SecretRule};
use windlass_client::protocol::{ErrorCode, EventKind, SessionId};
use windlass_testkit::{TestNode, all_events, run_ok};

use crate::host::TlsHost;

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// The value. It occurs nowhere else, so that every place can be searched for it.
const VALUE: &str = "sk-Very/Secret+Value=0123456789";

const PLACEHOLDER: &str = "windlass-secret-API_KEY-placeholder";

/// Code that every session gets: requests, and searches for a value that the test names in two halves.
const INSIDE: &str = include_str!("inside.py");

/// A node with the secret, and a host that it trusts.
struct Scene {
    node: TestNode,
    client: Client,
    host: TlsHost,
    /// A host that may be reached, but gets no secret.
    other: TlsHost,
}

impl Scene {
    async fn new() -> Self {
        let (host, other) = TlsHost::pair();
        let node =
            TestNode::builder(PROGRAM).env("SSL_CERT_FILE", &host.trusted).start().await.unwrap();
        let client = node.client().await.unwrap();
        client
            .set_secret(&"API_KEY".to_owned().try_into().unwrap(), VALUE.to_owned())
            .await
            .unwrap();
        Self { node, client, host, other }
    }

    fn network(&self) -> Network {
        let rules = [
            format!("api.test:{}=127.0.0.1", self.host.port),
            format!("api.test:{}=127.0.0.1", self.other.port),
            format!("evil.test:{}=127.0.0.1", self.other.port),
            format!("moved.test:{}=127.0.0.1", self.other.port),
        ];
        Network::Hosts(HostRules(rules.map(|rule| HostRule::parse(&rule).unwrap()).into()))
    }

    /// A rule for the host: `{path}[,option]...`.
    fn rule(&self, rest: &str) -> SecretRule {
        SecretRule::parse(&format!("API_KEY=https://api.test:{}{rest}", self.host.port)).unwrap()
    }

    async fn session(&self, rules: Vec<SecretRule>) -> SessionId {
        self.session_with(rules, TestNode::create()).await
    }

    async fn session_with(&self, rules: Vec<SecretRule>, mut create: CreateSession) -> SessionId {
        create.policy = Some(PolicyRequest {
            isolation: Some(Isolation::Full),
            network: Some(self.network()),
            secrets: rules,
            ..create.policy.unwrap_or_default()
        });
        let session = self.client.create_session(&create).await.unwrap().session.id;
        let (half, rest) = VALUE.split_at(VALUE.len() / 2);
        let ports = format!(
            "PORT, OTHER, HALVES = {}, {}, ({half:?}, {rest:?})\n",
            self.host.port, self.other.port
        );
        run_ok(&self.client, &session, &(ports + INSIDE)).await;
        session
    }

    async fn says(&self, session: &SessionId, expression: &str) -> String {
        let text = run_ok(&self.client, session, &format!("print({expression})")).await;
        text.trim_end().to_owned()
    }

    async fn refusals(&self, session: &SessionId) -> Vec<(String, String)> {
        let log = self.client.egress(session).await.unwrap();
        let refused = log.decisions.into_iter().filter(|decision| !decision.allowed);
        refused.map(|decision| (decision.host, decision.reason)).collect()
    }
}

#[tokio::test]
async fn contract_97_a_value_goes_out_and_never_comes_back() {
    let scene = Scene::new().await;
    let session = scene.session(vec![scene.rule("/")]).await;
    assert_eq!(scene.says(&session, "os.environ['API_KEY']").await, PLACEHOLDER);
    for path in [
        // An echo service, an error page, other forms, pieces of one byte, what an earlier request left.
        "/echo",
        "/error",
        "/coded",
        "/cut",
        "/last",
        // A redirect to another host: the client follows the link that the host made.
        "/redirect?to=https://evil.test:OTHER/caught",
    ] {
        let path = path.replace("OTHER", &scene.other.port.to_string());
        let got = scene.says(&session, &format!("get({path:?})")).await;
        assert!(!got.contains(VALUE), "{path}: {got}");
        assert_eq!(scene.says(&session, &format!("leaked({got:?})")).await, "[]", "{path}: {got}");
        assert!(got.contains("****"), "{path}: {got}");
    }
    // A compressed answer cannot be searched.
    let got = scene.says(&session, "get('/gzip')").await;
    assert!(got.starts_with("502 "), "{got}");
    assert!(got.contains("compressed"), "{got}");
    // Parts of an answer: the host is asked for the whole.
    let got = scene.says(&session, "get('/last', {'Range': 'bytes=0-7'})").await;
    assert_eq!(got, format!("200 {}", "*".repeat(VALUE.len())));
    assert!(scene.host.heard().contains(VALUE), "the host got the value");
    assert!(!scene.other.heard().contains(VALUE), "{}", scene.other.heard());
}

#[tokio::test]
async fn contract_97_a_value_is_nowhere_in_the_session() {
    let scene = Scene::new().await;
    let session = scene.session(vec![scene.rule("/")]).await;
    scene.says(&session, "get('/echo')").await;
    // Environment and memory of every process that the session can see, and a core file.
    assert_eq!(scene.says(&session, "search_processes()").await, "[]");
    assert_eq!(scene.says(&session, "search_core()").await, "[]");
    // The files of the node: values, rules, the authority's key, the journal.
    let state = scene.node.dirs().state.clone();
    for path in ["secrets", "secrets/values/API_KEY", "secrets/authority.key", "sessions", ""] {
        let path = state.join(path).display().to_string();
        let got = scene.says(&session, &format!("look({path:?})")).await;
        // Of the state directory itself only the names of what the session uses are visible.
        let names = "['families', 'trusted', 'workers', 'workspaces']";
        assert!(got.contains("refused") || got == names, "{path}: {got}");
    }
    let bundle = scene.says(&session, "open(os.environ['SSL_CERT_FILE']).read()").await;
    assert!(bundle.contains("BEGIN CERTIFICATE") && !bundle.contains("PRIVATE"), "{bundle}");
    // The way past the proxy.
    let got = scene.says(&session, "direct()").await;
    assert!(got.contains("refused") || got.contains("unreachable"), "{got}");
    // Outside: the journal, the logs, the process list; only the file of the secret has the value.
    let mut found = Vec::new();
    for dir in [scene.node.base(), &state] {
        files_with(dir, VALUE, &mut found);
    }
    found.retain(|file| !file.ends_with("secrets/values/API_KEY"));
    assert_eq!(found, Vec::<std::path::PathBuf>::new());
    let events = all_events(&scene.client, &session).await;
    assert!(!format!("{events:?}").contains(VALUE));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", scene.node.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("1"), "a node leaves no core file: {core}");
}

/// Collects the files below a directory that contain the text.
fn files_with(dir: &Path, text: &str, found: &mut Vec<std::path::PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files_with(&entry.path(), text, found);
        } else if kind.is_file() {
            let bytes = std::fs::read(entry.path()).unwrap_or_default();
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.push(entry.path());
            }
        }
    }
}

#[tokio::test]
async fn contract_98_a_placeholder_goes_only_where_its_rule_says() {
    let scene = Scene::new().await;
    let session = scene.session(vec![scene.rule("/v1/,methods=GET")]).await;
    let good = scene.says(&session, "get('/v1/echo')").await;
    assert!(good.starts_with("200 "), "{good}");
    let key = "os.environ['API_KEY']";
    for attempt in [
        // Another header, the path, the query, the body, another method, another path.
        format!("get('/v1/x', {{'X-Other': {key}}})"),
        format!("get('/v1/' + {key})"),
        format!("get('/v1/x?k=' + {key})"),
        format!("get('/v1/x', {{'Authorization': 'Bearer ' + {key}}}, 'DELETE')"),
        format!("get('/v2/x', {{'Authorization': 'Bearer ' + {key}}})"),
        format!("get('/v1/../v2', {{'Authorization': 'Bearer ' + {key}}})"),
    ] {
        let got = scene.says(&session, &attempt).await;
        assert!(got.starts_with("403 "), "{attempt}: {got}");
        assert!(got.contains("policy.secrets"), "{attempt}: {got}");
    }
    let got = scene.says(&session, &format!("get('/v1/x', {{}}, 'POST', {key})")).await;
    assert!(got.starts_with("502 ") || got.starts_with("broken "), "{got}");
    let heard = scene.host.heard();
    assert_eq!(heard.matches(VALUE).count(), 1, "{heard}");
    assert!(!heard.contains(PLACEHOLDER), "{heard}");
    let refusals = scene.refusals(&session).await;
    assert!(
        refusals.iter().any(|(host, why)| host == "api.test" && why.contains("placeholder")),
        "{refusals:?}"
    );
    let events = all_events(&scene.client, &session).await;
    let told = events.iter().any(|event| match &event.event.kind {
        EventKind::Egress { allowed: false, reason, .. } => reason.contains("placeholder"),
        _ => false,
    });
    assert!(told, "the refusal is in the journal");
}

#[tokio::test]
async fn contract_98_no_other_host_and_no_false_host_gets_the_value() {
    let scene = Scene::new().await;
    // `moved.test` leads to a host whose certificate is for another name: as if DNS had changed.
    let moved = format!("API_KEY=https://moved.test:{}/", scene.other.port);
    let rules = vec![scene.rule("/"), SecretRule::parse(&moved).unwrap()];
    let session = scene.session(rules).await;
    let got = scene.says(&session, "get('/x', host='moved.test', port=OTHER)").await;
    assert!(got.starts_with("502 ") && got.contains("TLS"), "{got}");
    // Another port of the same name, and another host: end to end, with what the code sends.
    for (host, sent) in [("evil.test", PLACEHOLDER), ("evil.test", "Bearer mine")] {
        let call = format!("get('/x', {{'Authorization': {sent:?}}}, host={host:?}, port=OTHER)");
        let got = scene.says(&session, &call).await;
        assert!(got.starts_with("200 "), "{got}");
    }
    // Smuggled requests: what the host sees as a request of its own has no value unless its rule matches.
    let narrow = scene.session(vec![scene.rule("/v1/")]).await;
    scene.says(&narrow, "smuggle()").await;
    for line in scene.host.heard().lines().filter(|line| line.contains("/v2")) {
        assert!(!line.contains(VALUE), "{line}");
    }
    assert!(!scene.other.heard().contains(VALUE), "{}", scene.other.heard());
}

#[tokio::test]
async fn contract_98_rules_change_on_a_live_session_and_survive_the_node() {
    let mut scene = Scene::new().await;
    let session = scene.session(vec![scene.rule("/v1/")]).await;
    let has_value = |heard: String| heard.matches(VALUE).count();
    scene.says(&session, "get('/v1/x')").await;
    assert_eq!(has_value(scene.host.heard()), 1);
    let rules = SetSecretRules { rules: vec![scene.rule("/v2/")] };
    scene.client.set_secret_rules(&session, &rules).await.unwrap();
    scene.says(&session, "(get('/v1/x'), get('/v2/x'))").await;
    assert_eq!(has_value(scene.host.heard()), 2);
    scene.node.kill9();
    scene.node.restart().await.unwrap();
    scene.client = scene.node.client().await.unwrap();
    scene.says(&session, "(get('/v1/x'), get('/v2/x'))").await;
    assert_eq!(has_value(scene.host.heard()), 3, "the next node knows the changed rules");
    // A twin has them too, and a change on it is a change on both: they share the proxy.
    let twin = scene.client.fork_session(&session, &Default::default()).await.unwrap().session.id;
    scene.says(&twin, "(get('/v1/x'), get('/v2/x'))").await;
    assert_eq!(has_value(scene.host.heard()), 4);
    scene.client.set_secret_rules(&twin, &SetSecretRules::default()).await.unwrap();
    scene.says(&session, "get('/v2/x')").await;
    assert_eq!(has_value(scene.host.heard()), 4, "revoked on the twin, revoked on both");
    scene.client.set_secret_rules(&twin, &rules).await.unwrap();
    // A rule for a host that the session may not reach is refused.
    let far = SecretRule::parse("API_KEY=https://far.test/").unwrap();
    let refused =
        scene.client.set_secret_rules(&session, &SetSecretRules { rules: vec![far] }).await;
    assert!(
        matches!(refused, Err(ClientError::Api(failure)) if failure.code == ErrorCode::BadRequest)
    );
    // Without rules nothing goes out, and without the secret a request is refused.
    scene.client.set_secret_rules(&session, &SetSecretRules::default()).await.unwrap();
    scene.says(&session, "get('/v2/x')").await;
    assert_eq!(has_value(scene.host.heard()), 4);
    scene.client.set_secret_rules(&session, &rules).await.unwrap();
    scene.client.remove_secret(&"API_KEY".to_owned().try_into().unwrap()).await.unwrap();
    let got = scene.says(&session, "get('/v2/x')").await;
    assert!(got.starts_with("403 ") && got.contains("windlass secret set"), "{got}");
}

#[tokio::test]
async fn contract_99_a_session_without_secrets_does_not_trust_the_node() {
    let scene = Scene::new().await;
    let with = scene.session(vec![scene.rule("/")]).await;
    let without = scene.session(Vec::new()).await;
    // The same host: with a rule the node's certificate, without one the host's own.
    let issuer = "issuer('api.test', PORT)";
    assert!(scene.says(&with, issuer).await.contains("Windlass node"));
    assert!(scene.says(&without, issuer).await.contains("authority of a test"));
    // A host without a rule, in the session that has rules.
    assert!(scene.says(&with, "issuer('evil.test', OTHER)").await.contains("authority of a test"));
    assert_eq!(scene.says(&without, "os.environ.get('SSL_CERT_FILE')").await, "None");
    let got = scene.says(&without, "look(os.path.dirname(TRUSTED))").await;
    assert!(got.contains("refused"), "{got}");
}
