//! Sessions whose workers are forked: from a zygote, or ahead of time into a pool. They are what they
//! would be without, and share nothing that can be read.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::{CloseQuery, CreateSession};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::environments::{EnvironmentList, ZygoteState};
use windlass_client::protocol::event::StartedBy;
use windlass_client::protocol::policy::{Limits, PolicyRequest};
use windlass_testkit::{
    PATIENCE, TestNode, outside_of_tmp, processes, python, run, run_ok, within,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

const WAYS: [(&str, StartedBy); 2] = [("zygote", StartedBy::Zygote), ("pool", StartedBy::Pool)];

/// A node that starts its workers so, and has everything ready for it.
async fn node(way: &str) -> TestNode {
    let node = TestNode::builder(PROGRAM).env("WINDLASS_START", way).start().await.unwrap();
    ready(&node).await;
    node
}

/// A node with a pool for one environment, which a file in `place` names.
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

/// A session that was started so.
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

/// What a piece of code prints in each of three sessions that were started so.
async fn in_three(code: &str) -> Vec<BTreeSet<String>> {
    let mut all = Vec::new();
    for (way, by) in WAYS {
        let node = node(way).await;
        let client = node.client().await.unwrap();
        let mut printed = BTreeSet::new();
        for _ in 0..3 {
            let id = session(&node, &client, by).await;
            printed.insert(run_ok(&client, &id, code).await);
        }
        all.push(printed);
    }
    all
}

async fn differs(code: &str) {
    for printed in in_three(code).await {
        assert_eq!(printed.len(), 3, "two sessions have this in common: {printed:?}");
    }
}

async fn is_alike(code: &str) {
    for printed in in_three(code).await {
        assert_eq!(printed.len(), 1, "sessions differ in this: {printed:?}");
    }
}

#[tokio::test]
async fn random_numbers_differ() {
    differs("import random; print(random.random(), random.getrandbits(64))").await;
}

#[tokio::test]
async fn what_comes_from_the_systems_chance_differs() {
    differs("import os, secrets, uuid; print(os.urandom(8), secrets.token_hex(8), uuid.uuid4())")
        .await;
    differs("import uuid; print(uuid.uuid1().hex)").await;
    differs("import ssl; print(ssl.RAND_bytes(8))").await;
    differs("import multiprocessing; print(bytes(multiprocessing.current_process().authkey))")
        .await;
}

#[tokio::test]
async fn names_of_temporary_files_differ() {
    differs("import tempfile; print([next(tempfile._get_candidate_names()) for _ in range(3)])")
        .await;
}

/// The seed of text's hashes is an interpreter's for life: sessions of one zygote have it in common,
/// and the documentation says so. A client that wants its own asks for one, and gets an interpreter.
#[tokio::test]
async fn the_seed_of_hashes_is_the_zygotes_and_not_that_of_another() {
    is_alike("print(hash('a'))").await;
    let mut seeds = BTreeSet::new();
    for _ in 0..2 {
        let node = node("zygote").await;
        let client = node.client().await.unwrap();
        let id = session(&node, &client, StartedBy::Zygote).await;
        seeds.insert(run_ok(&client, &id, "print(hash('a'))").await);
        let mut create = TestNode::create();
        create.env.insert("PYTHONHASHSEED".into(), "7".into());
        let own = client.create_session(&create).await.unwrap().session.id;
        let own_hash = run_ok(&client, &own, "print(hash('a'))").await;
        assert_eq!(started_by(&client, &own).await, StartedBy::Exec);
        assert!(!seeds.contains(&own_hash));
    }
    assert_eq!(seeds.len(), 2);
}

/// Whatever a session of an interpreter of its own has open, and nothing else.
#[tokio::test]
async fn nothing_else_is_open() {
    let code = "import os\n\
        def what(fd):\n    try: return os.readlink('/proc/self/fd/%d' % fd).split(':')[0]\n    \
        except OSError: return None\n\
        print(sorted((fd, w) for fd in range(1024) if (w := what(fd)) and w != '/proc'))";
    let by_exec = {
        let node = TestNode::start(PROGRAM).await.unwrap();
        let client = node.client().await.unwrap();
        let id = session(&node, &client, StartedBy::Exec).await;
        run_ok(&client, &id, code).await
    };
    assert!(by_exec.contains("(900, 'socket')"), "{by_exec}");
    for printed in in_three(code).await {
        assert_eq!(printed, BTreeSet::from([by_exec.clone()]));
    }
}

#[tokio::test]
async fn caches_and_variables_of_one_session_are_not_in_another() {
    for (way, by) in WAYS {
        let node = node(way).await;
        let client = node.client().await.unwrap();
        let one = session(&node, &client, by).await;
        let leave = "import os, sys, re, linecache, functools, builtins\n\
            secret = 'left here'\nbuiltins.secret = secret\nos.environ['SECRET'] = secret\n\
            sys.path.insert(0, secret)\nsys.modules['secret'] = secret\nre.compile(secret)\n\
            re.secret = secret\nopen('/tmp/secret', 'w').write(secret)";
        run_ok(&client, &one, leave).await;
        let look = "import os, sys, re, builtins\n\
            print([hasattr(builtins, 'secret'), 'SECRET' in os.environ, 'left here' in sys.path,\
            'secret' in sys.modules, hasattr(re, 'secret'), os.path.exists('/tmp/secret'),\
            any('left here' in str(key) for key in re._cache)])";
        let two = session(&node, &client, by).await;
        let found = run_ok(&client, &two, look).await;
        assert_eq!(found, "[False, False, False, False, False, False, False]\n", "{way}");
        // What an ended session had is as little in the next.
        client.close_session(&one, CloseQuery::default()).await.unwrap();
        let three = session(&node, &client, by).await;
        assert_eq!(run_ok(&client, &three, look).await, found, "{way}");
    }
}

/// Makes and closes sessions, one after the other, until `enough` have been started from the pool.
async fn come_and_go(client: Client, from_pool: Arc<AtomicUsize>, enough: usize) {
    while from_pool.load(Ordering::Relaxed) < enough {
        let id = client.create_session(&TestNode::create()).await.unwrap().session.id;
        run_ok(&client, &id, "1").await;
        if started_by(&client, &id).await == StartedBy::Pool {
            from_pool.fetch_add(1, Ordering::Relaxed);
        }
        client.close_session(&id, CloseQuery { grace_ms: Some(0) }).await.unwrap();
    }
}

#[tokio::test]
async fn a_pool_is_filled_again_while_sessions_come_and_go() {
    let node = node("pool").await;
    let waiting = ready(&node).await.environments[0].pool.size;
    let from_pool = Arc::new(AtomicUsize::new(0));
    let mut coming = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = node.client().await.unwrap();
        coming.spawn(come_and_go(client, from_pool.clone(), waiting + 4));
    }
    within(PATIENCE, coming.join_all()).await;
}

