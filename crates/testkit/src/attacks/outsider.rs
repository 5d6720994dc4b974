//! A program outside of every sandbox: a client of the node that asks for too much, or another user of
//! the machine. It ends with its standard input.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::program::OutsideUser;
use crate::{processes, python};

/// How long the program may take to say how it went.
const WAIT: Duration = Duration::from_secs(30);

/// How long it may take to end.
const END_WAIT: Duration = Duration::from_secs(10);

/// The user that nothing belongs to.
pub(super) const ANOTHER_USER: u32 = 65534;

/// A line begins so, once the program has something to say.
const WORDS: [&str; 3] = ["planted: ", "refused: ", "through: "];

/// A running program. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Outsider {
    child: Child,
    told: BufReader<ChildStdout>,
}

impl Outsider {
    pub fn start(program: &Path, directory: &Path, user: OutsideUser) -> anyhow::Result<Self> {
        let mut command = Command::new(python());
        command.arg(program).current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        if user == OutsideUser::Another {
            command.uid(ANOTHER_USER).gid(ANOTHER_USER);
        }
        let mut child = command.spawn().context("cannot start a program outside")?;
        let told = child.stdout.take().context("no output of a program outside")?;
        Ok(Self { child, told: BufReader::new(told) })
    }

    /// The line in which it says how it went.
    pub fn word(&mut self) -> anyhow::Result<String> {
        let until = Instant::now() + WAIT;
        loop {
            let line = self.line(until)?;
            if WORDS.iter().any(|word| line.starts_with(word)) {
                return Ok(line.trim().to_owned());
            }
        }
    }

    fn line(&mut self, until: Instant) -> anyhow::Result<String> {
        if self.told.buffer().is_empty() {
            let wait = Timespec::try_from(until.saturating_duration_since(Instant::now()))?;
            let mut asked = [PollFd::new(self.told.get_ref(), PollFlags::IN)];
            if poll(&mut asked, Some(&wait))? == 0 {
                bail!("a program outside has said nothing within {WAIT:?}");
            }
        }
        let mut line = String::new();
        if self.told.read_line(&mut line)? == 0 {
            bail!("a program outside has ended without a word");
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
