//! What this machine's cgroups let us do, found out by trying: a directory is made and removed where
//! sessions' directories would go. The choosing is apart from the trying, since no one machine has
//! every case.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

/// Something that a cgroup can limit.
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

    /// A file that a directory has exactly when the controller is on in it.
    fn mark(self, version: Version) -> &'static str {
        match (self, version) {
            (Self::Memory, Version::One) => "memory.limit_in_bytes",
            (Self::Memory, Version::Two) => "memory.max",
            (Self::Pids, _) => "pids.max",
            (Self::Cpu, Version::One) => "cpu.shares",
            (Self::Cpu, Version::Two) => "cpu.weight",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where one controller's directories can be made: a hierarchy of version 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub controller: Controller,
    pub parent: PathBuf,
}

/// What the machine lets us do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cgroups", rename_all = "snake_case")]
pub enum CgroupSupport {
    /// One hierarchy for all: directories made in `parent` have these controllers.
    V2 {
        parent: PathBuf,
        controllers: Vec<Controller>,
    },
    /// A hierarchy each.
    V1 {
        places: Vec<Place>,
    },
    None {
        reason: String,
        remedy: String,
    },
}

impl CgroupSupport {
    /// Finds out, by making and removing a directory. With version 2 it may turn controllers on,
    /// and move this process into a directory of its own for that; so it is done once, at the start
    /// of a node.
    pub fn detect() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        choose(&read("/proc/self/cgroup"), &read("/proc/self/mounts"), &Machine)
    }

    /// Whether directories have this controller.
    pub fn has(&self, controller: Controller) -> bool {
        match self {
            Self::V2 { controllers, .. } => controllers.contains(&controller),
            Self::V1 { places } => places.iter().any(|place| place.controller == controller),
            Self::None { .. } => false,
        }
    }

    /// The directories in which sessions' directories are made.
    pub(super) fn parents(&self) -> Vec<&Path> {
        match self {
            Self::V2 { parent, .. } => vec![parent],
            Self::V1 { places } => places.iter().map(|place| place.parent.as_path()).collect(),
            Self::None { .. } => Vec::new(),
        }
    }
}

/// What choosing has to try. The real one is [`Machine`]; tests have others.
trait Tries {
    /// The names of the files in a directory newly made in `parent`, and removed again. An error
    /// too where a process could not be moved from here into it.
    fn child(&self, parent: &Path) -> io::Result<Vec<String>>;
    fn read(&self, file: &Path) -> io::Result<String>;
    fn write(&self, file: &Path, text: &str) -> io::Result<()>;
    /// Moves this process, which must be alone in `from`, into a directory of its own below it.
    fn step_down(&self, from: &Path) -> io::Result<()>;
}

