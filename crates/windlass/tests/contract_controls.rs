//! Contract line 56, controls: a control that cannot be enforced is reported by name. If the policy requires
//! it, the session does not start.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use windlass_client::protocol::api::{ApiError, CreateSession, Session};
use windlass_client::protocol::confinement::{
    Confinement, Control, ControlReport, ControlState, Isolation,
};
use windlass_client::protocol::policy::{HostRule, HostRules, Network, PolicyRequest, Preset};
use windlass_client::protocol::{ErrorCode, Outcome};
use windlass_client::{Client, ClientError, WhichSessions};
use windlass_testkit::{TestNode, run, run_ok};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// A policy request that requires these controls at this level.
fn requiring(isolation: Option<Isolation>, required: &[Control]) -> PolicyRequest {
    PolicyRequest { isolation, required: Some(required.to_vec()), ..PolicyRequest::default() }
}

/// A workspace with a protected name in it.
fn repository(node: &TestNode) -> PathBuf {
    let workspace = node.base().join("repository");
    std::fs::create_dir_all(workspace.join(".git/hooks")).unwrap();
    workspace
}

fn wanted(workspace: &Path, policy: PolicyRequest) -> CreateSession {
    CreateSession {
        workspace: Some(workspace.display().to_string()),
        policy: Some(policy),
        ..TestNode::create()
    }
}

/// The session after its first turn. By then the worker has started, so its confinement is known.
async fn started(client: &Client, workspace: &Path, policy: PolicyRequest) -> Session {
    let created = client.create_session(&wanted(workspace, policy)).await.unwrap();
    run_ok(client, &created.session.id, "1+1").await;
    client.session(&created.session.id).await.unwrap()
}

/// The refusal. Afterwards no trace of a session is left.
async fn refused(client: &Client, workspace: &Path, policy: PolicyRequest) -> ApiError {
    let before = client.sessions(WhichSessions::EndedToo).await.unwrap().sessions.len();
    let refused = client.create_session(&wanted(workspace, policy)).await;
    let Err(ClientError::Api(error)) = refused else { panic!("it started: {refused:?}") };
    assert_eq!(error.code, ErrorCode::NotEnforceable, "{error:?}");
    let after = client.sessions(WhichSessions::EndedToo).await.unwrap().sessions.len();
    assert_eq!(after, before, "something of the session is left");
    error
}

#[track_caller]
fn report(confinement: &Confinement, control: Control) -> &ControlReport {
    confinement.controls.iter().find(|report| report.control == control).unwrap()
}

#[track_caller]
fn check_holds(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
}

#[tokio::test]
async fn contract_56_a_required_control_that_cannot_be_enforced_keeps_the_session_from_starting() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let repository = repository(&node);
    let landlock = Some(Isolation::Landlock);
    let policy = requiring(landlock, &[Control::Write, Control::Protected]);
    let error = refused(&client, &repository, policy).await;
    check_holds(&error.message, &["protected", "Landlock", "full"]);
    assert!(!error.remedy.is_empty(), "{error:?}");

    // Missing names cannot be protected against creation either.
    let empty = node.base().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let policy = requiring(landlock, &[Control::Write, Control::Protected]);
    let error = refused(&client, &empty, policy).await;
    check_holds(&error.message, &["protected", "Landlock", "full"]);

    // If nothing is protected, the same control is not missing.
    let policy = requiring(landlock, &[Control::Write, Control::Protected]);
    let policy = PolicyRequest { preset: Some(Preset::ReadOnly), ..policy };
    let session = started(&client, &empty, policy).await;
    let state = session.confinement.unwrap().state(Control::Protected);
    assert_eq!(state, Some(ControlState::NotAsked));
}

#[tokio::test]
async fn contract_56_a_control_that_is_not_required_is_reported_by_name() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let policy = PolicyRequest { isolation: Some(Isolation::Landlock), ..PolicyRequest::default() };
    let session = started(&client, &repository(&node), policy).await;
    let confinement = session.confinement.unwrap();
    assert_eq!(confinement.isolation, Isolation::Landlock);
    let protected = report(&confinement, Control::Protected);
    assert_eq!(protected.state, ControlState::NotEnforced);
    assert!(!protected.mechanism.is_empty() && protected.remedy.is_some(), "{protected:?}");
    // The report is true: the write succeeds.
    let code = "open('.git/hooks/new', 'w').write('x')";
    assert_eq!(run(&client, &session.id, code).await.outcome, Some(Outcome::Ok));
    let names: Vec<Control> = confinement.controls.iter().map(|one| one.control).collect();
    assert_eq!(names, Control::ALL, "every control is reported, once");
    for control in Control::REQUIRED {
        let required = report(&confinement, control);
        assert_eq!(required.state, ControlState::Enforced, "{required:?}");
        assert!(required.tested, "{required:?}");
    }
}

