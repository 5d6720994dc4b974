//! Contract lines 69 and 70: a session cannot create, change or replace names that shells, agents, editors
//! and git trust, and a session in a home cannot change what the shell runs next.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use windlass_client::protocol::api::{CloseQuery, CreateSession, ForkSession, Session};
use windlass_client::protocol::confinement::{Control, ControlState, Isolation};
use windlass_client::protocol::policy::{PolicyRequest, TRUSTED_ANYWHERE, TRUSTED_AT_HOME};
use windlass_client::{Client, WhichSessions};
use windlass_testkit::{PATIENCE, TestNode, outside_of_tmp, processes, python, run_ok, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Tries every way to create, change or replace a name, and prints which ways succeed.
const ATTACK: &str = r#"
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)

def exchange(a, b):
    if libc.renameat2(-100, a.encode(), -100, b.encode(), 2):
        raise OSError(ctypes.get_errno(), "exchange")

def spare(directory=False):
    path = "spare-directory" if directory else "spare-file"
    if not os.path.lexists(path):
        os.mkdir(path) if directory else open(path, "w").close()
    return path

def write(path, flags):
    os.close(os.open(path, flags | os.O_WRONLY, 0o644))

def listen(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)

WAYS = {
    "write": lambda n: write(n, 0),
    "append": lambda n: write(n, os.O_APPEND),
    "make": lambda n: write(n, os.O_CREAT),
    "make anew": lambda n: write(n, os.O_CREAT | os.O_EXCL),
    "truncate": lambda n: os.truncate(n, 0),
    "rename over": lambda n: os.rename(spare(), n),
    "rename a directory over": lambda n: os.rename(spare(True), n),
    "rename away": lambda n: os.rename(n, "away"),
    "exchange": lambda n: exchange(spare(), n),
    "exchange back": lambda n: exchange(n, spare()),
    "exchange with a directory": lambda n: exchange(n, spare(True)),
    "symlink": lambda n: os.symlink("/tmp/evil", n),
    "hard link over": lambda n: os.link(spare(), n),
    "hard link from": lambda n: os.link(n, "second-name", follow_symlinks=False),
    "mkdir": lambda n: os.mkdir(n),
    "unlink": lambda n: os.unlink(n),
    "rmdir": lambda n: os.rmdir(n),
    "fifo": lambda n: os.mkfifo(n),
    "socket": lambda n: listen(n),
    "make inside": lambda n: write(n + "/planted", os.O_CREAT),
    "mkdir inside": lambda n: os.makedirs(n + "/hooks/planted"),
}

def attack(names):
    through = []
    for name in names:
        for way, act in WAYS.items():
            try:
                act(name)
            except OSError:
                continue
            through.append(f"{way} {name}")
    return through
"#;

/// A running session in this directory.
async fn session_in(client: &Client, workspace: &Path) -> Session {
    let create = CreateSession {
        workspace: Some(workspace.display().to_string()),
        policy: Some(PolicyRequest::default()),
        ..TestNode::create()
    };
    let id = client.create_session(&create).await.unwrap().session.id;
    run_ok(client, &id, ATTACK).await;
    client.session(&id).await.unwrap()
}

/// Which ways of the attack on these names succeed.
async fn attack(client: &Client, session: &Session, names: &[&str]) -> String {
    let names = serde_json::to_string(names).unwrap();
    let code = format!("print(json.dumps(attack({names})))");
    run_ok(client, &session.id, &code).await.trim().to_owned()
}

async fn close(client: &Client, session: &Session) {
    client.close_session(&session.id, CloseQuery::default()).await.unwrap();
}

/// Everything in a directory: the type and content of each entry.
fn contents(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(at) = left.pop() {
        for entry in std::fs::read_dir(&at).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let what = if kind.is_dir() {
                left.push(path.clone());
                "directory".to_owned()
            } else if kind.is_symlink() {
                format!("link {}", path.read_link().unwrap().display())
            } else if kind.is_file() {
                format!("file {}", String::from_utf8_lossy(&std::fs::read(&path).unwrap()))
            } else {
                "special".to_owned()
            };
            found.insert(path, what);
        }
    }
    found
}

/// Files that the attack itself leaves in a workspace.
fn clear_spares(workspace: &Path) {
    let _ = std::fs::remove_file(workspace.join("spare-file"));
    let _ = std::fs::remove_dir(workspace.join("spare-directory"));
}

fn place() -> tempfile::TempDir {
    outside_of_tmp(env!("CARGO_TARGET_TMPDIR"))
}

