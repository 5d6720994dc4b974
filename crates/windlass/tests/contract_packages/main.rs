//! Contract line 77: packages that a session asks for. A real pip installs them from an index of the test's own on
//! loopback, so that the test can take the index away.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod index;
mod installed;
mod kept;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use windlass_client::Client;
use windlass_client::protocol::api::{CloseQuery, CreateSession, Session};
use windlass_client::protocol::packages::{
    CreatePackageEnvironment, PackageEnvironment, PackageEnvironmentState,
};
use windlass_client::protocol::{ErrorCode, Outcome};
use windlass_testkit::{PATIENCE, TestNode, python, run, run_ok, skip, within};

use crate::index::Index;

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Limit for a build, with two other tests beside it.
const BUILD: Duration = Duration::from_secs(120);

/// A node that uses the index, unless the tests' Python cannot install packages.
async fn node_with(index: &Index) -> Option<TestNode> {
    let has =
        Command::new(python()).args(["-c", "import ensurepip"]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        skip("the tests' Python has no ensurepip");
        return None;
    }
    let node = TestNode::builder(PROGRAM).env("PIP_INDEX_URL", index.url());
    Some(node.start().await.unwrap())
}

/// The variable with the path of uv.
const UV_VARIABLE: &str = "WINDLASS_TEST_UV";

/// A node that uses the index, with uv on its PATH. Without uv the test is skipped.
async fn node_with_uv(index: &Index) -> Option<TestNode> {
    let Some(uv) = std::env::var_os(UV_VARIABLE) else {
        skip(format!("no uv: set {UV_VARIABLE}"));
        return None;
    };
    let beside = Path::new(&uv).parent().unwrap().display().to_string();
    let path = format!("{beside}:{}", std::env::var("PATH").unwrap());
    let node = TestNode::builder(PROGRAM).env("PIP_INDEX_URL", index.url()).env("PATH", path);
    Some(node.start().await.unwrap())
}

fn request(name: Option<&str>, packages: &[&str]) -> CreatePackageEnvironment {
    CreatePackageEnvironment {
        name: name.map(str::to_owned),
        python: Some(python().display().to_string()),
        packages: packages.iter().map(|package| (*package).to_owned()).collect(),
        wait_ms: 120_000,
        ..CreatePackageEnvironment::default()
    }
}

async fn make(client: &Client, wanted: &CreatePackageEnvironment) -> PackageEnvironment {
    within(BUILD, client.create_package_environment(wanted)).await.unwrap()
}

async fn session_with(client: &Client, environment: &PackageEnvironment) -> Session {
    let create = CreateSession {
        environment: Some(environment.name.clone()),
        interpreter: None,
        ..TestNode::create()
    };
    within(PATIENCE, client.create_session(&create)).await.unwrap().session
}

#[tokio::test]
async fn contract_77_a_package_can_be_imported_and_the_second_session_needs_no_index() {
    let index = Index::start(&[("tinyone", "answer = 42")]);
    let Some(mut node) = node_with(&index).await else { return };
    let client = node.client().await.unwrap();
    let wanted = request(None, &["tinyone==1.0"]);
    let built = make(&client, &wanted).await;
    assert_eq!(built.state, PackageEnvironmentState::Ready, "{built:?}");
    let session = session_with(&client, &built).await;
    assert_eq!(run_ok(&client, &session.id, "import tinyone; tinyone.answer").await, "42\n");
    assert_eq!(session.environment.as_ref(), Some(&built.name));
    let lock = client.package_environment(&built.name).await.unwrap().lock.unwrap();
    assert!(lock.starts_with("tinyone==1.0 --hash=sha256:"), "{lock}");
    // Neither an index nor the same node is needed.
    drop(index);
    client.close_session(&session.id, CloseQuery::default()).await.unwrap();
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    let found = make(&client, &wanted).await;
    assert_eq!((&found.name, &found.build), (&built.name, &built.build), "nothing is built again");
    let again = session_with(&client, &found).await;
    assert_eq!(run_ok(&client, &again.id, "import tinyone; tinyone.answer").await, "42\n");
}

