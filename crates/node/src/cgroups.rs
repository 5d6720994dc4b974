//! The cgroups of sessions. The node makes them before a session's keeper starts and removes them after
//! the session has ended. The kernel does not remove a cgroup with a process in it. So the removal of a
//! busy cgroup is retried when a process in it has ended, when the node has reaped a child, with each
//! housekeeping, and by the next node. A family's first cgroups are busy until its last session ends.

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
    CgroupSupport, Cgroups, dirs_by_name, prefix_of, remove_by_name, sweep,
};
use windlass_procs::twin;
use windlass_protocol::SessionId;
use windlass_protocol::policy::Limits;

/// Maximum number of busy directories that are remembered. The next node removes further ones.
const BUSY_MAX: usize = 10_000;

/// Maximum number of busy directories that are watched at once: each takes a descriptor.
const WATCHED_MAX: usize = 16;

/// All cgroups of this node's sessions.
#[derive(Debug)]
pub(crate) struct SessionCgroups {
    support: CgroupSupport,
    /// Begins the names of this node's cgroups.
    prefix: String,
    /// Cgroups of ended sessions that still contain processes.
    busy: Mutex<BTreeSet<PathBuf>>,
    /// Notified when a busy directory is added.
    busy_added: Notify,
    /// Names that `sweep` must not remove.
    kept: Mutex<BTreeSet<String>>,
}

impl SessionCgroups {
    pub fn new(support: CgroupSupport, runtime_dir: &Path) -> Self {
        Self {
            support,
            prefix: prefix_of(runtime_dir),
            busy: Mutex::default(),
            busy_added: Notify::new(),
            kept: Mutex::default(),
        }
    }

    pub fn support(&self) -> &CgroupSupport {
        &self.support
    }

    /// Makes the directories that a session's processes join; none if the machine has no usable cgroups.
    pub fn make(&self, session: &SessionId, limits: &Limits) -> io::Result<Vec<PathBuf>> {
        let name = self.name_of(session);
        Cgroups::make(&self.support, &name, limits).map(|made| made.dirs())
    }

    /// Sets other limits on existing directories.
    pub fn limit(&self, dirs: &[PathBuf], limits: &Limits) -> io::Result<()> {
        Cgroups::of(dirs).limit(&self.support, limits)
    }

    /// Protects the directories of live sessions from `sweep`.
    pub fn keep(&self, dirs: &[PathBuf]) {
        let names = dirs.iter().filter_map(|dir| dir.file_name()?.to_str());
        let mut kept = self.kept.lock().expect("no holder of this lock can panic");
        kept.extend(names.map(str::to_owned));
    }

