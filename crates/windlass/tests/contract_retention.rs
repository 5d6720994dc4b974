//! Contract line 74, disk usage: forks of closed sessions leave nothing, the retention enforces age and size,
//! and `prune` frees what it reports.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use windlass_client::Client;
use windlass_client::protocol::api::{
    CloseQuery, CopyScope, CreateSession, ForkSession, ForkedSession, LeftOutReason,
};
use windlass_client::protocol::disk::{DiskKind, DiskUse, PruneRequest, Pruned};
use windlass_client::protocol::event::EndReason;
use windlass_client::protocol::{Outcome, SessionId};
use windlass_testkit::{PATIENCE, TestNode, outside_of_tmp, processes, run_ok, turn, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Creates a virtual environment of some size, with a module, in the working directory.
const MAKE_VENV: &str = "
import os, sys
os.makedirs('.venv/lib/site'); open('.venv/pyvenv.cfg', 'w').write('home = /usr')
open('.venv/lib/site/late.py', 'w').write('VALUE = 42')
open('.venv/lib/large', 'wb').write(b'7' * (8 << 20))
os.makedirs('src/__pycache__'); open('src/__pycache__/a.pyc', 'w').write('')
open('data', 'w').write('mine')
sys.path.insert(0, os.path.abspath('.venv/lib/site'))
";

/// Directories below the state directory with files of sessions.
const KEPT: [&str; 6] = ["sessions", "workspaces", "families", "places", "staging", "tmp"];

async fn fork(client: &Client, session: &SessionId, copy: CopyScope) -> ForkedSession {
    let wanted = ForkSession { copy, ..ForkSession::default() };
    within(PATIENCE, client.fork_session(session, &wanted)).await.unwrap()
}

async fn close(client: &Client, session: &SessionId) {
    let close = CloseQuery { grace_ms: Some(0) };
    within(PATIENCE, client.close_session(session, close)).await.unwrap();
}

async fn prune(client: &Client, wanted: PruneRequest) -> Pruned {
    let pruned = within(PATIENCE, client.prune(&wanted)).await.unwrap();
    assert_eq!(pruned.failed, Vec::<String>::new());
    pruned
}

/// Blocks below some directories, with each file counted once. Counted by the test, not by the node.
fn on_disk(state: &Path) -> u64 {
    let mut seen = HashSet::new();
    let mut waiting: Vec<PathBuf> = KEPT.iter().map(|name| state.join(name)).collect();
    let mut bytes = 0;
    while let Some(path) = waiting.pop() {
        let Ok(about) = path.symlink_metadata() else { continue };
        if seen.insert((about.dev(), about.ino())) {
            bytes += about.blocks() * 512;
        }
        if about.is_dir() {
            let inner = std::fs::read_dir(&path).unwrap();
            waiting.extend(inner.map(|entry| entry.unwrap().path()));
        }
    }
    bytes
}

fn share(used: &DiskUse, kind: DiskKind) -> u64 {
    used.kinds.iter().find(|share| share.kind == kind).unwrap().bytes
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Number of sessions with a journal. Journals that are kept ready for new sessions have a hidden name.
fn journals(state: &Path) -> usize {
    names(&state.join("sessions")).iter().filter(|name| !name.starts_with('.')).count()
}

/// Waits until no file of a family is on the disk.
async fn await_no_family(client: &Client, state: &Path) {
    let gone = async {
        while !names(&state.join("families")).is_empty() {
            client.node_status().await.unwrap();
        }
    };
    within(PATIENCE, gone).await;
}

#[tokio::test]
async fn contract_74_nothing_of_the_forks_of_a_closed_session_stays() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let state = node.dirs().state.clone();
    let original = node.session(&client).await.unwrap().id;
    run_ok(&client, &original, MAKE_VENV).await;
    let first = fork(&client, &original, CopyScope::All).await.session;
    let second = fork(&client, &original, CopyScope::Needed).await.session;
    let inner = fork(&client, &first.id, CopyScope::All).await.session;
    let held = share(&client.disk_use().await.unwrap(), DiskKind::ForkCopies);
    assert!(held > 16 << 20, "two copies of all: {held}");

    close(&client, &second.id).await;
    assert!(!Path::new(&second.workspace).exists(), "a closed twin's copy goes at once");
    // A twin of `first` is alive and reads the copy of `first`, so the copy stays. The files of the original
    // are not touched.
    close(&client, &first.id).await;
    assert!(Path::new(&first.workspace).exists());
    run_ok(&client, &inner.id, "assert open('data').read() == 'mine'; import late").await;
    close(&client, &inner.id).await;
    assert!(!Path::new(&first.workspace).exists() && !Path::new(&inner.workspace).exists());
    run_ok(&client, &original, "assert open('data').read() == 'mine'").await;
    close(&client, &original).await;
    assert_eq!(names(&state.join("families")), Vec::<String>::new());
    assert_eq!(names(&state.join("staging")), Vec::<String>::new());
    assert_eq!(share(&client.disk_use().await.unwrap(), DiskKind::ForkCopies), 0);
}

#[tokio::test]
async fn contract_74_a_node_that_was_killed_leaves_nothing_but_a_lost_twin_s_files() {
    let mut node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let state = node.dirs().state.clone();
    let original = node.session(&client).await.unwrap().id;
    run_ok(&client, &original, "open('data', 'w').write('mine')").await;
    let ended = fork(&client, &original, CopyScope::Needed).await.session;
    let living = fork(&client, &original, CopyScope::Needed).await.session;
    run_ok(&client, &ended.id, "1").await;
    run_ok(&client, &living.id, "1").await;
    let keeper = client.session(&ended.id).await.unwrap().keeper_pid.unwrap();
    node.kill9();
    processes::kill(keeper);
    assert!(processes::wait_gone(keeper, PATIENCE));
    // What a node leaves if it dies during a fork, or after its session is gone.
    std::fs::create_dir_all(state.join("staging/half/w")).unwrap();
    std::fs::create_dir_all(state.join("families/nobody/t/w")).unwrap();
    std::os::unix::fs::symlink(
        state.join("families/nobody/t/w"),
        state.join("workspaces/never-was"),
    )
    .unwrap();

    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    let swept = async {
        let is_left = |path: &str| state.join(path).symlink_metadata().is_ok();
        while is_left("families/nobody")
            || is_left("staging/half")
            || is_left("workspaces/never-was")
        {
            client.node_status().await.unwrap();
        }
    };
    within(PATIENCE, swept).await;
    // The twin was never closed: its files can be fetched until the session that it was forked from is
    // closed.
    let lost = client.session(&ended.id).await.unwrap().ended.unwrap();
    assert_eq!(lost.reason, EndReason::KeeperLost);
    let kept = lost.receipt.unwrap().kept;
    assert!(kept.iter().any(|kept| kept == "files in the workspace"), "{kept:?}");
    assert_eq!(client.read_file(&ended.id, "data").await.unwrap(), "mine");
    run_ok(&client, &living.id, "assert open('data').read() == 'mine'").await;
    close(&client, &living.id).await;
    close(&client, &original).await;
    await_no_family(&client, &state).await;
}

/// The twin reads the environment at the original path, cannot write there, and the reply says so. The
/// environment is a symlink if the two sessions cannot write in each other's directories. It is left out if
/// the twin could write through the symlink.
#[tokio::test]
async fn contract_74_a_fork_copies_no_environment_unless_asked() {
    let work = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let state = work.path().canonicalize().unwrap().join("state");
    for links in [true, false] {
        let builder = TestNode::builder(PROGRAM);
        let builder = if links { builder.state_dir(&state) } else { builder };
        let node = builder.start().await.unwrap();
        let client = node.client().await.unwrap();
        let original = node.session(&client).await.unwrap();
        run_ok(&client, &original.id, MAKE_VENV).await;
        let before = on_disk(&node.dirs().state);
        let forked = fork(&client, &original.id, CopyScope::Needed).await;
        let grown = on_disk(&node.dirs().state) - before;
        assert!(grown < 1 << 20, "the copy takes {grown} bytes");
        let mut left: Vec<_> =
            forked.left_out.iter().map(|one| (one.path.as_str(), one.why, one.linked)).collect();
        left.sort_unstable_by_key(|one| one.0);
        let (environment, cache) = (LeftOutReason::Environment, LeftOutReason::Cache);
        let expected = [(".venv", environment, links), ("src/__pycache__", cache, false)];
        assert_eq!(left, expected);
        assert_eq!(forked.left_out_more, 0);

        let twin = &forked.session.id;
        run_ok(&client, twin, "import late; assert late.VALUE == 42").await;
        let attempt = "def attempt(path):\n\
            \x20   try: open(path, 'w'); return True\n\
            \x20   except OSError: return False\n\
            attempt('.venv/lib/site/late.py')";
        assert_eq!(run_ok(&client, twin, attempt).await, "False\n");
        if links {
            let place = &original.workspace;
            let there =
                format!("attempt('{place}/.venv/lib/site/late.py'), attempt('{place}/data')");
            assert_eq!(run_ok(&client, twin, &there).await, "(False, False)\n");
        }
        run_ok(&client, &original.id, "import late; assert late.VALUE == 42").await;
        let all = fork(&client, &original.id, CopyScope::All).await;
        assert_eq!(all.left_out, []);
        let large = Path::new(&all.session.workspace).join(".venv/lib/large");
        assert_eq!(large.symlink_metadata().unwrap().len(), 8 << 20);
        for session in [twin, &all.session.id, &original.id] {
            close(&client, session).await;
        }
        let venv = Path::new(&original.workspace).join(".venv/lib/large");
        assert!(venv.exists(), "what a link leads to stays");
    }
}

#[tokio::test]
async fn contract_74_prune_gives_back_what_it_says_and_touches_no_live_session() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let state = node.dirs().state.clone();
    let live = node.session(&client).await.unwrap().id;
    run_ok(&client, &live, "open('data', 'wb').write(b'1' * 100_000); x = 1").await;
    let twin = fork(&client, &live, CopyScope::Needed).await.session;
    run_ok(&client, &twin.id, "y = 2").await;
    for number in 1..4 {
        let ended = node.session(&client).await.unwrap().id;
        let code = format!(
            "import os\nopen('data', 'wb').write(b'1' * {number} * 300_000)\n\
             os.link('data', 'again'); os.makedirs('a/b/c'); os.symlink('/etc', 'a/etc')\n\
             print('out' * 10_000)"
        );
        run_ok(&client, &ended, &code).await;
        close(&client, &ended).await;
    }
    // A leftover that belongs to no session.
    std::fs::create_dir_all(state.join("workspaces/nobody")).unwrap();
    std::fs::write(state.join("workspaces/nobody/file"), vec![1; 50_000]).unwrap();

    let day = PruneRequest { older_than_s: Some(86_400), dry_run: true };
    let of_day = prune(&client, day).await;
    let found: Vec<_> = of_day.removed.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(found, ["nobody"], "the others ended less long ago");

    let (before, told_before) = (on_disk(&state), client.disk_use().await.unwrap());
    let dry = command(&node, &["prune", "--dry-run", "--json"]);
    assert_eq!(on_disk(&state), before, "a dry run removes nothing");
    let done = prune(&client, PruneRequest::default()).await;
    let (after, told_after) = (on_disk(&state), client.disk_use().await.unwrap());
    assert_eq!(before - after, done.bytes, "{done:?}");
    assert!(done.bytes > 1_800_000);
    assert_eq!(dry["bytes"], done.bytes);
    assert_eq!(dry["dry_run"], true);
    let kept = |used: &DiskUse| {
        let own = [DiskKind::Index, DiskKind::Logs];
        let kinds = used.kinds.iter().filter(|share| !own.contains(&share.kind));
        kinds.map(|share| share.bytes).sum::<u64>()
    };
    assert_eq!(kept(&told_before) - kept(&told_after), done.bytes);
    assert_eq!(share(&told_after, DiskKind::WorkspacesEnded), 0);
    assert_eq!(share(&told_after, DiskKind::JournalsEnded), 0);
    assert!(share(&told_after, DiskKind::Leftovers) <= 4096, "an empty directory at most");

    run_ok(&client, &live, "assert x == 1 and len(open('data').read()) == 100_000").await;
    run_ok(&client, &twin.id, "assert y == 2 and len(open('data').read()) == 100_000").await;
    let again = prune(&client, PruneRequest::default()).await;
    assert_eq!((again.bytes, again.removed.len()), (0, 0), "{again:?}");
    let told = command(&node, &["du", "--json"]);
    assert_eq!(told["complete"], true);
    assert_eq!(told["retain_bytes"], 10_u64 << 30);
}

