//! Isolates a run from the machine. When root starts the suite, this program runs itself again in new network
//! and mount namespaces, and then as an ordinary user if `--user` names one. The only lasting change to the
//! machine is that user, who is created if missing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, mount};

use crate::{RunVerdict, workspace};

/// The variable that names the small disk to the innermost run.
pub const DISK: &str = "WINDLASS_CHAOS_DISK";

/// The variable that tells a re-executed run its step.
pub const STEP: &str = "WINDLASS_CHAOS_STEP";

/// The disk is larger than what the node of one seed writes.
const DISK_OPTIONS: &str = "size=256m,mode=0700";

/// The directory for the programs and the disk. An ordinary user can reach it.
const PARENT: &str = "/srv";

/// A shell script that brings up the loopback interface and runs this program again.
const LOOPBACK_UP: &str = "ip link set lo up && exec \"$@\"";

/// The step of a run: it re-executes itself twice when root starts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReexecStep {
    /// The process that the user started.
    Outside,
    /// In new namespaces, as root.
    Namespaces,
    /// In the namespaces, as the user that runs nodes and clients.
    Player,
}

impl ReexecStep {
    pub fn now() -> Self {
        match std::env::var(STEP).as_deref() {
            Ok("namespaces") => Self::Namespaces,
            Ok("player") => Self::Player,
            _ => Self::Outside,
        }
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs the same command in new namespaces.
pub fn enter_namespaces(program: &Path) -> Result<RunVerdict> {
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private", "sh", "-c", LOOPBACK_UP, "sh"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(STEP, "namespaces")
        .env(workspace::BUILT, program)
        .status()
        .context("cannot run unshare")?;
    verdict(status.code())
}

/// Mounts the small disk and runs the same command again, as `user` if one is given.
pub fn enter_player(program: &Path, user: Option<&str>) -> Result<RunVerdict> {
    let directory = tempfile::Builder::new().prefix("wl-chaos-").tempdir_in(PARENT)?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let disk = directory.path().join("disk");
    fs::create_dir(&disk)?;
    let options = std::ffi::CString::new(DISK_OPTIONS)?;
    let mounted = mount("chaos", &disk, "tmpfs", MountFlags::NOSUID, Some(options.as_c_str()));
    if let Err(error) = &mounted {
        println!("skipped: disk: cannot mount a tmpfs: {error}");
    }
    let mut command = match user {
        None => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args_os().skip(1)).env(workspace::BUILT, program);
            command
        }
        Some(user) => as_user(user, program, directory.path(), &disk)?,
    };
    command.env(STEP, "player");
    if mounted.is_ok() {
        command.env(DISK, &disk);
    }
    let played = command.status().context("cannot run this program again");
    if mounted.is_ok() {
        let _ = rustix::mount::unmount(&disk, rustix::mount::UnmountFlags::DETACH);
    }
    verdict(played?.code())
}

fn as_user(user: &str, program: &Path, directory: &Path, disk: &Path) -> Result<Command> {
    if workspace::output_of(Command::new("id").arg(user)).is_err() {
        let make = ["--system", "--no-create-home", user];
        workspace::output_of(Command::new("useradd").args(make))?;
    }
    workspace::output_of(Command::new("chown").arg(user).arg(disk))?;
    let copy = |from: &Path, name: &str| -> Result<PathBuf> {
        let to = directory.join(name);
        fs::copy(from, &to)?;
        Ok(to)
    };
    let windlass = copy(program, "windlass")?;
    let xtask = copy(&std::env::current_exe()?, "xtask")?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `su -c` passes one string to a shell, so options may only have characters that need no quotes.
    let plain =
        |text: &String| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_,=.".contains(c));
    ensure!(
        arguments.iter().all(plain),
        "with --user, options may only have letters, digits and -_,=."
    );
    let words = format!(
        "cd /tmp && env -i HOME=/tmp PATH=/usr/bin:/bin {STEP}=player {DISK}=\"${DISK}\" {}={} {} {}",
        workspace::BUILT,
        windlass.display(),
        xtask.display(),
        arguments.join(" ")
    );
    let mut su = Command::new("su");
    su.args([user, "-s", "/bin/sh", "-c", &words]).current_dir("/tmp");
    Ok(su)
}

fn verdict(code: Option<i32>) -> Result<RunVerdict> {
    match code {
        Some(0) => Ok(RunVerdict::Good),
        Some(1) => Ok(RunVerdict::Bad),
        other => anyhow::bail!("the re-executed run ended with exit code {other:?}"),
    }
}