    /// Removes a session's directories, now or when they are empty. May block for a moment, so it must not
    /// run on the thread that serves turns.
    pub fn remove(&self, dirs: &[PathBuf]) {
        for dir in dirs {
            match std::fs::remove_dir(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::debug!(dir = %dir.display(), %error, "a cgroup is removed later");
                    self.add_busy(dir);
                }
                _ => {
                    self.lock().remove(dir);
                }
            }
        }
    }

    /// Removes the directories of a session whose keeper is gone, and kills the processes in them.
    pub fn remove_lost(&self, dirs: &[PathBuf]) {
        twin::kill_leftovers(dirs);
        self.remove(dirs);
    }

    /// Removes the cgroups of a session that failed to start.
    pub fn remove_of(&self, session: &SessionId) {
        let name = self.name_of(session);
        if let Err(error) = remove_by_name(&self.support, &name) {
            tracing::warn!(%session, %error, "cannot remove the cgroups of a session that failed to start");
        }
    }

    /// Removes the cgroups of a twin that failed to start, and kills the processes in them: its worker may
    /// have joined without a keeper.
    pub fn end_of(&self, session: &SessionId) {
        let name = self.name_of(session);
        self.remove_lost(&dirs_by_name(&self.support, &name));
    }

    /// Whether some removals must be retried.
    pub fn has_busy(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Retries the removal of all busy directories.
    pub fn retry(&self) {
        // A directory stays in the set until it is removed, even if another thread retries meanwhile.
        let busy: Vec<PathBuf> = self.lock().iter().cloned().collect();
        self.remove(&busy);
    }

    /// Removes busy directories when the processes in them have ended. Runs as long as the node.
    pub async fn tend(self: Arc<Self>) {
        let mut ended = BTreeSet::new();
        loop {
            let watched = self.watched(&ended);
            let ends = watched.into_iter().filter_map(|(pid, handle)| {
                // A pidfd becomes readable when the process has ended.
                let handle = pipe::Receiver::from_owned_fd_unchecked(handle).ok()?;
                Some(Box::pin(async move { handle.readable().await.map(|_| pid).ok() }))
            });
            let ends: Vec<_> = ends.collect();
            if ends.is_empty() {
                self.busy_added.notified().await;
            } else {
                tokio::select! {
                    // An ended process is not watched again, even if the kernel still lists it.
                    (pid, ..) = select_all(ends) => ended.extend(pid),
                    () = self.busy_added.notified() => {}
                }
            }
            let cgroups = self.clone();
            // An error means that the runtime shuts down.
            let _ = tokio::task::spawn_blocking(move || cgroups.retry()).await;
            if !self.has_busy() {
                ended.clear();
            }
        }
    }

    /// One process of each busy directory, with its pidfd.
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

    /// Remembers a busy directory for a later removal.
    fn add_busy(&self, dir: &Path) {
        let mut busy = self.lock();
        if busy.len() < BUSY_MAX && busy.insert(dir.to_owned()) {
            self.busy_added.notify_one();
        }
    }

    /// Removes the cgroups that earlier nodes left of ended sessions.
    pub fn sweep(&self, lives: impl Fn(&str) -> bool) {
        let prefix = &self.prefix;
        let kept =
            std::mem::take(&mut *self.kept.lock().expect("no holder of this lock can panic"));
        let is_kept = |name: &str| kept.contains(&format!("{prefix}{name}"));
        let busy = sweep(&self.support, prefix, |name| lives(name) || is_kept(name));
        if !busy.is_empty() {
            tracing::info!(?busy, "cgroups of ended sessions still contain processes");
        }
        busy.iter().for_each(|dir| self.add_busy(dir));
    }

    fn name_of(&self, session: &SessionId) -> String {
        format!("{}{session}", self.prefix)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.busy.lock().expect("no holder of this lock can panic")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_cgroup_is_removed_when_it_is_empty() {
        let parent = tempfile::tempdir().unwrap();
        let controllers = Vec::new();
        let support = CgroupSupport::V2 { parent: parent.path().to_owned(), controllers };
        let cgroups = SessionCgroups::new(support, Path::new("/run/x"));
        let session = SessionId::parse("s").unwrap();
        let dirs = cgroups.make(&session, &Limits::DEFAULT).unwrap();
        // A file in the directory prevents the removal, as a process in a cgroup does.
        let inside = dirs[0].join("process");
        std::fs::write(&inside, "").unwrap();
        cgroups.remove(&dirs);
        assert!(cgroups.has_busy() && dirs[0].exists());
        cgroups.retry();
        assert!(cgroups.has_busy());
        std::fs::remove_file(inside).unwrap();
        cgroups.retry();
        assert!(!cgroups.has_busy() && !dirs[0].exists());
        cgroups.remove(&dirs);
        assert!(!cgroups.has_busy(), "a removed directory is not busy");
    }

    #[tokio::test]
    async fn a_busy_cgroup_of_an_earlier_node_is_removed_when_its_last_process_ends() {
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
        assert!(cgroups.has_busy() && dirs[0].exists());
        // Consumes the notification, so that `tend` waits for the process to end.
        cgroups.busy_added.notified().await;
        let tending = tokio::spawn(cgroups.clone().tend());
        tokio::task::yield_now().await;
        // The kernel removes the files of a cgroup with the directory; here the test must do it.
        std::fs::remove_file(inside).unwrap();
        assert!(dirs[0].exists(), "the removal is not retried before the process has ended");
        process.kill().unwrap();
        process.wait().unwrap();
        let gone = async {
            while cgroups.has_busy() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), gone).await.unwrap();
        assert!(!dirs[0].exists());
        tending.abort();
    }
}
