//! The contract lines on confinement that hostile programs can test: 50, 51, 52 without a network, 54, 55,
//! and 66 to 71 of the trusted side. Every level that claims to refuse an attack must refuse it. Without
//! isolation the same attacks must succeed, otherwise they would prove nothing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use windlass_client::protocol::api::{CopyScope, CreateSession};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::policy::PolicyRequest;
use windlass_testkit::attacks::{
    self, Attack, AttackStage, AttackVerdict, NetworkSetting, SECRET_VARIABLE,
};
use windlass_testkit::{TestNode, run_ok};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// The levels that claim to refuse attacks.
const CONFINED: [Isolation; 2] = [Isolation::Full, Isolation::Landlock];

#[tokio::test]
async fn contract_50_files_outside_are_neither_read_nor_written() {
    let sample = ["read_secret_directly", "read_secret_by_symlink", "write_home_directly"];
    check(50, &sample).await;
}

#[tokio::test]
async fn contract_51_sessions_do_not_reach_each_other_the_keeper_or_the_node() {
    let sample = ["read_other_workspace", "signal_others", "read_posix_shared_memory"];
    check(51, &sample).await;
}

#[tokio::test]
async fn contract_52_without_a_network_there_is_no_way_out() {
    check(52, &["reach_tcp", "reach_udp", "reach_abstract_socket", "reach_unix_sockets"]).await;
}

#[tokio::test]
async fn contract_54_dangerous_system_calls_are_refused() {
    check(54, &["use_io_uring", "use_keyring", "make_user_namespace_by_unshare"]).await;
}

#[tokio::test]
async fn contract_55_no_secret_of_the_node_is_visible() {
    check(55, &[]).await;

    // If the policy names the variable, the attacks find it. So they search the right places.
    let mut stage = AttackStage::new(Path::new(PROGRAM)).await.unwrap();
    let environment = vec![SECRET_VARIABLE.to_owned()];
    let policy = PolicyRequest { environment, ..PolicyRequest::default() };
    let mut scene = stage.scene_with(Isolation::Full, policy).await.unwrap();
    let sample = ["find_secrets_in_environment", "find_secrets_in_subprocess"];
    for attack in of_line(55).iter().filter(|attack| sample.contains(&attack.program)) {
        let verdict = scene.play(attack).await.unwrap();
        assert!(matches!(verdict, AttackVerdict::Through(_)), "{}: {verdict}", attack.program);
    }
}

#[tokio::test]
async fn contract_55_no_client_gives_a_session_a_directory_of_the_node() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let dirs = node.dirs();
    let state = &dirs.state;
    let around = tempfile::tempdir().unwrap();
    let link = around.path().join("link");
    std::os::unix::fs::symlink(state, &link).unwrap();
    // A directory that the node makes later is refused from the beginning.
    let later = state.join("later");
    let made = [state, &state.join("audit"), &state.join("workspaces"), &dirs.runtime, &link];
    for own in made.into_iter().chain([&later, &link.join("later")]) {
        let own = own.to_str().unwrap().to_owned();
        let elsewhere = around.path().to_str().unwrap().to_owned();
        let policy = PolicyRequest { writable: vec![own.clone()], ..PolicyRequest::default() };
        for wanted in [
            CreateSession { workspace: Some(own.clone()), ..CreateSession::default() },
            CreateSession {
                workspace: Some(own.clone()),
                copy_workspace: Some(CopyScope::All),
                ..CreateSession::default()
            },
            CreateSession {
                workspace: Some(elsewhere),
                policy: Some(policy),
                ..CreateSession::default()
            },
        ] {
            let refused = client.create_session(&wanted).await.unwrap_err();
            assert_eq!(refused.code(), "bad_request", "{own}: {refused:?}");
        }
    }
}

#[tokio::test]
async fn contract_55_programs_are_told_of_a_directory_for_caches_that_they_can_write() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let code = "import os\n\
                caches = os.environ['XDG_CACHE_HOME']\n\
                os.makedirs(os.environ['MPLCONFIGDIR'])\n\
                caches == os.environ['TMPDIR'] + '/.cache' and os.listdir(caches)";
    let told = |isolation| CreateSession {
        policy: Some(PolicyRequest { isolation: Some(isolation), ..PolicyRequest::default() }),
        ..TestNode::create()
    };
    for isolation in [Isolation::Full, Isolation::Landlock] {
        let id = client.create_session(&told(isolation)).await.unwrap().session.id;
        assert_eq!(run_ok(&client, &id, code).await, "['matplotlib']\n");
    }
    // Without confinement the usual directory can be used.
    let id = client.create_session(&told(Isolation::None)).await.unwrap().session.id;
    let unset = "import os\n'MPLCONFIGDIR' in os.environ";
    assert_eq!(run_ok(&client, &id, unset).await, "False\n");
}

#[tokio::test]
async fn contract_66_a_session_steers_neither_the_node_nor_a_keeper() {
    check(66, &[]).await;
}

#[tokio::test]
async fn contract_67_no_socket_of_the_machine_is_reached_without_a_network() {
    check(67, &["make_session_by_the_node", "reach_keeper_sockets"]).await;
}

#[tokio::test]
async fn contract_67_no_socket_of_the_machine_is_reached_with_an_open_network() {
    check_with(67, NetworkSetting::Open, &[]).await;
}

#[tokio::test]
async fn contract_68_no_input_aborts_a_node_or_a_keeper() {
    check(68, &[]).await;
}

#[tokio::test]
async fn contract_69_trusted_names_are_not_changed() {
    check(69, &["write_protected_names"]).await;
}

#[tokio::test]
async fn contract_70_files_that_the_shell_runs_are_not_changed() {
    check(70, &[]).await;
}

#[tokio::test]
async fn contract_71_nothing_from_before_a_fork_reaches_the_twin_unnamed() {
    check(71, &[]).await;
}

/// Runs the attacks of a line at both levels, and the `sample` of them without a sandbox.
async fn check(line: u32, sample: &[&str]) {
    check_with(line, NetworkSetting::None, sample).await;
}

/// The same with a network setting.
async fn check_with(line: u32, network: NetworkSetting, sample: &[&str]) {
    let attacks = of_line(line);
    assert!(!attacks.is_empty());
    let mut stage = AttackStage::new(Path::new(PROGRAM)).await.unwrap();
    let mut wrong = Vec::new();
    for level in CONFINED {
        let mut scene = stage.scene_on(level, network).await.unwrap();
        for attack in attacks.iter().filter(|attack| attack.claimed_with(level, network)) {
            let verdict = scene.play(attack).await.unwrap();
            if !matches!(verdict, AttackVerdict::Refused(_) | AttackVerdict::NotClaimed(_)) {
                wrong.push(format!("{} at {level}: {verdict}", attack.program));
            }
        }
        assert!(scene.victim_is_whole().await.unwrap(), "a session was harmed at {level}");
    }
    let mut scene = stage.scene(Isolation::None).await.unwrap();
    for attack in attacks.iter().filter(|attack| sample.contains(&attack.program)) {
        let verdict = scene.play(attack).await.unwrap();
        if !matches!(verdict, AttackVerdict::Through(_)) {
            wrong.push(format!("{} does not bite: {verdict}", attack.program));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn of_line(line: u32) -> Vec<Attack> {
    let mut attacks = attacks::all();
    attacks.retain(|attack| attack.line == line && attack.is_for_this_user());
    attacks
}
