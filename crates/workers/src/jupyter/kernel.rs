//! The kernel as a child process: starts it in a process group of its own, signals it, and sees its end.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use windlass_kernelspecs::KernelSpec;
use windlass_worker_kit::FD_VARIABLE;

/// Names the process whose end ends ipykernel. Without it, ipykernel prints a note for people.
const PARENT_VARIABLE: &str = "JPY_PARENT_PID";

/// IPython's directory for settings and history. IPython warns on standard error if it cannot write there.
const IPYTHON_VARIABLE: &str = "IPYTHONDIR";

/// The process of a kernel. Its standard output and standard error are the worker's raw pipes.
#[derive(Debug)]
pub struct KernelProcess {
    child: Child,
    group: Pid,
    is_stopped: bool,
}

/// Whether IPython can use the directory that it is told, or its usual one.
fn has_ipython_dir() -> bool {
    if std::env::var_os(IPYTHON_VARIABLE).is_some() {
        return true;
    }
    let Some(home) = std::env::home_dir() else { return false };
    let usual = home.join(".ipython");
    let place = if usual.exists() { usual } else { home };
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK).is_ok()
}

impl KernelProcess {
    /// Starts the kernel. The keeper's SIGINT reaches only the worker's own process group, so the kernel gets
    /// exactly the interrupts that the worker passes on.
    pub fn start(spec: &KernelSpec, connection_file: &Path) -> io::Result<Self> {
        let command = spec.command(&connection_file.to_string_lossy());
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the argv is empty"));
        };
        let mut child = Command::new(program);
        if !has_ipython_dir() {
            let private = connection_file.with_file_name("ipython");
            child.env(IPYTHON_VARIABLE, private);
        }
        let child = child
            .args(arguments)
            .envs(spec.environment(|name| std::env::var(name).ok()))
            .env(PARENT_VARIABLE, std::process::id().to_string())
            .env_remove(FD_VARIABLE)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let group = group.ok_or_else(|| io::Error::other("the kernel has no process id"))?;
        Ok(Self { child, group, is_stopped: false })
    }

    /// Waits until the process has ended. Cancelling loses nothing.
    pub async fn ended(&mut self) -> ExitStatus {
        match self.child.wait().await {
            Ok(status) => status,
            // The kernel has no other parent that could have taken its status.
            Err(_) => std::future::pending().await,
        }
    }

    pub fn signal(&self, signal: Signal) {
        // Fails only if the whole group has ended.
        let _ = kill_process_group(self.group, signal);
    }

    /// Stops or continues the kernel's process group.
    pub fn set_stopped(&mut self, stopped: bool) {
        if self.is_stopped != stopped {
            self.is_stopped = stopped;
            self.signal(if stopped { Signal::STOP } else { Signal::CONT });
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Kills the process group and waits for the end of the kernel.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }
}