fn fill(workspace: &Path) {
    std::fs::create_dir_all(workspace.join(".git/hooks")).unwrap();
    std::fs::create_dir_all(workspace.join(".vscode")).unwrap();
    for name in [".git/config", ".vscode/tasks.json", "AGENTS.md", ".mcp.json", ".bashrc"] {
        std::fs::write(workspace.join(name), "as it was").unwrap();
    }
}

#[tokio::test]
async fn contract_69_names_that_exist_cannot_be_changed_or_replaced() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (client, place) = (node.client().await.unwrap(), place());
    fill(place.path());
    let before = contents(place.path());
    let session = session_in(&client, place.path()).await;
    let names = [".git", ".git/config", ".vscode", ".vscode/tasks.json", "AGENTS.md", ".mcp.json"];
    assert_eq!(attack(&client, &session, &names).await, "[]");
    assert_eq!(attack(&client, &session, &[".bashrc"]).await, "[]");
    let said = run_ok(&client, &session.id, "print(open('AGENTS.md').read())").await;
    assert_eq!(said, "as it was\n");
    let confinement = client.session(&session.id).await.unwrap().confinement.unwrap();
    assert_eq!(confinement.state(Control::Protected), Some(ControlState::Enforced));
    close(&client, &session).await;
    clear_spares(place.path());
    assert_eq!(contents(place.path()), before);
}

#[tokio::test]
async fn contract_69_names_that_are_symlinks_cannot_be_replaced_and_keep_their_target() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (client, place, outside) = (node.client().await.unwrap(), place(), self::place());
    let work = place.path();
    std::fs::create_dir_all(work.join("docs/deep")).unwrap();
    std::fs::create_dir_all(work.join("shared/codex")).unwrap();
    std::fs::write(work.join("docs/deep/agents.md"), "instructions").unwrap();
    std::fs::write(outside.path().join("settings.json"), "{}").unwrap();
    symlink("docs", work.join("d")).unwrap();
    for (name, target) in [
        ("AGENTS.md", "d/deep/agents.md"),
        ("CLAUDE.md", "AGENTS.md"),
        (".codex", "shared/codex"),
        ("GEMINI.md", "notes/missing.md"),
        (".envrc", "/nowhere/at/all"),
    ] {
        symlink(target, work.join(name)).unwrap();
    }
    symlink(outside.path(), work.join(".claude")).unwrap();
    let before = contents(work);
    let session = session_in(&client, work).await;
    let links = ["AGENTS.md", "CLAUDE.md", ".codex", "GEMINI.md", ".envrc", ".claude"];
    assert_eq!(attack(&client, &session, &links).await, "[]");
    // Not through their targets either, and not through another directory on the path.
    let targets = ["docs/deep/agents.md", "shared/codex", "notes/missing.md", "notes"];
    assert_eq!(attack(&client, &session, &targets).await, "[]");
    let inside = r#"["make inside d", "mkdir inside d"]"#;
    assert_eq!(attack(&client, &session, &["d"]).await, inside);
    let moved = "import os\nfor name in ('docs', 'docs/deep', 'shared'):\n    try:\n        \
                 os.rename(name, 'moved')\n        print('moved', name)\n    except OSError:\n        \
                 pass";
    assert_eq!(run_ok(&client, &session.id, moved).await, "");
    let read = "print(open('CLAUDE.md').read(), os.listdir('.claude'), os.readlink('.codex'))";
    assert_eq!(
        run_ok(&client, &session.id, read).await,
        "instructions ['settings.json'] shared/codex\n"
    );
    // Everything else in the workspace can be changed.
    run_ok(&client, &session.id, "open('docs/other.md', 'w').write('x')").await;
    close(&client, &session).await;
    for name in ["docs/other.md", "docs/planted"] {
        std::fs::remove_file(work.join(name)).unwrap();
    }
    std::fs::remove_dir_all(work.join("docs/hooks")).unwrap();
    clear_spares(work);
    assert_eq!(contents(work), before);
}

#[tokio::test]
async fn contract_69_missing_names_cannot_be_created_and_nothing_is_left_behind() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (client, place) = (node.client().await.unwrap(), place());
    let session = session_in(&client, place.path()).await;
    assert_eq!(attack(&client, &session, TRUSTED_ANYWHERE).await, "[]");
    // Shells read these only from a home.
    run_ok(&client, &session.id, "open('.bashrc', 'w').close(); os.remove('.bashrc')").await;
    close(&client, &session).await;
    clear_spares(place.path());
    assert_eq!(contents(place.path()), BTreeMap::new());
}

