//! The contract lines on unix sockets. 67: no session reaches a socket of the machine, of the node or of
//! another session, and what a level cannot enforce is reported before the session starts. 72: another user
//! of the machine cannot keep sessions from starting.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use windlass_client::protocol::api::{CloseQuery, CreateSession, Session};
use windlass_client::protocol::confinement::{Control, ControlReport, ControlState, Isolation};
use windlass_client::protocol::policy::{
    HostRule, HostRules, Network, PolicyRequest, Preset, UnixSockets,
};
use windlass_client::protocol::{ErrorCode, Outcome};
use windlass_client::{Client, ClientError};
use windlass_testkit::{TestNode, outside_of_tmp, python, run, run_ok, skip};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// A program on the machine that runs until it is dropped.
struct Outside {
    child: Child,
    /// The directory of its files; removed last.
    _dir: Option<tempfile::TempDir>,
}

impl Outside {
    /// Runs a Python program and waits until it prints that it is ready. It exits when its input closes.
    fn start(code: &str, args: &[&Path], uid: Option<u32>) -> Self {
        let mut command = Command::new(python());
        command.arg("-Ic").arg(code).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        Self { child, _dir: None }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Creates sockets of each kind in a directory, and abstract ones. Records what a datagram socket receives.
const HOST: &str = r#"
import os, socket, sys, threading
place = sys.argv[1]
kept = []
for kind in ("STREAM", "SEQPACKET"):
    for name in (place + "/" + kind, "\0" + place + "/" + kind):
        one = socket.socket(socket.AF_UNIX, getattr(socket, "SOCK_" + kind))
        one.bind(name)
        one.listen(64)
        kept.append(one)
def note(one):
    while True:
        got = one.recv(100)
        with open(place + "/received", "ab") as file:
            file.write(got + b"\n")
for name in (place + "/DGRAM", "\0" + place + "/DGRAM"):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.bind(name)
    threading.Thread(target=note, args=(one,), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"#;

/// Tries every way to reach a socket, and prints which ways succeed.
const REACH: &str = r#"
import os, select, socket
place, others = PLACE, OTHERS
kinds = {"STREAM": socket.SOCK_STREAM, "SEQPACKET": socket.SOCK_SEQPACKET,
         "DGRAM": socket.SOCK_DGRAM, "RAW": socket.SOCK_RAW}
def connected(kind, name):
    with socket.socket(socket.AF_UNIX, kinds[kind]) as one:
        one.settimeout(5)
        one.connect(name)
        one.send(b"connected " + kind.encode())
def sent(kind, name):
    with socket.socket(socket.AF_UNIX, kinds[kind]) as one:
        one.sendto(b"sent " + kind.encode(), name)
def by_pair(kind, name, how):
    left, right = socket.socketpair(socket.AF_UNIX, kinds[kind])
    word = b"pair " + kind.encode()
    if how == "connect":
        left.connect(name)
        left.send(word)
    elif how == "sendmsg":
        left.sendmsg([word], [], 0, name)
    else:
        left.sendto(word, name)
    if select.select([right], [], [], 0)[0]:
        raise OSError("it came to the other end of the pair")
ways = []
for name in [place + "/" + kind for kind in ("STREAM", "SEQPACKET", "DGRAM")]:
    for name in (name, "\0" + name):
        for kind in kinds:
            ways.append(("connect", kind, name, lambda k=kind, n=name: connected(k, n)))
            ways.append(("sendto", kind, name, lambda k=kind, n=name: sent(k, n)))
            for how in ("connect", "sendto", "sendmsg"):
                ways.append(("pair, " + how, kind, name,
                             lambda k=kind, n=name, h=how: by_pair(k, n, h)))
for name in others:
    ways.append(("connect", "STREAM", name, lambda n=name: connected("STREAM", n)))
for *way, attempt in ways:
    try:
        attempt()
        print("THROUGH", *way)
    except OSError:
        pass
print("tried", len(ways))
"#;

/// The sockets of another session: in its workspace if possible, in its `/tmp`, and abstract.
const VICTIM: &str = r#"
import os, socket
kept = []
for name in (os.getcwd() + "/victim.sock", "/tmp/victim.sock", "\0windlass-victim"):
    try:
        one = socket.socket(socket.AF_UNIX)
        one.bind(name)
        one.listen(8)
        kept.append(one)
        print("listens")
    except OSError as error:
        print("refused", type(error).__name__)
"#;

struct Stage {
    node: TestNode,
    client: Client,
    place: tempfile::TempDir,
    _host: Outside,
}

impl Stage {
    async fn new() -> Self {
        let place = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
        std::fs::create_dir(place.path().join("host")).unwrap();
        let host = Outside::start(HOST, &[&place.path().join("host")], None);
        let node = TestNode::start(PROGRAM).await.unwrap();
        let client = node.client().await.unwrap();
        Self { node, client, place, _host: host }
    }

    fn workspace(&self, name: &str) -> PathBuf {
        let path = self.place.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    async fn session(&self, workspace: &Path, policy: PolicyRequest) -> Session {
        let create = create(workspace, policy);
        let id = self.client.create_session(&create).await.unwrap().session.id;
        run_ok(&self.client, &id, "1").await;
        self.client.session(&id).await.unwrap()
    }

    /// The ways that succeed from a session, and the number of ways tried.
    async fn ways_through(&self, session: &Session, others: &[String]) -> (Vec<String>, bool) {
        let place = self.place.path().join("host");
        let code = REACH
            .replace("PLACE", &serde_json::to_string(&place).unwrap())
            .replace("OTHERS", &serde_json::to_string(others).unwrap());
        let said = run_ok(&self.client, &session.id, &code).await;
        let through = said.lines().filter(|line| line.starts_with("THROUGH"));
        (through.map(str::to_owned).collect(), said.contains("tried"))
    }

    /// What the host's datagram sockets received.
    fn received(&self) -> String {
        std::fs::read_to_string(self.place.path().join("host/received")).unwrap_or_default()
    }
}

fn create(workspace: &Path, policy: PolicyRequest) -> CreateSession {
    CreateSession {
        workspace: Some(workspace.display().to_string()),
        policy: Some(policy),
        ..TestNode::create()
    }
}

fn networks() -> [Network; 3] {
    let hosts = HostRules(vec![HostRule::parse("a.test").unwrap()]);
    [Network::None, Network::Hosts(hosts), Network::Open]
}

fn sockets_report(session: &Session) -> ControlReport {
    let controls = &session.confinement.as_ref().unwrap().controls;
    controls.iter().find(|report| report.control == Control::Sockets).unwrap().clone()
}

#[tokio::test]
async fn contract_67_no_session_reaches_a_unix_socket_of_the_machine_the_node_or_a_session() {
    let stage = Stage::new().await;
    let victim = stage.workspace("victim");
    let victim_session = stage.session(&victim, PolicyRequest::default()).await;
    let listens = run_ok(&stage.client, &victim_session.id, VICTIM).await;
    // A session can listen only in its private directories, which no other session sees.
    assert_eq!(listens, "refused PermissionError\nlistens\nlistens\n");
    let node = stage.node.dirs().socket().display().to_string();
    let victims = [format!("{}/victim.sock", victim.display()), "/tmp/victim.sock".to_owned()];
    let others: Vec<String> =
        [node, "\0windlass-victim".to_owned()].into_iter().chain(victims).collect();
    let workspace = stage.workspace("work");
    let mut wrong = Vec::new();
    for isolation in [Isolation::Full, Isolation::Landlock] {
        for network in networks() {
            for unix_sockets in UnixSockets::ALL {
                let is_full = isolation == Isolation::Full;
                let held = !is_full || unix_sockets == UnixSockets::None;
                let policy = PolicyRequest {
                    isolation: Some(isolation),
                    network: Some(network.clone()),
                    unix_sockets: Some(unix_sockets),
                    required: Some(if held { vec![Control::Sockets] } else { vec![] }),
                    ..PolicyRequest::default()
                };
                let what = format!("{isolation}, {network:?}, {unix_sockets:?}");
                let session = stage.session(&workspace, policy).await;
                let report = sockets_report(&session);
                if held {
                    assert_eq!(report.state, ControlState::Enforced, "{what}: {report:?}");
                    assert!(report.tested, "{what}: {report:?}");
                }
                let (through, tried) = stage.ways_through(&session, &others).await;
                assert!(tried, "{what}");
                wrong.extend(through.into_iter().map(|way| format!("{what}: {way}")));
                stage.client.close_session(&session.id, CloseQuery::default()).await.unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(stage.received(), "", "datagrams came through");
}

#[tokio::test]
async fn contract_67_the_ways_to_a_socket_work_without_isolation() {
    let stage = Stage::new().await;
    let policy = PolicyRequest { isolation: Some(Isolation::None), ..PolicyRequest::default() };
    let session = stage.session(&stage.workspace("work"), policy).await;
    assert_eq!(sockets_report(&session).state, ControlState::NotEnforced);
    let node = stage.node.dirs().socket().display().to_string();
    let (through, _) = stage.ways_through(&session, &[node]).await;
    for way in ["connect STREAM", "connect SEQPACKET", "pair, sendto RAW", "node.sock"] {
        assert!(through.iter().any(|line| line.contains(way)), "no {way} in {through:#?}");
    }
}

/// Connects to a socket by its path, and prints whether that succeeds.
fn connect_to(path: &Path) -> String {
    format!(
        "import socket\none = socket.socket(socket.AF_UNIX)\none.connect({})\nprint('THROUGH')",
        serde_json::to_string(path).unwrap()
    )
}

#[tokio::test]
async fn contract_67_what_cannot_be_enforced_is_reported_before_the_session_starts() {
    let stage = Stage::new().await;
    let workspace = stage.workspace("work");
    let late = stage.workspace("late");
    let policy = |unix_sockets, required: &[Control]| PolicyRequest {
        isolation: Some(Isolation::Full),
        unix_sockets: Some(unix_sockets),
        required: Some(required.to_vec()),
        ..PolicyRequest::default()
    };
    let local = stage.session(&workspace, policy(UnixSockets::Local, &[])).await;
    let none = stage.session(&workspace, policy(UnixSockets::None, &[Control::Sockets])).await;
    // A service that starts to listen while the sessions are running.
    let listener = std::os::unix::net::UnixListener::bind(late.join("late.sock")).unwrap();
    let code = connect_to(&late.join("late.sock"));
    let of_none = run(&stage.client, &none.id, &code).await.outcome;
    assert_eq!(of_none, Some(Outcome::Error));
    let through = run(&stage.client, &local.id, &code).await.outcome == Some(Outcome::Ok);
    let report = sockets_report(&local);
    match report.state {
        ControlState::Enforced => assert!(!through, "it says that it is enforced: {report:?}"),
        _ => {
            assert!(report.mechanism.contains("later"), "{report:?}");
            assert!(report.remedy.unwrap().contains("--unix-sockets none"));
            // A policy that requires the control is refused before there is a session.
            let wanted = create(&workspace, policy(UnixSockets::Local, &[Control::Sockets]));
            let refused = stage.client.create_session(&wanted).await;
            let Err(ClientError::Api(error)) = refused else { panic!("it started: {refused:?}") };
            assert_eq!(error.code, ErrorCode::NotEnforceable);
            assert!(error.message.contains("sockets"), "{error:?}");
        }
    }
    drop(listener);
}

#[tokio::test]
async fn contract_67_programs_that_need_unix_sockets_of_their_own_still_run() {
    let stage = Stage::new().await;
    let code = r#"
import asyncio, multiprocessing, socket, subprocess, sys
open("job.py", "w").write('''
import multiprocessing
def double(n):
    return 2 * n
if __name__ == "__main__":
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        print(sum(pool.map(double, range(10))))
''')
print(subprocess.run([sys.executable, "job.py"], capture_output=True, text=True))
"#;
    for preset in [Preset::Workspace, Preset::Open] {
        let isolation = Some(Isolation::Full);
        let policy = PolicyRequest { preset: Some(preset), isolation, ..PolicyRequest::default() };
        let session = stage.session(&stage.workspace("work"), policy).await;
        let said = run_ok(&stage.client, &session.id, code).await;
        assert!(said.contains("stdout='90\\n'"), "{preset:?}: {said}");
    }
    // Without named sockets there are still connected pairs, which event loops need.
    for isolation in [Isolation::Full, Isolation::Landlock] {
        let policy = PolicyRequest {
            isolation: Some(isolation),
            unix_sockets: Some(UnixSockets::None),
            ..PolicyRequest::default()
        };
        let session = stage.session(&stage.workspace("work"), policy).await;
        let code = "import asyncio\nprint(asyncio.run(asyncio.sleep(0, 'slept')))";
        let said = run_ok(&stage.client, &session.id, code).await;
        assert!(said.contains("slept"), "{isolation}: {said}");
    }
}

/// What another user does in a world-writable directory: sockets behind closed directories, sockets with odd
/// names, thousands of sockets, and names that now lead elsewhere.
const OTHER_USER: &str = r#"
import os, socket, sys, threading
place, interpreter = sys.argv[1], sys.argv[2]
kept = []
def listen(name):
    one = socket.socket(socket.AF_UNIX)
    one.bind(name)
    one.listen(1)
    kept.append(one)
home = place + "/other"
os.mkdir(home)
os.makedirs(home + "/closed/deeper")
listen(home + "/closed/agent")
listen(home + "/closed/deeper/agent")
os.chmod(home + "/closed/deeper", 0o700)
os.chmod(home + "/closed", 0o700)
for name in (b"line\nbreak", b"\xff\xfe", b"a b\\c\"d", b"-n"):
    listen(os.fsencode(home) + b"/" + name)
# In the kernel's table this looks like a line of its own.
os.makedirs(home + "/x\n0: 0 0 0 0 0 0 /usr")
listen(home + "/x\n0: 0 0 0 0 0 0 /usr/bin")
os.chdir(home)
listen("./relative")
listen((home + "/").ljust(107, "l"))
listen(place + "/in-a-directory-of-all")
# Names that lead to the interpreter, to its directory, to nothing and to another kind of file.
os.mkdir("bin")
listen(home + "/bin/" + os.path.basename(interpreter))
os.rename("bin", "moved")
os.symlink(os.path.dirname(interpreter), "bin")
listen(home + "/became-a-link")
os.unlink("became-a-link")
os.symlink("/usr", "became-a-link")
listen(home + "/became-a-directory")
os.unlink("became-a-directory")
os.mkdir("became-a-directory")
listen(home + "/is-gone")
os.unlink("is-gone")
os.mkdir("many")
# In several processes, for their limits; they end with this one.
end, held = os.pipe()
done, say_done = os.pipe()
for part in range(4):
    if os.fork() == 0:
        os.close(held)
        for number in range(500):
            listen(f"{home}/many/{part}-{number}")
        os.write(say_done, b"x")
        os.read(end, 1)
        os._exit(0)
for part in range(4):
    os.read(done, 1)
def flip():
    while True:
        try:
            one = socket.socket(socket.AF_UNIX)
            one.bind(home + "/flips")
            one.listen(1)
            os.unlink("flips")
            os.symlink("/usr", "flips")
            os.unlink("flips")
            os.mkdir("flips")
            os.rmdir("flips")
            one.close()
        except OSError:
            pass
threading.Thread(target=flip, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"#;

/// The user `nobody`.
const NOBODY: u32 = 65534;

fn hostile() -> (PathBuf, Outside) {
    let is_root = rustix::process::geteuid().is_root();
    // Every user can reach a directory below /var. The checkout may be closed to other users.
    let dir = outside_of_tmp(if is_root { "/var" } else { env!("CARGO_TARGET_TMPDIR") });
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let interpreter = std::fs::canonicalize(python()).unwrap();
    let mut other =
        Outside::start(OTHER_USER, &[dir.path(), &interpreter], is_root.then_some(NOBODY));
    let path = dir.path().to_owned();
    other._dir = Some(dir);
    (path, other)
}

#[tokio::test]
async fn contract_72_sockets_of_another_user_do_not_keep_sessions_from_starting() {
    let (place, other) = hostile();
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let work = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    for isolation in [Isolation::Full, Isolation::Landlock] {
        for network in [Network::None, Network::Open] {
            for _ in 0..3 {
                let policy = PolicyRequest {
                    isolation: Some(isolation),
                    network: Some(network.clone()),
                    ..PolicyRequest::default()
                };
                let wanted = create(work.path(), policy);
                let session = client.create_session(&wanted).await.unwrap().session;
                run_ok(&client, &session.id, "import json").await;
                // Sockets that are covered one by one are not reached, however odd their names are.
                let odd = place.join("other/a b\\c\"d");
                let turn = run(&client, &session.id, &connect_to(&odd)).await;
                assert_eq!(turn.outcome, Some(Outcome::Error), "{isolation}, {network:?}");
                let report = sockets_report(&client.session(&session.id).await.unwrap());
                if isolation == Isolation::Landlock {
                    assert_eq!(report.state, ControlState::Enforced, "{report:?}");
                }
                client.close_session(&session.id, CloseQuery::default()).await.unwrap();
            }
        }
    }
    drop(other);
}

#[tokio::test]
async fn contract_72_a_socket_in_a_closed_home_does_not_stop_a_node_of_root() {
    if !rustix::process::geteuid().is_root() {
        skip("only root has another user's closed directory in its survey");
        return;
    }
    let (place, other) = hostile();
    let doctor = Command::new(PROGRAM).arg("doctor").env("PATH", "/usr/bin:/bin").output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(said.contains("Self-test at level full"), "{said}");
    assert!(!said.contains("cannot hide"), "{said}");
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap();
    run_ok(&client, &session.id, "1+1").await;
    // The directory was closed when the session started. Opened later, it shows nothing to that session.
    let closed = place.join("other/closed");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
    let turn = run(&client, &session.id, &connect_to(&closed.join("agent"))).await;
    assert_eq!(turn.outcome, Some(Outcome::Error), "{turn:?}");
    drop(other);
}
