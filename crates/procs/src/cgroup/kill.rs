//! A cgroup that only serves to kill: one write kills every process in it at once, also processes that fork
//! faster than they can be listed. It exists only where the machine has cgroup version 2 and this process may
//! create a directory in its own cgroup.

use std::io;
use std::path::PathBuf;

/// A cgroup below this process's own cgroup.
#[derive(Debug)]
pub(crate) struct KillCgroup {
    dir: PathBuf,
    /// The cgroup that this process itself stays in.
    home: PathBuf,
}

impl KillCgroup {
    /// Creates the cgroup. `None` if the machine refuses it, or the kernel lacks `cgroup.kill`.
    pub(crate) fn make() -> Option<Self> {
        let home = own_cgroup()?;
        let dir = home.join(format!("windlass-{}", std::process::id()));
        std::fs::create_dir(&dir).ok()?;
        let cgroup = Self { dir, home };
        if cgroup.dir.join("cgroup.kill").exists() && cgroup.enter().is_ok() {
            cgroup.leave();
            return Some(cgroup);
        }
        cgroup.remove();
        None
    }

    /// Runs `start` while this process is in the cgroup, so that every process that `start` starts is in it
    /// from its first instruction. The caller has one thread.
    pub(crate) fn start_inside<T>(&self, start: impl FnOnce() -> T) -> T {
        // If it fails, the children are listed and killed one by one, as on machines without this cgroup.
        let _ = self.enter();
        let started = start();
        self.leave();
        started
    }

    /// Sends SIGKILL to every process in the cgroup.
    pub(crate) fn kill(&self) {
        let _ = std::fs::write(self.dir.join("cgroup.kill"), "1");
    }

    /// Removes the cgroup. It must be empty.
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_dir(&self.dir);
    }

    fn enter(&self) -> io::Result<()> {
        std::fs::write(self.dir.join("cgroup.procs"), "0")
    }

    fn leave(&self) {
        let _ = std::fs::write(self.home.join("cgroup.procs"), "0");
    }
}

/// The directory of the version 2 cgroup that this process is in.
fn own_cgroup() -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, at, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(at))
    })?;
    Some(mount.join(path))
}
