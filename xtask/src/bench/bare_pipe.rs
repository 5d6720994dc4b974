//! `bare_pipe`, the baseline of a warm turn: a Python loop that reads lines from a pipe, evaluates each, and
//! writes the result to another pipe. No tool that runs code in another process can be faster. [`BareLoop`]
//! is the same for any interpreter.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::figure::Figure;
use super::{BenchPlan, python};
use crate::machine::pss_mib;

/// The code of the Python loop, as short as possible.
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
    BareLoop::python().round_trips(rounds)
}

/// How to run an interpreter as a loop at the other end of two pipes.
pub struct BareLoop {
    /// Starts the loop.
    pub command: Command,
    /// One line of input, and the line that the loop answers.
    pub line: &'static str,
    pub answer: &'static str,
}

impl BareLoop {
    pub fn python() -> Self {
        let mut command = python::command();
        command.args(["-I", "-S", "-c", LOOP]);
        Self { command, line: "1+1\n", answer: "2\n" }
    }

    /// The times of warm round trips, in a new process.
    pub fn round_trips(&mut self, rounds: usize) -> Result<Vec<Duration>> {
        let mut pipe = Pipe::start(self)?;
        for _ in 0..WARM_UP_ROUNDS {
            pipe.round_trip(self)?;
        }
        (0..rounds).map(|_| pipe.round_trip(self)).collect()
    }

    /// The memory of a new process that has answered once and waits for input.
    pub fn idle_mib(&mut self) -> Result<f64> {
        let mut pipe = Pipe::start(self)?;
        pipe.round_trip(self)?;
        pss_mib(pipe.process.0.id())
    }
}

/// The process of a loop. Dropping it ends the process.
pub struct LoopProcess(Child);

impl LoopProcess {
    /// Starts the loop and returns it with its two pipes.
    pub fn start(of: &mut BareLoop) -> Result<(Self, ChildStdin, ChildStdout)> {
        let command = of.command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let this = Self(child);
        let (stdin, stdout) = pipes.context("the loop has no pipes")?;
        Ok((this, stdin, stdout))
    }
}

impl Drop for LoopProcess {
    fn drop(&mut self) {
        // Fails only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The loop with its two pipes.
struct Pipe {
    process: LoopProcess,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    answer: String,
}

impl Pipe {
    fn start(of: &mut BareLoop) -> Result<Self> {
        let (process, stdin, stdout) = LoopProcess::start(of)?;
        Ok(Self { process, stdin, stdout: BufReader::new(stdout), answer: String::new() })
    }

    fn round_trip(&mut self, of: &BareLoop) -> Result<Duration> {
        self.answer.clear();
        let started = Instant::now();
        self.stdin.write_all(of.line.as_bytes())?;
        self.stdout.read_line(&mut self.answer)?;
        let took = started.elapsed();
        ensure!(self.answer == of.answer, "the loop answered {:?}", self.answer);
        Ok(took)
    }
}