#[tokio::test]
async fn contract_70_programs_of_a_projects_environment_stay_as_they_are_in_each_session() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (client, place) = (node.client().await.unwrap(), place());
    let work = place.path();
    let first = session_in(&client, work).await;
    run_ok(&client, &first.id, "os.mkdir('.venv'); os.rmdir('.venv')").await;
    close(&client, &first).await;
    let venv = work.join(".venv");
    let made = Command::new(python()).args(["-m", "venv", "--without-pip"]).arg(&venv).status();
    assert!(made.unwrap().success());
    clear_spares(work);
    let before = contents(work);
    let parts =
        [".venv", ".venv/bin", ".venv/bin/activate", ".venv/bin/python", ".venv/pyvenv.cfg"];
    for interpreter in [TestNode::create().interpreter, None, None] {
        let create = CreateSession {
            workspace: Some(work.display().to_string()),
            interpreter,
            ..TestNode::create()
        };
        let id = client.create_session(&create).await.unwrap().session.id;
        run_ok(&client, &id, ATTACK).await;
        let session = client.session(&id).await.unwrap();
        assert_eq!(attack(&client, &session, &parts).await, "[]");
        close(&client, &session).await;
        clear_spares(work);
        assert_eq!(contents(work), before);
    }
    let shown = PolicyRequest { shown: vec![".venv".to_owned()], ..PolicyRequest::default() };
    let create = CreateSession {
        workspace: Some(work.display().to_string()),
        policy: Some(shown),
        ..TestNode::create()
    };
    let id = client.create_session(&create).await.unwrap().session.id;
    run_ok(&client, &id, "open('.venv/by-consent', 'w').close()").await;
    assert!(venv.join("by-consent").exists());
}

#[tokio::test]
async fn contract_69_names_are_protected_again_after_a_reset() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (client, place) = (node.client().await.unwrap(), place());
    fill(place.path());
    let session = session_in(&client, place.path()).await;
    client.reset_session(&session.id).await.unwrap();
    run_ok(&client, &session.id, ATTACK).await;
    assert_eq!(attack(&client, &session, &["AGENTS.md", ".claude", "GEMINI.md"]).await, "[]");
    close(&client, &session).await;
}

#[tokio::test]
async fn contract_69_the_end_of_one_session_leaves_the_names_of_another_protected() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (client, place) = (node.client().await.unwrap(), place());
    let first = session_in(&client, place.path()).await;
    let second = session_in(&client, place.path()).await;
    close(&client, &first).await;
    assert_eq!(attack(&client, &second, TRUSTED_ANYWHERE).await, "[]");
    close(&client, &second).await;
    clear_spares(place.path());
    assert_eq!(contents(place.path()), BTreeMap::new());
}

/// Which process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    Node,
    Keeper,
    Both,
}

#[tokio::test]
async fn contract_69_a_killed_process_leaves_nothing_behind() {
    for killed in [Killed::Node, Killed::Keeper, Killed::Both] {
        let mut node = TestNode::start(PROGRAM).await.unwrap();
        let (mut client, place) = (node.client().await.unwrap(), place());
        let session = session_in(&client, place.path()).await;
        let keeper = session.keeper_pid.unwrap();
        if killed != Killed::Keeper {
            node.kill9();
        }
        if killed != Killed::Node {
            processes::kill(keeper);
            assert!(processes::wait_gone(keeper, PATIENCE));
        }
        if killed != Killed::Keeper {
            node.restart().await.unwrap();
            client = node.client().await.unwrap();
        }
        if killed == Killed::Node {
            // The session is alive, and its names are still protected.
            assert_eq!(attack(&client, &session, TRUSTED_ANYWHERE).await, "[]");
            close(&client, &session).await;
        } else {
            within(PATIENCE, ended(&client, &session)).await;
        }
        clear_spares(place.path());
        assert_eq!(contents(place.path()), BTreeMap::new(), "{killed:?}");
    }
}

