//! CPU load beside a test, for promises that must hold "under load".

use std::process::{Child, Command, Stdio};

/// Number of busy processes; the contract's definition of "under load".
const BUSY_PROCESSES: usize = 2;

/// Busy processes. Dropping it kills them.
#[derive(Debug)]
pub struct Load {
    busy: Vec<Child>,
}

impl Load {
    pub fn start() -> std::io::Result<Self> {
        let mut load = Self { busy: Vec::new() };
        for _ in 0..BUSY_PROCESSES {
            let busy = Command::new("/bin/sh")
                .args(["-c", "while :; do :; done"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            load.busy.push(busy);
        }
        Ok(load)
    }

    pub fn pids(&self) -> Vec<u32> {
        self.busy.iter().map(Child::id).collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for busy in &mut self.busy {
            let _ = busy.kill();
            let _ = busy.wait();
        }
    }
}
