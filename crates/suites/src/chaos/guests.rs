//! Clients that are separate programs: an agent that uses `windlass mcp`, and both SDKs. Each is a script
//! that counts in sessions and prints JSON lines. This module decides which lines are violations, because it
//! knows the faults. A guest that cannot run on this machine is reported as skipped.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tokio::task::JoinHandle;
use windlass_testkit::{processes, python};

use super::chaos_node::{self, ChaosNode};
use super::raw_http::NodeEndpoint;
use super::world::World;
use crate::workspace;

const PYTHON_SDK: &str = include_str!("guests/python_sdk.py");
const TYPESCRIPT_SDK: &str = include_str!("guests/typescript_sdk.mjs");
const MCP: &str = include_str!("guests/mcp.py");

/// How long a guest may take to close its session and exit.
const END_MAX: Duration = Duration::from_secs(60);

/// Error codes of an SDK when the node is down for longer than the SDK repeats requests, or when the
/// connection is cut.
const AWAY: [&str; 5] =
    ["unreachable", "connection_lost", "shutting_down", "overloaded", "timeout"];

#[derive(Debug)]
pub struct Guests {
    running: Vec<Guest>,
}

#[derive(Debug)]
struct Guest {
    name: &'static str,
    child: Child,
    reading: JoinHandle<()>,
}

/// The kinds of worker that guests of the Python SDK count with, and the program that each needs.
const KINDS: [(&str, &str); 5] = [
    ("python", "python3"),
    ("shell", "bash"),
    ("r", "R"),
    ("node", "node"),
    ("jupyter:python3", "python3"),
];

/// Starts every guest that can run here, and `per_kind` guests more for each kind of worker.
pub fn start(
    world: &Arc<World>,
    node: &ChaosNode,
    program: &Path,
    per_kind: usize,
) -> Result<Guests> {
    let mut running = Vec::new();
    let seed = world.seed.to_string();
    let sdk = workspace::root().join("sdk/python/src");
    match sdk.join("windlass/__init__.py").is_file() {
        true => {
            let counting = |name: &'static str, worker: &str, number: usize| {
                let mut command = Command::new(python());
                let seed = format!("{seed}-{number}");
                command.args(["-c", PYTHON_SDK, &seed, worker]).env("PYTHONPATH", &sdk);
                guest(world, node, name, command)
            };
            running.push(counting("python sdk", "python", 0)?);
            for (worker, program) in KINDS.iter().filter(|_| per_kind > 0) {
                if let Some(why) = missing(worker, program) {
                    skipped(world, worker, &why);
                    continue;
                }
                for number in 1..=per_kind {
                    running.push(counting(worker, worker, number)?);
                }
            }
        }
        false => skipped(world, "python sdk", "sdk/python is missing in this workspace"),
    }
    let mut command = Command::new(python());
    command.args(["-c", MCP, &seed]).arg(program);
    running.push(guest(world, node, "mcp", command)?);
    match typescript() {
        Ok(module) => {
            let mut command = Command::new("node");
            command.args(["--input-type=module", "--eval", TYPESCRIPT_SDK, "--", &seed]);
            command.arg(module);
            // This guest uses the TCP door.
            if let NodeEndpoint::Tcp { address, token } = node.tcp()? {
                command.env("WINDLASS_URL", format!("http://{address}"));
                command.env("WINDLASS_TOKEN", token);
            }
            running.push(guest(world, node, "typescript sdk", command)?);
        }
        Err(reason) => skipped(world, "typescript sdk", &reason),
    }
    Ok(Guests { running })
}

/// The SDK's module, as `cargo xtask sdk typescript` builds it.
fn typescript() -> Result<PathBuf, String> {
    let sdk = workspace::root().join("sdk/typescript");
    if workspace::output_of(Command::new("node").arg("--version")).is_err() {
        return Err("node (Node.js) is not installed".to_owned());
    }
    let module = sdk.join("dist/index.js");
    let ready = module.is_file() && sdk.join("node_modules/ws").is_dir();
    let reason = "sdk/typescript is not built; `cargo xtask sdk typescript` builds it";
    ready.then_some(module).ok_or_else(|| reason.to_owned())
}

/// Why sessions of a kind cannot start here.
fn missing(worker: &str, program: &str) -> Option<String> {
    if worker.starts_with("jupyter") && chaos_node::kernels().is_none() {
        return Some(format!("{} is not set", chaos_node::JUPYTER_VARIABLE));
    }
    workspace::output_of(Command::new(program).arg("--version"))
        .is_err()
        .then(|| format!("no {program} on PATH"))
}

fn skipped(world: &World, name: &str, reason: &str) {
    println!("skipped: {name}: {reason}");
    world.ledger.count(&format!("skipped {name}"));
}

fn guest(
    world: &Arc<World>,
    node: &ChaosNode,
    name: &'static str,
    mut command: Command,
) -> Result<Guest> {
    let work = tempfile::Builder::new()
        .prefix(&name.replace([' ', ':'], "-"))
        .tempdir_in(node.directory.path())?
        .keep();
    let mut child = command
        .env("WINDLASS_RUNTIME_DIR", &node.node.dirs().runtime)
        .env("WINDLASS_STATE_DIR", &node.node.dirs().state)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(work)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take();
    let world = Arc::clone(world);
    // Ends when the guest closes its output.
    let reading = tokio::task::spawn_blocking(move || {
        for line in stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
            let Ok(line) = line else { return };
            judge_line(&world, name, &line);
        }
    });
    Ok(Guest { name, child, reading })
}

/// Judges one line that a guest printed.
fn judge_line(world: &World, name: &str, line: &str) {
    let said: Value = serde_json::from_str(line).unwrap_or_default();
    let disk = world.disk.ever() && said["code"] == "disk_full";
    let starved = world.scarcity.ever();
    if let Some(text) = said["violation"].as_str() {
        // If processes are limited, a worker may be unable to start again, and its session counts from the
        // beginning.
        if !starved {
            world.ledger.violation(name, "count", text);
        }
    } else if let Some(outcome) = said["turn"].as_str() {
        world.ledger.count("turns");
        world.ledger.count(&format!("turns by {name}"));
        if outcome != "ok" && !disk && !starved {
            world.ledger.violation(name, "outcome", line);
        }
    } else if let Some(code) = said["raised"].as_str() {
        world.ledger.count(&format!("{name} raised {code}"));
        let away = AWAY.contains(&code) && (world.node.ever() || world.limits.ever());
        let full = world.disk.ever() && (code == "disk_full" || line.contains("disk_full"));
        if !away && !full && !starved && !world.limits.ever() {
            world.ledger.violation(name, "raised", line);
        }
    } else {
        world.ledger.violation(name, "guest", line);
    }
}

impl Guests {
    /// Ends all guests by closing their input. A guest that does not end is killed, which is a violation.
    pub async fn finish(self, world: &World) {
        for Guest { name, mut child, reading } in self.running {
            drop(child.stdin.take());
            if tokio::time::timeout(END_MAX, reading).await.is_err() {
                world.ledger.violation(name, "hang", &format!("still running after {END_MAX:?}"));
                for pid in processes::descendants(child.id()) {
                    processes::kill(pid);
                }
                let _ = child.kill();
            }
            match child.wait() {
                Ok(status) if status.success() => {}
                other => world.ledger.violation(
                    name,
                    "guest",
                    &format!("the guest ended with {other:?}"),
                ),
            }
        }
    }
}
