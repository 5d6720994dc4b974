//! Checks the systemd units: systemd itself reads them, and a node takes the socket that systemd's own tool passes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Distribution, succeed};
use crate::workspace;

/// The program that listens for another one, as systemd does. It is part of systemd.
const ACTIVATE: &str = "systemd-socket-activate";

pub fn check(dist: &Distribution, tree: &Path) -> Result<()> {
    let verify = || Command::new("systemd-analyze");
    if verify().arg("--version").output().is_err() {
        println!("systemd units: skipped, because this machine has no systemd");
        return Ok(());
    }
    // The units name the program without a directory. systemd looks for it in the directories of the system.
    let units = dist.scratch.join("units");
    succeed(Command::new("cp").arg("-a").arg(tree.join("lib/systemd")).arg(&units))?;
    let program = tree.join("bin/windlass").display().to_string();
    for unit in ["user/windlass.service", "user/windlass.socket", "system/windlass.service"] {
        let path = units.join(unit);
        let text = std::fs::read_to_string(&path)?;
        std::fs::write(&path, text.replace("ExecStart=windlass", &format!("ExecStart={program}")))?;
        let of = if unit.starts_with("user/") { "--user" } else { "--system" };
        let checked = verify().args([of, "--man=no", "verify"]).arg(&path).output()?;
        let said = String::from_utf8_lossy(&checked.stderr);
        // Complaints about units of the machine name other files.
        let ours = said.lines().filter(|line| line.contains("windlass")).collect::<Vec<_>>();
        ensure!(ours.is_empty(), "{unit}: {}", ours.join("\n"));
    }
    activate(dist)
}

/// Runs a node with a socket that is passed on, and a session through that socket.
fn activate(dist: &Distribution) -> Result<()> {
    let base = tempfile::Builder::new().prefix("wl-").rand_bytes(6).tempdir_in("/tmp")?;
    let (runtime, state) = (base.path().join("r"), base.path().join("s"));
    std::fs::create_dir(&runtime)?;
    let with_dirs = |mut command: Command| {
        command.env("WINDLASS_RUNTIME_DIR", &runtime).env("WINDLASS_STATE_DIR", &state);
        command.env_remove("XDG_RUNTIME_DIR").current_dir(base.path());
        command
    };
    let mut listen = Command::new(ACTIVATE);
    listen.arg("--listen").arg(runtime.join("node.sock"));
    for name in ["WINDLASS_RUNTIME_DIR", "WINDLASS_STATE_DIR", "HOME", "PATH"] {
        listen.arg(format!("--setenv={name}"));
    }
    listen.arg(&dist.program).args(["node", "--foreground"]);
    listen.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut node = with_dirs(listen).spawn().context("cannot run systemd-socket-activate")?;
    // Its first words are that it listens.
    let mut said = std::io::BufReader::new(node.stderr.take().context("no standard error")?);
    std::io::BufRead::read_line(&mut said, &mut String::new())?;
    // The rest is read too, because a full pipe would stop the node.
    let drained = std::thread::spawn(move || std::io::read_to_string(said).unwrap_or_default());
    let windlass = |args: &[&str]| {
        let mut command = with_dirs(Command::new(&dist.program));
        workspace::output_of(command.args(args))
    };
    let answered = windlass(&["run", "-c", "print(6 * 7)"]);
    let down = windlass(&["down"]);
    if down.is_err() {
        node.kill()?;
    }
    let ended = node.wait()?;
    let log = drained.join().unwrap_or_default();
    ensure!(answered.as_ref().is_ok_and(|answer| answer.trim() == "42"), "{answered:?}\n{log}");
    ensure!(ended.success(), "the node ended with {ended}\n{log}");
    ensure!(
        runtime.join("node.sock").exists(),
        "the node removed the socket of its service manager"
    );
    println!("systemd units: valid; a node serves the socket that {ACTIVATE} passes");
    Ok(())
}
