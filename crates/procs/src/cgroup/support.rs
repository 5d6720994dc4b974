//! Finds out which cgroups this machine allows, by probing: creates and removes a directory where sessions'
//! directories would be. The choice ([`choose`]) is separate from the probing ([`CgroupProbe`]), so that
//! tests can cover all cases: no single machine has them all.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

/// A resource that a cgroup can limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    pub const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    /// A file that exists in a cgroup directory exactly when the controller is enabled in it.
    fn mark(self, version: CgroupVersion) -> &'static str {
        match (self, version) {
            (Self::Memory, CgroupVersion::One) => "memory.limit_in_bytes",
            (Self::Memory, CgroupVersion::Two) => "memory.max",
            (Self::Pids, _) => "pids.max",
            (Self::Cpu, CgroupVersion::One) => "cpu.shares",
            (Self::Cpu, CgroupVersion::Two) => "cpu.weight",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CgroupVersion {
    One,
    Two,
}

/// A hierarchy of cgroup version 1 and the directory in it where sessions' directories can be created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct V1Hierarchy {
    pub controller: Controller,
    pub parent: PathBuf,
}

/// Which cgroups this machine allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cgroups", rename_all = "snake_case")]
pub enum CgroupSupport {
    /// One hierarchy for all controllers: directories that are created in `parent` have these controllers.
    V2 {
        parent: PathBuf,
        controllers: Vec<Controller>,
    },
    /// One hierarchy for each controller.
    V1 {
        #[serde(rename = "places")]
        hierarchies: Vec<V1Hierarchy>,
    },
    None {
        reason: String,
        remedy: String,
    },
}

impl CgroupSupport {
    /// Probes the machine by creating and removing a directory. With version 2 this may enable controllers,
    /// and may move this process into a new child cgroup for that. So a node calls it once, when it starts.
    pub fn detect() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        choose(&read("/proc/self/cgroup"), &read("/proc/self/mounts"), &MachineProbe)
    }

    /// Whether sessions' directories have this controller.
    pub fn has(&self, controller: Controller) -> bool {
        match self {
            Self::V2 { controllers, .. } => controllers.contains(&controller),
            Self::V1 { hierarchies } => {
                hierarchies.iter().any(|hierarchy| hierarchy.controller == controller)
            }
            Self::None { .. } => false,
        }
    }

    /// The directories in which sessions' directories are created.
    pub(super) fn parents(&self) -> Vec<&Path> {
        match self {
            Self::V2 { parent, .. } => vec![parent],
            Self::V1 { hierarchies } => {
                hierarchies.iter().map(|hierarchy| hierarchy.parent.as_path()).collect()
            }
            Self::None { .. } => Vec::new(),
        }
    }
}

/// The operations that [`choose`] tries. The real implementation is [`MachineProbe`]; tests have others.
trait CgroupProbe {
    /// Creates a directory in `parent`, removes it again, and returns the names of the files that it had.
    /// Also fails if this process could not be moved into it.
    fn child(&self, parent: &Path) -> io::Result<Vec<String>>;
    fn read(&self, file: &Path) -> io::Result<String>;
    fn write(&self, file: &Path, text: &str) -> io::Result<()>;
    /// Moves this process, which must be the only one in `from`, into a new directory below `from`.
    fn step_down(&self, from: &Path) -> io::Result<()>;
}

/// Chooses version 2 if it can limit something, because one directory then counts everything of a session.
/// Else chooses version 1.
fn choose(groups: &str, mounts: &str, probe: &impl CgroupProbe) -> CgroupSupport {
    let mounts: Vec<CgroupMount> = mounts.lines().filter_map(CgroupMount::parse).collect();
    if let Some(found) = choose_v2(groups, &mounts, probe) {
        return found;
    }
    let hierarchies: Vec<V1Hierarchy> = Controller::ALL
        .into_iter()
        .filter_map(|controller| choose_v1(groups, &mounts, controller, probe))
        .collect();
    if !hierarchies.is_empty() {
        return CgroupSupport::V1 { hierarchies };
    }
    let reason = match mounts.is_empty() {
        true => "this machine has no cgroup file system",
        false => "no cgroup with controllers can be made by this user",
    };
    let remedy = match mounts.is_empty() {
        true => "mount one: mount -t cgroup2 none /sys/fs/cgroup",
        false => {
            "start the node with `systemd-run --user --scope -p Delegate=yes windlass node`, or as \
             a service with Delegate=yes"
        }
    };
    CgroupSupport::None { reason: reason.to_owned(), remedy: remedy.to_owned() }
}

