//! How twins end: by a close, with their keeper, with a node, and what survives.

use std::path::{Path, PathBuf};

use windlass_client::protocol::api::{CreateSession, SessionState};
use windlass_client::protocol::disk::PruneRequest;
use windlass_client::protocol::event::EndReason;
use windlass_client::protocol::{ErrorCode, SessionId};
use windlass_testkit::{PATIENCE, TestNode, processes, run, turn, within};

use super::{Stage, code_of};

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
    // An orphan process of the twin belongs to the twin too.
    let code = "import subprocess\nq = subprocess.run(['sh', '-c', 'sleep 1000 >/dev/null 2>&1 & echo $!'],\
        capture_output=True, text=True)";
    stage.run(&twin, code).await;
    let orphan = number_of(&stage, &twin, "int(q.stdout)").await;
    stage.close(&twin).await;
    assert!(!processes::alive(child) && !processes::alive(orphan));
    // The same with a new node.
    assert!(processes::wait_gone(keeper, PATIENCE));
    let socket = stage.node.dirs().runtime.join("k").join(format!("{}.sock", stage.original));
    assert!(socket.exists());
    assert_eq!(stage.run(&stage.original, "1 + 1").await, "2\n");
    stage.close(&stage.original).await;
    stage.alone().await;
    assert_nothing_left(&stage);
}

/// A session with the id would share the family's temporary directory, with the packages in it.
#[tokio::test]
async fn an_id_is_not_used_again_while_a_twin_of_its_session_lives() {
    let stage = Stage::new().await;
    let twin = stage.twin().await;
    stage.close(&stage.original).await;
    let removed = async {
        while stage.client.session(&stage.original).await.is_ok() {
            stage.client.prune(&PruneRequest::default()).await.unwrap();
        }
    };
    within(PATIENCE, removed).await;
    let again = CreateSession { id: Some(stage.original.clone()), ..TestNode::create() };
    let refused = stage.client.create_session(&again).await.unwrap_err();
    assert!(refused.to_string().contains("twin"), "{refused}");
    assert_eq!(code_of(refused), ErrorCode::SessionExists);
    assert_eq!(stage.run(&twin, "1 + 1").await, "2\n");
    stage.close(&twin).await;
    let created = stage.client.create_session(&again).await.unwrap();
    assert_eq!(created.session.id, stage.original);
}

/// The pid on the machine of a process that `session` knows by the number that `code` returns.
async fn number_of(stage: &Stage, session: &SessionId, code: &str) -> u32 {
    let inside: u32 = stage.run(session, code).await.trim().parse().unwrap();
    let of_namespace = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status.lines().find(|line| line.starts_with("NSpid:")).unwrap_or_default();
        numbers.ends_with(&format!("\t{inside}"))
            && processes::arguments(*pid)[0].ends_with("sleep")
    };
    let found = async {
        loop {
            // The child of the shell may not have executed `sleep` yet.
            if let Some(pid) = stage.processes().await.into_iter().find(of_namespace) {
                return pid;
            }
        }
    };
    within(PATIENCE, found).await
}

/// No socket, no fork directory and no workspace copy of ended sessions is left.
fn assert_nothing_left(stage: &Stage) {
    let dirs = stage.node.dirs();
    let sockets = std::fs::read_dir(dirs.runtime.join("k")).unwrap();
    let names = sockets.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // Sockets of pooled workers come and go.
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
    // A worker that ignores the end of its socket.
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
    // Both have their own cgroups by now.
    stage.run(&other, "1").await;
    let keeper = |session| {
        let stage = &stage;
        async move { stage.look(session).await.keeper_pid.unwrap() }
    };
    // A keeper that has forked other keepers is not their parent.
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

    // It ignores the end of its socket, has a child process, and the keeper that forked its keeper is gone.
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
async fn contract_29_twins_of_lost_twins_survive_the_loss_of_any_relative() {
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
    // From now on the twin has its own namespaces, and its twins are in them.
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
    // It has lost its worker, and continues with a fresh one in its own namespaces.
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
async fn the_end_of_the_family_keeper_ends_all_and_each_has_its_receipt() {
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
async fn a_fork_of_a_fork_survives_both_ancestors() {
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
    // A session that survived can be forked.
    let second = stage.twin().await;
    assert_eq!(stage.run(&second, "x").await, "1\n");
    processes::kill(worker_of(&stage, &second).await);
    // The loss of its state is reported once, to a running turn or to the next one.
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

/// The pid of the worker as this test knows it.
async fn worker_of(stage: &Stage, session: &SessionId) -> u32 {
    let workspace = PathBuf::from(stage.look(session).await.workspace);
    let works_there = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|place| place == workspace)
    };
    // Not a descendant of the current node: another node may have started it.
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
