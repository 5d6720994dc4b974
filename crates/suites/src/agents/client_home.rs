//! The home of one client: its own home directory, project and node. Runs programs there to their end. They
//! see no file and no variable of the user who runs the suite.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use windlass_testkit::{TestNode, processes};

/// How much of a program's output is read, from the end. No client prints more that a check needs.
const PRINTED_BYTES_MAX: u64 = 4 << 20;

/// The directories and the node of one client. Dropping it ends the node and all processes that are left.
#[derive(Debug)]
pub struct ClientHome {
    node: TestNode,
    path: OsString,
}

/// How a program ended, and what it printed.
#[derive(Debug)]
pub struct ProgramExit {
    pub cause: ClientExit,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Debug, Clone, Copy)]
pub enum ClientExit {
    Exited(ExitStatus),
    /// The program was killed because it took longer than this.
    TimedOut(Duration),
}

impl ProgramExit {
    pub fn is_success(&self) -> bool {
        matches!(self.cause, ClientExit::Exited(status) if status.success())
    }

    /// How the program ended and the last lines that it printed, for a failure message.
    pub fn summary(&self) -> String {
        let said = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let lines: Vec<&str> = said.trim().lines().rev().take(6).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        let how = match self.cause {
            ClientExit::Exited(status) => status.to_string(),
            ClientExit::TimedOut(limit) => format!("killed after {limit:?}"),
        };
        format!("{how}: {}", lines.join(" | "))
    }
}

impl ClientHome {
    /// Creates the directories. The client starts the node, as it does for a new user.
    pub fn prepare(program: &Path, node_bin: &Path) -> Result<Self> {
        let node = TestNode::builder(program).prepare()?;
        let mut path = OsString::new();
        let python = session_python();
        // The sessions' Python comes first, because the directory of `node` also has a Python.
        for directory in python.parent().into_iter().chain([node_bin]) {
            path.push(directory);
            path.push(":");
        }
        path.push("/usr/bin:/bin");
        let home = Self { node, path };
        fs::create_dir(home.home_dir())?;
        fs::create_dir(home.project())?;
        Ok(home)
    }

    pub fn node(&self) -> &TestNode {
        &self.node
    }

    pub fn home_dir(&self) -> PathBuf {
        self.node.base().join("home")
    }

    /// The working directory of the client.
    pub fn project(&self) -> PathBuf {
        self.node.base().join("project")
    }

    /// A command in the client's project, with none of this process's environment variables.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .env_clear()
            .env("PATH", &self.path)
            .env("HOME", self.home_dir())
            .env("LANG", "C.UTF-8")
            .env("WINDLASS_RUNTIME_DIR", &self.node.dirs().runtime)
            .env("WINDLASS_STATE_DIR", &self.node.dirs().state)
            .current_dir(self.project());
        command
    }

    /// Runs a command to its end. After `limit` the command and its descendants are killed.
    pub async fn run(&self, mut command: Command, limit: Duration) -> Result<ProgramExit> {
        // Output goes to files: a process that stays behind would hold a pipe open.
        let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let shown = Path::new(command.get_program()).display().to_string();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot run {shown}"))?;
        let pid = child.id();
        let waited = tokio::task::spawn_blocking(move || processes::wait_gone(pid, limit));
        let cause = if waited.await? {
            ClientExit::Exited(child.wait()?)
        } else {
            let mut pids = processes::descendants(pid);
            pids.push(pid);
            pids.iter().for_each(|pid| processes::kill(*pid));
            child.wait()?;
            ClientExit::TimedOut(limit)
        };
        Ok(ProgramExit { cause, stdout: end_of(&mut stdout)?, stderr: end_of(&mut stderr)? })
    }
}

/// The Python of the sessions: one with matplotlib if a variable names one, so that the plot check runs.
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
