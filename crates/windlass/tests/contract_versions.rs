//! Contract line 48, versions: an incompatible client and node report that in their first exchange, with a
//! remedy, and do nothing else. Compatible ones work together.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};

use serde_json::Value;
use windlass_client::{ClientError, WhichSessions};
use windlass_testkit::raw_http::RawHttp;
use windlass_testkit::{OddNode, PATIENCE, TestNode, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

#[tokio::test]
async fn contract_48_a_node_refuses_a_client_of_another_version_and_does_nothing() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    for version in ["2.0", "0.9", "1", "new"] {
        for (method, path) in [("GET", "/v1/version"), ("POST", "/v1/sessions")] {
            let (status, answer) = ask(&node, method, path, Some(version)).await;
            assert_eq!(status, 426, "{version}: {answer}");
            assert_eq!(answer["code"], "version_mismatch");
            let message = answer["message"].as_str().unwrap();
            assert!(message.contains(version) && message.contains("1.0"), "{message}");
            assert!(answer["remedy"].as_str().unwrap().contains("windlass up"), "{answer}");
        }
    }
    let client = node.client().await.unwrap();
    let made = client.sessions(WhichSessions::EndedToo).await.unwrap().sessions;
    assert!(made.is_empty(), "it was refused and done: {made:?}");
}

#[tokio::test]
async fn contract_48_a_node_serves_clients_of_every_compatible_version() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    for version in [Some("1.0"), Some("1.9"), Some("1.4000000000"), None] {
        let (status, answer) = ask(&node, "GET", "/v1/version", version).await;
        assert_eq!((status, answer["pid"].as_u64()), (200, Some(node.pid().into())), "{version:?}");
    }
}

async fn ask(node: &TestNode, method: &str, path: &str, version: Option<&str>) -> (u16, Value) {
    let said = version.map(|version| format!("windlass-api: {version}\r\n")).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: node\r\n{said}content-type: application/json\r\n\
         content-length: 2\r\n\r\n{{}}"
    );
    let mut connection = RawHttp::connect(&node.dirs().socket()).await.unwrap();
    connection.write(request.as_bytes()).await.unwrap();
    within(PATIENCE, connection.answer()).await.unwrap()
}

#[tokio::test]
async fn contract_48_a_client_says_when_the_node_is_of_another_version() {
    for (said, named) in [("windlass-api: 2.0\r\n", "2.0"), ("", "an unnamed version")] {
        let place = TestNode::builder(PROGRAM).prepare().unwrap();
        let _other = OddNode::start(&place, said).unwrap();
        let client = place.client().await.unwrap();
        let error = within(PATIENCE, client.node_status()).await.unwrap_err();
        assert!(matches!(error, ClientError::VersionMismatch { .. }), "{error:?}");
        assert_eq!(error.code(), "version_mismatch");
        let message = error.to_string();
        assert!(message.contains("1.0") && message.contains(named), "{message}");
        assert!(error.remedy().contains("the same release"), "{}", error.remedy());

        let mut command = Command::new(PROGRAM);
        command
            .arg("status")
            .env("WINDLASS_RUNTIME_DIR", &place.dirs().runtime)
            .env("WINDLASS_STATE_DIR", &place.dirs().state)
            .stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = within(PATIENCE, output).await.unwrap().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        for part in ["code: version_mismatch", "help: ", "the same release"] {
            assert!(stderr.contains(part), "{part:?} is not in {stderr:?}");
        }
    }
}

#[tokio::test]
async fn contract_48_a_client_works_with_a_newer_node_that_is_compatible() {
    let place = TestNode::builder(PROGRAM).prepare().unwrap();
    let _other = OddNode::start(&place, "windlass-api: 1.7\r\n").unwrap();
    let client = place.client().await.unwrap();
    assert_eq!(within(PATIENCE, client.node_status()).await.unwrap().version, "9.9.9");
}
