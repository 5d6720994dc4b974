//! Many live sessions with numpy and pandas, each with its own state: the memory of an idle session
//! (`idle_session_*`), and whether every session answers a turn (`sessions_answering*`).
//!
//! | figure | memory, as proportional set size |
//! |---|---|
//! | `idle_session_mib` | the session's own processes: keeper, init and worker |
//! | `idle_session_shared_mib` | zygotes, nursery and pooled workers, divided by the number of sessions |
//! | `idle_session_node_mib` | the node, divided by the number of sessions |
//! | `idle_session_all_mib` | the three together |
//! | `idle_session_memcg_mib` | the kernel's charge of the session's cgroup: with page tables, no keeper |

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use windlass_client::Client;
use windlass_protocol::SessionId;
use windlass_protocol::api::CreateSession;

use super::BenchPlan;
use super::figure::Figure;
use super::node::{block_on, program, turn};
use crate::machine::{Tree, memcg_mib, pss_mib, pss_mib_of};
use crate::start::{MeasuredNode, PythonEnvironment, StartMethod};

/// The number of sessions that are created at the same time.
const AT_ONCE: usize = 8;

/// After this many sessions a long run prints its progress.
const PROGRESS_EVERY: usize = 250;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let count = plan.rounds(plan.sessions);
    block_on(async {
        let environment = PythonEnvironment::with_pandas()?;
        let node = MeasuredNode::start(program()?, plan.start, environment).await?;
        let began = Instant::now();
        let sessions = create_all(&node, count).await?;
        let rate = count as f64 / began.elapsed().as_secs_f64();
        check_starts(&node, &sessions).await?;
        let mut figures = memory(&node, &sessions)?;
        figures.extend(answers(&node.client, &sessions).await);
        figures.push(Figure { n: count, ..Figure::of("sessions_created_per_s", "1/s", &[rate]) });
        Ok(figures)
    })
}

/// A session, and the value of its variable `own`.
struct NumberedSession {
    id: SessionId,
    number: usize,
    keeper: u32,
}

async fn create_all(node: &MeasuredNode, count: usize) -> Result<Vec<NumberedSession>> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut makers = JoinSet::new();
    for _ in 0..AT_ONCE.min(count) {
        let (client, next) = (node.node.client().await?, Arc::clone(&next));
        let interpreter = node.interpreter();
        makers.spawn(async move {
            let mut made = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(made);
                }
                made.push(create_one(&client, &interpreter, number).await?);
                if number > 0 && number % PROGRESS_EVERY == 0 {
                    eprintln!("{number} of {count} sessions");
                }
            }
        });
    }
    let mut sessions = Vec::new();
    while let Some(made) = makers.join_next().await {
        sessions.extend(made??);
    }
    Ok(sessions)
}

async fn create_one(client: &Client, interpreter: &str, number: usize) -> Result<NumberedSession> {
    let code = format!("import numpy, pandas\nown = {number}\nown + 1");
    let wanted = CreateSession {
        interpreter: Some(interpreter.to_owned()),
        turn: Some(turn(&code)),
        ..CreateSession::default()
    };
    let created = client.create_session(&wanted).await;
    let created = created.with_context(|| format!("session number {number}"))?;
    let answer = created.turn.context("no first turn")?.output.text;
    ensure!(answer == format!("{}\n", number + 1), "session number {number} answered {answer:?}");
    let id = created.session.id;
    let keeper = client.session(&id).await?.keeper_pid.context("the session has no keeper")?;
    Ok(NumberedSession { id, number, keeper })
}

/// Checks how the sessions were started. If the pool is empty for a moment, the zygote starts the session. A
/// start by exec is an error.
async fn check_starts(node: &MeasuredNode, sessions: &[NumberedSession]) -> Result<()> {
    let allowed: &[StartMethod] = match node.start {
        StartMethod::Exec => &[StartMethod::Exec],
        StartMethod::Zygote => &[StartMethod::Zygote],
        StartMethod::Pool => &[StartMethod::Pool, StartMethod::Zygote],
    };
    for session in sessions {
        node.check_started(&session.id, allowed).await?;
    }
    Ok(())
}

fn memory(node: &MeasuredNode, sessions: &[NumberedSession]) -> Result<Vec<Figure>> {
    let tree = Tree::now();
    let (mut own, mut charged, mut counted) = (Vec::new(), Vec::new(), BTreeSet::new());
    for session in sessions {
        let processes = tree.whole(session.keeper);
        own.push(pss_mib_of(&processes)?);
        charged.extend(processes.iter().find_map(|pid| memcg_mib(*pid)));
        counted.extend(processes);
    }
    let node_pid = node.node.pid();
    let shared: Vec<u32> = tree.whole(node_pid).into_iter().skip(1).collect();
    let shared: Vec<u32> = shared.into_iter().filter(|pid| !counted.contains(pid)).collect();
    let each = |mib: f64| mib / sessions.len() as f64;
    let shared = each(pss_mib_of(&shared)?);
    let node = each(pss_mib(node_pid)?);
    let all = each(own.iter().sum()) + shared + node;
    let share = |name: &str, mib: f64| Figure { n: own.len(), ..Figure::of(name, "MiB", &[mib]) };
    Ok(vec![
        Figure::of("idle_session_mib", "MiB", &own),
        share("idle_session_shared_mib", shared),
        share("idle_session_node_mib", node),
        share("idle_session_all_mib", all),
        Figure::of("idle_session_memcg_mib", "MiB", &charged),
    ])
}

/// Asks each session for its number, one after the other. Counts the right answers and prints the first wrong
/// one.
async fn answers(client: &Client, sessions: &[NumberedSession]) -> Vec<Figure> {
    let (mut times, mut right) = (Vec::<Duration>::new(), 0_usize);
    for session in sessions {
        let started = Instant::now();
        let answer = client.submit_turn(&session.id, &turn("own * 2")).await;
        times.push(started.elapsed());
        match answer {
            Ok(turn) if turn.output.text == format!("{}\n", session.number * 2) => right += 1,
            wrong if right + 1 == times.len() => {
                eprintln!("session number {} answered {wrong:?}", session.number);
            }
            _ => {}
        }
    }
    let count = Figure::of("sessions_answering", "count", &[right as f64]);
    vec![
        Figure { n: sessions.len(), ..count.beside(&[sessions.len() as f64]) },
        Figure::of_times("sessions_answering_turn", &times),
    ]
}
