//! Sessions' cgroups as the node keeps them: made before a session's keeper starts, removed once the
//! session is over. The kernel removes none with a process in it, so what is busy is tried again
//! when a process in it has ended or a child of the node was reaped, with the housekeeping, and by the
//! next node. A family's first cgroups are busy until its last session ends.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::select_all;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::unix::pipe;
use tokio::sync::Notify;
use windlass_procs::cgroup::{
    CgroupSupport, Cgroups, dirs_by_name, name_of, prefix_of, remove_by_name, sweep,
};
use windlass_procs::twin;
use windlass_protocol::SessionId;
use windlass_protocol::policy::Limits;

/// Directories that are remembered to be removed later; the next node finds the others.
const BUSY_MAX: usize = 10_000;

/// Busy directories whose processes are watched at once: each takes a descriptor.
const WATCHED_MAX: usize = 16;

/// All cgroups of this node's sessions.
#[derive(Debug)]
pub(crate) struct SessionCgroups {
    support: CgroupSupport,
    runtime_dir: PathBuf,
    /// Those of sessions that are over, with something still in them.
    busy: Mutex<BTreeSet<PathBuf>>,
    /// Told when one more is busy.
    owed: Notify,
    /// Names that are not to be swept away.
    kept: Mutex<BTreeSet<String>>,
}

impl SessionCgroups {
    pub fn new(support: CgroupSupport, runtime_dir: &Path) -> Self {
        Self {
            support,
            runtime_dir: runtime_dir.to_owned(),
            busy: Mutex::default(),
            owed: Notify::new(),
            kept: Mutex::default(),
        }
    }

    pub fn support(&self) -> &CgroupSupport {
        &self.support
    }

    /// The directories that a session's processes join; none where the machine allows none.
    pub fn make(&self, session: &SessionId, limits: &Limits) -> io::Result<Vec<PathBuf>> {
        let name = name_of(&self.runtime_dir, session.as_str());
        Cgroups::make(&self.support, &name, limits).map(|made| made.dirs())
    }

    /// Other limits for directories that were made before.
    pub fn limit(&self, dirs: &[PathBuf], limits: &Limits) -> io::Result<()> {
        Cgroups::of(dirs).limit(&self.support, limits)
    }

    /// Directories that living sessions are in, under whatever name.
    pub fn keep(&self, dirs: &[PathBuf]) {
        let names = dirs.iter().filter_map(|dir| dir.file_name()?.to_str());
        let mut kept = self.kept.lock().expect("no holder of this lock can panic");
        kept.extend(names.map(str::to_owned));
    }

