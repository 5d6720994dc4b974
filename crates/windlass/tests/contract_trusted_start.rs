//! Contract line 66: the node neither executes what a session could write, nor makes a path readable because
//! of it. One session plants, another one looks, and there is no trace outside of both.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::{CloseQuery, CreateSession};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::environments::ZygoteState;
use windlass_client::protocol::event::StartedBy;
use windlass_client::protocol::policy::PolicyRequest;
use windlass_testkit::{PATIENCE, TestNode, processes, python, run_ok, turn, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

const WAYS: [&str; 3] = ["exec", "zygote", "pool"];

const KEY: &str = "the hidden key";

/// A node with a project as the workspace of its sessions, and a directory that they cannot see.
struct Scene {
    node: TestNode,
    client: Client,
    base: PathBuf,
}

impl Scene {
    /// `path` comes first on the node's PATH. Its only environment is `python3`.
    async fn new(way: &str, base: &Path, path: &Path) -> Self {
        let file = base.join("environments.json");
        let entry = serde_json::json!({"interpreter": "python3", "pool": 1});
        let text = serde_json::json!({"version": 1, "environments": [entry]}).to_string();
        std::fs::write(&file, text).unwrap();
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", path.display());
        let node = TestNode::builder(PROGRAM)
            .env("WINDLASS_START", way)
            .env("WINDLASS_ENVIRONMENTS", &file)
            .env("HOME", base.join("home"))
            .env("PATH", path)
            .state_dir(base.join("state"));
        let node = node.start().await.unwrap();
        let client = node.client().await.unwrap();
        Self { node, client, base: base.to_owned() }
    }

    async fn restart(&mut self) {
        self.node.restart().await.unwrap();
        self.client = self.node.client().await.unwrap();
    }

    fn hidden(&self) -> PathBuf {
        self.base.join("hidden")
    }

    fn work(&self) -> PathBuf {
        self.base.join("work")
    }

    fn create(&self, interpreter: Option<&str>) -> CreateSession {
        let hidden = vec![self.hidden().display().to_string()];
        CreateSession {
            workspace: Some(self.work().display().to_string()),
            interpreter: interpreter.map(str::to_owned),
            policy: Some(PolicyRequest { hidden, ..PolicyRequest::default() }),
            ..CreateSession::default()
        }
    }

    /// Runs `code` in a session with the system's interpreter, and closes the session. Level `landlock`
    /// protects no names in a workspace, so programs on PATH can be planted there.
    async fn plant(&self, code: &str) {
        let usual = python().display().to_string();
        let mut create = self.create(Some(&usual));
        create.policy.get_or_insert_default().isolation = Some(Isolation::Landlock);
        let id = self.start(&create).await.unwrap();
        run_ok(&self.client, &id, code).await;
        self.client.close_session(&id, CloseQuery::default()).await.unwrap();
    }

    async fn start(&self, create: &CreateSession) -> Result<SessionId, String> {
        let made = within(PATIENCE, self.client.create_session(create)).await;
        made.map(|made| made.session.id).map_err(|error| error.to_string())
    }

    /// What the next session in the project can read of `path`, or why there is no session.
    async fn look(&self, path: &Path) -> String {
        let id = match self.start(&self.create(None)).await {
            Ok(id) => id,
            Err(refused) => return refused,
        };
        let code = format!("print(open({:?}).read())", path.display().to_string());
        // If the interpreter is not a real interpreter, the session refuses the turn.
        let turn = within(PATIENCE, self.client.run_turn(&id, turn(code))).await;
        let _ = self.client.close_session(&id, CloseQuery::default()).await;
        format!("{turn:?}")
    }

    /// Files that executed code left in the hidden directory.
    fn traces(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.hidden()).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("trace")).collect()
    }
}

/// The directories of one test: a project, a home, and a hidden directory with a key and a fake interpreter
/// installation.
fn stage() -> tempfile::TempDir {
    let base = tempfile::Builder::new().prefix("wl-trust-").tempdir_in("/var/tmp").unwrap();
    for name in ["work", "home", "state", "hidden/pool/bin", "hidden/pool/lib"] {
        std::fs::create_dir_all(base.path().join(name)).unwrap();
    }
    std::fs::write(base.path().join("hidden/key"), KEY).unwrap();
    std::fs::write(base.path().join("hidden/pool/lib/key"), KEY).unwrap();
    // It runs, with the library that it was built for.
    std::fs::copy(python(), base.path().join("hidden/pool/bin/python")).unwrap();
    base
}

