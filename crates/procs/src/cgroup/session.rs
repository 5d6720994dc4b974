//! A session's cgroup directories: creates them with the session's limits, and removes them when they are
//! empty. The node does both, because a keeper may be killed at any moment.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use windlass_protocol::policy::Limits;

use super::support::{CgroupSupport, Controller};

/// The period over which the kernel counts a session's processor quota.
const CPU_PERIOD_US: u64 = 100_000;

/// Processor weight of a session (cgroup versions 2 and 1): half of the default, so that the node, the
/// keepers and the user's own programs come first. All sessions have the same weight.
const CPU_WEIGHT: u64 = 50;
const CPU_SHARES: u64 = 512;

/// The largest process limit that the kernel accepts.
const PIDS_MAX: u64 = 4 << 20;

/// Processes of a session that its code did not start: the sandbox's init, and the worker's starter.
const OWN_PROCESSES: u64 = 2;

/// The name prefix of one node's cgroups, made from the node's runtime directory: its path, device and inode. Two nodes
/// with a private `/tmp` each can have the same path.
pub fn prefix_of(runtime_dir: &Path) -> String {
    let path = runtime_dir.as_os_str().as_encoded_bytes();
    // A directory that is gone has no node any more.
    let (device, inode) =
        std::fs::metadata(runtime_dir).map(|found| (found.dev(), found.ino())).unwrap_or_default();
    // FNV-1a gives the same hash in every build: the next node of this directory finds the cgroups of this one. Releases
    // that hashed only the path left empty directories of other names: they stay until the machine restarts.
    let hash = (path.iter().copied())
        .chain(device.to_le_bytes())
        .chain(inode.to_le_bytes())
        .fold(0x811c_9dc5_u32, |hash, b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193));
    format!("windlass-{hash:08x}-")
}

/// A session's cgroup directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    dirs: Vec<PathBuf>,
}

impl Cgroups {
    /// Creates the directories and writes the limits into them. If that fails, all are removed again.
    /// On a machine without cgroup support the list is empty, and that is no error.
    pub fn make(support: &CgroupSupport, name: &str, limits: &Limits) -> io::Result<Self> {
        let mut made = Self { dirs: Vec::new() };
        let result = made.fill(support, name, limits);
        if result.is_err() {
            let _ = made.remove();
        }
        result.map(|()| made)
    }

    /// The directories that the session's processes join.
    pub fn dirs(&self) -> Vec<PathBuf> {
        self.dirs.clone()
    }

    /// Removes the directories. The error is `ResourceBusy` if a process is still in one of them.
    pub fn remove(&self) -> io::Result<()> {
        remove_all(self.dirs.iter())
    }

    fn fill(&mut self, support: &CgroupSupport, name: &str, limits: &Limits) -> io::Result<()> {
        for parent in support.parents() {
            let dir = parent.join(name);
            match std::fs::create_dir(&dir) {
                // `AlreadyExists`: an ended session of the same name left the directory. It can be reused,
                // because ids are unique in the journal.
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(at(&dir, &error));
                }
                _ => self.dirs.push(dir),
            }
        }
        self.limit(support, limits)
    }

    /// Directories that exist already.
    pub fn of(dirs: &[PathBuf]) -> Self {
        Self { dirs: dirs.to_vec() }
    }

    /// Writes limits into the directories.
    pub fn limit(&self, support: &CgroupSupport, limits: &Limits) -> io::Result<()> {
        match support {
            CgroupSupport::V2 { controllers, .. } => {
                let settings = controllers.iter().flat_map(|one| v2_settings(*one, limits));
                self.dirs.iter().zip([settings]).try_for_each(|(dir, all)| write_all(dir, all))
            }
            CgroupSupport::V1 { hierarchies } => {
                self.dirs.iter().zip(hierarchies).try_for_each(|(dir, hierarchy)| {
                    write_all(dir, v1_settings(hierarchy.controller, limits).into_iter())
                })
            }
            CgroupSupport::None { .. } => Ok(()),
        }
    }
}

/// Removes a session's directories like [`Cgroups::remove`].
pub fn remove_by_name(support: &CgroupSupport, name: &str) -> io::Result<()> {
    remove_all(dirs_by_name(support, name).iter())
}

/// The directories that a session of that name has or would have.
pub fn dirs_by_name(support: &CgroupSupport, name: &str) -> Vec<PathBuf> {
    support.parents().into_iter().map(|dir| dir.join(name)).collect()
}

/// Removes the directories of ended sessions: those with the prefix, unless `keep` returns true for the rest
/// of the name (the session's id). Returns the directories that could not be removed.
pub fn sweep(support: &CgroupSupport, prefix: &str, keep: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut busy = Vec::new();
    for parent in support.parents() {
        let Ok(entries) = std::fs::read_dir(parent) else { continue };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        for name in names {
            let over = name.strip_prefix(prefix).is_some_and(|session| !keep(session));
            let dir = parent.join(&name);
            if over && remove_all([&dir].into_iter()).is_err() {
                busy.push(dir);
            }
        }
    }
    busy
}

