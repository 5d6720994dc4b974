//! The kernel as a child process: starts it in a process group of its own, signals it, and sees its end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use windlass_kernelspecs::KernelSpec;
use windlass_worker_kit::FD_VARIABLE;

/// The process of a kernel. Its standard output and standard error are the worker's raw pipes.
#[derive(Debug)]
pub struct KernelProcess {
    child: Child,
    group: Pid,
    end: AsyncFd<OwnedFd>,
    is_stopped: bool,
}

impl KernelProcess {
    /// Starts the kernel. The keeper's SIGINT reaches only the worker's own process group, so the kernel gets
    /// exactly the interrupts that the worker passes on.
    pub fn start(spec: &KernelSpec, connection_file: &Path) -> io::Result<Self> {
        let command = spec.command(&connection_file.to_string_lossy());
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the argv is empty"));
        };
        let mut child = Command::new(program)
            .args(arguments)
            .envs(spec.environment(|name| std::env::var(name).ok()))
            .env_remove(FD_VARIABLE)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
        match watch(&child) {
            Ok((group, end)) => Ok(Self { child, group, end, is_stopped: false }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Waits until the process has ended. Cancelling loses nothing.
    pub async fn ended(&mut self) -> ExitStatus {
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status;
            }
            if let Ok(mut ready) = self.end.readable().await
                && matches!(self.child.try_wait(), Ok(None))
            {
                ready.clear_ready();
            }
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

fn watch(child: &Child) -> io::Result<(Pid, AsyncFd<OwnedFd>)> {
    let group = Pid::from_child(child);
    let pidfd = pidfd_open(group, PidfdFlags::NONBLOCK)?;
    Ok((group, AsyncFd::with_interest(pidfd, Interest::READABLE)?))
}