#[tokio::test]
async fn contract_56_a_list_of_hosts_needs_a_level_that_can_hold_it() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let rules = HostRules(vec![HostRule::parse("a.test").unwrap()]);
    let policy = |isolation| PolicyRequest {
        isolation,
        network: Some(Network::Hosts(rules.clone())),
        ..PolicyRequest::default()
    };
    let error = refused(&client, node.base(), policy(Some(Isolation::Landlock))).await;
    check_holds(&error.message, &["network", "namespace"]);
}

#[tokio::test]
async fn contract_56_the_level_none_is_only_used_by_name_and_reports_no_confinement() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let none = Some(Isolation::None);
    let policy = PolicyRequest { isolation: none, ..PolicyRequest::default() };
    let session = started(&client, &repository(&node), policy).await;
    let confinement = session.confinement.unwrap();
    assert_eq!(confinement.isolation, Isolation::None);
    for control in Control::REQUIRED {
        let state = confinement.state(control);
        assert_eq!(state, Some(ControlState::NotEnforced), "{control}");
    }
    // A policy that requires a control is refused at level none.
    let error = refused(&client, node.base(), requiring(none, &[Control::Network])).await;
    check_holds(&error.message, &["network", "none"]);
    // No preset selects level none by itself.
    for preset in Preset::ALL {
        let policy = PolicyRequest { preset: Some(preset), ..PolicyRequest::default() };
        let session = started(&client, &repository(&node), policy).await;
        assert_ne!(session.confinement.unwrap().isolation, Isolation::None, "{preset:?}");
    }
}

/// Starts the node in a user namespace in which the kernel refuses further namespaces.
const WITHOUT_NAMESPACES: &str = r#"#!/bin/sh
exec unshare --user --map-root-user sh -c '
    echo 0 >/proc/sys/user/max_user_namespaces || exit 1
    exec setpriv --bounding-set=-all --inh-caps=-all "$0" "$@"
' "$@"
"#;

/// A program that runs `program` without namespaces. `None` if this machine cannot do that.
fn without_namespaces(program: &str, dir: &Path) -> Option<PathBuf> {
    let script = dir.join("without-namespaces");
    std::fs::write(&script, WITHOUT_NAMESPACES).unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&script, executable.clone()).unwrap();
    let tried = Command::new(&script).arg("true").stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        windlass_testkit::skip("unshare and setpriv do not work here");
        return None;
    }
    let wrapper = dir.join("windlass");
    let text = format!("#!/bin/sh\nexec {} {program} \"$@\"\n", script.display());
    std::fs::write(&wrapper, text).unwrap();
    std::fs::set_permissions(&wrapper, executable).unwrap();
    Some(wrapper)
}

#[tokio::test]
async fn contract_56_where_the_kernel_refuses_namespaces_the_fallback_says_so() {
    let scripts = tempfile::tempdir().unwrap();
    let Some(program) = without_namespaces(PROGRAM, scripts.path()) else { return };
    let node = TestNode::start(program).await.unwrap();
    let client = node.client().await.unwrap();
    let repository = repository(&node);

    let session = started(&client, &repository, PolicyRequest::default()).await;
    let confinement = session.confinement.unwrap();
    assert_eq!(confinement.isolation, Isolation::Landlock);
    let protected = report(&confinement, Control::Protected);
    assert_eq!(protected.state, ControlState::NotEnforced);
    check_holds(protected.remedy.as_deref().unwrap(), &["sysctl", "user.max_user_namespaces"]);
    let code = "open('/etc/windlass-test', 'w')";
    assert_eq!(run(&client, &session.id, code).await.outcome, Some(Outcome::Error));

    let full = PolicyRequest { isolation: Some(Isolation::Full), ..PolicyRequest::default() };
    let error = refused(&client, &repository, full).await;
    check_holds(&error.message, &["full", "not available", "sudo sysctl -w user.max_user_name"]);
    let required = requiring(None, &[Control::Protected]);
    let error = refused(&client, &repository, required).await;
    check_holds(&error.message, &["protected", "sudo sysctl -w user.max_user_namespaces=10000"]);
}
