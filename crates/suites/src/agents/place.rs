//! Where one client works: a home, a project and a node of its own, and how a program is run there
//! to its end. Nothing of the user's is seen from there.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use windlass_testkit::{TestNode, processes};

/// The end of what a program printed; no client of these tests prints more that matters.
const PRINTED_BYTES_MAX: u64 = 4 << 20;

/// One client's surroundings. Dropping it ends the node, and whatever else is left.
#[derive(Debug)]
pub struct Place {
    node: TestNode,
    path: OsString,
}

/// How a program ended, and what it printed until then.
#[derive(Debug)]
pub struct Ended {
    pub how: How,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Debug, Clone, Copy)]
pub enum How {
    ByItself(ExitStatus),
    /// It took longer than this, and was killed.
    Late(Duration),
}

impl Ended {
    pub fn is_well(&self) -> bool {
        matches!(self.how, How::ByItself(status) if status.success())
    }

    /// The last lines of what it said, for a complaint.
    pub fn last_words(&self) -> String {
        let said = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let lines: Vec<&str> = said.trim().lines().rev().take(6).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        let how = match self.how {
            How::ByItself(status) => status.to_string(),
            How::Late(patience) => format!("not ended within {patience:?}"),
        };
        format!("{how}: {}", lines.join(" | "))
    }
}

impl Place {
    /// Directories only: the node is the client's to start, as with every new user.
    pub fn prepare(program: &Path, node_bin: &Path) -> Result<Self> {
        let node = TestNode::builder(program).prepare()?;
        let mut path = OsString::new();
        let python = session_python();
        // The sessions' Python first: beside `node` there is one too.
        for directory in python.parent().into_iter().chain([node_bin]) {
            path.push(directory);
            path.push(":");
        }
        path.push("/usr/bin:/bin");
        let place = Self { node, path };
        fs::create_dir(place.home())?;
        fs::create_dir(place.project())?;
        Ok(place)
    }

    pub fn node(&self) -> &TestNode {
        &self.node
    }

    pub fn home(&self) -> PathBuf {
        self.node.base().join("home")
    }

    /// Where the client is started.
    pub fn project(&self) -> PathBuf {
        self.node.base().join("project")
    }

    /// A command with an environment of the place's own, in its project.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .env_clear()
            .env("PATH", &self.path)
            .env("HOME", self.home())
            .env("LANG", "C.UTF-8")
            .env("WINDLASS_RUNTIME_DIR", &self.node.dirs().runtime)
            .env("WINDLASS_STATE_DIR", &self.node.dirs().state)
            .current_dir(self.project());
        command
    }

    /// Runs a command to its end, and no longer than `patience`: then it is killed, with all that
    /// it started.
    pub async fn run(&self, mut command: Command, patience: Duration) -> Result<Ended> {
        // Files, since a process that stays behind would hold a pipe open.
        let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let shown = Path::new(command.get_program()).display().to_string();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot run {shown}"))?;
        let pid = child.id();
        let waited = tokio::task::spawn_blocking(move || processes::wait_gone(pid, patience));
        let how = if waited.await? {
            How::ByItself(child.wait()?)
        } else {
            let mut pids = processes::descendants(pid);
            pids.push(pid);
            pids.iter().for_each(|pid| processes::kill(*pid));
            child.wait()?;
            How::Late(patience)
        };
        Ok(Ended { how, stdout: end_of(&mut stdout)?, stderr: end_of(&mut stderr)? })
    }
}

/// The Python of the sessions: one with matplotlib where the tests have one, so that plots are
/// plots.
pub fn session_python() -> PathBuf {
    std::env::var_os("WINDLASS_TEST_MATPLOTLIB_PYTHON")
        .map_or_else(windlass_testkit::python, PathBuf::from)
}

fn end_of(file: &mut File) -> Result<String> {
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(PRINTED_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(PRINTED_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
