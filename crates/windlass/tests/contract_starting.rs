//! Contract line 45 in its hardest case: a session whose keeper has not reported its pid yet.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, getsid};
use tokio::task::JoinSet;
use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::CloseQuery;
use windlass_testkit::{PATIENCE, TestNode, processes, run_ok, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Number of sessions whose keepers are stopped as soon as they appear. Some have replied by then.
const SESSIONS: usize = 16;

#[tokio::test]
async fn contract_45_keepers_stopped_before_they_answer_go_with_their_sessions() {
    let mut scenes = Vec::new();
    for hold in ["pid-namespace", "subreaper"] {
        for which in [Which::First, Which::Keeper] {
            scenes.push(StoppedKeepers::new(hold, which).await);
        }
    }
    // A node gives stopped keepers some seconds to end, and all nodes do that at the same time.
    let mut closing = JoinSet::new();
    for scene in &scenes {
        scene.close(&mut closing);
    }
    closing.join_all().await;
    for scene in scenes {
        scene.leaves_nothing().await;
    }
}

/// Which process of a keeper is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    /// The process that the nursery forked.
    First,
    /// Its child, which is the keeper.
    Keeper,
}

/// A node whose sessions have stopped keepers, and one session that has not.
struct StoppedKeepers {
    hold: &'static str,
    node: TestNode,
    client: Client,
    spared: SessionId,
    /// The processes of the node's sessions before the others were made.
    before: BTreeSet<u32>,
    sessions: Vec<SessionId>,
    stopped: BTreeSet<u32>,
}

impl StoppedKeepers {
    async fn new(hold: &'static str, which: Which) -> Self {
        // Only keepers that are started for a session. Keepers of pooled workers have been up for long.
        let builder = TestNode::builder(PROGRAM).env("WINDLASS_START", "exec");
        let node = builder.arg("--hold").arg(hold).start().await.unwrap();
        let client = node.client().await.unwrap();
        let spared = node.session(&client).await.unwrap().id;
        run_ok(&client, &spared, "x = 5").await;
        let before: BTreeSet<u32> = node.session_processes().await.unwrap().into_iter().collect();

        let watching = Arc::new(AtomicBool::new(true));
        let watcher = {
            let (watching, pid, before) = (watching.clone(), node.pid(), before.clone());
            tokio::task::spawn_blocking(move || stop_new_keepers(pid, which, &before, &watching))
        };
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(within(PATIENCE, node.session(&client)).await.unwrap().id);
        }
        // Keepers that were faster than the test have reported their pid.
        let mut silent = 0;
        for session in &sessions {
            silent += usize::from(client.session(session).await.unwrap().keeper_pid.is_none());
        }
        watching.store(false, Ordering::Relaxed);
        let stopped = watcher.await.unwrap();
        assert!(silent > 0, "every keeper answered before it was stopped");
        let count = stopped.len();
        eprintln!("{hold}: {silent} of {SESSIONS} silent, {count} processes stopped ({which:?})");
        Self { hold, node, client, spared, before, sessions, stopped }
    }

    /// Begins to close the sessions with stopped keepers, all at once.
    fn close(&self, closing: &mut JoinSet<()>) {
        for session in &self.sessions {
            let (client, session) = (self.client.clone(), session.clone());
            closing.spawn(async move {
                let query = CloseQuery { grace_ms: Some(0) };
                within(PATIENCE, client.close_session(&session, query)).await.unwrap();
            });
        }
    }

    /// After the close, the processes of the closed sessions are gone. The other session goes on.
    async fn leaves_nothing(self) {
        let hold = self.hold;
        for pid in self.stopped {
            assert!(processes::wait_gone(pid, PATIENCE), "{hold}: keeper {pid} is left");
        }
        let kept = run_ok(&self.client, &self.spared, "print(x)").await;
        assert_eq!(kept, "5\n", "a stranger was hit");
        // Guard processes exit after they have cleaned up for their keepers.
        let left = self.node.session_processes().await.unwrap();
        for pid in left.into_iter().filter(|pid| !self.before.contains(pid)) {
            let gone = processes::wait_gone(pid, PATIENCE);
            assert!(gone, "{hold}: left is {pid}, {:?}", processes::arguments(pid));
        }
    }
}

/// Stops every new keeper process below the node, and returns their pids.
fn stop_new_keepers(
    node: u32,
    which: Which,
    before: &BTreeSet<u32>,
    watching: &AtomicBool,
) -> BTreeSet<u32> {
    let nurseries = processes::nurseries(node);
    let parents: Vec<u32> = nurseries.iter().copied().chain([node]).collect();
    let sessions: Vec<_> = parents.iter().map(|parent| session_of(*parent)).collect();
    let mut stopped = BTreeSet::new();
    while watching.load(Ordering::Relaxed) {
        for child in parents.iter().flat_map(|parent| processes::children(*parent)) {
            for pid in processes::children(child).into_iter().chain([child]) {
                let arguments = processes::arguments(pid);
                let keeper =
                    arguments.get(1).is_some_and(|arg| arg == "keeper" || arg == "nursery")
                        && !nurseries.contains(&pid);
                let session = session_of(pid);
                let is_first = session == Some(pid) || sessions.contains(&session);
                if keeper
                    && is_first == (which == Which::First)
                    && !before.contains(&pid)
                    && stopped.insert(pid)
                {
                    processes::stop(pid);
                }
            }
        }
        std::thread::yield_now();
    }
    stopped
}

/// The process session of `pid`.
fn session_of(pid: u32) -> Option<u32> {
    let pid = Pid::from_raw(pid.cast_signed())?;
    getsid(Some(pid)).ok().map(|session| session.as_raw_nonzero().get().cast_unsigned())
}
