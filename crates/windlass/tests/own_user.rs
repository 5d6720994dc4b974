//! A node of root with `session_uids`: each session is another user outside of its user namespace. If one wall of the
//! sandbox falls, the kernel still keeps sessions from each other and from the node, as it does with users.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use windlass_client::Client;
use windlass_client::files::{Expect, WriteBackChange};
use windlass_client::protocol::api::{CloseQuery, CreateSession, ForkSession};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::policy::{PolicyRequest, Preset};
use windlass_client::protocol::{ErrorCode, SessionId};
use windlass_testkit::{PATIENCE, TestNode, TestNodeBuilder, processes, run_ok, skip, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// The variable of the setting `session_uids`.
const VARIABLE: &str = "WINDLASS_SESSION_UIDS";

/// The first id of the ranges in this file. No user of a machine has it.
const FIRST: u32 = 1_900_000_000;

/// The owner of a workspace, neither root nor a session.
const OWNER: u32 = 1_800_000_000;

const NEEDS_ROOT: &str = "only root can give sessions user ids of their own";

/// An interpreter that every user of the machine may run.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A node that gives its sessions this many user ids.
fn builder(ids: u32) -> TestNodeBuilder {
    TestNode::builder(PROGRAM).env(VARIABLE, format!("{FIRST}-{}", FIRST + ids - 1))
}

async fn create(client: &Client) -> SessionId {
    client.create_session(&TestNode::create()).await.unwrap().session.id
}

async fn close(client: &Client, session: &SessionId) {
    let close = CloseQuery { grace_ms: Some(0) };
    within(PATIENCE, client.close_session(session, close)).await.unwrap();
}

/// The code of the refusal of a new session.
async fn refusal(client: &Client, wanted: &CreateSession) -> Option<ErrorCode> {
    client.create_session(wanted).await.err()?.api_code()
}

/// The user id of a session outside of its user namespace, as its code sees it.
async fn uid_of(client: &Client, session: &SessionId) -> u32 {
    let code = "print(open('/proc/self/uid_map').read().split()[1])";
    run_ok(client, session, code).await.trim().parse().unwrap()
}

/// The processes of this user.
fn processes_of(node: &TestNode, uid: u32) -> Vec<u32> {
    let is_of = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let of_users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let ids: BTreeSet<&str> = of_users.unwrap_or_default().split_whitespace().collect();
        ids.contains(uid.to_string().as_str()) && ids.len() == 1
    };
    processes::of_sessions(node.pid()).into_iter().filter(is_of).collect()
}

/// What a Python program prints that runs outside of every sandbox, as this user.
fn run_as(uid: u32, code: &str, args: &[String]) -> String {
    let mut command = Command::new(SYSTEM_PYTHON);
    command.arg("-Ic").arg(code).args(args).uid(uid).gid(uid).current_dir("/");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn each_session_is_another_user_and_its_files_keep_their_owner() {
    if !is_root() {
        return skip(NEEDS_ROOT);
    }
    let node = builder(1000).start().await.unwrap();
    let client = node.client().await.unwrap();
    let workspace = tempfile::tempdir_in("/var").unwrap();
    std::os::unix::fs::chown(workspace.path(), Some(OWNER), Some(OWNER)).unwrap();
    let named = Some(workspace.path().display().to_string());
    for uid in [FIRST, FIRST + 1] {
        let wanted = CreateSession { workspace: named.clone(), ..TestNode::create() };
        let session = client.create_session(&wanted).await.unwrap().session.id;
        assert_eq!(uid_of(&client, &session).await, uid);
        assert!(!processes_of(&node, uid).is_empty());
        let code = format!(
            "open('of-{uid}', 'w').write('x'); open('shared', 'a').write('x')\n\
             with open('/proc/self/fd/1', 'w') as output: output.write('by name\\n')"
        );
        assert!(run_ok(&client, &session, &code).await.contains("by name\n"));
        for name in [format!("of-{uid}"), "shared".to_owned()] {
            let made = std::fs::metadata(workspace.path().join(name)).unwrap();
            assert_eq!((made.uid(), made.gid()), (OWNER, OWNER));
        }
    }
    let new = create(&client).await;
    run_ok(&client, &new, "open('made', 'w').write('x')").await;
    let made = client.session(&new).await.unwrap().workspace;
    assert_eq!(std::fs::metadata(Path::new(&made).join("made")).unwrap().uid(), 0);
}

/// Changes the files and directories that a client has made.
const CHANGE: &str = "
import os
for name in ['data/in.csv', 'data/more/back.csv', 'made.csv']:
    with open(name, 'a') as file: file.write('end\\n')
    os.rename(name, name + '.old')
with open('data/more/own', 'w') as file: file.write('x')
print(open('data/in.csv.old').read(), end='')
";

#[tokio::test]
async fn a_session_can_change_what_a_client_writes_into_its_workspace() {
    if !is_root() {
        return skip(NEEDS_ROOT);
    }
    let node = builder(1000).start().await.unwrap();
    let client = node.client().await.unwrap();
    let workspace = tempfile::tempdir_in("/var").unwrap();
    std::os::unix::fs::chown(workspace.path(), Some(OWNER), Some(OWNER)).unwrap();
    let named = Some(workspace.path().display().to_string());
    let wanted = CreateSession { workspace: named, ..TestNode::create() };
    let session = client.create_session(&wanted).await.unwrap().session.id;
    run_ok(&client, &session, "open('made.csv', 'w').write('code')").await;
    for path in ["data/in.csv", "made.csv"] {
        let content = "client\n";
        client.put_file(&session, path, content, &Expect::Anything).await.unwrap();
    }
    let changes = vec![WriteBackChange::Put {
        path: "data/more/back.csv".to_owned(),
        content: "client\n".into(),
        expect: Expect::Absent,
    }];
    client.write_back(&session, changes).await.unwrap();
    assert_eq!(run_ok(&client, &session, CHANGE).await, "client\nend\n");
    for name in ["data", "data/in.csv.old", "data/more", "data/more/back.csv.old", "made.csv.old"] {
        let made = std::fs::metadata(workspace.path().join(name)).unwrap();
        assert_eq!((made.uid(), made.gid()), (OWNER, OWNER), "{name}");
    }
}

/// Tries to reach each process of the arguments, and the workspace and the sockets of others.
const REACH: &str = r#"
import ctypes, os, resource, socket, sys
own, workspace, keepers, node = sys.argv[1:5]
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, act):
    try:
        act()
        print(name, "GOT THROUGH")
    except OSError:
        print(name, "refused")
