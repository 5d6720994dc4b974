//! Landlock rulesets. Inside a view a session needs few rules, as a second line of defence. Without a view
//! the rules are the only protection of files. Landlock can only allow: to hide a path, the rules allow every
//! other entry of the directories above it.

use std::path::{Path, PathBuf};

use windlass_protocol::policy::{Network, Policy, WorkspaceAccess};

use super::{ABSTRACT_SOCKETS_SINCE, LandlockRule, PATH_SOCKETS_SINCE, Ruleset, rights};
use crate::machine::MachineSupport;
use crate::survey::{FileSurvey, named_directories};

/// The file rights that a Landlock version knows.
fn known_files(abi: u32) -> u64 {
    let first = rights::READ | rights::WRITE_FILE | rights::CHANGE_TREE;
    let later = [
        (2, rights::REFER),
        (3, rights::TRUNCATE),
        (5, rights::IOCTL_DEV),
        (PATH_SOCKETS_SINCE, rights::RESOLVE_UNIX),
    ];
    later
        .into_iter()
        .filter(|(since, _)| abi >= *since)
        .fold(first, |known, (_, right)| known | right)
}

fn known_scopes(abi: u32) -> u64 {
    if abi >= ABSTRACT_SOCKETS_SINCE {
        rights::SCOPE_ABSTRACT_UNIX | rights::SCOPE_SIGNAL
    } else {
        0
    }
}

/// The rules inside a view: the session writes only where the policy allows it, and makes unix sockets with a
/// path only in its private directories, where no other session can see them.
pub(super) fn inside_view(
    policy: &Policy,
    machine: &MachineSupport,
    survey: &FileSurvey,
) -> Option<Ruleset> {
    let abi = machine.landlock_abi;
    if abi == 0 {
        return None;
    }
    let everywhere = survey.writable.iter().any(|path| path == Path::new("/"));
    let sockets = (rights::MAKE_SOCKET | rights::RESOLVE_UNIX) & known_files(abi);
    let files = match everywhere {
        false => (rights::CHANGE | rights::RESOLVE_UNIX) & known_files(abi),
        // Every ruleset over files forbids renaming between directories unless a rule allows it.
        true if abi >= 2 => sockets | rights::REFER,
        true => 0,
    };
    let change = |path: &Path| LandlockRule { path: path.to_owned(), access: files & !sockets };
    let mut rules: Vec<LandlockRule> = match files {
        0 => Vec::new(),
        _ => PRIVATE.map(|path| private(Path::new(path), files, survey)).to_vec(),
    };
    if everywhere && files != 0 {
        rules.push(change(Path::new("/")));
    } else if files != 0 {
        // The session writes to devices and to its own files in `/proc`, and creates nothing there.
        let write = files & rights::WRITE_FILE;
        rules.extend(
            ["/dev", "/proc"].map(|path| LandlockRule { path: path.into(), access: write }),
        );
        rules.extend(writable_roots(policy, survey).chain(&survey.tmp).map(|path| change(path)));
    }
    if files & rights::RESOLVE_UNIX != 0 {
        let named = named_directories(&survey.readable, &survey.writable);
        let reach =
            |path: &Path| LandlockRule { path: path.to_owned(), access: rights::RESOLVE_UNIX };
        rules.extend(named.map(reach));
    }
    let scopes = known_scopes(abi);
    (files | scopes != 0).then_some(Ruleset { files, network: 0, scopes, rules })
}

/// Directories that are private in a view.
const PRIVATE: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev/shm"];

/// The rule for a private directory. If the policy makes the machine's directory writable at this path, the
/// directory is not private and the rule allows no sockets.
fn private(path: &Path, files: u64, survey: &FileSurvey) -> LandlockRule {
    let of_machine = survey.writable.iter().any(|root| root == path);
    let make_socket = if of_machine { 0 } else { rights::MAKE_SOCKET };
    let others = files & !(rights::MAKE_SOCKET | rights::RESOLVE_UNIX);
    LandlockRule { path: path.to_owned(), access: others | (make_socket & files) }
}

