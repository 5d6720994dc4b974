//! Clients that are programs of their own: an agent's MCP bridge, and both SDKs. Each is a script that counts
//! in sessions and tells what it saw; what a fault may cost is judged here. One that cannot run on this
//! machine is told as skipped.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tokio::task::JoinHandle;
use windlass_testkit::{processes, python};

use super::chaos_node::ChaosNode;
use super::http::Door;
use super::world::World;
use crate::workspace;

const PYTHON_SDK: &str = include_str!("guests/python_sdk.py");
const TYPESCRIPT_SDK: &str = include_str!("guests/typescript_sdk.mjs");
const MCP: &str = include_str!("guests/mcp.py");

/// How long a guest may take to end its session and itself.
const END_MAX: Duration = Duration::from_secs(60);

/// What an SDK says of a node that is away for longer than it repeats requests, or that is cut off.
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
    telling: JoinHandle<()>,
}

/// Starts every guest that can run here.
pub fn start(world: &Arc<World>, node: &ChaosNode, program: &Path) -> Result<Guests> {
    let mut running = Vec::new();
    let seed = world.seed.to_string();
    let sdk = workspace::root().join("sdk/python/src");
    match sdk.join("windlass/__init__.py").is_file() {
        true => {
            let mut command = Command::new(python());
            command.args(["-c", PYTHON_SDK, &seed]).env("PYTHONPATH", &sdk);
            running.push(guest(world, node, "python sdk", command)?);
        }
        false => skipped(world, "python sdk", "sdk/python is not beside this program"),
    }
    let mut command = Command::new(python());
    command.args(["-c", MCP, &seed]).arg(program);
    running.push(guest(world, node, "mcp", command)?);
    match typescript() {
        Ok(module) => {
            let mut command = Command::new("node");
            command.args(["--input-type=module", "--eval", TYPESCRIPT_SDK, "--", &seed]);
            command.arg(module);
            // The TCP door for this one.
            if let Door::Tcp { address, token } = node.tcp()? {
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
        return Err("there is no node".to_owned());
    }
    let module = sdk.join("dist/index.js");
    let ready = module.is_file() && sdk.join("node_modules/ws").is_dir();
    let reason = "sdk/typescript is not built; `cargo xtask sdk typescript` builds it";
    ready.then_some(module).ok_or_else(|| reason.to_owned())
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
    let work = node.place.path().join(name.replace(' ', "-"));
    std::fs::create_dir(&work)?;
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
    // Ends with the guest's output.
    let telling = tokio::task::spawn_blocking(move || {
        for line in stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
            let Ok(line) = line else { return };
            hear(&world, name, &line);
        }
    });
    Ok(Guest { name, child, telling })
}

/// Judges one line of a guest.
fn hear(world: &World, name: &str, line: &str) {
    let said: Value = serde_json::from_str(line).unwrap_or_default();
    let disk = world.disk.ever() && said["code"] == "disk_full";
    let starved = world.scarcity.ever();
    if let Some(text) = said["violation"].as_str() {
        // A session whose worker could not be started again counts from the beginning.
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
    /// Ends all guests: each by the end of its input, or by force and told.
    pub async fn finish(self, world: &World) {
        for Guest { name, mut child, telling } in self.running {
            drop(child.stdin.take());
            if tokio::time::timeout(END_MAX, telling).await.is_err() {
                world.ledger.violation(name, "hang", &format!("still there after {END_MAX:?}"));
                for pid in processes::descendants(child.id()) {
                    processes::kill(pid);
                }
                let _ = child.kill();
            }
            match child.wait() {
                Ok(status) if status.success() => {}
                other => world.ledger.violation(name, "guest", &format!("it ended {other:?}")),
            }
        }
    }
}
