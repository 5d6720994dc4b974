//! The sandbox that Codex sends with each call, through the real bridge: it determines what a session may
//! access, and a call with an unknown sandbox does not run.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use windlass_testkit::mcp::{McpClient, text_of};
use windlass_testkit::{TestNode, outside_of_tmp};

const KEY: &str = "codex/sandbox-state-meta";

struct Place {
    node: TestNode,
    /// Not below `/tmp`, which is private in a session.
    home: tempfile::TempDir,
}

fn place() -> Place {
    let node = TestNode::builder(env!("CARGO_BIN_EXE_windlass")).prepare().unwrap();
    let home = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let place = Place { node, home };
    for name in ["work/.agents", "work/secret", "work/docs", "other"] {
        std::fs::create_dir_all(place.home.path().join(name)).unwrap();
    }
    std::fs::write(place.work().join("secret/key"), "hidden").unwrap();
    std::fs::write(place.work().join("docs/page"), "shown").unwrap();
    place
}

impl Place {
    fn work(&self) -> PathBuf {
        self.home.path().join("work")
    }

    fn other(&self) -> PathBuf {
        self.home.path().join("other")
    }

    /// A client like Codex, started in another directory than its workspace.
    async fn codex(&self, options: &[&str]) -> McpClient {
        let client = McpClient::builder(&self.node).name("codex-mcp-client");
        let client = options.iter().fold(client, |client, option| client.arg(option));
        client.revision("2025-06-18").start().await.unwrap()
    }

    fn state(&self, profile: Value) -> Value {
        let directory = format!("file://{}", self.work().display());
        json!({"permissionProfile": profile, "sandboxCwd": directory, "useLegacyLandlock": false})
    }

    fn managed(&self, entries: &[Value]) -> Value {
        let root = json!({"type": "special", "value": {"kind": "root"}});
        let root = json!({"path": root, "access": "read"});
        let entries: Vec<&Value> = std::iter::once(&root).chain(entries).collect();
        let files = json!({"type": "restricted", "entries": entries});
        self.state(json!({"type": "managed", "file_system": files, "network": "restricted"}))
    }

    fn read_only(&self) -> Value {
        self.managed(&[])
    }

    fn workspace_write(&self) -> Value {
        let agents = at(&self.work().join(".agents"), "read");
        self.managed(&[at(&self.work(), "write"), agents])
    }
}

fn at(path: &Path, access: &str) -> Value {
    json!({"path": {"type": "path", "path": path}, "access": access})
}

async fn call(client: &mut McpClient, code: &str, state: Value) -> Value {
    let params = json!({"name": "run", "arguments": {"code": code}, "_meta": {KEY: state}});
    client.request("tools/call", params).await.unwrap().unwrap()
}

/// The result of writing each of these files, and whether it exists.
async fn write(client: &mut McpClient, paths: &[PathBuf], state: Value) -> Vec<bool> {
    let code = format!(
        "for path in {paths:?}:\n    \
             try:\n        open(path, 'w').close(); print('wrote')\n    \
             except OSError as error: print('refused', error)\n"
    );
    let reply = call(client, &code, state).await;
    // The last line may report a new session.
    let lines = text_of(&reply).lines().filter(|line| !line.starts_with('['));
    let said: Vec<bool> = lines.map(|line| line.starts_with("wrote")).collect();
    let there: Vec<bool> = paths.iter().map(|path| path.exists()).collect();
    assert_eq!(said, there, "{reply}");
    said
}

#[tokio::test]
async fn a_session_may_write_what_codex_says_of_the_call() {
    let place = place();
    let mut client = place.codex(&[]).await;
    let paths =
        [place.work().join("made"), place.work().join(".agents/made"), place.other().join("made")];
    let wrote = write(&mut client, &paths, place.read_only()).await;
    assert_eq!(wrote, [false, false, false]);
    let wrote = write(&mut client, &paths, place.workspace_write()).await;
    assert_eq!(wrote, [true, false, false]);
    let more = [at(&place.work(), "write"), at(&place.other(), "write")];
    let wrote = write(&mut client, &paths[2..], place.managed(&more)).await;
    assert_eq!(wrote, [true]);
    // And back: the most recent mode counts.
    let again = [place.work().join("made later")];
    assert_eq!(write(&mut client, &again, place.read_only()).await, [false]);
}

#[tokio::test]
async fn a_profile_denies_and_keeps_paths_in_a_writable_directory() {
    let place = place();
    let mut client = place.codex(&[]).await;
    let profile = place.managed(&[
        at(&place.work(), "write"),
        at(&place.work().join("secret"), "deny"),
        at(&place.work().join("docs"), "read"),
    ]);
    let paths = [place.work().join("docs/made"), place.work().join("made")];
    assert_eq!(write(&mut client, &paths, profile.clone()).await, [false, true]);
    let read = "print(open('docs/page').read())\nopen('secret/key')";
    let reply = call(&mut client, read, profile).await;
    assert_eq!(reply["isError"], true, "{reply}");
    assert!(text_of(&reply).contains("shown"), "{reply}");
    assert!(text_of(&reply).contains("PermissionError"), "{reply}");
}

#[tokio::test]
async fn a_variable_stays_with_its_policy() {
    let place = place();
    let mut client = place.codex(&[]).await;
    call(&mut client, "x = 41", place.workspace_write()).await;
    let reply = call(&mut client, "print('x' in globals())", place.read_only()).await;
    assert!(text_of(&reply).starts_with("False\n"), "{reply}");
    let mut next = place.codex(&[]).await;
    let reply = call(&mut next, "print(x + 1)", place.workspace_write()).await;
    assert!(text_of(&reply).starts_with("42\n"), "{reply}");
}

#[tokio::test]
async fn a_call_whose_sandbox_is_not_understood_does_not_run() {
    let place = place();
    let mut client = place.codex(&[]).await;
    let made = place.work().join("made");
    let pattern = json!({"type": "glob_pattern", "pattern": "/vol/**/*.env"});
    let states = [
        Value::Null,
        json!({}),
        place.state(json!({"type": "lenient"})),
        json!({"permissionProfile": {"type": "disabled"}, "sandboxCwd": "work"}),
        place.managed(&[json!({"path": pattern, "access": "deny"})]),
    ];
    for state in states {
        let code = format!("open({made:?}, 'w')");
        let reply = call(&mut client, &code, state.clone()).await;
        assert_eq!(reply["isError"], true, "{state}: {reply}");
        assert!(text_of(&reply).contains("nothing ran"), "{state}: {reply}");
    }
    assert!(!made.exists());
    let sessions = client.call("sessions", json!({})).await;
    assert_eq!(text_of(&sessions), "no session is alive", "{sessions}");
}

#[tokio::test]
async fn codex_cannot_allow_what_the_server_options_forbid() {
    let place = place();
    let mut client = place.codex(&["--policy", "read-only"]).await;
    let paths = [place.work().join("made")];
    let disabled = place.state(json!({"type": "disabled"}));
    assert_eq!(write(&mut client, &paths, disabled).await, [false]);
    assert_eq!(write(&mut client, &paths, place.workspace_write()).await, [false]);
}
