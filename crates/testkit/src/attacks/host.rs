//! The host's side of the stage: one process outside of every sandbox, with services to reach and
//! memory to read. It notes whoever reaches it.

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

/// How long the host may take for a word.
const WAIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Host {
    child: Child,
    ask: Option<ChildStdin>,
    told: BufReader<ChildStdout>,
    contacts: PathBuf,
    contacts_seen: usize,
    /// Where its services are, by name.
    pub places: Map<String, Value>,
}

impl Host {
    /// Its sockets go into `home` and `base`, its notes into `place`.
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
            .context("cannot start the host's side of the stage")?;
        let (ask, told) = (child.stdin.take(), child.stdout.take());
        let told = BufReader::new(told.context("no output of the host")?);
        let mut host =
            Self { child, ask, told, contacts, contacts_seen: 0, places: Map::default() };
        host.places = serde_json::from_str(&host.line()?).context("the host's first word")?;
        Ok(host)
    }

    pub fn number(&self, name: &str) -> u32 {
        let number = self.places.get(name).and_then(Value::as_u64).unwrap_or_default();
        u32::try_from(number).unwrap_or_default()
    }

    /// Who reached the host since this was last asked.
    pub fn contacts(&mut self) -> anyhow::Result<Vec<String>> {
        self.ask("contacts")?;
        let text = fs::read_to_string(&self.contacts)?;
        let new = text.lines().skip(self.contacts_seen).map(str::to_owned).collect::<Vec<_>>();
        self.contacts_seen += new.len();
        Ok(new)
    }

    /// Ends the services that were added elsewhere than below a directory.
    pub fn end_services_but(&mut self, below: &Path) -> anyhow::Result<()> {
        self.ask(&format!("end {}", below.display()))
    }

    /// One more service of the host's, at a path where there was none.
    pub fn listen(&mut self, path: &Path) -> anyhow::Result<()> {
        self.ask(&format!("listen {}", path.display()))
    }

    fn ask(&mut self, what: &str) -> anyhow::Result<()> {
        let ask = self.ask.as_mut().context("the host ends")?;
        ask.write_all(format!("{what}\n").as_bytes()).context("the host is gone")?;
        ensure!(self.line()?.trim() == "noted", "the host says something else");
        Ok(())
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let wait = Timespec::try_from(WAIT)?;
        if self.told.buffer().is_empty() {
            let mut asked = [PollFd::new(self.told.get_ref(), PollFlags::IN)];
            if poll(&mut asked, Some(&wait))? == 0 {
                bail!("the host has not answered within {WAIT:?}");
            }
        }
        let mut line = String::new();
        ensure!(self.told.read_line(&mut line)? > 0, "the host has ended");
        Ok(line)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The end of its input is its end: it takes its sockets and queues away.
        self.ask = None;
        if !crate::processes::wait_gone(self.child.id(), WAIT) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
