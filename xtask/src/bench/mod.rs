//! `cargo xtask bench`: figures with their baselines, measured in one run on one machine. Each
//! figure has a file of its own; this module chooses, runs and prints.

mod bare_pipe;
mod bombs;
mod confined;
mod density;
mod fairness;
mod figure;
mod first_answer;
mod fork_live;
mod interrupt;
mod mcp;
mod memory;
mod node;
mod output;
mod peers;
mod promised;
mod python;
mod recovery;
mod throughput;
mod tools;
mod turn_cpu;
mod warm_turn;

use std::process::Command;

use anyhow::{Context, Result, bail};

use self::figure::Figure;
use crate::Verdict;
use crate::start::StartBy;

/// A measurement: the figures it gives and how it takes them.
struct Bench {
    figures: &'static [&'static str],
    measure: Measure,
}

type Measure = fn(&Plan) -> Result<Vec<Figure>>;

/// Every measurement, in the order they run.
const BENCHES: &[Bench] = &[
    Bench { figures: &["bare_pipe"], measure: bare_pipe::measure },
    Bench { figures: &["warm_turn", "warm_turn_followed"], measure: warm_turn::measure },
    Bench {
        figures: &["turn_cpu_us", "turn_cpu_worker_us", "turn_cpu_node_us", "turn_cpu_keeper_us"],
        measure: turn_cpu::measure,
    },
    Bench { figures: &["turns_per_s_1"], measure: throughput::one },
    Bench { figures: &["turns_per_s_10"], measure: throughput::ten },
    Bench { figures: &["turns_per_s_100"], measure: throughput::hundred },
    Bench { figures: &["first_answer_exec", "first_answer_exec_np"], measure: first_answer::exec },
    Bench {
        figures: &["first_answer_zygote", "first_answer_zygote_np"],
        measure: first_answer::zygote,
    },
    Bench {
        figures: &["first_answer_pool", "first_answer_pool_np", "first_answer_pool_np_own"],
        measure: first_answer::pool,
    },
    Bench { figures: &["fork_live"], measure: fork_live::measure },
    Bench {
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
    Bench {
        figures: &["confined_first_answer", "confined_added", "bwrap_exec"],
        measure: confined::first_answers,
    },
    Bench { figures: &["confined_warm_turn"], measure: confined::warm_turns },
    Bench { figures: &["interrupt_sleep", "interrupt_busy"], measure: interrupt::measure },
    Bench { figures: &["output_rate", "output_rss_growth_mib"], measure: output::measure },
    Bench { figures: &["kill_recovery", "kill_lost_bytes"], measure: recovery::measure },
    Bench { figures: &["session_mib", "node_mib"], measure: memory::measure },
    Bench {
        figures: &["tool_round_trip", "tool_950kb", "tool_38_concurrent"],
        measure: tools::measure,
    },
    Bench { figures: &["mcp_tools_list"], measure: mcp::starts },
    Bench { figures: &["mcp_turn", "mcp_added_latency", "mcp_bridge_mib"], measure: mcp::turns },
    Bench { figures: &["turn_beside_busy", "work_beside_busy"], measure: fairness::measure },
    Bench { figures: &["neighbour_quiet_p95", "neighbour_bombed_p95"], measure: bombs::measure },
];

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these figures
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// One JSON object a line instead of the table
    #[arg(long)]
    json: bool,
    /// Measure other tools beside: Jupyter, installed from PyPI into a virtual environment, and
    /// bubblewrap, installed by apt-get if it is not there
    #[arg(long)]
    peers: bool,
    /// Only the figures of which something is promised; fails if a promise is not kept
    #[arg(long, conflicts_with_all = ["names", "quick"])]
    promised: bool,
    /// Sessions of idle_session_* and sessions_answering*
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: u32,
    /// How the sessions of idle_session_*, sessions_answering* and fork_live start
    #[arg(long, value_enum, default_value_t = StartBy::Pool)]
    start: StartBy,
    /// Fewer rounds: shows that it works, not how well
    #[arg(long)]
    quick: bool,
    /// So many rounds instead of each figure's own number, as in `kill_recovery --rounds 1000`
    #[arg(long, conflicts_with_all = ["promised", "quick"], value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: Option<u32>,
}

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    effort: Effort,
    sessions: usize,
    start: StartBy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    Quick,
    Full,
    Rounds(usize),
}

impl Plan {
    /// `full` rounds, a tenth of them in a quick run, or as many as were asked for.
    fn rounds(self, full: usize) -> usize {
        match self.effort {
            Effort::Full => full,
            Effort::Quick => (full / 10).max(1),
            Effort::Rounds(rounds) => rounds,
        }
    }
}

pub fn run(args: &Args) -> Result<Verdict> {
    if cfg!(debug_assertions) {
        return run_as_release();
    }
    let known = || BENCHES.iter().flat_map(|bench| bench.figures);
    for name in &args.names {
        if !known().any(|figure| figure == name) {
            let names: Vec<&str> = known().copied().collect();
            bail!("no figure is called {name:?}; there are: {}", names.join(", "));
        }
    }
    let asked = |figure: &str| match args.promised {
        true => promised::is_promised(figure),
        false => args.names.is_empty() || args.names.iter().any(|name| name == figure),
    };
    let plan = Plan {
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
    }
    if !args.json {
        println!("{}", figure::HEADING);
    }
    let chosen = BENCHES.iter().filter(|bench| bench.figures.iter().any(|name| asked(name)));
    let measures = chosen.map(|bench| bench.measure);
    let peers: &[Measure] = if args.peers { &[peers::bwrap_pythons, peers::jupyter] } else { &[] };
    let mut verdict = Verdict::Good;
    let mut taken = Vec::new();
    for (measure, is_peer) in
        measures.map(|own| (own, false)).chain(peers.iter().map(|peer| (*peer, true)))
    {
        // Printed one by one: a long run shows how far it is. One that fails takes none with it.
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
                verdict = Verdict::Bad;
            }
        }
    }
    match args.promised {
        true if promised::judge(&taken) == Verdict::Bad => Ok(Verdict::Bad),
        _ => Ok(verdict),
    }
}

/// The client in this process is half of what is measured, so it is built like the node is.
fn run_as_release() -> Result<Verdict> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--release", "--quiet", "--package", "xtask", "--"])
        .args(std::env::args_os().skip(1))
        .status()
        .context("cannot run cargo")?;
    Ok(if status.success() { Verdict::Good } else { Verdict::Bad })
}

fn print(figure: &Figure, json: bool) -> Result<()> {
    println!("{}", if json { figure.json()? } else { figure.row() });
    Ok(())
}