/// Removes the directories that exist. Returns the first error.
fn remove_all<'a>(dirs: impl Iterator<Item = &'a PathBuf>) -> io::Result<()> {
    let mut result = Ok(());
    for dir in dirs {
        if let Err(error) = std::fs::remove_dir(dir)
            && error.kind() != io::ErrorKind::NotFound
        {
            result = result.and(Err(at(dir, &error)));
        }
    }
    result
}

/// One file of a cgroup directory and its content.
struct Setting {
    file: &'static str,
    text: String,
    need: Need,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Required,
    /// Some kernels lack the file, so a failed write is ignored.
    IfPresent,
}

fn required(file: &'static str, value: impl ToString) -> Setting {
    Setting { file, text: value.to_string(), need: Need::Required }
}

fn if_present(file: &'static str, value: impl ToString) -> Setting {
    Setting { file, text: value.to_string(), need: Need::IfPresent }
}

fn write_all(dir: &Path, settings: impl Iterator<Item = Setting>) -> io::Result<()> {
    for setting in settings {
        let file = dir.join(setting.file);
        match std::fs::write(&file, setting.text) {
            Err(error) if setting.need == Need::Required => return Err(at(&file, &error)),
            _ => {}
        }
    }
    Ok(())
}

fn v2_settings(controller: Controller, limits: &Limits) -> Vec<Setting> {
    let mut settings = Vec::new();
    match controller {
        Controller::Memory => {
            if let Some(bytes) = limits.memory_bytes {
                settings.push(required("memory.max", bytes));
                settings.push(if_present("memory.swap.max", 0));
                settings.push(if_present("memory.oom.group", 1));
            }
        }
        Controller::Pids => settings.extend(pids_max(limits)),
        Controller::Cpu => {
            settings.push(if_present("cpu.weight", CPU_WEIGHT));
            if let Some(percent) = limits.cpu_percent {
                settings
                    .push(required("cpu.max", format!("{} {CPU_PERIOD_US}", quota_us(percent))));
            }
        }
    }
    settings
}

fn v1_settings(controller: Controller, limits: &Limits) -> Vec<Setting> {
    let mut settings = Vec::new();
    match controller {
        Controller::Memory => {
            if let Some(bytes) = limits.memory_bytes {
                settings.push(required("memory.limit_in_bytes", bytes));
                // Limit of memory and swap together. It cannot be below the memory limit, so it is written
                // second.
                settings.push(if_present("memory.memsw.limit_in_bytes", bytes));
            }
        }
        Controller::Pids => settings.extend(pids_max(limits)),
        Controller::Cpu => {
            settings.push(if_present("cpu.shares", CPU_SHARES));
            if let Some(percent) = limits.cpu_percent {
                settings.push(required("cpu.cfs_period_us", CPU_PERIOD_US));
                settings.push(required("cpu.cfs_quota_us", quota_us(percent)));
            }
        }
    }
    settings
}

fn pids_max(limits: &Limits) -> Option<Setting> {
    let most = |most| (u64::from(most) + OWN_PROCESSES).min(PIDS_MAX);
    limits.processes.map(|processes| required("pids.max", most(processes)))
}

fn quota_us(percent: u32) -> u64 {
    // The kernel accepts no quota below a millisecond.
    (u64::from(percent) * CPU_PERIOD_US / 100).max(1000)
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    let (path, kind) = (path.to_owned(), error.kind());
    let reason = error.raw_os_error().map(io::Error::from_raw_os_error);
    io::Error::new(kind, PathError { path, reason, text: error.to_string() })
}

/// An error with its path, and the kernel's error as its source.
#[derive(Debug)]
struct PathError {
    path: PathBuf,
    reason: Option<io::Error>,
    text: String,
}

impl std::fmt::Display for PathError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.text)
    }
}

