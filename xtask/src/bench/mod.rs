//! `cargo xtask bench`: measures figures and their baselines in one run on one machine. Each measurement has
//! its own file. This module selects the measurements, runs them and prints the figures.

mod bare_pipe;
mod bombs;
mod confined;
mod density;
mod fairness;
mod figure;
mod first_answer;
mod fork_live;
mod interrupt;
mod kernels;
mod kinds;
mod mcp;
mod memory;
mod node;
mod output;
mod peers;
mod promised;
mod python;
mod recovery;
mod secrets;
mod throughput;
mod tools;
mod turn_cpu;
mod warm_turn;

use std::process::Command;

use anyhow::{Context, Result, bail};

use self::figure::Figure;
use crate::RunVerdict;
use crate::start::StartMethod;

/// A measurement: the names of its figures, and the function that measures them.
struct Measurement {
    figures: &'static [&'static str],
    measure: Measure,
}

type Measure = fn(&BenchPlan) -> Result<Vec<Figure>>;

/// The measurements in the order in which they run, before those of each kind of worker.
const BENCHES: &[Measurement] = &[
    Measurement { figures: &["bare_pipe"], measure: bare_pipe::measure },
    Measurement { figures: &["warm_turn", "warm_turn_followed"], measure: warm_turn::measure },
    Measurement {
        figures: &["turn_cpu_us", "turn_cpu_worker_us", "turn_cpu_node_us", "turn_cpu_keeper_us"],
        measure: turn_cpu::measure,
    },
    Measurement { figures: &["turn_cpu_traced_us"], measure: turn_cpu::traced },
    Measurement {
        figures: &["output_cpu_node_us", "output_cpu_keeper_us"],
        measure: turn_cpu::output,
    },
    Measurement { figures: &["turns_per_s_1"], measure: throughput::one },
    Measurement { figures: &["turns_per_s_10"], measure: throughput::ten },
    Measurement { figures: &["turns_per_s_100"], measure: throughput::hundred },
    Measurement {
        figures: &["first_answer_exec", "first_answer_exec_np"],
        measure: first_answer::exec,
    },
    Measurement {
        figures: &["first_answer_zygote", "first_answer_zygote_np"],
        measure: first_answer::zygote,
    },
    Measurement {
        figures: &["first_answer_pool", "first_answer_pool_np", "first_answer_pool_np_own"],
        measure: first_answer::pool,
    },
    Measurement { figures: &["fork_live"], measure: fork_live::measure },
    Measurement {
        figures: &[
            "idle_session_mib",
            "idle_session_shared_mib",
            "idle_session_node_mib",
            "idle_session_all_mib",
            "idle_session_memcg_mib",
            "sessions_answering",
            "sessions_answering_turn",
            "sessions_created_per_s",
        ],
        measure: density::measure,
    },
    Measurement {
        figures: &["confined_first_answer", "confined_added", "bwrap_exec"],
        measure: confined::first_answers,
    },
    Measurement { figures: &["confined_warm_turn"], measure: confined::warm_turns },
    Measurement { figures: &["interrupt_sleep", "interrupt_busy"], measure: interrupt::measure },
    Measurement { figures: &["output_rate", "output_rss_growth_mib"], measure: output::measure },
    Measurement { figures: &["kill_recovery", "kill_lost_bytes"], measure: recovery::measure },
    Measurement { figures: &["session_mib", "node_mib"], measure: memory::measure },
    Measurement {
        figures: &["tool_round_trip", "tool_950kb", "tool_38_concurrent"],
        measure: tools::measure,
    },
    Measurement { figures: &["mcp_tools_list"], measure: mcp::starts },
    Measurement {
        figures: &["mcp_turn", "mcp_added_latency", "mcp_bridge_mib"],
        measure: mcp::turns,
    },
    Measurement { figures: &["secret_first", "secret_kept"], measure: secrets::measure },
    Measurement { figures: &["turn_beside_busy", "work_beside_busy"], measure: fairness::measure },
    Measurement {
        figures: &["neighbour_quiet_p95", "neighbour_bombed_p95"],
        measure: bombs::measure,
    },
];