/// The JSON output of a command.
fn command(node: &TestNode, arguments: &[&str]) -> Value {
    let dirs = node.dirs();
    let output = Command::new(PROGRAM)
        .args(arguments)
        .env("WINDLASS_RUNTIME_DIR", &dirs.runtime)
        .env("WINDLASS_STATE_DIR", &dirs.state)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The retention runs when a node starts, and every minute.
#[tokio::test]
async fn contract_74_what_is_on_disk_stays_within_its_age_and_size() {
    for (option, value) in [("--retain-bytes", "1M"), ("--retain-age", "1ms")] {
        let mut node = TestNode::builder(PROGRAM).arg(option).arg(value).start().await.unwrap();
        let client = node.client().await.unwrap();
        let state = node.dirs().state.clone();
        let live = node.session(&client).await.unwrap().id;
        run_ok(&client, &live, "open('data', 'wb').write(b'1' * 3_000_000)").await;
        let mut ended = Vec::new();
        for _ in 0..3 {
            let session = node.session(&client).await.unwrap();
            run_ok(&client, &session.id, "open('data', 'wb').write(b'1' * 700_000)").await;
            close(&client, &session.id).await;
            ended.push(session);
        }
        node.restart().await.unwrap();
        let client = node.client().await.unwrap();
        let expected = if option == "--retain-bytes" { 1 } else { 0 };
        let within_limits = async {
            let left = || ended.iter().filter(|one| Path::new(&one.workspace).exists()).count();
            while left() > expected || journals(&state) > expected + 1 {
                client.node_status().await.unwrap();
            }
        };
        within(PATIENCE, within_limits).await;
        let newest = ended.last().unwrap();
        assert_eq!(Path::new(&newest.workspace).exists(), expected == 1, "the newest is kept");
        run_ok(&client, &live, "assert len(open('data').read()) == 3_000_000").await;
    }
}

/// Symlinks, hard links to files outside, names that are not UTF-8, 10,000 nested directories: none of them
/// makes `du` or `prune` count or touch anything outside.
#[tokio::test]
async fn contract_74_what_a_session_leaves_steers_neither_du_nor_prune() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let outside = node.base().join("outside");
    std::fs::create_dir_all(outside.join("sub")).unwrap();
    std::fs::write(outside.join("precious"), vec![1; 5_000_000]).unwrap();
    let create = CreateSession { id: Some("hostile".parse().unwrap()), ..TestNode::create() };
    let session = client.create_session(&create).await.unwrap().session;
    let code = format!(
        "import os\nos.symlink('{0}', 'link'); os.symlink('{0}/precious', 'file'); os.symlink('.', 'round')\n\
         open(b'\\xff\\xfe', 'w').write('odd'); os.makedirs(b'\\x80/\\x81'); os.mkfifo('pipe')\n\
         os.makedirs('closed/inner'); os.chmod('closed', 0)\n\
         start = os.getcwd()\n\
         for n in range(10_000):\n\
         \x20   os.mkdir('d'); os.chdir('d')\n\
         open('end', 'w').write('end'); os.chdir(start)",
        outside.display()
    );
    // Landlock looks at each directory above a new one: the code makes 50 million steps in the kernel, which take 4 s
    // on an idle machine.
    let made = within(4 * PATIENCE, client.run_turn(&session.id, turn(code))).await.unwrap();
    assert_eq!(made.outcome, Some(Outcome::Ok), "{made:?}");
    let forked = client.fork_session(&session.id, &ForkSession::default()).await;
    assert!(forked.is_err(), "it is deeper than a copy may be");
    let workspace = PathBuf::from(&session.workspace);
    // Sessions cannot do this. A process that can must gain nothing from it.
    std::fs::hard_link(outside.join("precious"), workspace.join("name")).unwrap();
    let used = client.disk_use().await.unwrap();
    let held = share(&used, DiskKind::WorkspacesLive);
    assert!(held > 10_000 * 4096 || held > 5_000_000, "{held}");

    close(&client, &session.id).await;
    let looked = prune(&client, PruneRequest { dry_run: true, older_than_s: None }).await;
    let done = prune(&client, PruneRequest::default()).await;
    if rustix::process::geteuid().is_root() {
        assert!(looked.complete);
        assert_eq!(looked.bytes, done.bytes);
    } else {
        // An ordinary user cannot read `closed` without changing its mode, and the result says so.
        assert!(!looked.complete && looked.bytes <= done.bytes, "{looked:?} {done:?}");
    }
    assert!(
        !workspace.exists()
            && !names(&node.dirs().state.join("workspaces")).contains(&"hostile".to_owned())
    );
    let left = names(&node.dirs().state.join("workspaces"));
    assert!(left.iter().all(|name| !name.contains("deep")), "{left:?}");
    let precious = outside.join("precious").metadata().unwrap();
    assert_eq!((precious.len(), precious.nlink()), (5_000_000, 1));
    assert!(outside.join("sub").exists());
}