/// The rules at level `landlock`, without a view: reading, writing, TCP and signals.
pub(super) fn alone(policy: &Policy, machine: &MachineSupport, survey: &FileSurvey) -> Ruleset {
    let abi = machine.landlock_abi;
    let files = known_files(abi);
    let network = match policy.network {
        Network::Open => 0,
        Network::None | Network::Hosts(_) if abi >= 4 => rights::BIND_TCP | rights::CONNECT_TCP,
        Network::None | Network::Hosts(_) => 0,
    };
    let mut rules = Vec::new();
    let carve =
        |roots: &mut dyn Iterator<Item = &PathBuf>, access, rules: &mut Vec<LandlockRule>| {
            for root in roots {
                carve_out(root, survey, access & files, rules);
            }
        };
    let device = rights::READ_FILE | rights::WRITE_FILE | rights::IOCTL_DEV;
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        rules.push(LandlockRule { path: Path::new("/dev").join(name), access: device & files });
    }
    for name in KERNEL_FILES {
        rules
            .push(LandlockRule { path: name.into(), access: rights::READ_FILE | rights::READ_DIR });
    }
    carve(&mut survey.readable.iter(), rights::READ, &mut rules);
    let node_files = survey.node_files.iter();
    rules.extend(node_files.map(|path| LandlockRule { path: path.clone(), access: rights::READ }));
    // Hidden paths below a needed path stay hidden.
    carve(&mut survey.needed(), rights::READ, &mut rules);
    // Protected names inside a writable root stay writable: excluding them would also forbid creating new
    // files in the root. Hidden paths are excluded, which closes the root itself.
    let all = rights::READ | rights::CHANGE | rights::IOCTL_DEV;
    carve(&mut writable_roots(policy, survey), all, &mut rules);
    if policy.workspace == WorkspaceAccess::Read {
        let own = [Some(&survey.workspace), survey.family.as_ref()].into_iter().flatten();
        carve(&mut own.into_iter(), rights::READ, &mut rules);
    }
    rules.extend(
        survey.tmp.iter().map(|path| LandlockRule { path: path.clone(), access: all & files }),
    );
    Ruleset { files, network, scopes: known_scopes(abi), rules }
}

/// Files in `/proc` that programs commonly read. `/proc` as a whole stays closed: it shows processes of
/// others.
const KERNEL_FILES: [&str; 9] = [
    // The trailing `.` makes the rule apply to the target of the symlink.
    "/proc/self/.",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/version",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/sys/kernel/ngroups_max",
];

fn writable_roots<'a>(
    policy: &Policy,
    survey: &'a FileSurvey,
) -> impl Iterator<Item = &'a PathBuf> {
    let own = [Some(&survey.workspace), survey.family.as_ref()].into_iter().flatten();
    let own = own.filter(|_| policy.workspace == WorkspaceAccess::Write);
    survey.writable.iter().chain(own)
}

/// Directories that are never readable as a whole, even if the policy names them.
const NEVER_WHOLE: [&str; 2] = ["/proc", "/dev"];

/// Allows `root` without the hidden paths in it. If `root` contains no hidden path, one rule allows it.
/// Otherwise each of its entries gets a rule, recursively.
fn carve_out(root: &Path, survey: &FileSurvey, access: u64, rules: &mut Vec<LandlockRule>) {
    let closed = || {
        let listed = survey.hidden.keys().chain(survey.layout.system.keys()).map(PathBuf::as_path);
        listed.chain(NEVER_WHOLE.iter().map(Path::new))
    };
    let is_hidden = |path: &Path| closed().any(|hidden| hidden == path);
    let holds_hidden = |path: &Path| closed().any(|hidden| hidden.starts_with(path));
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        if is_hidden(&path) && path != root {
            continue;
        }
        if !holds_hidden(&path) || path == root && is_hidden(&path) {
            rules.push(LandlockRule { path, access });
            continue;
        }
        // A directory that the survey did not list stays closed.
        let entries = survey.layout.siblings.get(&path).into_iter().flatten();
        pending.extend(entries.rev().cloned());
    }
}