def trace(pid):
    if libc.ptrace(16, pid, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
def connect(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
attempt("own", lambda: os.kill(int(own), 0))
for pid in sys.argv[5:]:
    attempt("signal", lambda: os.kill(int(pid), 0))
    attempt("trace", lambda: trace(int(pid)))
    attempt("memory", lambda: open(f"/proc/{pid}/mem", "rb"))
    attempt("environment", lambda: open(f"/proc/{pid}/environ", "rb"))
    attempt("descriptors", lambda: os.listdir(f"/proc/{pid}/fd"))
    attempt("files", lambda: os.listdir(f"/proc/{pid}/root/tmp"))
    attempt("socket", lambda: connect(f"/proc/{pid}/root/tmp/socket"))
    attempt("limits", lambda: resource.prlimit(int(pid), resource.RLIMIT_NOFILE))
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, int(pid), 19))
attempt("workspace", lambda: os.listdir(workspace))
attempt("keepers", lambda: os.listdir(keepers))
attempt("node", lambda: connect(node))
"#;

/// Attempts of [`REACH`] for each process, and others besides the one at a process of its own.
const ATTEMPTS: (usize, usize) = (9, 3);

/// Listens in the private directory of a session.
const LISTEN: &str = "
import socket
one = socket.socket(socket.AF_UNIX)
one.bind('/tmp/socket')
one.listen()
";

/// Sends the node a request at a socket that the program can reach, and prints the reply.
const ASK_NODE: &str = r#"
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.settimeout(30)
one.connect(sys.argv[1])
try:
    one.sendall(b"GET /v1/health HTTP/1.1\r\nhost: node\r\n\r\n")
    print(one.recv(100))
except OSError:
    print(b"")
"#;

