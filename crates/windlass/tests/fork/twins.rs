//! What a twin has, and what it does not share with its original.

use std::time::{Duration, Instant};

use windlass_client::protocol::api::{CreateSession, ForkSession, SessionState};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::event::StartedBy;
use windlass_client::protocol::policy::{Limits, PolicyRequest};
use windlass_client::protocol::{ErrorCode, Outcome};
use windlass_testkit::{TestNode, outside_of_tmp, run, turn};

use super::{ATTEMPT, PROGRAM, Stage, code_of, confined};

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
    // Each session has its own turns, output and numbers.
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
            // Every process that it can name. It may reach none.
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
async fn neither_writes_in_the_workspace_of_the_other() {
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
    // A fresh worker cannot either.
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
    // Whichever comes first: the twin has the state before the turn, or the session was busy.
    match forked {
        Ok(twin) => assert_ne!(stage.run(&twin.session.id, "x").await, ""),
        Err(error) => assert_eq!(code_of(error), ErrorCode::SessionBusy),
    }
    let taken = ForkSession { id: Some(stage.original.clone()), ..ForkSession::default() };
    let refused = stage.client.fork_session(&stage.original, &taken).await.unwrap_err();
    assert_eq!(code_of(refused), ErrorCode::SessionExists);
}

/// A policy hides by path, and a copy has another path.
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
    // The original still has all of them.
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
    // More than one limit at once. The end of the twin by its limit does not affect the original.
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
