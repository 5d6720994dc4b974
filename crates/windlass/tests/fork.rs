//! Forking a live session: what a twin has, that the two are apart, and that each ends by itself.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use windlass_client::protocol::api::{
    CloseQuery, CreateSession, ForkSession, ForkedSession, Session, SessionState,
};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::event::{EndReason, StartedBy};
use windlass_client::protocol::policy::{Limits, PolicyRequest};
use windlass_client::protocol::{ErrorCode, Outcome, SessionId};
use windlass_client::{Client, ClientError};
use windlass_testkit::{PATIENCE, TestNode, outside_of_tmp, processes, run, run_ok, turn, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// What a call gives, or the name of the exception that it raised.
const ATTEMPT: &str = "
import os, signal
def attempt(act):
    try:
        return act()
    except BaseException as error:
        return type(error).__name__
";

/// A node with one session in it.
struct Stage {
    node: TestNode,
    client: Client,
    original: SessionId,
}

impl Stage {
    async fn new() -> Self {
        Self::with(TestNode::create()).await
    }

    async fn with(create: CreateSession) -> Self {
        let node = TestNode::start(PROGRAM).await.unwrap();
        Self::on(node, create).await
    }

    async fn on(node: TestNode, create: CreateSession) -> Self {
        let client = node.client().await.unwrap();
        let original = client.create_session(&create).await.unwrap().session.id;
        run_ok(&client, &original, ATTEMPT).await;
        let started_by = client.session(&original).await.unwrap().started_by.unwrap();
        let asked_for = std::env::var("WINDLASS_TEST_START").unwrap_or_default();
        // Of every way there is, when a run of tests asks for it.
        assert_eq!(started_by == StartedBy::Exec, !["zygote", "pool"].contains(&&*asked_for));
        Self { node, client, original }
    }

    async fn fork(&self, session: &SessionId) -> ForkedSession {
        let wanted = ForkSession::default();
        let forked = self.client.fork_session(session, &wanted);
        within(PATIENCE, forked).await.unwrap()
    }

    async fn twin(&self) -> SessionId {
        self.fork(&self.original).await.session.id
    }

    async fn run(&self, session: &SessionId, code: &str) -> String {
        run_ok(&self.client, session, code).await
    }

    async fn close(&self, session: &SessionId) {
        let close = CloseQuery { grace_ms: Some(0) };
        within(PATIENCE, self.client.close_session(session, close)).await.unwrap();
    }

    async fn look(&self, session: &SessionId) -> Session {
        self.client.session(session).await.unwrap()
    }

    /// Everything that the node has started for its sessions and that still runs.
    async fn processes(&self) -> Vec<u32> {
        self.node.session_processes().await.unwrap()
    }

    /// Whether the machine has cgroups for sessions.
    async fn has_cgroups(&self) -> bool {
        let prefix = self.node.cgroup_prefix();
        let groups = |pid| std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
        let is_in_one = |pid| groups(pid).is_ok_and(|groups| groups.contains(&prefix));
        self.processes().await.into_iter().any(is_in_one)
    }

    /// Waits until nothing runs but the node, and what it keeps ready.
    async fn alone(&self) {
        let alone = async {
            while !self.processes().await.is_empty() {
                self.client.node_status().await.unwrap();
            }
        };
        within(PATIENCE, alone).await;
    }
}

fn confined(isolation: Isolation) -> CreateSession {
    let mut create = TestNode::create();
    create.policy.get_or_insert_default().isolation = Some(isolation);
    create
}

fn code_of(error: ClientError) -> ErrorCode {
    match error {
        ClientError::Api(error) => error.code,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_twin_has_every_variable_and_shares_none() {
    a_twin_is_whole(TestNode::create()).await;
}

#[tokio::test]
async fn a_twin_is_whole_behind_landlock_alone() {
    a_twin_is_whole(confined(Isolation::Landlock)).await;
}

#[tokio::test]
async fn a_twin_is_whole_without_confinement() {
    a_twin_is_whole(confined(Isolation::None)).await;
}

async fn a_twin_is_whole(create: CreateSession) {
    let stage = Stage::with(create).await;
    let original = &stage.original;
    let code = "import json, random\nclass A: n = 1\na = A(); x = {'k': [1, 2]}\n\
        def f(): return x['k'][0] + a.n\ngenerator = (n for n in range(9)); next(generator)";
    stage.run(original, code).await;
    let forked = stage.fork(original).await;
    let twin = forked.session.id.clone();
    assert_eq!(forked.session.forked_from.as_ref(), Some(original));
    assert_eq!(
        stage.run(&twin, "f(), next(generator), json.dumps(x)").await,
        "(2, 1, '{\"k\": [1, 2]}')\n"
    );
    stage.run(&twin, "x['k'].append(3); a.n = 5; y = 1").await;
    assert_eq!(
        stage.run(original, "x, f(), 'y' in globals()").await,
        "({'k': [1, 2]}, 2, False)\n"
    );
    stage.run(original, "x = None").await;
    assert_eq!(stage.run(&twin, "x, f()").await, "({'k': [1, 2, 3]}, 6)\n");
    let chance = "random.random(), __import__('tempfile').mktemp()";
    assert_ne!(stage.run(original, chance).await, stage.run(&twin, chance).await);
    // Turns, their output and their numbers are each session's own.
    assert_eq!(stage.look(&twin).await.turns, 4);
    assert_eq!(stage.look(&twin).await.started_by, Some(StartedBy::Fork));
    let printed = tokio::join!(
        stage.run(original, "print('o' * 100000)"),
        stage.run(&twin, "print('t' * 100000)")
    );
    assert!(printed.0.starts_with('o') && printed.1.starts_with('t'));
    let failed = run(&stage.client, &twin, "def g():\n    1 / 0\ng()").await;
    assert_eq!(failed.outcome, Some(Outcome::Error));
    assert!(failed.output.text.contains("    1 / 0\n"), "{}", failed.output.text);
}

#[tokio::test]
async fn interrupting_one_does_not_reach_the_other() {
    let stage = Stage::new().await;
    let twin = stage.twin().await;
    let sleep = turn("import time\nwhile True: time.sleep(60)");
    for session in [&stage.original, &twin] {
        stage.run(session, "1").await;
        stage.client.submit_turn(session, &sleep).await.unwrap();
    }
    stage.client.interrupt(&twin).await.unwrap();
    assert_eq!(stage.run(&twin, "1 + 1").await, "2\n");
    assert_eq!(stage.look(&stage.original).await.state, SessionState::Busy);
    stage.client.interrupt(&stage.original).await.unwrap();
    assert_eq!(stage.run(&stage.original, "1 + 1").await, "2\n");
}

#[tokio::test]
async fn a_closed_original_leaves_its_twins_and_nothing_is_left_after_the_last() {
    let stage = Stage::new().await;
    let first = stage.twin().await;
    let second = stage.twin().await;
    stage.run(&stage.original, "import subprocess; p = subprocess.Popen(['sleep', '1000'])").await;
    let child: u32 = number_of(&stage, &stage.original, "p.pid").await;
    stage.close(&stage.original).await;
    assert!(!processes::alive(child), "what the original had started ends with it");
    assert_eq!(stage.run(&first, "1 + 1").await, "2\n");
    stage.close(&first).await;
    assert_eq!(stage.run(&second, "1 + 1").await, "2\n");
    let ended = stage.look(&first).await.ended.unwrap();
    assert_eq!(ended.reason, EndReason::Closed);
    stage.close(&second).await;
    stage.alone().await;
    assert_nothing_left(&stage);
}

#[tokio::test]
async fn a_closed_twin_leaves_its_original() {
    let stage = Stage::new().await;
    let twin = stage.twin().await;
    stage.run(&twin, "import subprocess; p = subprocess.Popen(['sleep', '1000'])").await;
    let child = number_of(&stage, &twin, "p.pid").await;
    let keeper = stage.look(&twin).await.keeper_pid.unwrap();
    assert_eq!(processes::name(keeper).as_deref(), Some("windlass-keeper"));
    // An orphan of the twin's is the twin's, too.
    let code = "import subprocess\nq = subprocess.run(['sh', '-c', 'sleep 1000 >/dev/null 2>&1 & echo $!'],\
        capture_output=True, text=True)";
    stage.run(&twin, code).await;
    let orphan = number_of(&stage, &twin, "int(q.stdout)").await;
    stage.close(&twin).await;
    assert!(!processes::alive(child) && !processes::alive(orphan));
    // Also for a node that is still to come.
    assert!(processes::wait_gone(keeper, PATIENCE));
    let socket = stage.node.dirs().runtime.join("k").join(format!("{}.sock", stage.original));
    assert!(socket.exists());
    assert_eq!(stage.run(&stage.original, "1 + 1").await, "2\n");
    stage.close(&stage.original).await;
    stage.alone().await;
    assert_nothing_left(&stage);
}

/// A process that `session` knows by the number that `code` gives, as this test knows it.
async fn number_of(stage: &Stage, session: &SessionId, code: &str) -> u32 {
    let inside: u32 = stage.run(session, code).await.trim().parse().unwrap();
    let of_namespace = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status.lines().find(|line| line.starts_with("NSpid:")).unwrap_or_default();
        numbers.ends_with(&format!("\t{inside}"))
            && processes::arguments(*pid)[0].ends_with("sleep")
    };
    stage.processes().await.into_iter().find(of_namespace).expect("it runs")
}

/// No socket, no room and no copy of a workspace of sessions that are over.
fn assert_nothing_left(stage: &Stage) {
    let dirs = stage.node.dirs();
    let sockets = std::fs::read_dir(dirs.runtime.join("k")).unwrap();
    let names = sockets.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // Those of pooled workers come and go.
    let left: Vec<String> = names.filter(|name| !name.starts_with("waiting-")).collect();
    assert!(left.is_empty(), "{left:?}");
    let rooms = walk(&dirs.state.join("families"));
    assert!(rooms.is_empty(), "{rooms:?}");
}

fn walk(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            found.push(entry.path());
            if entry.path().is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    found
}

#[tokio::test]
async fn a_twin_whose_keeper_is_killed_ends_alone() {
    let stage = Stage::new().await;
    let (twin, other) = (stage.twin().await, stage.twin().await);
    // Deaf to the end of its socket.
    let spin = turn("while True: pass");
    stage.client.submit_turn(&twin, &spin).await.unwrap();
    let before = stage.processes().await.len();
    processes::kill(stage.look(&twin).await.keeper_pid.unwrap());
    let ended = async {
        while stage.look(&twin).await.state != SessionState::Ended {}
        while stage.processes().await.len() > before - 2 {
            stage.client.node_status().await.unwrap();
        }
    };
    within(PATIENCE, ended).await;
    let end = stage.look(&twin).await.ended.unwrap();
    assert_eq!(end.reason, EndReason::KeeperLost);
    assert!(!end.receipt.unwrap().lost.is_empty());
    assert_eq!(stage.run(&stage.original, "1 + 1").await, "2\n");
    assert_eq!(stage.run(&other, "1 + 1").await, "2\n");
}

#[tokio::test]
async fn contract_29_a_twin_s_twin_ends_with_its_own_keeper_and_not_with_the_twin_s() {
    let stage = Stage::new().await;
    let twin = stage.twin().await;
    stage.run(&twin, "x = 'of the twin'").await;
    let inner = stage.fork(&twin).await.session.id;
    let other = stage.fork(&twin).await.session.id;
    stage.run(&inner, "x += ', forked'").await;
    // Both have come into cgroups of their own.
    stage.run(&other, "1").await;
    let keeper = |session| {
        let stage = &stage;
        async move { stage.look(session).await.keeper_pid.unwrap() }
    };
    // A keeper that has made others has none of them below it.
    let twins_keeper = keeper(&twin).await;
    assert_eq!(processes::descendants(twins_keeper), Vec::<u32>::new());
    let all = stage.processes().await.len();
    let ends = async |session, left| {
        let ended = async {
            while stage.look(session).await.state != SessionState::Ended {}
            while stage.processes().await.len() > left {
                stage.client.node_status().await.unwrap();
            }
        };
        within(PATIENCE, ended).await;
        let end = stage.look(session).await.ended.unwrap();
        assert_eq!(end.reason, EndReason::KeeperLost);
        assert!(!end.receipt.unwrap().lost.is_empty());
    };
    processes::kill(twins_keeper);
    ends(&twin, all - 2).await;
    assert_eq!(stage.run(&inner, "x").await, "'of the twin, forked'\n");
    assert_eq!(stage.run(&other, "x").await, "'of the twin'\n");
    assert_eq!(stage.run(&stage.original, "1 + 1").await, "2\n");

    // Deaf to the end of its socket, with a process of its own, and the keeper that made its keeper is gone.
    if stage.has_cgroups().await {
        let code = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n\
            while True: pass";
        stage.client.submit_turn(&inner, &turn(code)).await.unwrap();
        let grown = async { while stage.processes().await.len() < all - 1 {} };
        within(PATIENCE, grown).await;
        processes::kill(keeper(&inner).await);
        ends(&inner, all - 4).await;
    } else {
        stage.close(&inner).await;
    }
    assert_eq!(stage.run(&other, "x").await, "'of the twin'\n");
    stage.close(&stage.original).await;
    assert_eq!(stage.run(&other, "x").await, "'of the twin'\n");
    stage.close(&other).await;
    stage.alone().await;
}

#[tokio::test]
async fn contract_29_twins_of_lost_twins_live_on_whoever_of_their_family_is_lost() {
    let stage = Stage::new().await;
    let twin = stage.twin().await;
    stage.run(&twin, "x = [1]").await;
    let lost = async |session: SessionId| {
        processes::kill(stage.look(&session).await.keeper_pid.unwrap());
        let ended = async { while stage.look(&session).await.state != SessionState::Ended {} };
        within(PATIENCE, ended).await;
    };
    let mut last = twin;
    for generation in 2..5 {
        let next = stage.fork(&last).await.session.id;
        stage.run(&next, &format!("x.append({generation})")).await;
        lost(std::mem::replace(&mut last, next.clone())).await;
        assert_eq!(stage.run(&next, "len(x)").await, format!("{generation}\n"));
    }
    assert_eq!(stage.run(&stage.original, "1 + 1").await, "2\n");
    stage.close(&stage.original).await;
    assert_eq!(stage.run(&last, "x").await, "[1, 2, 3, 4]\n");
    stage.close(&last).await;
    stage.alone().await;
    assert_nothing_left(&stage);
}

#[tokio::test]
async fn contract_29_a_twin_that_was_reset_ends_with_its_keeper_and_all_in_its_namespaces() {
    let stage = Stage::new().await;
    let twin = stage.twin().await;
    // From now on it is in namespaces of its own, and its twins are in those.
    within(PATIENCE, stage.client.reset_session(&twin)).await.unwrap();
    stage.run(&twin, "import subprocess\np = subprocess.Popen(['sleep', '1000'])").await;
    let inner = stage.fork(&twin).await.session.id;
    stage.run(&inner, "1").await;
    let keeper = stage.look(&twin).await.keeper_pid.unwrap();
    let below = processes::descendants(keeper);
    assert!(!below.is_empty());
    processes::kill(keeper);
    let gone = below.iter().all(|pid| processes::wait_gone(*pid, PATIENCE));
    assert!(gone, "{below:?}");
    let ended = async { while stage.look(&twin).await.state != SessionState::Ended {} };
    within(PATIENCE, ended).await;
    // It has lost its worker, and goes on with a fresh one in namespaces of its own.
    let restarted = async { while stage.look(&inner).await.restarts == 0 {} };
    within(PATIENCE, restarted).await;
    let told = run(&stage.client, &inner, "1").await;
    assert_eq!(told.error.unwrap().code, Some(ErrorCode::StateLost));
    assert_eq!(stage.run(&inner, "1 + 1").await, "2\n");
    assert_eq!(stage.run(&stage.original, "1 + 1").await, "2\n");
    stage.close(&inner).await;
    stage.close(&stage.original).await;
    stage.alone().await;
    assert_nothing_left(&stage);
}

#[tokio::test]
async fn with_the_family_s_keeper_all_end_and_each_has_its_receipt() {
    let stage = Stage::new().await;
    let twin = stage.twin().await;
    stage.run(&twin, "1").await;
    processes::kill(stage.look(&stage.original).await.keeper_pid.unwrap());
    for session in [&stage.original, &twin] {
        let ended = async { while stage.look(session).await.state != SessionState::Ended {} };
        within(PATIENCE, ended).await;
        let end = stage.look(session).await.ended.unwrap();
        assert_eq!(end.reason, EndReason::KeeperLost);
        assert!(end.receipt.is_some());
    }
    stage.alone().await;
}

#[tokio::test]
async fn neither_can_signal_trace_or_limit_the_other() {
    for isolation in [Isolation::Full, Isolation::Landlock] {
        let stage = Stage::with(confined(isolation)).await;
        let twin = stage.twin().await;
        let sessions = [&stage.original, &twin];
        let mut pids = Vec::new();
        for session in sessions {
            pids.push(stage.run(session, "os.getpid()").await.trim().to_owned());
        }
        pids.reverse();
        for (session, other) in sessions.into_iter().zip(&pids) {
            let attempts = format!(
                "import resource\n\
                 [attempt(act) for act in (\
                 lambda: os.kill({other}, 9), lambda: os.kill({other}, 0), \
                 lambda: os.killpg({other}, 15), \
                 lambda: signal.pidfd_send_signal(os.pidfd_open({other}), 9), \
                 lambda: open('/proc/{other}/mem', 'rb').read(1), \
                 lambda: open('/proc/{other}/environ', 'rb').read(1), \
                 lambda: os.open('/proc/{other}/fd/1', os.O_WRONLY), \
                 lambda: resource.prlimit({other}, resource.RLIMIT_CPU, (0, 0)), \
                 lambda: os.sched_setaffinity({other}, {{0}}))]"
            );
            let refused = ["'PermissionError'"; 9].join(", ");
            assert_eq!(
                stage.run(session, &attempts).await,
                format!("[{refused}]\n"),
                "{isolation}"
            );
            // Everybody that can be named. There may be nobody whom it reaches.
            stage.run(session, "attempt(lambda: os.kill(-1, 9))").await;
        }
        for session in sessions {
            assert_eq!(stage.run(session, "1 + 1").await, "2\n");
            assert_eq!(stage.look(session).await.restarts, 0);
        }
    }
}

#[tokio::test]
async fn each_has_its_workspace_and_its_open_files() {
    let stage = Stage::new().await;
    let original = &stage.original;
    let code = "os.makedirs('a/b'); open('a/b/c', 'w').write('0123456789')\n\
        os.symlink('a/b', 'link'); f = open('link/c', 'r+'); f.read(2); f.seek(2)\n\
        os.chdir('a')";
    stage.run(original, code).await;
    let forked = stage.fork(original).await;
    let (twin, copy) = (forked.session.id, forked.session.workspace);
    assert_ne!(copy, stage.look(original).await.workspace);
    assert_eq!(stage.run(&twin, "os.getcwd()").await, format!("'{copy}/a'\n"));
    // Neither the offset nor the file is shared.
    assert_eq!(stage.run(&twin, "f.read()").await, "'23456789'\n");
    assert_eq!(stage.run(original, "f.read(3)").await, "'234'\n");
    stage.run(&twin, "f.seek(0); f.write('twin'); f.flush(); open('new', 'w').close()").await;
    assert_eq!(stage.run(&twin, "open('b/c').read()").await, "'twin456789'\n");
    assert_eq!(
        stage.run(original, "open('b/c').read(), os.listdir()").await,
        "('0123456789', ['b'])\n"
    );
    stage.run(original, "os.remove('b/c')").await;
    assert_eq!(stage.run(&twin, "open('../link/c').read()").await, "'twin456789'\n");
}

/// A client may fork a twin as soon as it has the twin's id, before the twin's worker has started.
#[tokio::test]
async fn a_twin_is_forked_at_once() {
    let stage = Stage::new().await;
    stage.run(&stage.original, "x = 1").await;
    let mut twin = stage.twin().await;
    for depth in 0..4 {
        twin = stage.fork(&twin).await.session.id;
        if depth % 2 == 0 {
            assert_eq!(stage.run(&twin, "x").await, "1\n");
        }
    }
    assert_eq!(stage.run(&twin, "x").await, "1\n");
}

#[tokio::test]
async fn neither_writes_where_the_other_works() {
    let state = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let node = TestNode::builder(PROGRAM).state_dir(state.path().join("s")).start().await.unwrap();
    let stage = Stage::on(node, TestNode::create()).await;
    let twin = stage.twin().await;
    let later = stage.twin().await;
    let below = stage.fork(&twin).await.session.id;
    let all = [&stage.original, &twin, &later, &below];
    for session in all {
        assert_eq!(stage.run(session, "open('own', 'w').write('x')").await, "1\n");
        for other in all.into_iter().filter(|other| *other != session) {
            let place = stage.look(other).await.workspace;
            let code = format!("attempt(lambda: open('{place}/theirs', 'w'))");
            assert_eq!(
                stage.run(session, &code).await,
                "'PermissionError'\n",
                "{session} in {other}"
            );
        }
    }
    // Nor does a worker that is started anew.
    stage.client.reset_session(&stage.original).await.unwrap();
    stage.client.reset_session(&twin).await.unwrap();
    for session in [&stage.original, &twin] {
        stage.run(session, ATTEMPT).await;
        let place = stage.look(&later).await.workspace;
        let code = format!("attempt(lambda: open('{place}/theirs', 'w'))");
        let said = stage.run(session, &code).await;
        assert!(
            ["'PermissionError'\n", "'OSError'\n", "'FileNotFoundError'\n"].contains(&&*said),
            "{said}"
        );
        assert_eq!(stage.run(session, "open('own', 'w').write('x')").await, "1\n");
    }
}

#[tokio::test]
async fn a_fork_of_a_fork_goes_on_without_either() {
    let stage = Stage::new().await;
    stage.run(&stage.original, "x = ['o']").await;
    let twin = stage.twin().await;
    stage.run(&twin, "x.append('t')").await;
    let second = stage.fork(&twin).await.session;
    assert_eq!(second.forked_from.as_ref(), Some(&twin));
    stage.close(&twin).await;
    stage.close(&stage.original).await;
    assert_eq!(stage.run(&second.id, "x.append('s'); x").await, "['o', 't', 's']\n");
    let third = stage.fork(&second.id).await.session.id;
    assert_eq!(stage.run(&third, "x").await, "['o', 't', 's']\n");
    stage.close(&second.id).await;
    stage.close(&third).await;
    stage.alone().await;
    assert_nothing_left(&stage);
}

#[tokio::test]
async fn a_session_is_forked_as_often_as_the_kernel_allows_and_its_twins_again() {
    let stage = Stage::new().await;
    let first = stage.twin().await;
    let refused = loop {
        let twin = stage.client.fork_session(&stage.original, &ForkSession::default()).await;
        match twin {
            Ok(twin) => stage.close(&twin.session.id).await,
            Err(error) => break code_of(error),
        }
    };
    assert_eq!(refused, ErrorCode::ForkLimit);
    assert_eq!(stage.run(&stage.original, "1 + 1").await, "2\n");
    assert_eq!(stage.run(&stage.fork(&first).await.session.id, "1 + 1").await, "2\n");
}

#[tokio::test]
async fn a_busy_session_is_not_forked_and_a_turn_waits_for_a_fork() {
    let stage = Stage::new().await;
    let busy = turn("import time; time.sleep(1000)");
    stage.client.submit_turn(&stage.original, &busy).await.unwrap();
    let wanted = ForkSession::default();
    let refused = stage.client.fork_session(&stage.original, &wanted).await.unwrap_err();
    assert_eq!(code_of(refused), ErrorCode::SessionBusy);
    stage.client.interrupt(&stage.original).await.unwrap();
    assert_eq!(stage.run(&stage.original, "x = 1; x").await, "1\n");
    let (forked, ran) = tokio::join!(
        stage.client.fork_session(&stage.original, &wanted),
        stage.run(&stage.original, "x += 1; x"),
    );
    assert_eq!(ran, "2\n");
    // Whichever came first: a twin has the state before the turn, or the session was busy.
    match forked {
        Ok(twin) => assert_ne!(stage.run(&twin.session.id, "x").await, ""),
        Err(error) => assert_eq!(code_of(error), ErrorCode::SessionBusy),
    }
    let taken = ForkSession { id: Some(stage.original.clone()), ..ForkSession::default() };
    let refused = stage.client.fork_session(&stage.original, &taken).await.unwrap_err();
    assert_eq!(code_of(refused), ErrorCode::SessionExists);
}

/// What a policy hides is hidden by its path, which a copy does not have.
#[tokio::test]
async fn a_workspace_with_something_hidden_in_it_is_not_copied() {
    let work = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let secret = work.path().join("secret");
    std::fs::write(&secret, "hush").unwrap();
    let workspace = Some(work.path().display().to_string());
    let hidden = vec![secret.display().to_string()];
    let policy = PolicyRequest { hidden, ..TestNode::create().policy.unwrap() };
    let create = CreateSession { workspace, policy: Some(policy), ..TestNode::create() };
    let stage = Stage::with(create).await;
    assert_ne!(
        stage.run(&stage.original, "attempt(lambda: open('secret').read())").await,
        "'hush'\n"
    );
    let wanted = ForkSession::default();
    let refused = stage.client.fork_session(&stage.original, &wanted).await.unwrap_err();
    assert!(refused.to_string().contains("secret"), "{refused}");
    assert_eq!(code_of(refused), ErrorCode::ForkRefused);
    assert_eq!(stage.run(&stage.original, "1 + 1").await, "2\n");
}

#[tokio::test]
async fn what_is_not_carried_is_named_and_is_not_there() {
    let stage = Stage::new().await;
    let code = "import mmap, socket, subprocess, threading\n\
        ours, theirs = socket.socketpair(); gate = threading.Event()\n\
        thread = threading.Thread(target=gate.wait, name='watcher', daemon=True); thread.start()\n\
        child = subprocess.Popen(['sleep', '1000']); end, start = os.pipe()\n\
        shared = mmap.mmap(-1, 4096); shared[0:4] = b'mine'";
    stage.run(&stage.original, code).await;
    let forked = stage.fork(&stage.original).await;
    let named = |what: &str, name: &str| {
        forked.not_carried.iter().any(|one| one.what == what && one.name.contains(name))
    };
    assert!(named("thread", "watcher"), "{:?}", forked.not_carried);
    assert!(named("socket", "socket:["), "{:?}", forked.not_carried);
    assert!(named("process", "sleep"), "{:?}", forked.not_carried);
    assert!(named("pipe", "pipe:["), "{:?}", forked.not_carried);
    assert!(named("shared_memory", ""), "{:?}", forked.not_carried);
    let twin = forked.session.id;
    let gone =
        "thread.is_alive(), ours.recv(1), attempt(lambda: theirs.send(b'x')), os.read(end, 1)";
    assert_eq!(stage.run(&twin, gone).await, "(False, b'', 'BrokenPipeError', b'')\n");
    // The original has all of it.
    let there = "theirs.send(b'x'), ours.recv(1), thread.is_alive(), child.poll()";
    assert_eq!(stage.run(&stage.original, there).await, "(1, b'x', True, None)\n");
}

#[tokio::test]
async fn a_twin_has_limits_of_its_own() {
    let mut create = TestNode::create();
    let limits = Limits { memory_bytes: Some(300 << 20), ..Limits::default() };
    create.policy = Some(PolicyRequest { limits, ..create.policy.unwrap_or_default() });
    let stage = Stage::with(create).await;
    stage.run(&stage.original, "a = bytearray(b'x' * (90 << 20))").await;
    let twin = stage.twin().await;
    // More than one limit, together; and the twin's end by its limit is its alone.
    for session in [&stage.original, &twin] {
        let more = "b = bytearray(b'x' * (90 << 20)); len(b)";
        assert_eq!(stage.run(session, more).await, "94371840\n");
    }
    let code = "c = [bytearray(b'x' * (1 << 20)) for _ in range(1000)]";
    let error = run(&stage.client, &twin, code).await.error.unwrap();
    assert!(error.code == Some(ErrorCode::LimitMemory) || error.name == "MemoryError", "{error:?}");
    assert_eq!(stage.run(&stage.original, "len(a) + len(b)").await, "188743680\n");
}

#[tokio::test]
async fn both_survive_their_node() {
    let mut stage = Stage::new().await;
    stage.run(&stage.original, "x = 1").await;
    let twin = stage.twin().await;
    stage.run(&twin, "x = 2").await;
    stage.node.restart().await.unwrap();
    stage.client = stage.node.client().await.unwrap();
    assert_eq!(stage.run(&stage.original, "x").await, "1\n");
    assert_eq!(stage.run(&twin, "x").await, "2\n");
    let look = stage.look(&twin).await;
    assert_eq!((look.restarts, look.forked_from.as_ref()), (0, Some(&stage.original)));
    // And a twin is made of what has survived.
    let second = stage.twin().await;
    assert_eq!(stage.run(&second, "x").await, "1\n");
    processes::kill(worker_of(&stage, &second).await);
    // Its state is told to be lost once, whether a turn met its end or came after it.
    let lost = async {
        loop {
            let error = run(&stage.client, &second, "1 + 1").await.error;
            match error.and_then(|error| error.code) {
                Some(ErrorCode::StateLost | ErrorCode::WorkerDied) => return,
                Some(code) => panic!("{code}"),
                None => {}
            }
        }
    };
    within(PATIENCE, lost).await;
}

/// The worker's process, as this test knows it.
async fn worker_of(stage: &Stage, session: &SessionId) -> u32 {
    let workspace = PathBuf::from(stage.look(session).await.workspace);
    let works_there = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|place| place == workspace)
    };
    // Not below the node: that may be another than the one that started it.
    processes::belonging(stage.node.base()).into_iter().find(works_there).unwrap()
}