/// Waits until the session has ended and all its files are removed.
async fn ended(client: &Client, session: &Session) {
    loop {
        let live = client.sessions(WhichSessions::Live).await.unwrap().sessions;
        // An ended session leaves this list after its files are removed.
        if !live.iter().any(|one| one.id == session.id) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

fn git(directory: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=a", "-c", "user.email=a@example.org"])
        .args(args)
        .current_dir(directory)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8(said).unwrap()
}

#[tokio::test]
async fn contract_69_git_and_the_user_can_work_while_names_are_protected() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (client, place) = (node.client().await.unwrap(), place());
    let work = place.path();
    git(work, &["init", "--quiet"]);
    std::fs::write(work.join("README"), "text").unwrap();
    git(work, &["add", "-A"]);
    git(work, &["commit", "--quiet", "-m", "first"]);
    git(work, &["checkout", "--quiet", "-b", "side"]);
    std::fs::write(work.join("AGENTS.md"), "merged").unwrap();
    git(work, &["add", "-A"]);
    git(work, &["commit", "--quiet", "-m", "second"]);
    git(work, &["checkout", "--quiet", "-"]);
    let session = session_in(&client, work).await;
    assert_eq!(git(work, &["status", "--porcelain"]), "");
    assert_eq!(git(work, &["add", "-A"]), "");
    assert_eq!(git(work, &["status", "--porcelain"]), "");
    assert_eq!(git(work, &["submodule", "status"]), "");
    // A program that copies the directory finds nothing unreadable. The same holds inside the session.
    run_ok(&client, &session.id, "import shutil; shutil.copytree('.', '/tmp/copy')").await;
    // A file that git checks out replaces the placeholder. The user's own files stay.
    git(work, &["merge", "--quiet", "side"]);
    std::fs::write(work.join(".vscode/settings.json"), "{}").unwrap();
    close(&client, &session).await;
    let left: Vec<String> = contents(work).into_keys().map(|path| name_in(work, &path)).collect();
    let left: Vec<&str> =
        left.iter().map(String::as_str).filter(|name| !name.starts_with(".git/")).collect();
    assert_eq!(left, [".git", ".vscode", ".vscode/settings.json", "AGENTS.md", "README"]);
    assert_eq!(std::fs::read_to_string(work.join("AGENTS.md")).unwrap(), "merged");
}

fn name_in(directory: &Path, path: &Path) -> String {
    path.strip_prefix(directory).unwrap().display().to_string()
}

#[tokio::test]
async fn contract_69_a_twin_has_no_placeholders_in_its_copy() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (client, place) = (node.client().await.unwrap(), place());
    let session = session_in(&client, place.path()).await;
    run_ok(&client, &session.id, "open('work', 'w').close()").await;
    let forked = client.fork_session(&session.id, &ForkSession::default()).await.unwrap();
    let copy = run_ok(&client, &forked.session.id, "print(sorted(os.listdir('.')))").await;
    assert_eq!(copy, "['work']\n");
}

#[tokio::test]
async fn contract_69_a_level_that_cannot_protect_the_names_says_so() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let (client, place) = (node.client().await.unwrap(), place());
    let create = CreateSession {
        workspace: Some(place.path().display().to_string()),
        policy: Some(PolicyRequest {
            isolation: Some(Isolation::Landlock),
            ..PolicyRequest::default()
        }),
        ..TestNode::create()
    };
    let id = client.create_session(&create).await.unwrap().session.id;
    run_ok(&client, &id, "1").await;
    let confinement = client.session(&id).await.unwrap().confinement.unwrap();
    assert_eq!(confinement.state(Control::Protected), Some(ControlState::NotEnforced));
    assert_eq!(contents(place.path()), BTreeMap::new(), "no placeholder is made");
}

/// A home with the usual files.
fn home() -> tempfile::TempDir {
    let home = place();
    for name in [".bashrc", ".profile", ".aws/credentials", ".oh-my-zsh/init.zsh"] {
        let path = home.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "echo as it was\n").unwrap();
    }
    for name in [".cargo/bin", "go/bin", "project"] {
        std::fs::create_dir_all(home.path().join(name)).unwrap();
    }
    for name in [".cargo/bin/cargo", "go/bin/gopls"] {
        std::fs::write(home.path().join(name), "#!/bin/sh\n").unwrap();
    }
    home
}

fn search_path(home: &Path) -> String {
    let python = python();
    let beside = python.parent().unwrap().display();
    format!("{beside}:{}/go/bin:/usr/local/bin:/usr/bin:/bin", home.display())
}