#[tokio::test]
async fn contract_77_no_session_can_change_an_environment_or_remove_it_from_another() {
    let index = Index::start(&[("tinytwo", "import os\npath = os.path.dirname(__file__)")]);
    let Some(node) = node_with(&index).await else { return };
    let client = node.client().await.unwrap();
    let built = make(&client, &request(Some("data"), &["tinytwo"])).await;
    assert_eq!(built.state, PackageEnvironmentState::Ready, "{built:?}");
    let session = session_with(&client, &built).await;
    let attack = "import os, tinytwo\n\
        for path in (tinytwo.path + '/planted.py', tinytwo.__file__):\n\
        \x20   try:\n\
        \x20       open(path, 'w').write('1')\n\
        \x20       print('written', path)\n\
        \x20   except OSError as error:\n\
        \x20       print('refused')\n\
        try:\n\
        \x20   os.rename(tinytwo.path, tinytwo.path + '2'); print('renamed')\n\
        except OSError: print('refused')";
    assert_eq!(run_ok(&client, &session.id, attack).await, "refused\nrefused\nrefused\n");
    // A session without the environment sees nothing of it.
    let other = node.session(&client).await.unwrap();
    let look = format!("import os; os.path.exists({:?})", built.directory);
    assert_eq!(run_ok(&client, &other.id, &look).await, "False\n");
    // While a session uses it, it stays.
    let refused = client.remove_package_environment("data").await.unwrap_err();
    assert_eq!(refused.api_code(), Some(ErrorCode::SessionBusy), "{refused}");
    assert!(Path::new(&built.directory).exists());
    client.close_session(&session.id, CloseQuery::default()).await.unwrap();
    client.remove_package_environment("data").await.unwrap();
    assert!(!Path::new(&built.directory).exists());
}

#[tokio::test]
async fn contract_77_a_package_that_cannot_be_installed_is_named_and_can_be_asked_for_again() {
    let index = Index::start(&[("tinythree", "answer = 3")]);
    let Some(mut node) = node_with(&index).await else { return };
    let client = node.client().await.unwrap();
    let missing = make(&client, &request(Some("bad"), &["nosuchpackage"])).await;
    assert_eq!(missing.state, PackageEnvironmentState::Failed);
    assert!(missing.error.as_ref().unwrap().contains("nosuchpackage"), "{missing:?}");
    let create = CreateSession { environment: Some("bad".into()), ..CreateSession::default() };
    let refused = client.create_session(&create).await.unwrap_err().to_string();
    assert!(refused.contains("nosuchpackage"), "{refused}");
    let good = make(&client, &request(Some("bad"), &["tinythree"])).await;
    assert_eq!(good.state, PackageEnvironmentState::Ready, "{good:?}");
    // A build that a kill of the node cuts off is begun again by the same request.
    let mut wanted = request(Some("cut"), &["tinythree"]);
    wanted.wait_ms = 0;
    let begun = make(&client, &wanted).await;
    assert_eq!(begun.state, PackageEnvironmentState::Building, "{begun:?}");
    node.kill9();
    node.restart().await.unwrap();
    wanted.wait_ms = 120_000;
    let client = node.client().await.unwrap();
    let made = make(&client, &wanted).await;
    assert_eq!(made.state, PackageEnvironmentState::Ready, "{made:?}");
    let session = session_with(&client, &made).await;
    assert_eq!(run_ok(&client, &session.id, "import tinythree; tinythree.answer").await, "3\n");
}

#[tokio::test]
async fn contract_77_the_build_reaches_the_index_and_nothing_else() {
    let index = Index::start(&[("tinyfour", "answer = 4")]);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let Some(node) = node_with(&index).await else { return };
    let client = node.client().await.unwrap();
    let mut wanted = request(Some("slow"), &["tinyfour"]);
    wanted.wait_ms = 0;
    let begun = make(&client, &wanted).await;
    let build = client.session(begun.build.as_ref().unwrap()).await.unwrap();
    let policy = serde_json::to_value(build.policy.unwrap()).unwrap();
    let hosts = policy["network"]["hosts"].to_string();
    assert_eq!(hosts, format!("[\"127.0.0.1:{}=127.0.0.1\"]", index.port), "{policy}");
    // What is true of the build's policy is tried with a session that has the same network.
    let create = CreateSession {
        policy: Some(
            serde_json::from_value(serde_json::json!({ "network": policy["network"] })).unwrap(),
        ),
        ..TestNode::create()
    };
    let twin = client.create_session(&create).await.unwrap().session;
    let port = other.local_addr().unwrap().port();
    let reach = format!(
        "import urllib.request\n\
         print(urllib.request.urlopen('{}/tinyfour/').status)\n\
         urllib.request.urlopen('http://127.0.0.1:{port}/', timeout=20)",
        index.url()
    );
    let turn = run(&client, &twin.id, &reach).await;
    assert!(turn.output.text.starts_with("200\n"), "{turn:?}");
    assert_eq!(turn.outcome, Some(Outcome::Error), "{turn:?}");
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err(), "another port was reached");
}
