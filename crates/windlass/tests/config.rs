//! The configuration file against a real node, and the commands that show and check it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use windlass_testkit::TestNode;

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

fn config(file: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("config").args(args).env_clear().env("WINDLASS_CONFIG", file);
    command.envs(variables.iter().copied()).output().unwrap()
}

#[tokio::test]
async fn a_node_has_the_settings_of_its_file() {
    let node = TestNode::builder(PROGRAM).config("[node]\nlisten = \"127.0.0.1:0\"\n");
    let node = node.start().await.unwrap();
    let status = node.client().await.unwrap().node_status().await.unwrap();
    assert!(status.listen.is_some_and(|address| address.starts_with("127.0.0.1:")));
}

#[tokio::test]
async fn a_node_starts_with_a_wrong_file_and_reports_the_error() {
    let text = "[node]\nlisten = \"127.0.0.1:0\"\nretain-age = \"1d\"\n";
    let node = TestNode::builder(PROGRAM).config(text).start().await.unwrap();
    let client = node.client().await.unwrap();
    let error = client.workers().await.unwrap().error.unwrap();
    assert!(error.contains("line 3: [node] has no key `retain-age`"), "{error}");
    assert_eq!(client.node_status().await.unwrap().listen, None);
}

#[test]
fn the_commands_show_where_values_come_from_and_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    std::fs::write(&file, "[node]\nretain_age = \"3d\"\nretain_bytes = \"1G\"\n").unwrap();

    let checked = config(&file, &["check"], &[]);
    assert_eq!(checked.status.code(), Some(0));
    let shown = config(&file, &["show"], &[("WINDLASS_RETAIN_BYTES", "2G")]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let rows: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [
        ["retain_age", "3d", "file"].as_slice(),
        &["retain_bytes", "2G", "environment", "(WINDLASS_RETAIN_BYTES)"],
        &["session_idle", "1d", "default"],
    ] {
        assert!(rows.iter().any(|one| one == row), "{row:?}: {shown}");
    }

    let other = directory.path().join("other.toml");
    std::fs::write(&other, "[node]\nretain_age = \"soon\"\n\n[workes.x]\n").unwrap();
    let checked = config(&file, &["check", other.to_str().unwrap()], &[]);
    let said = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code(), Some(1), "{said}");
    for part in [
        "other.toml:2: `retain_age`",
        "other.toml:4: the file has no key `workes`",
        "did you mean `workers`",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