#[tokio::test]
async fn contract_70_a_session_in_a_home_cannot_change_what_the_shell_runs_next() {
    let home = home();
    let node = TestNode::builder(PROGRAM)
        .env("HOME", home.path())
        .env("PATH", search_path(home.path()))
        .start()
        .await
        .unwrap();
    let client = node.client().await.unwrap();
    let before = contents(home.path());
    let session = session_in(&client, home.path()).await;
    let confinement = client.session(&session.id).await.unwrap().confinement.unwrap();
    assert_eq!(confinement.state(Control::Protected), Some(ControlState::Enforced));
    let there = [".bashrc", ".profile", ".oh-my-zsh/init.zsh", ".cargo/bin/cargo", ".cargo"];
    assert_eq!(attack(&client, &session, &there).await, "[]");
    assert_eq!(
        attack(&client, &session, &["go/bin/gopls", "go/bin/ls", "go/bin", "go"]).await,
        r#"["make inside go", "mkdir inside go"]"#
    );
    assert_eq!(attack(&client, &session, TRUSTED_AT_HOME).await, "[]");
    let missing = ["bin", "bin/ls", ".local", ".local/bin/ls", ".config", ".ssh", "CLAUDE.md"];
    assert_eq!(attack(&client, &session, &missing).await, "[]");
    // A hidden path stays hidden although its name is protected too.
    let read = "try:\n    print(open('.aws/credentials').read())\nexcept OSError:\n    print('no')";
    assert_eq!(run_ok(&client, &session.id, read).await, "no\n");
    run_ok(&client, &session.id, "open('project/work', 'w').close(); open('own', 'w')").await;
    // A login shell of the user reads its usual files.
    let shell = Command::new("bash")
        .args(["--login", "-c", "true"])
        .env("HOME", home.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&shell.stdout), "as it was\n");
    assert_eq!(String::from_utf8_lossy(&shell.stderr), "");
    close(&client, &session).await;
    for name in ["project/work", "own", "go/planted"] {
        std::fs::remove_file(home.path().join(name)).unwrap();
    }
    std::fs::remove_dir_all(home.path().join("go/hooks")).unwrap();
    clear_spares(home.path());
    assert_eq!(contents(home.path()), before);
}

/// Runs a windlass command with this home in a directory. Returns whether it succeeded, its output and its
/// standard error.
fn windlass(node: &TestNode, home: &Path, here: &Path, args: &[&str]) -> (bool, String, String) {
    let output = Command::new(node.program())
        .args(args)
        .env("WINDLASS_RUNTIME_DIR", &node.dirs().runtime)
        .env("WINDLASS_STATE_DIR", &node.dirs().state)
        .env("HOME", home)
        .env("PATH", search_path(home))
        .current_dir(here)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn contract_70_run_and_repl_in_a_home_use_a_separate_workspace() {
    let home = home();
    let node = TestNode::builder(PROGRAM)
        .env("HOME", home.path())
        .env("PATH", search_path(home.path()))
        .start()
        .await
        .unwrap();
    let work = "import os\nprint(os.getcwd())\ntry:\n    open(os.path.expanduser('~/.bashrc'), 'a')\n\
                except OSError as error:\n    print('refused')\nopen('made', 'w').close()\n";
    std::fs::write(home.path().join("work.py"), work).unwrap();
    let before = contents(home.path());
    let state = node.dirs().state.canonicalize().unwrap();
    let state = state.to_str().unwrap();
    let above = home.path().parent().unwrap().to_owned();
    let python = python();
    let python = python.to_str().unwrap();
    let file = home.path().join("work.py");
    for here in [home.path().to_owned(), above, home.path().join("go/bin")] {
        let args = ["run", "--python", python, file.to_str().unwrap()];
        let (ok, said, beside) = windlass(&node, home.path(), &here, &args);
        assert!(ok && said.starts_with(state), "{}: {said}{beside}", here.display());
        assert!(said.ends_with("refused\n"), "{said}");
        assert!(beside.contains("--workspace"), "{beside}");
    }
    // The command itself reads a file with a relative path.
    let args = ["run", "--python", python, "work.py"];
    assert!(windlass(&node, home.path(), home.path(), &args).0);
    let (ok, _, beside) = windlass(&node, home.path(), home.path(), &["repl", "--python", python]);
    assert!(ok && beside.contains("separate workspace"), "{beside}");
    assert_eq!(contents(home.path()), before);

    // If the home is named, it is the workspace, with protection for what the shell runs. If that is
    // impossible, the session is refused.
    let args = ["run", "--python", python, "--workspace", ".", "work.py"];
    let (ok, said, beside) = windlass(&node, home.path(), home.path(), &args);
    assert!(ok && said.starts_with(home.path().to_str().unwrap()), "{said}{beside}");
    assert!(said.ends_with("refused\n"), "{said}");
    let held_nowhere =
        [&["--isolation", "landlock", "--workspace", "."][..], &["--workspace", "go/bin"]];
    for more in held_nowhere {
        let args = [&["run", "--python", python][..], more, &["work.py"]].concat();
        let (ok, said, beside) = windlass(&node, home.path(), home.path(), &args);
        assert!(!ok && beside.contains("protected"), "{more:?}: {said}{beside}");
    }
    std::fs::remove_file(home.path().join("made")).unwrap();
    assert_eq!(contents(home.path()), before);
}
