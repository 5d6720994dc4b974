//! A disk that can lose its power: ext4 in a file. When the power goes, everything that was not synced is gone, because
//! the file system is shut down without writing its journal. A kill of a process does not show that: the kernel keeps
//! what the process wrote.
//!
//! The disk is mounted in a mount namespace of the process that uses it, and is unmounted when that process ends. In a
//! namespace that the nodes share, each session would keep a copy of the mount.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use windlass_testkit::python;

use crate::workspace::output_of;

/// The size of the file, which is sparse.
const DISK_BYTES: u64 = 512 * 1024 * 1024;

/// How long the kernel may take to release the loop device of a process that has ended, and a process to mount one.
const DISK_WAIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Mounts the disk and becomes the program.
const MOUNT: &str = "mount -t ext4 -o loop \"$1\" \"$2\" && shift 2 && exec \"$@\"";

/// `EXT4_IOC_SHUTDOWN` with the flag that leaves the journal unwritten. The check is essential: without a mounted disk,
/// the call would shut down the file system of the machine.
const SHUT_DOWN: &str = "import fcntl, os, struct, sys\n\
    LOOP = 7\n\
    place = os.open(sys.argv[1], os.O_RDONLY)\n\
    device = os.fstat(place).st_dev\n\
    if os.major(device) != LOOP or device == os.stat(sys.argv[2]).st_dev:\n    \
        sys.exit('no disk is mounted at ' + sys.argv[1])\n\
    fcntl.ioctl(place, 0x8004587d, struct.pack('I', 2))\n";

#[derive(Debug)]
pub struct PowerDisk {
    image: PathBuf,
    place: PathBuf,
}

impl PowerDisk {
    /// Makes the disk `NAME.image` in a directory, and the directory `NAME` where it will be mounted.
    pub fn make(directory: &Path, name: &str) -> Result<Self> {
        let (image, place) = (directory.join(format!("{name}.image")), directory.join(name));
        File::create(&image)?.set_len(DISK_BYTES)?;
        output_of(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        fs::create_dir(&place)?;
        Ok(Self { image, place })
    }

    /// The words before a program that runs with the disk mounted.
    pub fn mounted(&self) -> Vec<OsString> {
        let words =
            ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", MOUNT, "sh"];
        let mut words: Vec<OsString> = words.map(OsString::from).to_vec();
        words.extend([self.image.clone().into_os_string(), self.place.clone().into_os_string()]);
        words
    }

    /// Loses what was not synced. `pid` is the process that has the disk mounted. It must be stopped, and be killed next.
    pub fn lose_power(&self, pid: u32) -> Result<()> {
        let seen = self.place.strip_prefix("/").context("the disk has an absolute path")?;
        let seen = Path::new("/proc").join(pid.to_string()).join("root").join(seen);
        let outside = self.place.parent().context("the disk is in a directory")?;
        let shut_down = ["-c", SHUT_DOWN];
        output_of(Command::new(python()).args(shut_down).arg(seen).arg(outside)).map(drop)
    }

    /// Waits until the process that had the disk mounted has released it. A mount before that would be one of the former
    /// file system, which may be shut down.
    pub fn wait_released(&self) -> Result<()> {
        let released =
            || Ok(output_of(Command::new("losetup").arg("-j").arg(&self.image))?.is_empty());
        ensure!(within_wait(released)?, "{} is still in use", self.image.display());
        Ok(())
    }

    /// Waits until a process has mounted the disk and has become its program. Before that, a fault would kill the shell
    /// and leave its `mount` at work.
    pub fn wait_mounted(&self, pid: u32, program: &Path) -> Result<()> {
        let program = program.canonicalize()?;
        let link = format!("/proc/{pid}/exe");
        let runs = || Ok(fs::read_link(&link).is_ok_and(|runs| runs == program));
        ensure!(within_wait(runs)?, "no program runs with {} mounted", self.image.display());
        Ok(())
    }

    /// Mounts the disk and lets it lose its power, to see whether this machine can do that.
    pub fn rehearse(&self) -> Result<()> {
        let words = self.mounted();
        let (program, arguments) = words.split_first().context("a command has a program")?;
        let outside = self.place.parent().context("the disk is in a directory")?;
        let mut command = Command::new(program);
        command.args(arguments).arg(python()).args(["-c", SHUT_DOWN]);
        output_of(command.arg(&self.place).arg(outside))?;
        self.wait_released()
    }
}

/// Whether something holds before the wait for a disk is over.
fn within_wait(holds: impl Fn() -> Result<bool>) -> Result<bool> {
    let until = Instant::now() + DISK_WAIT;
    loop {
        if holds()? {
            return Ok(true);
        }
        if Instant::now() > until {
            return Ok(false);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
