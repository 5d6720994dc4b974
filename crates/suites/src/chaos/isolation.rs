//! Where a run takes place: in namespaces of its own when root starts it, so that it shares no network and
//! no mount with the machine, and as an ordinary user where one is named. This program runs itself again
//! there; nothing is changed on the machine but the named user, who is made if missing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, mount};

use crate::{Verdict, workspace};

/// Tells a run inside where its small disk is.
pub const DISK: &str = "WINDLASS_CHAOS_DISK";

/// Tells it to which step it was run again.
pub const STEP: &str = "WINDLASS_CHAOS_STEP";

/// Larger than what the nodes of one seed write.
const DISK_OPTIONS: &str = "size=256m,mode=0700";

/// Where programs and disk are put, so that an ordinary user reaches them.
const PLACE: &str = "/srv";

/// The network's loopback, and then this program again.
const UP: &str = "ip link set lo up && exec \"$@\"";

/// How far a run has come on its way inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// As it was started.
    Outside,
    /// In namespaces of its own, as root.
    Namespaces,
    /// There, as who plays.
    Player,
}

impl Step {
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

/// Runs the same command in namespaces of its own.
pub fn enter_namespaces(program: &Path) -> Result<Verdict> {
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private", "sh", "-c", UP, "sh"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(STEP, "namespaces")
        .env(workspace::BUILT, program)
        .status()
        .context("cannot run unshare")?;
    verdict(status.code())
}

/// Mounts the small disk and runs the same command once more, as `user` where one is named.
pub fn enter_player(program: &Path, user: Option<&str>) -> Result<Verdict> {
    let place = tempfile::Builder::new().prefix("wl-chaos-").tempdir_in(PLACE)?;
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755))?;
    let disk = place.path().join("disk");
    fs::create_dir(&disk)?;
    let options = std::ffi::CString::new(DISK_OPTIONS)?;
    let mounted = mount("chaos", &disk, "tmpfs", MountFlags::NOSUID, Some(options.as_c_str()));
    if let Err(error) = &mounted {
        println!("skipped: disk: no small disk can be mounted: {error}");
    }
    let mut command = match user {
        None => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args_os().skip(1)).env(workspace::BUILT, program);
            command
        }
        Some(user) => as_user(user, program, place.path(), &disk)?,
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

fn as_user(user: &str, program: &Path, place: &Path, disk: &Path) -> Result<Command> {
    if workspace::output_of(Command::new("id").arg(user)).is_err() {
        let make = ["--system", "--no-create-home", user];
        workspace::output_of(Command::new("useradd").args(make))?;
    }
    workspace::output_of(Command::new("chown").arg(user).arg(disk))?;
    let copy = |from: &Path, name: &str| -> Result<PathBuf> {
        let to = place.join(name);
        fs::copy(from, &to)?;
        Ok(to)
    };
    let windlass = copy(program, "windlass")?;
    let xtask = copy(&std::env::current_exe()?, "xtask")?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Options are numbers and names; a shell reads them as they are.
    let plain =
        |text: &String| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_,=".contains(c));
    ensure!(arguments.iter().all(plain), "an option that a shell would read otherwise");
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

fn verdict(code: Option<i32>) -> Result<Verdict> {
    match code {
        Some(0) => Ok(Verdict::Good),
        Some(1) => Ok(Verdict::Bad),
        other => anyhow::bail!("the run inside ended with {other:?}"),
    }
}