fn make_venv(place: &Path) {
    let made =
        Command::new(python()).args(["-m", "venv", "--without-pip"]).arg(place).status().unwrap();
    assert!(made.success());
}

/// Code that leaves a trace in the hidden directory if it runs where that directory is visible.
fn trace(hidden: &Path, name: &str) -> String {
    let at = hidden.join(name).display().to_string();
    let hidden = hidden.display();
    format!("import os; os.path.exists('{hidden}/key') and open('{at}', 'w').close()")
}

#[tokio::test]
async fn contract_66_a_planted_environment_reveals_nothing_hidden() {
    for way in WAYS {
        let base = stage();
        let base = base.path().canonicalize().unwrap();
        let scene = Scene::new(way, &base, Path::new("/usr/bin")).await;
        let hidden = scene.hidden();
        let (key, lib) = (hidden.join("key"), hidden.join("pool/lib/key"));
        let targets = [
            (key.display().to_string(), &key),
            (format!("/proc/self/cwd{}", key.display()), &key),
            (hidden.join("pool/bin/python").display().to_string(), &lib),
            (format!("/proc/self/cwd{}/pool/bin/python", hidden.display()), &lib),
            (format!("/proc/self/root{}/pool/bin/python", hidden.display()), &lib),
        ];
        for (target, revealed) in targets {
            // Inside, the symlink leads to a real interpreter if that can be arranged.
            let code = format!(
                "import os, shutil\n\
                 shutil.rmtree('.venv', ignore_errors=True)\n\
                 os.makedirs('.venv/bin')\n\
                 os.symlink({target:?}, '.venv/bin/python')\n\
                 inside = {target:?}.removeprefix('/proc/self/cwd/')\n\
                 if not inside.startswith('/'):\n    \
                     os.makedirs(os.path.dirname(inside), exist_ok=True)\n    \
                     os.path.lexists(inside) or os.symlink('/usr/bin/python3', inside)"
            );
            scene.plant(&code).await;
            let seen = scene.look(revealed).await;
            assert!(!seen.contains(KEY), "{way}, {target}: {seen}");
        }
        // If an environment leads to a hidden path, the next start names the path and a remedy.
        std::fs::remove_dir_all(scene.work().join(".venv")).unwrap();
        std::fs::create_dir_all(scene.work().join(".venv/bin")).unwrap();
        symlink(hidden.join("pool/bin/python"), scene.work().join(".venv/bin/python")).unwrap();
        let refused = scene.start(&scene.create(None)).await.unwrap_err();
        assert!(refused.contains("pool/bin/python") && refused.contains("--show"), "{refused}");
    }
}

#[tokio::test]
async fn contract_66_a_python_planted_on_path_is_run_inside_only() {
    for way in WAYS {
        for plant in ["script", "shim", "program"] {
            let base = stage();
            let base = base.path().canonicalize().unwrap();
            let bin = base.join("work/.venv/bin");
            std::fs::create_dir_all(&bin).unwrap();
            let mut scene = Scene::new(way, &base, &bin).await;
            let at = scene.hidden().join("trace").display().to_string();
            let script = match plant {
                "script" => format!("#!/bin/sh\\nid > {at}\\nexec /usr/bin/python3 \\\"$@\\\"\\n"),
                // As pyenv creates them: the script prints the path of the real interpreter.
                "shim" => format!("#!/bin/sh\\n: > {at}\\necho /usr/bin/python3\\n"),
                _ => format!("#!/usr/bin/python3\\nopen('{at}', 'w')\\n"),
            };
            let code = format!(
                "import os\n\
                 open('.venv/bin/python3', 'w').write(\"{script}\")\n\
                 os.chmod('.venv/bin/python3', 0o755)"
            );
            scene.plant(&code).await;
            scene.restart().await;
            // Whether this session starts depends on the planted program. The same in another directory.
            scene.look(&scene.hidden().join("key")).await;
            let elsewhere = base.join("elsewhere");
            std::fs::create_dir_all(&elsewhere).unwrap();
            let workspace = Some(elsewhere.display().to_string());
            let _ = scene.start(&CreateSession { workspace, ..scene.create(None) }).await;
            let list = scene.node.await_environments().await.unwrap();
            assert_eq!(scene.traces(), [""; 0], "{way}, {plant}: {list:?}");
            if way != "exec" {
                let zygote = &list.environments[0].zygote;
                assert_eq!(zygote.state, ZygoteState::Failed, "{way}, {plant}: {list:?}");
                let why = zygote.error.clone().unwrap();
                assert!(why.contains("can be written by sessions"), "{why}");
            }
        }
    }
}

