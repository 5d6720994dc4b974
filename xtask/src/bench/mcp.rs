//! Figures of `windlass mcp`, the bridge between agents and the node:
//!
//! - `mcp_tools_list`: the time from its start to its list of tools, without a node.
//! - `mcp_turn`: a warm turn through the bridge. The baseline is the same turn through the client crate.
//! - `mcp_added_latency`: the difference between the two, in pairs.
//! - `mcp_bridge_mib`: the proportional set size of the bridge after the turns.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use windlass_testkit::TestNode;

use super::figure::{Figure, millis};
use super::node::{BenchNode, block_on, program};
use super::{BenchPlan, python};
use crate::machine::pss_mib;

const STARTS: usize = 40;
const ROUNDS: usize = 4000;
const WARM_UP_ROUNDS: usize = 300;

/// A `windlass mcp` process and its JSON-RPC connection.
struct Bridge {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    last: u64,
}

impl Bridge {
    /// Starts a bridge for a node and initializes the MCP connection.
    fn start(node: &TestNode) -> Result<Self> {
        let mut child = Command::new(node.program())
            .args(["mcp", "--python"])
            .arg(python::path())
            .env("WINDLASS_RUNTIME_DIR", &node.dirs().runtime)
            .env("WINDLASS_STATE_DIR", &node.dirs().state)
            .current_dir(node.base())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut bridge = Self { child, input, output, last: 0 };
        let client = json!({"name": "bench", "version": "1"});
        let hello =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        bridge.ask("initialize", hello)?;
        bridge.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(bridge)
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}))?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let mut answer: Value = serde_json::from_str(&line)?;
        ensure!(answer["id"] == self.last, "the bridge answered {line}");
        Ok(answer["result"].take())
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        Ok(self.input.write_all(format!("{message}\n").as_bytes())?)
    }

    fn run(&mut self, code: &str) -> Result<Value> {
        self.ask("tools/call", json!({"name": "run", "arguments": {"code": code}}))
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn starts(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let absent_node = TestNode::builder(program()?).prepare()?;
    let mut times = Vec::new();
    for _ in 0..plan.rounds(STARTS) {
        let started = Instant::now();
        let mut bridge = Bridge::start(&absent_node)?;
        let listed = bridge.ask("tools/list", json!({}))?;
        times.push(started.elapsed());
        ensure!(listed["tools"].as_array().is_some_and(|tools| !tools.is_empty()), "no tools");
    }
    ensure!(!absent_node.dirs().socket().exists(), "tools/list started a node, but must not");
    Ok(vec![Figure::of_times("mcp_tools_list", &times)])
}

pub fn turns(plan: &BenchPlan) -> Result<Vec<Figure>> {
    block_on(async {
        let bench = BenchNode::start().await?;
        let mut bridge = Bridge::start(&bench.node)?;
        let session = bench.session().await?;
        let (mut by_bridge, mut by_client) = (Vec::new(), Vec::new());
        for round in 0..WARM_UP_ROUNDS + plan.rounds(ROUNDS) {
            let started = Instant::now();
            let answer = bridge.run("1+1")?;
            let bridged = started.elapsed();
            ensure!(answer["structuredContent"]["output"] == "2\n", "the turn answered {answer}");
            let started = Instant::now();
            bench.run(&session, "1+1").await?;
            let direct = started.elapsed();
            if round >= WARM_UP_ROUNDS {
                by_bridge.push(bridged);
                by_client.push(direct);
            }
        }
        let added: Vec<f64> =
            by_bridge.iter().zip(&by_client).map(|(a, b)| difference(*a, *b)).collect();
        Ok(vec![
            Figure::of_times("mcp_turn", &by_bridge).beside(&millis(&by_client)),
            Figure::of("mcp_added_latency", "ms", &added),
            Figure::of("mcp_bridge_mib", "MiB", &[pss_mib(bridge.child.id())?]),
        ])
    })
}

fn difference(long: Duration, short: Duration) -> f64 {
    (long.as_secs_f64() - short.as_secs_f64()) * 1000.0
}