/// What a session sees of its user's home.
async fn seen_of_home(client: &Client) -> (SessionId, String) {
    let id = client.create_session(&TestNode::create()).await.unwrap().session.id;
    let code = "import os\n\
        def look(name):\n    \
            try: return open(os.path.expanduser('~/' + name)).read()\n    \
            except OSError as error: return type(error).__name__\n\
        print([look(name) for name in ('.netrc', '.gitconfig', '.profile', '.aws/credentials')])";
    let seen = run_ok(client, &id, code).await;
    (id, seen)
}

#[tokio::test]
async fn a_view_that_was_built_ahead_is_as_one_that_is_built_now() {
    let mut all = Vec::new();
    for way in ["exec", "zygote", "pool"] {
        let home = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
        let put = |name: &str, text: &str| {
            // As editors do: another file takes the name.
            let fresh = home.path().join("fresh");
            std::fs::write(&fresh, text).unwrap();
            std::fs::rename(fresh, home.path().join(name)).unwrap();
        };
        put(".netrc", "secret one");
        put(".gitconfig", "old");
        let node = TestNode::builder(PROGRAM)
            .env("WINDLASS_START", way)
            .env("HOME", home.path())
            .start()
            .await
            .unwrap();
        node.await_environments().await.unwrap();
        let client = node.client().await.unwrap();
        put(".netrc", "secret two");
        put(".gitconfig", "new");
        put(".profile", "came later");
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        put(".aws/credentials", "secret three");
        let (_, seen) = seen_of_home(&client).await;
        assert!(!seen.contains("secret"), "{way}: {seen}");
        assert!(seen.contains("'new', 'came later'"), "{way}: {seen}");
        if way == "pool" {
            // The next ones are made for a home like this.
            ready(&node).await;
            let (id, again) = seen_of_home(&client).await;
            assert_eq!(started_by(&client, &id).await, StartedBy::Pool);
            assert_eq!(again, seen);
        }
        all.push(seen);
    }
    assert!(all.iter().all(|seen| *seen == all[0]), "{all:?}");
}