#[tokio::test]
async fn contract_66_modules_planted_in_an_environment_on_path_run_inside_only() {
    for way in WAYS {
        let base = stage();
        let base = base.path().canonicalize().unwrap();
        let venv = base.join("work/.venv");
        make_venv(&venv);
        let mut scene = Scene::new(way, &base, &venv.join("bin")).await;
        if way != "exec" {
            // No session could write there yet, so it has a zygote.
            let list = within(PATIENCE, scene.node.await_environments()).await.unwrap();
            assert_eq!(list.environments[0].zygote.state, ZygoteState::Ready, "{list:?}");
        }
        let hidden = scene.hidden();
        let code = format!(
            "import glob\n\
             site = glob.glob('.venv/lib/python3*/site-packages')[0]\n\
             open(site + '/planted.pth', 'w').write(\"{}\\n\")\n\
             for name in ('sitecustomize', 'usercustomize', 'json'):\n    \
                 open(site + '/' + name + '.py', 'w').write(\"{}\\n\")",
            trace(&hidden, "trace-pth"),
            trace(&hidden, "trace-module"),
        );
        scene.plant(&code).await;
        for round in ["at once", "after a restart", "after another"] {
            let seen = scene.look(&hidden.join("key")).await;
            assert!(!seen.contains(KEY), "{way}, {round}: {seen}");
            let list = within(PATIENCE, scene.node.await_environments()).await.unwrap();
            assert_eq!(scene.traces(), [""; 0], "{way}, {round}: {list:?}");
            if way != "exec" {
                let state = list.environments[0].zygote.state;
                assert_eq!(state, ZygoteState::Failed, "{way}, {round}: {list:?}");
            }
            scene.restart().await;
        }
    }
}

#[tokio::test]
async fn contract_66_modules_of_a_project_that_is_installed_in_place_are_not_preloaded() {
    let base = stage();
    let base = base.path().canonicalize().unwrap();
    let venv = base.join("venv");
    make_venv(&venv);
    let versions = std::fs::read_dir(venv.join("lib")).unwrap();
    let site = versions.map(|entry| entry.unwrap().path()).next().unwrap().join("site-packages");
    let work = base.join("work").display().to_string();
    // As setuptools does: a finder that leads into the project, and no path.
    let finder = format!(
        "import sys\n\
         from importlib.util import spec_from_file_location as spec\n\
         class Finder:\n    \
             @staticmethod\n    \
             def find_spec(name, path=None, target=None):\n        \
                 return spec(name, '{work}/project.py') if name == 'project' else None\n\
         sys.meta_path.append(Finder)\n"
    );
    std::fs::write(site.join("editable_finder.py"), finder).unwrap();
    std::fs::write(site.join("editable.pth"), "import editable_finder\n").unwrap();
    std::fs::write(base.join("work/project.py"), trace(&base.join("hidden"), "trace")).unwrap();
    let scene = Scene::new("zygote", &base, Path::new("/usr/bin")).await;
    scene.plant("pass").await;
    drop(scene);
    let file = base.join("environments.json");
    let entry = serde_json::json!({"interpreter": venv, "preload": ["project"]});
    let text = serde_json::json!({"version": 1, "environments": [entry]}).to_string();
    std::fs::write(&file, text).unwrap();
    let node = TestNode::builder(PROGRAM)
        .env("WINDLASS_START", "zygote")
        .env("WINDLASS_ENVIRONMENTS", &file)
        .env("HOME", base.join("home"))
        .state_dir(base.join("state"));
    let node = node.start().await.unwrap();
    let list = within(PATIENCE, node.await_environments()).await.unwrap();
    let zygote = &list.environments[0].zygote;
    assert_eq!(zygote.state, ZygoteState::Ready, "{list:?}");
    assert!(zygote.missing[0].contains("sessions can write to"), "{list:?}");
    assert!(!base.join("hidden/trace").exists());
}