#[tokio::test]
async fn a_reset_gives_a_twin_a_fresh_worker_in_its_own_workspace() {
    let stage = Stage::new().await;
    stage.run(&stage.original, "x = 1; open('file', 'w').write('o')").await;
    let twin = stage.twin().await;
    stage.client.reset_session(&twin).await.unwrap();
    assert_eq!(stage.run(&twin, "'x' in globals(), open('file').read()").await, "(False, 'o')\n");
    stage.run(&twin, "open('file', 'w').write('t')").await;
    assert_eq!(stage.run(&stage.original, "x, open('file').read()").await, "(1, 'o')\n");
    stage.client.reset_session(&stage.original).await.unwrap();
    assert_eq!(
        stage.run(&stage.original, "'x' in globals(), open('file').read()").await,
        "(False, 'o')\n"
    );
    assert_eq!(stage.run(&twin, "open('file').read()").await, "'t'\n");
    let second = stage.fork(&twin).await.session.id;
    assert_eq!(stage.run(&second, "open('file').read()").await, "'t'\n");
}

#[tokio::test]
async fn a_fork_takes_milliseconds_also_with_much_in_memory() {
    let stage = Stage::new().await;
    stage.run(&stage.original, "big = bytearray(b'x' * (100 << 20))").await;
    let mut forks = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        let twin = stage.twin().await;
        let forked = began.elapsed();
        stage.run(&twin, "1 + 1").await;
        forks.push((forked, began.elapsed()));
        stage.close(&twin).await;
    }
    eprintln!("forked after, and first answer of the twin after: {forks:?}");
    let fastest = forks.iter().map(|(_, answered)| answered).min().unwrap();
    assert!(*fastest < Duration::from_millis(500), "{forks:?}");
}