/// All measurements, in the order in which they run.
fn benches() -> impl Iterator<Item = &'static Measurement> {
    let of_kinds = kinds::BENCHES.iter().copied().flatten();
    BENCHES.iter().chain(of_kinds).chain(kernels::BENCHES)
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measure only these figures
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print one JSON object per line instead of the table
    #[arg(long)]
    json: bool,
    /// Measure other tools too: Jupyter, installed from PyPI into a virtual environment, and
    /// bubblewrap, installed by apt-get if it is missing
    #[arg(long)]
    peers: bool,
    /// Measure only the figures that have a promise; fail if a promise is not kept
    #[arg(long, conflicts_with_all = ["names", "quick"])]
    promised: bool,
    /// The number of sessions for idle_session_* and sessions_answering*
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: u32,
    /// How the sessions for idle_session_*, sessions_answering* and fork_live start
    #[arg(long, value_enum, default_value_t = StartMethod::Pool)]
    start: StartMethod,
    /// Run a tenth of the rounds: a test of the measurements, not a measurement
    #[arg(long)]
    quick: bool,
    /// Run this many rounds instead of each figure's default, as in `kill_recovery --rounds 1000`
    #[arg(long, conflicts_with_all = ["promised", "quick"], value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: Option<u32>,
}

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub struct BenchPlan {
    effort: Effort,
    sessions: usize,
    start: StartMethod,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    Quick,
    Full,
    Rounds(usize),
}

impl BenchPlan {
    /// `full` rounds, a tenth of them in a quick run, or the number of `--rounds`.
    fn rounds(self, full: usize) -> usize {
        match self.effort {
            Effort::Full => full,
            Effort::Quick => (full / 10).max(1),
            Effort::Rounds(rounds) => rounds,
        }
    }
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    if cfg!(debug_assertions) {
        return run_as_release();
    }
    let known = || benches().flat_map(|bench| bench.figures);
    for name in &args.names {
        if !known().any(|figure| figure == name) {
            let names: Vec<&str> = known().copied().collect();
            bail!("there is no figure {name:?}; the figures are: {}", names.join(", "));
        }
    }
    let asked = |figure: &str| match args.promised {
        true => promised::is_promised(figure),
        false => args.names.is_empty() || args.names.iter().any(|name| name == figure),
    };
    let plan = BenchPlan {
        effort: match args.rounds {
            Some(rounds) => Effort::Rounds(usize::try_from(rounds)?),
            None if args.quick => Effort::Quick,
            None => Effort::Full,
        },
        sessions: usize::try_from(args.sessions)?,
        start: args.start,
    };
    if args.peers {
        peers::install_bwrap()?;
        kernels::install_python()?;
    }
    if !args.json {
        println!("{}", figure::HEADING);
    }
    let chosen = benches().filter(|bench| bench.figures.iter().any(|name| asked(name)));
    let measures = chosen.map(|bench| bench.measure);
    let peers: &[Measure] = if args.peers { &[peers::bwrap_pythons, peers::jupyter] } else { &[] };
    let mut verdict = RunVerdict::Good;
    let mut taken = Vec::new();
    for (measure, is_peer) in
        measures.map(|own| (own, false)).chain(peers.iter().map(|peer| (*peer, true)))
    {
        // Figures are printed one by one, so a long run shows its progress. After a failure the other
        // measurements run.
        match measure(&plan) {
            Ok(figures) => {
                for figure in
                    figures.into_iter().filter(|f| is_peer || args.promised || asked(&f.figure))
                {
                    print(&figure, args.json)?;
                    taken.push(figure);
                }
            }
            Err(error) => {
                eprintln!("error: {error:#}");
                verdict = RunVerdict::Bad;
            }
        }
    }
    match args.promised {
        true if promised::judge(&taken) == RunVerdict::Bad => Ok(RunVerdict::Bad),
        _ => Ok(verdict),
    }
}

/// Runs this command again as a release build. The client in this process is part of what is measured, so it
/// must be built like the node.
fn run_as_release() -> Result<RunVerdict> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--release", "--quiet", "--package", "xtask", "--"])
        .args(std::env::args_os().skip(1))
        .status()
        .context("cannot run cargo")?;
    Ok(if status.success() { RunVerdict::Good } else { RunVerdict::Bad })
}

fn print(figure: &Figure, json: bool) -> Result<()> {
    println!("{}", if json { figure.json()? } else { figure.row() });
    Ok(())
}