fn choose_v2(
    groups: &str,
    mounts: &[CgroupMount],
    probe: &impl CgroupProbe,
) -> Option<CgroupSupport> {
    let mount = mounts.iter().find(|mount| mount.version == CgroupVersion::Two)?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let home = mount.at.join(own);
    // This process's own cgroup first, then its ancestors, the nearest first.
    let around = home.ancestors().take_while(|dir| dir.starts_with(&mount.at));
    let mut best: Option<(PathBuf, Vec<Controller>)> = None;
    for dir in around {
        let mut found = child_controllers(dir, probe);
        if found.len() < Controller::ALL.len() && turn_on(dir, dir == home, probe).is_ok() {
            found = child_controllers(dir, probe);
        }
        if found.len() > best.as_ref().map_or(0, |(_, controllers)| controllers.len()) {
            best = Some((dir.to_owned(), found));
        }
        // Good enough: ancestors further up belong to more and more other programs.
        let holds = |wanted| best.as_ref().is_some_and(|(_, found)| found.contains(&wanted));
        if holds(Controller::Memory) && holds(Controller::Pids) {
            break;
        }
    }
    best.map(|(parent, controllers)| CgroupSupport::V2 { parent, controllers })
}

fn child_controllers(dir: &Path, probe: &impl CgroupProbe) -> Vec<Controller> {
    let files = probe.child(dir).unwrap_or_default();
    let is_on =
        |controller: &Controller| files.iter().any(|f| f == controller.mark(CgroupVersion::Two));
    Controller::ALL.into_iter().filter(is_on).collect()
}

/// Enables the controllers of `dir` in the children of `dir`. The kernel refuses that while `dir` contains
/// processes. If this process is the only one, it moves into a child; other processes are never moved.
fn turn_on(dir: &Path, home: bool, probe: &impl CgroupProbe) -> io::Result<()> {
    probe.child(dir)?;
    let had = probe.read(&dir.join("cgroup.controllers"))?;
    let on = probe.read(&dir.join("cgroup.subtree_control"))?;
    let lists = |list: &str, name: &str| list.split_ascii_whitespace().any(|one| one == name);
    let wanted: Vec<String> = Controller::ALL
        .into_iter()
        .map(Controller::as_str)
        .filter(|name| lists(&had, name) && !lists(&on, name))
        .map(|name| format!("+{name}"))
        .collect();
    if wanted.is_empty() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let control = dir.join("cgroup.subtree_control");
    match probe.write(&control, &wanted.join(" ")) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy && home => {
            probe.step_down(dir)?;
            probe.write(&control, &wanted.join(" "))
        }
        other => other,
    }
}

fn choose_v1(
    groups: &str,
    mounts: &[CgroupMount],
    controller: Controller,
    probe: &impl CgroupProbe,
) -> Option<V1Hierarchy> {
    let name = controller.as_str();
    let mount = mounts.iter().find(|mount| {
        mount.version == CgroupVersion::One && mount.options.iter().any(|o| o == name)
    })?;
    let own = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        controllers.split(',').any(|one| one == name).then(|| path.trim_start_matches('/'))
    })?;
    // In a container the path may be the host's path, which does not exist inside.
    let home = mount.at.join(own);
    [home, mount.at.clone()]
        .into_iter()
        .find(|dir| {
            let mark = controller.mark(CgroupVersion::One);
            probe.child(dir).is_ok_and(|files| files.iter().any(|file| file == mark))
        })
        .map(|parent| V1Hierarchy { controller, parent })
}

/// A mounted cgroup file system.
struct CgroupMount {
    at: PathBuf,
    version: CgroupVersion,
    options: Vec<String>,
}

impl CgroupMount {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ').skip(1);
        let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let version = match kind {
            "cgroup" => CgroupVersion::One,
            "cgroup2" => CgroupVersion::Two,
            _ => return None,
        };
        let options = options.split(',').map(str::to_owned).collect();
        Some(Self { at: at.into(), version, options })
    }
}

/// Probes the machine itself.
struct MachineProbe;

/// Gives each probe directory a unique name.
static PROBES: AtomicU32 = AtomicU32::new(0);

