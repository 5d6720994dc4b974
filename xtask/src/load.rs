//! Busy processes that put load on the machine during a run. Each ends when its standard input closes, so it
//! also ends when this process is killed.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use crate::RunVerdict;

/// "Under load" in the contract means this many busy-loop processes.
const BUSY_PROCESSES: usize = 2;

/// Busy processes, ended on drop.
#[derive(Debug)]
pub struct Load {
    children: Vec<Child>,
}

impl Load {
    pub fn start() -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut load = Self { children: Vec::new() };
        for _ in 0..BUSY_PROCESSES {
            let child = Command::new(&program)
                .arg("busy")
                .stdin(Stdio::piped())
                .spawn()
                .context("cannot start a busy process")?;
            load.children.push(child);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Fails only if the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The busy process itself.
pub fn spin_until_stdin_closes() -> Result<RunVerdict> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    std::thread::spawn(move || {
        let mut nothing = [0; 64];
        while std::io::stdin().read(&mut nothing).is_ok_and(|count| count > 0) {}
        seen.store(true, Ordering::Relaxed);
    });
    let mut turns = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        turns = std::hint::black_box(turns.wrapping_add(1));
    }
    Ok(RunVerdict::Good)
}
