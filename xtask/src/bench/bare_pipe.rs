//! `bare_pipe`, the baseline of a warm turn: a Python loop that reads lines from a pipe, evaluates each, and
//! writes the result to another pipe. No tool that runs code in another process can be faster.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::figure::Figure;
use super::{BenchPlan, python};

/// The code of the loop, as short as possible.
const LOOP: &str = "import sys
for line in sys.stdin:
    print(eval(line), flush=True)
";

const ROUNDS: usize = 2000;

/// Rounds before the first measured round.
const WARM_UP_ROUNDS: usize = 200;

pub fn measure(plan: &BenchPlan) -> Result<Vec<Figure>> {
    let times = round_trips(plan.rounds(ROUNDS))?;
    Ok(vec![Figure::of_times("bare_pipe", &times)])
}

/// The times of warm round trips of `1+1`.
pub fn round_trips(rounds: usize) -> Result<Vec<Duration>> {
    let mut pipe = Pipe::start()?;
    for _ in 0..WARM_UP_ROUNDS {
        pipe.round_trip()?;
    }
    (0..rounds).map(|_| pipe.round_trip()).collect()
}

/// The process of the loop. Dropping it ends the process.
pub struct PythonLoop(Child);

impl PythonLoop {
    /// Starts the loop and returns it with its two pipes.
    pub fn start() -> Result<(Self, ChildStdin, ChildStdout)> {
        let mut child = python::command()
            .args(["-I", "-S", "-c", LOOP])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", python::path().display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let this = Self(child);
        let (stdin, stdout) = pipes.context("the loop has no pipes")?;
        Ok((this, stdin, stdout))
    }
}

impl Drop for PythonLoop {
    fn drop(&mut self) {
        // Fails only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The loop with its two pipes.
struct Pipe {
    _loop: PythonLoop,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    answer: String,
}

impl Pipe {
    fn start() -> Result<Self> {
        let (of, stdin, stdout) = PythonLoop::start()?;
        Ok(Self { _loop: of, stdin, stdout: BufReader::new(stdout), answer: String::new() })
    }

    fn round_trip(&mut self) -> Result<Duration> {
        self.answer.clear();
        let started = Instant::now();
        self.stdin.write_all(b"1+1\n")?;
        self.stdout.read_line(&mut self.answer)?;
        let took = started.elapsed();
        ensure!(self.answer == "2\n", "the loop answered {:?}", self.answer);
        Ok(took)
    }
}