impl CgroupProbe for MachineProbe {
    fn child(&self, parent: &Path) -> io::Result<Vec<String>> {
        // Moving a process needs write permission in the old cgroup as well as in the new one.
        rustix::fs::access(parent.join("cgroup.procs"), rustix::fs::Access::WRITE_OK)?;
        let number = PROBES.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("windlass-try-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir)?;
        let names = std::fs::read_dir(&dir).map(|entries| {
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
        });
        std::fs::remove_dir(&dir)?;
        names
    }

    fn read(&self, file: &Path) -> io::Result<String> {
        std::fs::read_to_string(file)
    }

    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        std::fs::write(file, text)
    }

    fn step_down(&self, from: &Path) -> io::Result<()> {
        let inside = std::fs::read_to_string(from.join("cgroup.procs"))?;
        let own = std::process::id().to_string();
        if inside.lines().any(|pid| pid != own) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let below = from.join("windlass-node");
        match std::fs::create_dir(&below) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => std::fs::write(below.join("cgroup.procs"), "0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    /// A version 2 tree in a temporary directory: files like the kernel's, with the kernel's rules simulated.
    struct Fake {
        root: tempfile::TempDir,
        /// Directories that this process may write.
        ours: Vec<&'static str>,
        /// Number of processes in a directory. This process is in `home`.
        inside: RefCell<BTreeMap<PathBuf, usize>>,
    }

    impl Fake {
        fn new(ours: &[&'static str]) -> Self {
            let root = tempfile::tempdir().unwrap();
            Self { root, ours: ours.to_vec(), inside: RefCell::default() }
        }

        fn dir(self, path: &str, controllers: &str, subtree: &str, inside: usize) -> Self {
            let dir = self.root.path().join(path);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cgroup.controllers"), controllers).unwrap();
            std::fs::write(dir.join("cgroup.subtree_control"), subtree).unwrap();
            self.inside.borrow_mut().insert(dir, inside);
            self
        }

        fn choose(&self, own: &str) -> String {
            let mounts = format!("cgroup2 {} cgroup2 rw 0 0", self.root.path().display());
            match choose(&format!("0::{own}"), &mounts, self) {
                CgroupSupport::V2 { parent, controllers } => {
                    let parent = parent.strip_prefix(self.root.path()).unwrap();
                    let names: Vec<_> = controllers.into_iter().map(Controller::as_str).collect();
                    format!("{}: {}", parent.display(), names.join(" "))
                }
                other => format!("{other:?}"),
            }
        }

        fn may_write(&self, dir: &Path) -> io::Result<()> {
            let path = dir.strip_prefix(self.root.path()).unwrap().to_str().unwrap();
            match self.ours.contains(&path) {
                true => Ok(()),
                false => Err(io::ErrorKind::PermissionDenied.into()),
            }
        }
    }

    impl CgroupProbe for Fake {
        fn child(&self, parent: &Path) -> io::Result<Vec<String>> {
            self.may_write(parent)?;
            let on = self.read(&parent.join("cgroup.subtree_control"))?;
            let marks = Controller::ALL.into_iter().filter(|one| on.contains(one.as_str()));
            Ok(marks.map(|one| one.mark(CgroupVersion::Two).to_owned()).collect())
        }

        fn read(&self, file: &Path) -> io::Result<String> {
            std::fs::read_to_string(file)
        }

        fn write(&self, file: &Path, text: &str) -> io::Result<()> {
            let dir = file.parent().unwrap();
            self.may_write(dir)?;
            if self.inside.borrow().get(dir).is_some_and(|inside| *inside > 0) {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            let on = format!("{} {}", std::fs::read_to_string(file)?, text.replace('+', ""));
            std::fs::write(file, on)
        }

        fn step_down(&self, from: &Path) -> io::Result<()> {
            let mut inside = self.inside.borrow_mut();
            match inside.get_mut(from) {
                Some(1) => {
                    inside.insert(from.to_owned(), 0);
                    Ok(())
                }
                _ => Err(io::ErrorKind::ResourceBusy.into()),
            }
        }
    }

    #[test]
    fn a_delegated_cgroup_with_only_us_in_it_is_used() {
        let fake = Fake::new(&["svc"]).dir("", "cpu memory pids", "cpu memory pids", 9).dir(
            "svc",
            "cpu memory pids",
            "",
            1,
        );
        assert_eq!(fake.choose("/svc"), "svc: memory pids cpu");
    }

    #[test]
    fn other_processes_are_never_moved_to_enable_controllers() {
        let fake =
            Fake::new(&["svc"]).dir("", "cpu memory pids", "", 9).dir("svc", "memory pids", "", 2);
        assert!(fake.choose("/svc").starts_with("None"), "{}", fake.choose("/svc"));
    }

    #[test]
    fn an_ancestor_that_is_ours_and_has_controllers_on_is_used() {
        let fake = Fake::new(&["user/app", "user/app/term"])
            .dir("", "cpu memory pids", "memory pids", 1)
            .dir("user", "memory pids", "memory pids", 0)
            .dir("user/app", "memory pids", "memory pids", 0)
            .dir("user/app/term", "memory pids", "", 3);
        assert_eq!(fake.choose("/user/app/term"), "user/app: memory pids");
    }

    #[test]
    fn the_root_of_a_machine_where_we_are_root_is_used() {
        let fake = Fake::new(&["", "shell"])
            .dir("", "cpu memory pids", "memory", 0)
            .dir("shell", "memory", "", 4);
        assert_eq!(fake.choose("/shell"), ": memory pids cpu");
    }

    #[test]
    fn a_directory_that_is_not_ours_is_left_alone() {
        let fake = Fake::new(&[]).dir("", "memory pids", "memory pids", 0).dir(
            "scope",
            "memory pids",
            "",
            1,
        );
        let chosen = fake.choose("/scope");
        assert!(chosen.contains("Delegate=yes"), "no remedy in {chosen}");
    }

    /// Version 1 hierarchies: writable directories, each with the file that its controller has.
    struct Hierarchies(&'static [(&'static str, &'static str)]);

    impl CgroupProbe for Hierarchies {
        fn child(&self, parent: &Path) -> io::Result<Vec<String>> {
            let found = self.0.iter().find(|(dir, _)| Path::new(dir) == parent);
            let (_, mark) = found.ok_or(io::ErrorKind::NotFound)?;
            Ok(vec![(*mark).to_owned()])
        }

        fn read(&self, _: &Path) -> io::Result<String> {
            Err(io::ErrorKind::NotFound.into())
        }

        fn write(&self, _: &Path, _: &str) -> io::Result<()> {
            Err(io::ErrorKind::PermissionDenied.into())
        }

        fn step_down(&self, _: &Path) -> io::Result<()> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    #[test]
    fn version_1_hierarchies_are_used_one_by_one() {
        let mounts = "cgroup /c/memory cgroup rw,memory 0 0\n\
                      cgroup /c/cpu cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup /c/pids cgroup rw,pids 0 0\n\
                      cgroup2 /c/unified cgroup2 rw 0 0";
        let groups = "4:memory:/job/7\n3:pids:/docker/abc\n2:cpu,cpuacct:/\n0::/";
        // In a container the pids path is the host's path: only the mount's root exists.
        let probe = Hierarchies(&[
            ("/c/memory/job/7", "memory.limit_in_bytes"),
            ("/c/pids", "pids.max"),
            ("/c/cpu/", "cpu.stat"),
        ]);
        let hierarchy =
            |controller, parent: &str| V1Hierarchy { controller, parent: parent.into() };
        assert_eq!(
            choose(groups, mounts, &probe),
            CgroupSupport::V1 {
                hierarchies: vec![
                    hierarchy(Controller::Memory, "/c/memory/job/7"),
                    hierarchy(Controller::Pids, "/c/pids"),
                ]
            }
        );
    }

    #[test]
    fn a_machine_without_cgroups_says_so() {
        let chosen = choose("", "proc /proc proc rw 0 0", &Hierarchies(&[]));
        assert!(
            matches!(chosen, CgroupSupport::None { reason, .. } if reason.contains("no cgroup"))
        );
    }

    #[test]
    fn probing_this_machine_is_repeatable_and_leaves_nothing_behind() {
        let support = CgroupSupport::detect();
        assert_eq!(CgroupSupport::detect(), support);
        for parent in support.parents() {
            let left = std::fs::read_dir(parent).unwrap().flatten().find(|entry| {
                let own = format!("windlass-try-{}-", std::process::id());
                entry.file_name().to_str().is_some_and(|name| name.starts_with(&own))
            });
            assert!(left.is_none(), "{left:?}");
        }
    }
}
