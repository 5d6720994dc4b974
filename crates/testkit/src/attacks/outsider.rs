//! A program outside of every sandbox: a client that sends excessive requests, or another user of the
//! machine. It exits at the end of its standard input.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::program::OutsideUser;
use crate::{processes, python};

/// How long the program may take to print its result.
const WAIT: Duration = Duration::from_secs(30);

/// How long it may take to exit.
const END_WAIT: Duration = Duration::from_secs(10);

/// The user `nobody`.
pub(super) const ANOTHER_USER: u32 = 65534;

/// Prefixes of the line with the result.
const RESULT_PREFIXES: [&str; 3] = ["planted: ", "refused: ", "through: "];

/// A running program. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Outsider {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Outsider {
    pub fn start(program: &Path, directory: &Path, user: OutsideUser) -> anyhow::Result<Self> {
        let mut command = Command::new(python());
        command.arg(program).current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        if user == OutsideUser::Another {
            command.uid(ANOTHER_USER).gid(ANOTHER_USER);
        }
        let mut child = command.spawn().context("cannot start the outside program")?;
        let output = child.stdout.take().context("the outside program has no standard output")?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    /// Waits for the line with the result.
    pub fn result_line(&mut self) -> anyhow::Result<String> {
        let until = Instant::now() + WAIT;
        loop {
            let line = self.line(until)?;
            if RESULT_PREFIXES.iter().any(|prefix| line.starts_with(prefix)) {
                return Ok(line.trim().to_owned());
            }
        }
    }

    fn line(&mut self, until: Instant) -> anyhow::Result<String> {
        if self.output.buffer().is_empty() {
            let wait = Timespec::try_from(until.saturating_duration_since(Instant::now()))?;
            let mut watched = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            if poll(&mut watched, Some(&wait))? == 0 {
                bail!("the outside program printed no result within {WAIT:?}");
            }
        }
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the outside program exited without a result");
        }
        Ok(line)
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if !processes::wait_gone(self.child.id(), END_WAIT) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