impl std::error::Error for PathError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.reason.as_ref().map(|reason| reason as _)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cgroup::V1Hierarchy;

    const LIMITS: Limits = Limits {
        memory_bytes: Some(64 << 20),
        cpu_percent: Some(50),
        processes: Some(16),
        ..Limits::DEFAULT
    };

    fn files(dir: &Path) -> BTreeMap<String, String> {
        let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
        entries
            .map(|entry| {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                (entry.file_name().into_string().unwrap(), text)
            })
            .collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn version_2_has_all_limits_in_one_directory() {
        let parent = tempfile::tempdir().unwrap();
        let support = CgroupSupport::V2 {
            parent: parent.path().to_owned(),
            controllers: Controller::ALL.to_vec(),
        };
        let made = Cgroups::make(&support, "windlass-x-s", &LIMITS).unwrap();
        assert_eq!(made.dirs(), [parent.path().join("windlass-x-s")]);
        assert_eq!(
            files(&made.dirs()[0]),
            pairs(&[
                ("cpu.max", "50000 100000"),
                ("cpu.weight", "50"),
                ("memory.max", "67108864"),
                ("memory.oom.group", "1"),
                ("memory.swap.max", "0"),
                ("pids.max", "18"),
            ])
        );
    }

    #[test]
    fn resources_without_a_limit_get_no_limit_file() {
        let parent = tempfile::tempdir().unwrap();
        let support = CgroupSupport::V2 {
            parent: parent.path().to_owned(),
            controllers: Controller::ALL.to_vec(),
        };
        let made = Cgroups::make(&support, "s", &Limits::default()).unwrap();
        assert_eq!(files(&made.dirs()[0]), pairs(&[("cpu.weight", "50")]));
    }

    #[test]
    fn no_limit_is_larger_than_what_the_kernel_takes() {
        let written = |processes| {
            let limits = Limits { processes: Some(processes), ..Limits::default() };
            pids_max(&limits).map(|setting| setting.text)
        };
        assert_eq!(written(16).as_deref(), Some("18"));
        assert_eq!(written(u32::MAX).as_deref(), Some("4194304"));
    }

    #[test]
    fn version_1_has_a_directory_for_each_controller() {
        let parent = tempfile::tempdir().unwrap();
        let hierarchy = |controller: Controller| {
            let hierarchy =
                V1Hierarchy { controller, parent: parent.path().join(controller.as_str()) };
            std::fs::create_dir(&hierarchy.parent).unwrap();
            hierarchy
        };
        let support =
            CgroupSupport::V1 { hierarchies: Controller::ALL.into_iter().map(hierarchy).collect() };
        let made = Cgroups::make(&support, "s", &LIMITS).unwrap();
        let [memory, pids, cpu] = <[PathBuf; 3]>::try_from(made.dirs()).unwrap();
        assert_eq!(
            files(&memory),
            pairs(&[
                ("memory.limit_in_bytes", "67108864"),
                ("memory.memsw.limit_in_bytes", "67108864"),
            ])
        );
        assert_eq!(files(&pids), pairs(&[("pids.max", "18")]));
        assert_eq!(
            files(&cpu),
            pairs(&[
                ("cpu.cfs_period_us", "100000"),
                ("cpu.cfs_quota_us", "50000"),
                ("cpu.shares", "512"),
            ])
        );
    }

    #[test]
    fn a_failed_creation_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let hierarchy =
            |controller, name: &str| V1Hierarchy { controller, parent: parent.path().join(name) };
        std::fs::create_dir(parent.path().join("there")).unwrap();
        let hierarchies =
            vec![hierarchy(Controller::Pids, "there"), hierarchy(Controller::Memory, "not-there")];
        let error = Cgroups::make(&CgroupSupport::V1 { hierarchies }, "s", &LIMITS).unwrap_err();
        assert!(error.to_string().contains("not-there"), "{error}");
        assert!(!parent.path().join("there/s").exists());
    }

    #[test]
    fn nodes_whose_directories_have_the_same_path_have_different_names() {
        let base = tempfile::tempdir().unwrap();
        let (path, moved) = (base.path().join("run"), base.path().join("moved"));
        std::fs::create_dir(&path).unwrap();
        let first = prefix_of(&path);
        assert_eq!(first, prefix_of(&path));
        // The first directory stays, so the second has another inode, as in another mount namespace.
        std::fs::rename(&path, &moved).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_ne!(first, prefix_of(&path));
    }

    #[test]
    fn a_sweep_removes_ended_sessions_of_its_own_node_only() {
        let parent = tempfile::tempdir().unwrap();
        let (ours, theirs) = (prefix_of(Path::new("/run/a")), prefix_of(Path::new("/run/b")));
        assert_ne!(ours, theirs);
        let dir = |prefix: &str, id: &str| parent.path().join(format!("{prefix}{id}"));
        let all =
            [dir(&ours, "dead"), dir(&ours, "busy"), dir(&ours, "lives"), dir(&theirs, "dead")];
        all.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        // A directory with a file in it stands for a cgroup with a process in it: neither can be removed.
        std::fs::write(all[1].join("a"), "").unwrap();
        let support =
            CgroupSupport::V2 { parent: parent.path().to_owned(), controllers: Vec::new() };
        assert_eq!(sweep(&support, &ours, |id| id == "lives"), [all[1].clone()]);
        assert_eq!(all.map(|dir| dir.exists()), [false, true, true, true]);
    }

    #[test]
    fn a_real_cgroup_can_be_made_and_removed_where_the_machine_allows_it() {
        let support = CgroupSupport::detect();
        let name = format!("windlass-test-{}", std::process::id());
        let largest = Limits { processes: Some(u32::MAX), cpu_percent: Some(u32::MAX), ..LIMITS };
        Cgroups::make(&support, &name, &largest).unwrap();
        let made = Cgroups::make(&support, &name, &LIMITS).unwrap();
        assert_eq!(made.dirs().is_empty(), matches!(support, CgroupSupport::None { .. }));
        assert!(made.dirs().iter().all(|dir| dir.is_dir()));
        remove_by_name(&support, &name).unwrap();
        assert!(made.dirs().iter().all(|dir| !dir.exists()));
        made.remove().unwrap();
    }
}
