//! Starting a node: many first clients start exactly one, and a failed start is a named error. The
//! node here is a small script; the contract tests use the real one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::TempDir;
use windlass_client::protocol::ErrorCode;
use windlass_client::{Client, ClientError, Dirs, NodeStartError, StartNode};

/// Records that it ran, listens, reports that it is ready, and ends after 20 connections.
const LISTENS: &str = r#"
import json, os, socket, time
runtime = os.environ["WINDLASS_RUNTIME_DIR"]
with open(os.environ["WINDLASS_STATE_DIR"] + "/starts", "a") as starts:
    starts.write("%d\n" % os.getpid())
door = socket.socket(socket.AF_UNIX)
door.bind(runtime + "/node.sock")
door.listen(64)
print(json.dumps({"ready": True, "pid": os.getpid()}), flush=True)
kept = [door.accept() for _ in range(20)]
"#;

const REFUSES: &str = r#"
print('{"error":{"code":"disk_full","message":"no room","remedy":"make room","retryable":true}}')
"#;

const DIES: &str = r#"
import sys
print("line of the log", file=sys.stderr)
sys.exit(3)
"#;

fn python() -> String {
    std::env::var("WINDLASS_TEST_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned())
}

/// Writes the scripts before any process starts: a process forked during a write would hold the
/// script open, and an open file cannot be executed (ETXTBSY). Another process of this test may run
/// a script meanwhile, so each one is renamed into place when complete.
fn programs() -> &'static Path {
    static WRITTEN: OnceLock<PathBuf> = OnceLock::new();
    WRITTEN.get_or_init(|| {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        for (name, script) in [("listens", LISTENS), ("refuses", REFUSES), ("dies", DIES)] {
            let path = dir.join(format!("{name}-{}", std::process::id()));
            fs::write(&path, format!("#!{} -S\n{script}", python())).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            fs::rename(path, dir.join(name)).unwrap();
        }
        dir
    })
}

fn node_with(program: &str) -> (TempDir, Dirs, PathBuf) {
    let base = tempfile::Builder::new().prefix("wl-").tempdir_in("/tmp").unwrap();
    let dirs = Dirs::at(base.path().join("r"), base.path().join("s")).unwrap();
    (base, dirs, programs().join(program))
}

async fn failure(program: &str) -> NodeStartError {
    let (_base, dirs, program) = node_with(program);
    match Client::connect(dirs, StartNode::IfAbsent { program, args: Vec::new() }).await {
        Err(ClientError::StartFailed(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn twenty_first_clients_start_one_node() {
    let (_base, dirs, program) = node_with("listens");
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let start = StartNode::IfAbsent { program: program.clone(), args: Vec::new() };
            tokio::spawn(Client::connect(dirs.clone(), start))
        })
        .collect();
    let mut connected = Vec::new();
    for client in clients {
        connected.push(client.await.unwrap().unwrap());
    }
    let starts = fs::read_to_string(dirs.state.join("starts")).unwrap();
    assert_eq!(starts.lines().count(), 1, "{starts}");
}

#[tokio::test]
async fn a_refusal_of_the_node_is_passed_on() {
    let NodeStartError::Refused(error) = failure("refuses").await else { panic!("not refused") };
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::DiskFull, "no room"));
}

#[tokio::test]
async fn a_node_that_dies_is_reported_with_the_end_of_its_log() {
    let error = failure("dies").await;
    let text = error.to_string();
    assert!(text.contains("exit status: 3") && text.contains("line of the log"), "{text}");
    assert!(text.contains("node.log") && !error.remedy().is_empty(), "{text}");
}

#[tokio::test]
async fn a_program_that_cannot_run_is_named() {
    let (_base, dirs, program) = node_with("absent");
    let error =
        Client::connect(dirs, StartNode::IfAbsent { program, args: Vec::new() }).await.unwrap_err();
    assert!(error.to_string().contains("/absent"), "{error}");
    assert_eq!(error.code(), "start_failed");
}
