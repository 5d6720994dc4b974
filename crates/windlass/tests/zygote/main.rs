//! Sessions whose workers are forked from a zygote, on demand or in advance into a pool. They behave like
//! other sessions, and share no readable state.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ahead;
mod apart;

use std::path::Path;
use std::process::Command;

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::CreateSession;
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::environments::{EnvironmentList, ZygoteState};
use windlass_client::protocol::event::StartedBy;
use windlass_client::protocol::policy::{Limits, PolicyRequest};
use windlass_testkit::{PATIENCE, TestNode, processes, python, run, run_ok, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

const WAYS: [(&str, StartedBy); 2] = [("zygote", StartedBy::Zygote), ("pool", StartedBy::Pool)];

/// A node with this start method, with all environments ready.
async fn node(way: &str) -> TestNode {
    let node = TestNode::builder(PROGRAM).env("WINDLASS_START", way).start().await.unwrap();
    ready(&node).await;
    node
}

/// A node with a pool for one environment, which a file in `place` lists.
async fn node_of(place: &Path, entry: &serde_json::Value) -> TestNode {
    let file = place.join("environments.json");
    let text = serde_json::json!({"version": 1, "environments": [entry]}).to_string();
    std::fs::write(&file, text).unwrap();
    let node = TestNode::builder(PROGRAM).env("WINDLASS_START", "pool");
    node.env("WINDLASS_ENVIRONMENTS", &file).start().await.unwrap()
}

async fn ready(node: &TestNode) -> EnvironmentList {
    let list = within(PATIENCE, node.await_environments()).await.unwrap();
    assert_eq!(list.error, None);
    for environment in &list.environments {
        assert_eq!(environment.zygote.state, ZygoteState::Ready, "{list:?}");
        assert_eq!(environment.pool.ready, environment.pool.size, "{list:?}");
    }
    list
}

async fn zygote_pid(node: &TestNode) -> u32 {
    ready(node).await.environments[0].zygote.pid.unwrap()
}

/// A session that was started by this method.
async fn session(node: &TestNode, client: &Client, by: StartedBy) -> SessionId {
    if by == StartedBy::Pool {
        ready(node).await;
    }
    let id = node.session(client).await.unwrap().id;
    assert_eq!(run_ok(client, &id, "6 * 7").await, "42\n");
    assert_eq!(started_by(client, &id).await, by);
    id
}

async fn started_by(client: &Client, id: &SessionId) -> StartedBy {
    client.session(id).await.unwrap().started_by.unwrap()
}

/// The code of a session sees the same surroundings with and without a zygote.
#[tokio::test]
async fn a_forked_session_is_like_any_other() {
    let code = "print(sorted(globals()), '_' in vars(__builtins__))\n\
        import os, sys, signal, resource, locale, linecache\n\
        print([name for name in linecache.cache if 'cell' in name])\n\
        print(os.getcwd() == os.environ.get('PWD', os.getcwd()), sorted(os.environ.items()))\n\
        print(sys.argv, sys.path, sys.flags, sys.executable, sys.prefix)\n\
        print(os.getppid(), os.getpgid(0) == os.getpid(), os.getuid(), os.umask(0o022))\n\
        print([signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)])\n\
        print(sorted(signal.pthread_sigmask(0, [])))\n\
        print([resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n[:7] == 'RLIMIT_'])\n\
        print([line for line in open('/proc/self/status') if line[:3] in ('Cap', 'NoN', 'Sec')])\n\
        print(os.access('/proc/self/mem', os.R_OK), locale.getpreferredencoding(), os.nice(0))\n\
        print(sorted(os.listdir('/')), sorted(n[:8] == 'wl-gates' for n in os.listdir('/tmp')), sorted(os.listdir('/dev')))";
    let mut seen = Vec::new();
    for (way, by) in [("exec", StartedBy::Exec), WAYS[0], WAYS[1]] {
        let node = TestNode::builder(PROGRAM).env("WINDLASS_START", way).start().await.unwrap();
        if by != StartedBy::Exec {
            ready(&node).await;
        }
        let client = node.client().await.unwrap();
        let mut create = TestNode::create();
        create.env.insert("GREETING".into(), "a=b c".into());
        let place = tempfile::tempdir_in(node.base()).unwrap();
        create.workspace = Some(place.path().display().to_string());
        let id = client.create_session(&create).await.unwrap().session.id;
        let printed = run_ok(&client, &id, code).await;
        assert_eq!(started_by(&client, &id).await, by);
        let base = node.base().file_name().unwrap().to_str().unwrap().to_owned();
        let place = place.path().file_name().unwrap().to_str().unwrap().to_owned();
        seen.push(printed.replace(&base, "BASE").replace(&place, "PLACE"));
    }
    assert!(seen[0].contains("'GREETING', 'a=b c'"), "{}", seen[0]);
    assert_eq!(seen[0], seen[1], "exec and zygote");
    assert_eq!(seen[0], seen[2], "exec and pool");
}

#[tokio::test]
async fn each_session_has_its_own_limits_and_confinement() {
    let mut reports = Vec::new();
    for (way, by) in [("exec", StartedBy::Exec), WAYS[0], WAYS[1]] {
        let node = TestNode::builder(PROGRAM).env("WINDLASS_START", way).start().await.unwrap();
        if by != StartedBy::Exec {
            ready(&node).await;
        }
        let client = node.client().await.unwrap();
        let policy = TestNode::create().policy.unwrap();
        let limits = Limits { memory_bytes: Some(96 << 20), ..Limits::DEFAULT };
        let policy = PolicyRequest { limits, ..policy };
        let create = CreateSession { policy: Some(policy), ..TestNode::create() };
        let id = client.create_session(&create).await.unwrap().session.id;
        let turn = run(&client, &id, "x = bytearray(200 << 20)").await;
        let name = turn.error.unwrap().name;
        assert!(["MemoryError", "memory_limit"].contains(&name.as_str()), "{way}: {name}");
        let session = client.session(&id).await.unwrap();
        let confinement = session.confinement.unwrap();
        let controls: Vec<_> = confinement
            .controls
            .iter()
            .map(|report| (report.control, report.state, report.tested))
            .collect();
        reports.push((confinement.isolation, controls));
    }
    assert_eq!(reports[0], reports[1], "exec and zygote");
    assert_eq!(reports[0], reports[2], "exec and pool");
}

#[tokio::test]
async fn every_level_of_isolation_can_be_forked() {
    let node = node("zygote").await;
    let client = node.client().await.unwrap();
    for isolation in [Isolation::Full, Isolation::Landlock, Isolation::None] {
        let policy = TestNode::create().policy.unwrap();
        let policy = PolicyRequest { isolation: Some(isolation), ..policy };
        let create = CreateSession { policy: Some(policy), ..TestNode::create() };
        let id = client.create_session(&create).await.unwrap().session.id;
        assert_eq!(run_ok(&client, &id, "6 * 7").await, "42\n");
        assert_eq!(started_by(&client, &id).await, StartedBy::Zygote, "{isolation}");
        let confinement = client.session(&id).await.unwrap().confinement.unwrap();
        assert_eq!(confinement.isolation, isolation);
    }
}

#[tokio::test]
async fn a_zygote_that_dies_ends_no_session_and_is_replaced() {
    let node = node("pool").await;
    let client = node.client().await.unwrap();
    let before = session(&node, &client, StartedBy::Pool).await;
    run_ok(&client, &before, "x = 5").await;
    let old = zygote_pid(&node).await;
    processes::kill(old);
    assert!(processes::wait_gone(old, PATIENCE));
    // Whether a zygote exists or not, a session starts.
    let without = node.session(&client).await.unwrap().id;
    assert_eq!(run_ok(&client, &without, "6 * 7").await, "42\n");
    assert_eq!(run_ok(&client, &before, "print(x)").await, "5\n");
    let new = within(PATIENCE, async {
        loop {
            let list = node.await_environments().await.unwrap();
            if let Some(pid) = list.environments[0].zygote.pid.filter(|pid| *pid != old) {
                return pid;
            }
        }
    })
    .await;
    assert!(processes::alive(new));
    session(&node, &client, StartedBy::Pool).await;
    // A reset forks a fresh worker too.
    client.reset_session(&before).await.unwrap();
    assert_eq!(run_ok(&client, &before, "'x' in dir()").await, "False\n");
    assert_eq!(started_by(&client, &before).await, StartedBy::Zygote);
}

#[tokio::test]
async fn a_zygote_that_is_out_of_date_is_replaced() {
    let place = tempfile::tempdir().unwrap();
    let venv = place.path().join("venv");
    make_venv(&venv);
    let entry = serde_json::json!({"interpreter": venv, "preload": ["late"], "pool": 1});
    let node = node_of(place.path(), &entry).await;
    let list = ready(&node).await;
    assert!(list.environments[0].zygote.missing[0].contains("late: ModuleNotFoundError"));
    let old = list.environments[0].zygote.pid.unwrap();
    let client = node.client().await.unwrap();
    let create =
        || CreateSession { interpreter: Some(venv.display().to_string()), ..TestNode::create() };
    let first = client.create_session(&create()).await.unwrap().session.id;
    run_ok(&client, &first, "1").await;
    assert_eq!(started_by(&client, &first).await, StartedBy::Pool);
    // A package is installed.
    std::fs::write(packages(&venv).join("late.py"), "here = True").unwrap();
    let second = client.create_session(&create()).await.unwrap().session.id;
    assert_eq!(run_ok(&client, &second, "import late; print(late.here)").await, "True\n");
    assert_eq!(started_by(&client, &second).await, StartedBy::Exec);
    let list = ready(&node).await;
    assert!(list.environments[0].zygote.missing.is_empty(), "{list:?}");
    assert_ne!(list.environments[0].zygote.pid.unwrap(), old);
    assert!(processes::wait_gone(old, PATIENCE));
    let third = client.create_session(&create()).await.unwrap().session.id;
    let loaded = run_ok(&client, &third, "import sys; print('late' in sys.modules)").await;
    assert_eq!(loaded, "True\n");
    assert_eq!(started_by(&client, &third).await, StartedBy::Pool);
}

/// Files that a session can write are not executed outside of a sandbox.
#[tokio::test]
async fn an_interpreter_in_the_workspace_has_no_zygote() {
    let place = tempfile::tempdir().unwrap();
    let venv = place.path().join(".venv");
    make_venv(&venv);
    let entry = serde_json::json!({"interpreter": venv, "pool": 1});
    let node = node_of(place.path(), &entry).await;
    ready(&node).await;
    let client = node.client().await.unwrap();
    for (workspace, by) in [(None, StartedBy::Pool), (Some(place.path()), StartedBy::Exec)] {
        ready(&node).await;
        let create = CreateSession {
            interpreter: Some(venv.display().to_string()),
            workspace: workspace.map(|path| path.display().to_string()),
            ..TestNode::create()
        };
        let id = client.create_session(&create).await.unwrap().session.id;
        run_ok(&client, &id, "1").await;
        assert_eq!(started_by(&client, &id).await, by);
    }
}

#[tokio::test]
async fn a_zygote_holds_no_namespace_of_those_it_has_forked() {
    if !rustix::process::geteuid().is_root() {
        // A process without root rights may enter a namespace below its own, but cannot return.
        return;
    }
    let node = node("zygote").await;
    let client = node.client().await.unwrap();
    let zygote = zygote_pid(&node).await;
    let space = |name: &str| std::fs::read_link(format!("/proc/{zygote}/ns/{name}")).unwrap();
    for _ in 0..3 {
        session(&node, &client, StartedBy::Zygote).await;
        let alone = async {
            while space("pid_for_children") != space("pid") {
                tokio::task::yield_now().await;
            }
        };
        within(PATIENCE, alone).await;
    }
}

#[tokio::test]
async fn zygotes_and_pooled_workers_end_with_their_node() {
    for hard in [true, false] {
        let mut node = node("pool").await;
        let zygote = zygote_pid(&node).await;
        let all = processes::descendants(node.pid());
        assert!(all.contains(&zygote) && all.len() >= 6, "{all:?}");
        if hard {
            node.kill9();
        } else {
            let stop = windlass_client::protocol::api::StopSessions::End;
            within(PATIENCE, node.stop(stop)).await.unwrap();
        }
        for pid in all {
            assert!(processes::wait_gone(pid, PATIENCE), "{:?}", processes::arguments(pid));
        }
        let left = std::fs::read_dir(node.dirs().runtime.join("k")).unwrap().count();
        assert_eq!(left, 0, "sockets of keepers that waited");
    }
}

fn make_venv(place: &Path) {
    let made =
        Command::new(python()).args(["-m", "venv", "--without-pip"]).arg(place).status().unwrap();
    assert!(made.success());
}

fn packages(venv: &Path) -> std::path::PathBuf {
    let versions = std::fs::read_dir(venv.join("lib")).unwrap();
    versions.map(|entry| entry.unwrap().path()).next().unwrap().join("site-packages")
}
