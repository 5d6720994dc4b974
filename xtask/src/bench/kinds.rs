//! Every kind of worker, in a session in a workspace of its client, with the default policy. The baseline is
//! the bare interpreter without Windlass; for Jupyter it is the kernel that jupyter_client drives.
//!
//! | figure | measures |
//! |---|---|
//! | `kind_warm_turn_*` | a trivial turn in a warm session |
//! | `kind_first_answer_exec_*` | from the request for a session to the answer of its first turn |
//! | `kind_first_answer_pool_*` | the same from the pool, for kinds that have one |
//! | `kind_idle_mib_*` | keeper, init and worker of one idle session, as proportional set size |
//! | `kind_interrupt_sleep_*`, `_busy_*` | from an interrupt to the end of the turn |
//! | `kind_interrupt_await_node` | the same for a loop after an await |

mod kind;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use windlass_protocol::api::CreateSession;
use windlass_protocol::event::StartedBy;
use windlass_protocol::{Outcome, SessionId};
use windlass_testkit::TestNode;

use self::kind::{BenchKind, JUPYTER, KindSetup, NODE, PYODIDE, PYTHON, R, SHELL};
use super::figure::Figure;
use super::node::{self, AT_ONCE, BenchNode, block_on, program, turn};
use super::{BenchPlan, Measurement, interrupt};
use crate::machine::{Tree, pss_mib_of};
use crate::start::{START, StartMethod};

const INTERRUPTS: usize = 40;

/// Sessions before the first measured one. The first session writes the worker's files, and starts the zygote
/// of a kind other than Python.
const WARM_UP_STARTS: usize = 2;

/// One warm-up turn for this many measured turns.
const TURNS_PER_WARM_UP: usize = 5;

/// Both sides alternate in this many parts, so that noise of the machine affects both.
const PARTS: usize = 4;

macro_rules! of_every_kind {
    ($name:literal, $kind:path) => {
        &[
            Measurement {
                figures: &[concat!("kind_warm_turn_", $name)],
                measure: |plan| warm_turn(plan, &$kind),
            },
            Measurement {
                figures: &[
                    concat!("kind_first_answer_exec_", $name),
                    concat!("kind_idle_mib_", $name),
                ],
                measure: |plan| exec(plan, &$kind),
            },
            Measurement {
                figures: &[
                    concat!("kind_interrupt_sleep_", $name),
                    concat!("kind_interrupt_busy_", $name),
                ],
                measure: |plan| {
                    interrupts(plan, &$kind, &[("sleep", $kind.sleep), ("busy", $kind.busy)])
                },
            },
        ]
    };
}

macro_rules! of_pooled_kind {
    ($name:literal, $kind:path) => {
        &[Measurement {
            figures: &[concat!("kind_first_answer_pool_", $name)],
            measure: |plan| pool(plan, &$kind),
        }]
    };
}

pub const BENCHES: &[&[Measurement]] = &[
    of_every_kind!("python", PYTHON),
    of_pooled_kind!("python", PYTHON),
    of_every_kind!("shell", SHELL),
    of_every_kind!("r", R),
    of_pooled_kind!("r", R),
    of_every_kind!("node", NODE),
    &[Measurement {
        figures: &["kind_interrupt_await_node"],
        measure: |plan| interrupts(plan, &NODE, &[("await", kind::NODE_AWAIT)]),
    }],
    of_every_kind!("pyodide", PYODIDE),
    of_every_kind!("jupyter", JUPYTER),
];