/// Version 2 where it can limit something, since it counts all of a session in one place; else
/// version 1.
fn choose(groups: &str, mounts: &str, tries: &impl Tries) -> CgroupSupport {
    let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
    if let Some(found) = choose_v2(groups, &mounts, tries) {
        return found;
    }
    let places: Vec<Place> = Controller::ALL
        .into_iter()
        .filter_map(|controller| choose_v1(groups, &mounts, controller, tries))
        .collect();
    if !places.is_empty() {
        return CgroupSupport::V1 { places };
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

fn choose_v2(groups: &str, mounts: &[Mount], tries: &impl Tries) -> Option<CgroupSupport> {
    let mount = mounts.iter().find(|mount| mount.version == Version::Two)?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let home = mount.at.join(own);
    // Our own first, then those around it, the nearest first.
    let around = home.ancestors().take_while(|dir| dir.starts_with(&mount.at));
    let mut best: Option<(PathBuf, Vec<Controller>)> = None;
    for dir in around {
        let mut found = child_controllers(dir, tries);
        if found.len() < Controller::ALL.len() && turn_on(dir, dir == home, tries).is_ok() {
            found = child_controllers(dir, tries);
        }
        if found.len() > best.as_ref().map_or(0, |(_, controllers)| controllers.len()) {
            best = Some((dir.to_owned(), found));
        }
        // Good enough: what is farther out belongs to more and more others.
        let holds = |wanted| best.as_ref().is_some_and(|(_, found)| found.contains(&wanted));
        if holds(Controller::Memory) && holds(Controller::Pids) {
            break;
        }
    }
    best.map(|(parent, controllers)| CgroupSupport::V2 { parent, controllers })
}

fn child_controllers(dir: &Path, tries: &impl Tries) -> Vec<Controller> {
    let files = tries.child(dir).unwrap_or_default();
    let is_on = |controller: &Controller| files.iter().any(|f| f == controller.mark(Version::Two));
    Controller::ALL.into_iter().filter(is_on).collect()
}

/// Turns on in children of `dir` what `dir` itself has. The kernel refuses that while processes are
/// in `dir`: we step down if we are the only one, and never move anybody else.
fn turn_on(dir: &Path, home: bool, tries: &impl Tries) -> io::Result<()> {
    tries.child(dir)?;
    let had = tries.read(&dir.join("cgroup.controllers"))?;
    let on = tries.read(&dir.join("cgroup.subtree_control"))?;
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
    match tries.write(&control, &wanted.join(" ")) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy && home => {
            tries.step_down(dir)?;
            tries.write(&control, &wanted.join(" "))
        }
        other => other,
    }
}

fn choose_v1(
    groups: &str,
    mounts: &[Mount],
    controller: Controller,
    tries: &impl Tries,
) -> Option<Place> {
    let name = controller.as_str();
    let mount = mounts
        .iter()
        .find(|mount| mount.version == Version::One && mount.options.iter().any(|o| o == name))?;
    let own = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        controllers.split(',').any(|one| one == name).then(|| path.trim_start_matches('/'))
    })?;
    // In a container the path may be that of the host, which is not to be seen from inside.
    let home = mount.at.join(own);
    [home, mount.at.clone()]
        .into_iter()
        .find(|dir| {
            let mark = controller.mark(Version::One);
            tries.child(dir).is_ok_and(|files| files.iter().any(|file| file == mark))
        })
        .map(|parent| Place { controller, parent })
}

/// A mounted cgroup file system.
struct Mount {
    at: PathBuf,
    version: Version,
    options: Vec<String>,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ').skip(1);
        let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let version = match kind {
            "cgroup" => Version::One,
            "cgroup2" => Version::Two,
            _ => return None,
        };
        let options = options.split(',').map(str::to_owned).collect();
        Some(Self { at: at.into(), version, options })
    }
}

/// Trying on the machine itself.
struct Machine;

/// Gives each try a name of its own.
static TRIES: AtomicU32 = AtomicU32::new(0);

impl Tries for Machine {
    fn child(&self, parent: &Path) -> io::Result<Vec<String>> {
        // Whoever moves a process needs the right to write here, not only at its new place.
        rustix::fs::access(parent.join("cgroup.procs"), rustix::fs::Access::WRITE_OK)?;
        let number = TRIES.fetch_add(1, Ordering::Relaxed);
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

    /// A version 2 tree in a directory of the test's own: files as the kernel has them, and its
    /// rules played.
    struct Fake {
        root: tempfile::TempDir,
        /// Directories in which we may write.
        ours: Vec<&'static str>,
        /// How many processes are in a directory; ours is one of those of `home`.
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

    impl Tries for Fake {
        fn child(&self, parent: &Path) -> io::Result<Vec<String>> {
            self.may_write(parent)?;
            let on = self.read(&parent.join("cgroup.subtree_control"))?;
            let marks = Controller::ALL.into_iter().filter(|one| on.contains(one.as_str()));
            Ok(marks.map(|one| one.mark(Version::Two).to_owned()).collect())
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
    fn nobody_else_is_moved_to_turn_controllers_on() {
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

    /// Version 1 hierarchies, some of which exist and are ours.
    struct Hierarchies(&'static [(&'static str, &'static str)]);

    impl Tries for Hierarchies {
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
        // The container's pids path is the host's: only the mount's root is there.
        let tries = Hierarchies(&[
            ("/c/memory/job/7", "memory.limit_in_bytes"),
            ("/c/pids", "pids.max"),
            ("/c/cpu/", "cpu.stat"),
        ]);
        let place = |controller, parent: &str| Place { controller, parent: parent.into() };
        assert_eq!(
            choose(groups, mounts, &tries),
            CgroupSupport::V1 {
                places: vec![
                    place(Controller::Memory, "/c/memory/job/7"),
                    place(Controller::Pids, "/c/pids"),
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
    fn what_this_machine_allows_is_found_and_left_as_it_was() {
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