    /// Removes a session's directories, now or when they are empty. May wait for the kernel a
    /// little, so it is not for the thread that serves turns.
    pub fn remove(&self, dirs: &[PathBuf]) {
        for dir in dirs {
            match std::fs::remove_dir(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::debug!(dir = %dir.display(), %error, "a cgroup is removed later");
                    self.owe(dir);
                }
                _ => {
                    self.lock().remove(dir);
                }
            }
        }
    }

    /// Removes the directories of a session whose keeper is gone, with the processes that it has left in them.
    pub fn remove_lost(&self, dirs: &[PathBuf]) {
        twin::end_left(dirs);
        self.remove(dirs);
    }

    /// Removes what was made for a session that did not come to be.
    pub fn remove_of(&self, session: &SessionId) {
        let name = name_of(&self.runtime_dir, session.as_str());
        if let Err(error) = remove_by_name(&self.support, &name) {
            tracing::warn!(%session, %error, "a cgroup cannot be removed");
        }
    }

    /// Removes what was made for a twin that did not come to be, with the processes in it: its worker may have come
    /// there without a keeper.
    pub fn end_of(&self, session: &SessionId) {
        let name = name_of(&self.runtime_dir, session.as_str());
        self.remove_lost(&dirs_by_name(&self.support, &name));
    }

    /// Whether some are to be tried again.
    pub fn owes(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Tries again what was busy.
    pub fn retry(&self) {
        // They stay owed until they are gone, whoever else looks meanwhile.
        let busy: Vec<PathBuf> = self.lock().iter().cloned().collect();
        self.remove(&busy);
    }

    /// Removes what is busy when the processes in it have ended. Runs as long as the node.
    pub async fn tend(self: Arc<Self>) {
        let mut ended = BTreeSet::new();
        loop {
            let watched = self.watched(&ended);
            let ends = watched.into_iter().filter_map(|(pid, handle)| {
                // The kernel says that it can be read from when the process has ended.
                let handle = pipe::Receiver::from_owned_fd_unchecked(handle).ok()?;
                Some(Box::pin(async move { handle.readable().await.map(|_| pid).ok() }))
            });
            let ends: Vec<_> = ends.collect();
            if ends.is_empty() {
                self.owed.notified().await;
            } else {
                tokio::select! {
                    // One that has ended is not watched again, whatever the kernel lists.
                    (pid, ..) = select_all(ends) => ended.extend(pid),
                    () = self.owed.notified() => {}
                }
            }
            let cgroups = self.clone();
            // It fails only with the runtime.
            let _ = tokio::task::spawn_blocking(move || cgroups.retry()).await;
            if !self.owes() {
                ended.clear();
            }
        }
    }

    /// A process of each busy directory, with a handle on it.
    fn watched(&self, ended: &BTreeSet<i32>) -> Vec<(i32, OwnedFd)> {
        let busy: Vec<PathBuf> = self.lock().iter().take(WATCHED_MAX).cloned().collect();
        let one = |dir: &PathBuf| {
            let processes = std::fs::read_to_string(dir.join("cgroup.procs")).ok()?;
            let mut processes = processes.lines().filter_map(|line| line.parse::<i32>().ok());
            let pid = processes.find(|pid| !ended.contains(pid))?;
            let handle = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::NONBLOCK).ok()?;
            Some((pid, handle))
        };
        busy.iter().filter_map(one).collect()
    }

    /// Remembers a directory that is to be removed later.
    fn owe(&self, dir: &Path) {
        let mut busy = self.lock();
        if busy.len() < BUSY_MAX && busy.insert(dir.to_owned()) {
            self.owed.notify_one();
        }
    }

    /// Removes what earlier nodes left of sessions that are over.
    pub fn sweep(&self, lives: impl Fn(&str) -> bool) {
        let prefix = prefix_of(&self.runtime_dir);
        let kept =
            std::mem::take(&mut *self.kept.lock().expect("no holder of this lock can panic"));
        let is_kept = |name: &str| kept.contains(&format!("{prefix}{name}"));
        let busy = sweep(&self.support, &prefix, |name| lives(name) || is_kept(name));
        if !busy.is_empty() {
            tracing::info!(?busy, "cgroups of sessions that are over have processes in them");
        }
        busy.iter().for_each(|dir| self.owe(dir));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.busy.lock().expect("no holder of this lock can panic")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_busy_is_removed_when_it_is_empty() {
        let parent = tempfile::tempdir().unwrap();
        let controllers = Vec::new();
        let support = CgroupSupport::V2 { parent: parent.path().to_owned(), controllers };
        let cgroups = SessionCgroups::new(support, Path::new("/run/x"));
        let session = SessionId::parse("s").unwrap();
        let dirs = cgroups.make(&session, &Limits::DEFAULT).unwrap();
        // A directory that is not empty can be removed as little as a cgroup with a process in it.
        let inside = dirs[0].join("process");
        std::fs::write(&inside, "").unwrap();
        cgroups.remove(&dirs);
        assert!(cgroups.owes() && dirs[0].exists());
        cgroups.retry();
        assert!(cgroups.owes());
        std::fs::remove_file(inside).unwrap();
        cgroups.retry();
        assert!(!cgroups.owes() && !dirs[0].exists());
        cgroups.remove(&dirs);
        assert!(!cgroups.owes(), "what is gone is not owed");
    }

    #[tokio::test]
    async fn what_an_earlier_node_left_busy_goes_when_its_last_process_ends() {
        let parent = tempfile::tempdir().unwrap();
        let support =
            CgroupSupport::V2 { parent: parent.path().to_owned(), controllers: Vec::new() };
        let cgroups = Arc::new(SessionCgroups::new(support, Path::new("/run/x")));
        let session = SessionId::parse("s").unwrap();
        let dirs = cgroups.make(&session, &Limits::DEFAULT).unwrap();
        let mut process = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let inside = dirs[0].join("cgroup.procs");
        std::fs::write(&inside, format!("{}\n", process.id())).unwrap();
        cgroups.sweep(|_| false);
        assert!(cgroups.owes() && dirs[0].exists());
        // So that it is the process's end that it waits for.
        cgroups.owed.notified().await;
        let tending = tokio::spawn(cgroups.clone().tend());
        tokio::task::yield_now().await;
        // The kernel's files go with the directory; these do not.
        std::fs::remove_file(inside).unwrap();
        assert!(dirs[0].exists(), "nobody looks before the process has ended");
        process.kill().unwrap();
        process.wait().unwrap();
        let gone = async {
            while cgroups.owes() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), gone).await.unwrap();
        assert!(!dirs[0].exists());
        tending.abort();
    }
}
