//! A cgroup for what a session starts, where the machine lets us make one (version 2, and a place
//! to make it in). It only helps to end things: one write kills every process in it at once, also
//! those that fork faster than they could be found.

use std::io;
use std::path::PathBuf;

/// The session's cgroup below our own.
#[derive(Debug)]
pub(crate) struct Cgroup {
    dir: PathBuf,
    /// The cgroup that we ourselves stay in.
    home: PathBuf,
}

impl Cgroup {
    /// Makes one, or nothing where that is refused or could not kill.
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

    /// Whatever `start` starts is in the cgroup from its first instruction on: we are in it
    /// meanwhile. The caller has one thread.
    pub(crate) fn around<T>(&self, start: impl FnOnce() -> T) -> T {
        // If it fails, the children are found and ended one by one as everywhere else.
        let _ = self.enter();
        let started = start();
        self.leave();
        started
    }

    /// SIGKILL to everything in it.
    pub(crate) fn kill(&self) {
        let _ = std::fs::write(self.dir.join("cgroup.kill"), "1");
    }

    /// Removes it, once nothing is left in it.
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

/// The directory of the version 2 cgroup that we are in.
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
