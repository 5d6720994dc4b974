//! Pooled workers: refilling, views that were built before their session, and pooled keepers that fail.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::{CloseQuery, CreateSession, Session};
use windlass_client::protocol::event::StartedBy;
use windlass_client::protocol::policy::Limits;
use windlass_testkit::{PATIENCE, TestNode, outside_of_tmp, processes, run_ok, within};

use crate::{PROGRAM, node, ready, session, started_by};

/// Creates and closes sessions, one after the other, until `enough` have been started from the pool.
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

/// What a session sees of the user's home.
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
async fn a_view_that_was_built_in_advance_equals_a_new_one() {
    let mut all = Vec::new();
    for way in ["exec", "zygote", "pool"] {
        let home = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
        let put = |name: &str, text: &str| {
            // As editors do: another file is renamed to the name.
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
            // The next pooled workers are built for this home.
            ready(&node).await;
            let (id, again) = seen_of_home(&client).await;
            assert_eq!(started_by(&client, &id).await, StartedBy::Pool);
            assert_eq!(again, seen);
        }
        all.push(seen);
    }
    assert!(all.iter().all(|seen| *seen == all[0]), "{all:?}");
}

/// A session without special requests.
async fn plain(client: &Client) -> windlass_client::protocol::api::Session {
    let create = CreateSession { policy: None, ..TestNode::create() };
    client.create_session(&create).await.unwrap().session
}

/// The pid of the worker on the machine. The session knows another pid, in its own namespace.
fn worker_of(session: &Session) -> u32 {
    let is_worker = |pid: &u32| {
        processes::arguments(*pid).iter().any(|argument| argument.contains("windlass_worker"))
    };
    let below = processes::descendants(session.keeper_pid.unwrap());
    below.into_iter().rfind(is_worker).expect("a worker below its keeper")
}

/// The limits and restrictions of a process, as the kernel reports them.
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

/// A pooled worker, and the worker that the zygote forks for the same session after a reset.
#[tokio::test]
async fn a_pooled_worker_is_confined_like_one_that_is_forked_for_its_session() {
    let node = node("pool").await;
    let client = node.client().await.unwrap();
    let id = plain(&client).await.id;
    let code = "import os; print(os.getcwd(), sorted(os.environ.items()))";
    let seen = async |id: &SessionId| {
        let printed = run_ok(&client, id, code).await;
        let session = client.session(id).await.unwrap();
        (printed, limits_of(worker_of(&session)), session.started_by.unwrap())
    };
    let (pooled, limits, by) = seen(&id).await;
    assert_eq!(by, StartedBy::Pool);
    client.reset_session(&id).await.unwrap();
    let (after, limits_after, by) = seen(&id).await;
    assert_eq!(by, StartedBy::Zygote);
    assert_eq!((pooled, &limits), (after, &limits_after));
    let default =
        (String::from("pids.max"), format!("{}\n", Limits::DEFAULT.processes.unwrap() + 2));
    assert!(limits.is_empty() || limits.contains(&default), "{limits:?}");
}

/// If a keeper is stopped while its worker is pooled, the session that claims the worker notices it, and the
/// keeper is killed with that session.
#[tokio::test]
async fn a_stopped_keeper_ends_with_the_session_that_claims_it() {
    let node = node("pool").await;
    let client = node.client().await.unwrap();
    let waiting = processes::pooled_keepers(node.pid());
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