#[tokio::test]
async fn contract_66_with_an_unreadable_record_no_file_of_the_user_is_trusted() {
    let base = stage();
    let base = base.path().canonicalize().unwrap();
    let venv = base.join("venv");
    make_venv(&venv);
    std::fs::write(base.join("state/writable-roots"), "not a record\n").unwrap();
    let scene = Scene::new("zygote", &base, &venv.join("bin")).await;
    let list = within(PATIENCE, scene.node.await_environments()).await.unwrap();
    let why = list.environments[0].zygote.error.clone().unwrap();
    assert!(why.contains("writable-roots"), "{why}");
    let usual = python().display().to_string();
    let id = scene.start(&scene.create(Some(&usual))).await.unwrap();
    assert_eq!(run_ok(&scene.client, &id, "6 * 7").await, "42\n");
    let session = scene.client.session(&id).await.unwrap();
    assert_eq!(session.started_by, Some(StartedBy::Exec));
}

/// Sockets of the node's processes that have a name.
fn sockets_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_socket() {
                found.push(entry.path());
            }
        }
    }
    found
}

/// The inode numbers of a process's sockets, or of the socket behind one descriptor.
fn sockets_of(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let names = links.map(|link| link.display().to_string());
    names.filter(|name| name.starts_with("socket:")).collect()
}

#[tokio::test]
async fn contract_66_a_zygote_serves_only_requests_of_its_node() {
    let node = TestNode::builder(PROGRAM).env("WINDLASS_START", "zygote").start().await.unwrap();
    let list = within(PATIENCE, node.await_environments()).await.unwrap();
    let zygote = list.environments[0].zygote.pid.unwrap();
    let client = node.client().await.unwrap();
    let id = node.session(&client).await.unwrap().id;
    run_ok(&client, &id, "1").await;
    let session = client.session(&id).await.unwrap();
    assert_eq!(session.started_by, Some(StartedBy::Zygote));
    // No socket of a zygote has a name, so no process can send to it.
    let unix = std::fs::read_to_string("/proc/net/unix").unwrap();
    let named: Vec<&str> = unix.lines().filter(|line| line.contains('/')).collect();
    for socket in sockets_of(zygote) {
        let inode = socket.trim_start_matches("socket:[").trim_end_matches(']').to_owned();
        let of_it = |line: &&&str| line.split_ascii_whitespace().any(|word| word == inode);
        assert_eq!(named.iter().find(of_it), None, "{socket}");
    }
    for socket in sockets_below(&node.dirs().runtime) {
        let sender = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert!(sender.send_to(b"fork", &socket).is_err(), "{socket:?} takes datagrams");
    }
    // A connection is for one worker, and closes after that worker is forked.
    let alone = async {
        while sockets_of(zygote).len() > 1 {
            tokio::task::yield_now().await;
        }
    };
    within(PATIENCE, alone).await;
    // A fresh worker comes from the zygote too.
    client.reset_session(&id).await.unwrap();
    run_ok(&client, &id, "1").await;
    let session = client.session(&id).await.unwrap();
    assert_eq!(session.started_by, Some(StartedBy::Zygote));
}

#[tokio::test]
async fn contract_66_a_worker_holds_no_channel_but_its_own() {
    for way in WAYS {
        let node = TestNode::builder(PROGRAM).env("WINDLASS_START", way).start().await.unwrap();
        let list = within(PATIENCE, node.await_environments()).await.unwrap();
        let client = node.client().await.unwrap();
        let id = node.session(&client).await.unwrap().id;
        let code = "import os\nfor n in os.listdir('/proc/self/fd'):\n    \
            try: print(os.readlink('/proc/self/fd/' + n))\n    except OSError: pass";
        let held = run_ok(&client, &id, code).await;
        let sockets: Vec<&str> = held.lines().filter(|line| line.starts_with("socket:")).collect();
        assert_eq!(sockets.len(), 1, "{way}: {held}");
        let others = [Some(node.pid()), list.environments[0].zygote.pid];
        for pid in others.into_iter().flatten().chain(processes::nurseries(node.pid())) {
            let theirs = sockets_of(pid);
            assert!(!theirs.iter().any(|one| one == sockets[0]), "{way}: {pid} {theirs:?}");
        }
    }
}