fn warm_turn(plan: &BenchPlan, kind: &BenchKind) -> Result<Vec<Figure>> {
    const PART: &str = "warm_turn";
    let Some(mut setup) = kind.find(PART) else { return Ok(Vec::new()) };
    let rounds = plan.rounds(kind.turns).div_ceil(PARTS);
    let warm_ups = (kind.turns / TURNS_PER_WARM_UP).max(1);
    block_on(async {
        let node = KindNode::start(kind, &setup, StartMethod::Exec).await?;
        let session = node.session().await?;
        for _ in 0..warm_ups {
            node.turn(&session).await?;
        }
        let (mut turns, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..PARTS {
            for _ in 0..rounds {
                let started = Instant::now();
                node.turn(&session).await?;
                turns.push(started.elapsed());
            }
            bare.extend(setup.baseline.turns(rounds, warm_ups)?);
        }
        Ok(vec![Figure::of_times(&kind.figure(PART), &turns).beside(&bare)])
    })
    .with_context(|| kind.figure(PART))
}

fn exec(plan: &BenchPlan, kind: &BenchKind) -> Result<Vec<Figure>> {
    starts(plan, kind, "first_answer_exec", StartMethod::Exec)
}

/// The memory of a session from the pool is no figure: its zygote shares its pages.
fn pool(plan: &BenchPlan, kind: &BenchKind) -> Result<Vec<Figure>> {
    let mut figures = starts(plan, kind, "first_answer_pool", StartMethod::Pool)?;
    figures.truncate(1);
    Ok(figures)
}

/// The figures of first answers and of idle sessions.
fn starts(
    plan: &BenchPlan,
    kind: &BenchKind,
    part: &str,
    start: StartMethod,
) -> Result<Vec<Figure>> {
    let Some(mut setup) = kind.find(part) else { return Ok(Vec::new()) };
    let rounds = plan.rounds(kind.starts);
    block_on(async {
        let node = KindNode::start(kind, &setup, start).await?;
        let (mut times, mut sizes) = (Vec::new(), Vec::new());
        for round in 0..WARM_UP_STARTS + rounds {
            // Not measured: the pool fills.
            node.bench.node.await_environments().await?;
            let wanted = CreateSession { turn: Some(turn(kind.code)), ..node.wanted.clone() };
            let client = &node.bench.client;
            let (session, took) = node::first_answer(client, &wanted, kind.answer).await?;
            if round >= WARM_UP_STARTS {
                times.push(took);
                sizes.push(node.check_and_measure(&session, start).await?);
            }
            client.close_session(&session, AT_ONCE).await?;
        }
        let (bare_times, bare_sizes) = setup.baseline.starts(rounds)?;
        Ok(vec![
            Figure::of_times(&kind.figure(part), &times).beside(&bare_times),
            Figure::of(&kind.figure("idle_mib"), "MiB", &sizes).beside(&bare_sizes),
        ])
    })
    .with_context(|| kind.figure(part))
}

fn interrupts(plan: &BenchPlan, kind: &BenchKind, parts: &[(&str, &str)]) -> Result<Vec<Figure>> {
    let Some(setup) = kind.find("interrupt") else { return Ok(Vec::new()) };
    block_on(async {
        let node = KindNode::start(kind, &setup, StartMethod::Exec).await?;
        let session = node.session().await?;
        let mut figures = Vec::new();
        for (part, code) in parts {
            let mut times = Vec::new();
            for _ in 0..plan.rounds(INTERRUPTS) {
                times.push(interrupt::one(&node.bench, &session, code).await?);
            }
            // The interrupts have ended the turns and not the session's worker.
            node.turn(&session).await?;
            figures.push(Figure::of_times(&kind.figure(&format!("interrupt_{part}")), &times));
        }
        Ok(figures)
    })
    .with_context(|| kind.figure("interrupt"))
}

/// A node that has one kind, and what its sessions are.
struct KindNode<'a> {
    bench: BenchNode,
    kind: &'a BenchKind,
    wanted: CreateSession,
    // The last field: removed after the sessions in it have ended.
    _workspace: TempDir,
}

impl<'a> KindNode<'a> {
    async fn start(kind: &'a BenchKind, setup: &KindSetup, start: StartMethod) -> Result<Self> {
        let workspace = tempfile::tempdir()?;
        let mut builder = setup.node(TestNode::builder(program()?)).env(START, start.as_str());
        // Every node of the bench has an environment of the tests' Python.
        let tests_python = windlass_testkit::python().display().to_string();
        if let (StartMethod::Pool, Some(interpreter)) = (start, &setup.interpreter)
            && *interpreter != tests_python
        {
            builder = builder.environment(kind.worker, interpreter);
        }
        let bench = BenchNode::started(builder).await?;
        let wanted = kind.create(setup, workspace.path());
        Ok(Self { bench, kind, wanted, _workspace: workspace })
    }

    /// A session that has answered one turn.
    async fn session(&self) -> Result<SessionId> {
        let session = self.bench.client.create_session(&self.wanted).await?.session.id;
        self.turn(&session).await?;
        Ok(session)
    }

    /// Runs the kind's trivial turn and compares its answer.
    async fn turn(&self, session: &SessionId) -> Result<()> {
        let turn = self.bench.run(session, self.kind.code).await?;
        ensure!(turn.outcome == Some(Outcome::Ok), "the turn ended as {:?}", turn.outcome);
        let text = turn.output.text;
        ensure!(text == self.kind.answer, "the turn answered {text:?}");
        Ok(())
    }

    /// The memory of the session's processes. Fails if the session was started in another way.
    async fn check_and_measure(&self, session: &SessionId, start: StartMethod) -> Result<f64> {
        let known = self.bench.client.session(session).await?;
        let expected = match start {
            StartMethod::Exec => StartedBy::Exec,
            StartMethod::Zygote => StartedBy::Zygote,
            StartMethod::Pool => StartedBy::Pool,
        };
        let by = known.started_by.unwrap_or_default();
        ensure!(by == expected, "session {session} was started by {by:?}, not by {expected:?}");
        let keeper = known.keeper_pid.context("the session has no keeper")?;
        pss_mib_of(&Tree::now().whole(keeper))
    }
}