#[tokio::test]
async fn a_process_with_the_user_id_of_one_session_reaches_no_other_session_and_no_node() {
    if !is_root() {
        return skip(NEEDS_ROOT);
    }
    if !Path::new(SYSTEM_PYTHON).exists() {
        return skip(format_args!("there is no {SYSTEM_PYTHON}"));
    }
    let node = builder(1000).start().await.unwrap();
    let client = node.client().await.unwrap();
    let (attacker, victim) = (create(&client).await, create(&client).await);
    let uid = uid_of(&client, &attacker).await;
    run_ok(&client, &victim, LISTEN).await;
    let own = processes_of(&node, uid);
    let others = processes_of(&node, uid_of(&client, &victim).await);
    assert!(!others.is_empty());
    let dirs = node.dirs();
    let workspace = client.session(&victim).await.unwrap().workspace;
    let keepers = dirs.runtime.join("k").display().to_string();
    let socket = dirs.socket().display().to_string();
    let mut args = vec![own[0].to_string(), workspace, keepers, socket.clone()];
    args.extend(others.iter().map(ToString::to_string));
    let said = run_as(uid, REACH, &args);
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("own GOT THROUGH"), "the program has the session's user id");
    let through: Vec<&str> = lines.clone().filter(|line| !line.ends_with(" refused")).collect();
    assert!(through.is_empty(), "{through:?}");
    let (of_each, besides) = ATTEMPTS;
    assert_eq!(lines.count(), of_each * others.len() + besides);
    // The node refuses a session's user also if nothing else keeps the session from the socket.
    for (path, mode) in [(node.base(), 0o755), (&*dirs.runtime, 0o755), (&*dirs.socket(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    assert_eq!(run_as(uid, ASK_NODE, &[socket]), "b''\n");
    run_ok(&client, &victim, "1").await;
}

#[tokio::test]
async fn no_two_sessions_have_the_same_user_id_also_after_the_node_was_killed() {
    if !is_root() {
        return skip(NEEDS_ROOT);
    }
    let mut node = builder(2).start().await.unwrap();
    let client = node.client().await.unwrap();
    let sessions = [create(&client).await, create(&client).await];
    assert_eq!(refusal(&client, &TestNode::create()).await, Some(ErrorCode::Overloaded));
    node.kill9();
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    assert_eq!(refusal(&client, &TestNode::create()).await, Some(ErrorCode::Overloaded));
    for (session, uid) in sessions.iter().zip(FIRST..) {
        assert_eq!(uid_of(&client, session).await, uid);
    }
    close(&client, &sessions[0]).await;
    let third = create(&client).await;
    assert_eq!(uid_of(&client, &third).await, FIRST);
}

#[tokio::test]
async fn twins_share_the_user_id_which_is_free_after_the_last_of_them() {
    if !is_root() {
        return skip(NEEDS_ROOT);
    }
    let node = builder(1).start().await.unwrap();
    let client = node.client().await.unwrap();
    let original = create(&client).await;
    run_ok(&client, &original, "x = 42").await;
    let wanted = ForkSession::default();
    let forked = client.fork_session(&original, &wanted);
    let twin = within(PATIENCE, forked).await.unwrap().session.id;
    assert_eq!(run_ok(&client, &twin, "open('own', 'w').write('x'); print(x)").await, "42\n");
    assert_eq!(uid_of(&client, &twin).await, FIRST);
    close(&client, &original).await;
    assert_eq!(refusal(&client, &TestNode::create()).await, Some(ErrorCode::Overloaded));
    close(&client, &twin).await;
    let next = create(&client).await;
    assert_eq!(uid_of(&client, &next).await, FIRST);
}

#[tokio::test]
async fn a_session_that_cannot_have_its_own_user_id_is_refused() {
    if !is_root() {
        return skip(NEEDS_ROOT);
    }
    let node = builder(1).start().await.unwrap();
    let client = node.client().await.unwrap();
    let isolated = |level| PolicyRequest { isolation: Some(level), ..PolicyRequest::default() };
    let open = PolicyRequest { preset: Some(Preset::Open), ..PolicyRequest::default() };
    for policy in [isolated(Isolation::Landlock), isolated(Isolation::None), open] {
        let wanted = CreateSession { policy: Some(policy), ..TestNode::create() };
        assert_eq!(refusal(&client, &wanted).await, Some(ErrorCode::NotEnforceable));
    }
    // The only id is still free.
    create(&client).await;
}

#[tokio::test]
async fn a_node_that_cannot_give_sessions_their_own_user_ids_does_not_start() {
    let range = format!("session_uids = \"{FIRST}-{FIRST}\"");
    let with_error = format!("[node]\n{range}\nno_such_key = 1\n");
    assert!(TestNode::builder(PROGRAM).config(with_error).start().await.is_err());
    if is_root() {
        return;
    }
    assert!(TestNode::builder(PROGRAM).config(format!("[node]\n{range}\n")).start().await.is_err());
}

#[test]
fn doctor_tries_the_range() {
    let home = tempfile::tempdir_in("/var").or_else(|_| tempfile::tempdir()).unwrap();
    let output = Command::new(PROGRAM)
        .args(["doctor", "--json"])
        .current_dir(home.path())
        .env(VARIABLE, format!("{FIRST}-{}", FIRST + 9))
        .env("WINDLASS_STATE_DIR", home.path().join("state"))
        .env("WINDLASS_RUNTIME_DIR", home.path().join("run"))
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let items = report["user_ids"].as_array().unwrap().iter();
    let states: Vec<(&str, &str)> = items
        .map(|item| (item["name"].as_str().unwrap(), item["state"].as_str().unwrap()))
        .collect();
    if is_root() {
        let names = ["session_uids", "accounts", "containers", "map: state", "map: workspace"];
        assert_eq!(states, names.map(|name| (name, "good")), "{report}");
    } else {
        assert_eq!(states, [("session_uids", "bad")], "{report}");
        assert_eq!(output.status.code(), Some(1));
    }
}