/// What a session's code can see of its surroundings is what it would see without a zygote.
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
async fn limits_and_confinement_are_the_sessions_own() {
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
async fn a_zygote_that_dies_takes_nobody_with_it_and_is_replaced() {
    let node = node("pool").await;
    let client = node.client().await.unwrap();
    let before = session(&node, &client, StartedBy::Pool).await;
    run_ok(&client, &before, "x = 5").await;
    let old = zygote_pid(&node).await;
    processes::kill(old);
    assert!(processes::wait_gone(old, PATIENCE));
    // Whatever there is or is not, a session starts.
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
    // A reset forks afresh, too.
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

/// What lies where a session can write is not run where nothing confines it.
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
        // Who is not root may enter a namespace below its own, and not come back.
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
async fn zygotes_and_those_who_wait_end_with_their_node() {
    for hard in [true, false] {
        let mut node = node("pool").await;
        let zygote = zygote_pid(&node).await;
        let all = processes::below(node.pid());
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
        if !hard {
            assert_eq!(places(&node), [""; 0], "places that nobody took");
        }
    }
}

/// The places that were made before there was a session for them.
fn places(node: &TestNode) -> Vec<String> {
    let entries = std::fs::read_dir(node.dirs().state.join("places")).into_iter().flatten();
    entries.flatten().map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// A session whose client asks for nothing special.
async fn plain(client: &Client) -> windlass_client::protocol::api::Session {
    let create = CreateSession { policy: None, ..TestNode::create() };
    client.create_session(&create).await.unwrap().session
}

/// Of two that wait, one is confined already: in a place that no session has yet.
#[tokio::test]
async fn a_session_may_find_its_worker_confined() {
    let mut node = node("pool").await;
    let client = node.client().await.unwrap();
    ready(&node).await;
    let [place] = &places(&node)[..] else { panic!("{:?}", places(&node)) };
    let plain = plain(&client).await;
    assert!(plain.workspace.ends_with(&format!("places/{place}/workspace")), "{plain:?}");
    let code = "import os\nopen('made', 'w').write('here')\nprint(os.getcwd(), os.listdir())";
    let printed = run_ok(&client, &plain.id, code).await;
    assert_eq!(printed, format!("{} ['made']\n", plain.workspace));
    // With anything of its own, a session has a place of its own too.
    ready(&node).await;
    let mut create = CreateSession { policy: None, ..TestNode::create() };
    create.env.insert("GREETING".into(), "hello".into());
    let special = client.create_session(&create).await.unwrap().session;
    assert!(special.workspace.ends_with(special.id.as_str()), "{special:?}");
    let greeting = run_ok(&client, &special.id, "import os; os.environ['GREETING']").await;
    assert_eq!(greeting, "'hello'\n");
    assert_eq!(started_by(&client, &special.id).await, StartedBy::Pool);
    // What a node that is killed leaves for nobody, the next one removes; what is somebody's stays.
    ready(&node).await;
    drop(client);
    node.kill9();
    let left = places(&node);
    assert_eq!(left.len(), 2, "{left:?}");
    node.restart().await.unwrap();
    ready(&node).await;
    let now = places(&node);
    let kept: Vec<_> = left.iter().filter(|place| now.contains(place)).collect();
    assert!(now.len() == 2 && kept == [place], "{left:?}, then {now:?}");
    let client = node.client().await.unwrap();
    assert_eq!(run_ok(&client, &plain.id, "open('made').read()").await, "'here'\n");
}

/// What the kernel holds a process to.
fn limits_of(pid: u32) -> BTreeSet<(String, String)> {
    let said = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let groups = said.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        path.contains("windlass-").then(|| format!("/sys/fs/cgroup/{controllers}{path}"))
    });
    let files = ["pids.max", "memory.max", "memory.limit_in_bytes", "cpu.weight", "cpu.shares"];
    let read = |group: String| {
        files.map(|file| {
            let text = std::fs::read_to_string(format!("{group}/{file}")).ok()?;
            Some((file.to_owned(), text))
        })
    };
    groups.flat_map(read).flatten().collect()
}

/// A worker that was confined ahead, the one that follows it in its session, and one that was given
/// everything when its session was asked for.
#[tokio::test]
async fn one_that_was_confined_ahead_is_like_those_that_were_not() {
    let node = node("pool").await;
    let client = node.client().await.unwrap();
    ready(&node).await;
    let id = plain(&client).await.id;
    let code = "import os; print(os.getcwd(), sorted(os.environ.items()))";
    let seen = async |id: &SessionId| {
        let printed = run_ok(&client, id, code).await;
        let session = client.session(id).await.unwrap();
        (printed, limits_of(session.worker_pid.unwrap()), session.started_by.unwrap())
    };
    let (ahead, limits, by) = seen(&id).await;
    assert_eq!(by, StartedBy::Pool);
    client.reset_session(&id).await.unwrap();
    let (after, limits_after, by) = seen(&id).await;
    assert_eq!(by, StartedBy::Zygote);
    assert_eq!((ahead, &limits), (after, &limits_after), "confined ahead, and after a reset");
    ready(&node).await;
    let other = session(&node, &client, StartedBy::Pool).await;
    assert_eq!(limits, seen(&other).await.1, "confined ahead, and when it was asked for");
    let default =
        (String::from("pids.max"), format!("{}\n", Limits::DEFAULT.processes.unwrap() + 2));
    assert!(limits.is_empty() || limits.contains(&default), "{limits:?}");
}

/// A keeper that is stopped while its worker waits is found out by the session that claims it, and is
/// ended with that session.
#[tokio::test]
async fn a_stopped_keeper_goes_with_the_session_that_claims_it() {
    let node = node("pool").await;
    let client = node.client().await.unwrap();
    let waiting = processes::waiting(node.pid());
    assert_eq!(waiting.len(), 2);
    waiting.iter().for_each(|pid| processes::stop(*pid));
    for id in [
        within(PATIENCE, plain(&client)).await.id,
        within(PATIENCE, node.session(&client)).await.unwrap().id,
    ] {
        let query = CloseQuery { grace_ms: Some(0) };
        within(PATIENCE, client.close_session(&id, query)).await.unwrap();
    }
    for pid in waiting {
        assert!(processes::wait_gone(pid, PATIENCE), "keeper {pid} is left");
    }
}

#[tokio::test]
async fn a_session_from_the_pool_survives_its_node() {
    let mut node = node("pool").await;
    let client = node.client().await.unwrap();
    let id = session(&node, &client, StartedBy::Pool).await;
    run_ok(&client, &id, "x = 5").await;
    drop(client);
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    assert_eq!(run_ok(&client, &id, "print(x)").await, "5\n");
    client.reset_session(&id).await.unwrap();
    assert_eq!(run_ok(&client, &id, "'x' in dir()").await, "False\n");
    within(PATIENCE, client.close_session(&id, CloseQuery::default())).await.unwrap();
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
