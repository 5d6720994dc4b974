//! The host side of the stage: one process outside of every sandbox, with services to reach and memory to
//! read. It records every contact.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value};

use crate::python;

const PROGRAM: &str = include_str!("../../attacks/common/host.py");

/// How long the host may take to reply.
const WAIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct StageHost {
    child: Child,
    ask: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    contacts: PathBuf,
    contacts_seen: usize,
    /// The addresses of its services, by name.
    pub places: Map<String, Value>,
}

impl StageHost {
    /// The host creates its sockets in `home` and `base`, and its contact log in `place`.
    pub fn start(place: &Path, home: &Path, base: &Path, secret: &str) -> anyhow::Result<Self> {
        let (program, contacts) = (place.join("host.py"), place.join("contacts"));
        fs::write(&program, PROGRAM)?;
        fs::write(&contacts, "")?;
        let mut child = Command::new(python())
            .args([&program, &contacts])
            .args([home, base])
            .env("STAGE_SECRET", secret)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the host side of the stage")?;
        let (ask, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.context("no output of the host")?);
        let mut host =
            Self { child, ask, output, contacts, contacts_seen: 0, places: Map::default() };
        host.places = serde_json::from_str(&host.line()?)
            .context("the first line of the host is not JSON")?;
        Ok(host)
    }

    pub fn number(&self, name: &str) -> u32 {
        let number = self.places.get(name).and_then(Value::as_u64).unwrap_or_default();
        u32::try_from(number).unwrap_or_default()
    }

    /// The contacts since the last call.
    pub fn contacts(&mut self) -> anyhow::Result<Vec<String>> {
        self.ask("contacts")?;
        let text = fs::read_to_string(&self.contacts)?;
        let new = text.lines().skip(self.contacts_seen).map(str::to_owned).collect::<Vec<_>>();
        self.contacts_seen += new.len();
        Ok(new)
    }

    /// Ends the added services, except those below a directory.
    pub fn end_services_but(&mut self, below: &Path) -> anyhow::Result<()> {
        self.ask(&format!("end {}", below.display()))
    }

    /// Adds a service of the host at a new path.
    pub fn listen(&mut self, path: &Path) -> anyhow::Result<()> {
        self.ask(&format!("listen {}", path.display()))
    }

    fn ask(&mut self, what: &str) -> anyhow::Result<()> {
        let ask = self.ask.as_mut().context("the host is ending")?;
        ask.write_all(format!("{what}\n").as_bytes()).context("the host is gone")?;
        ensure!(self.line()?.trim() == "noted", "the host replied something unexpected");
        Ok(())
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let wait = Timespec::try_from(WAIT)?;
        if self.output.buffer().is_empty() {
            let mut watched = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            if poll(&mut watched, Some(&wait))? == 0 {
                bail!("the host did not reply within {WAIT:?}");
            }
        }
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the host has ended");
        Ok(line)
    }
}

impl Drop for StageHost {
    fn drop(&mut self) {
        // The host exits at the end of its input, and removes its sockets and queues.
        self.ask = None;
        if !crate::processes::wait_gone(self.child.id(), WAIT) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
