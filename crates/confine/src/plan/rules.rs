//! Landlock rulesets. Inside a view of its own a session needs few rules, as a second wall. Without
//! one, rules are all there is: what is hidden is cut out of what is readable by naming everything
//! around it, since Landlock can only allow.

use std::path::{Path, PathBuf};

use windlass_protocol::policy::{Network, Policy, WorkspaceAccess};

use super::{HOLDS_ABSTRACT_SOCKETS, HOLDS_PATH_SOCKETS, Rule, Ruleset, rights};
use crate::machine::Machine;
use crate::survey::{Place, named_directories};

/// The rights over files that a kernel's Landlock version knows.
fn known_files(abi: u32) -> u64 {
    let first = rights::READ | rights::WRITE_FILE | rights::CHANGE_TREE;
    let later = [
        (2, rights::REFER),
        (3, rights::TRUNCATE),
        (5, rights::IOCTL_DEV),
        (HOLDS_PATH_SOCKETS, rights::RESOLVE_UNIX),
    ];
    later
        .into_iter()
        .filter(|(since, _)| abi >= *since)
        .fold(first, |known, (_, right)| known | right)
}

fn known_scopes(abi: u32) -> u64 {
    if abi >= HOLDS_ABSTRACT_SOCKETS {
        rights::SCOPE_ABSTRACT_UNIX | rights::SCOPE_SIGNAL
    } else {
        0
    }
}

/// The second wall inside a view: writing only where the policy says so, unix sockets with a path only
/// in the session's private directories, where no other session can see them.
pub(super) fn inside_view(policy: &Policy, machine: &Machine, place: &Place) -> Option<Ruleset> {
    let abi = machine.landlock_abi;
    if abi == 0 {
        return None;
    }
    let everywhere = place.writable.iter().any(|path| path == Path::new("/"));
    let sockets = (rights::MAKE_SOCKET | rights::RESOLVE_UNIX) & known_files(abi);
    let files = match everywhere {
        false => (rights::CHANGE | rights::RESOLVE_UNIX) & known_files(abi),
        // Every ruleset over files forbids renaming between directories unless it allows it.
        true if abi >= 2 => sockets | rights::REFER,
        true => 0,
    };
    let change = |path: &Path| Rule { path: path.to_owned(), access: files & !sockets };
    let mut rules: Vec<Rule> = match files {
        0 => Vec::new(),
        _ => PRIVATE.map(|path| private(Path::new(path), files, place)).to_vec(),
    };
    if everywhere && files != 0 {
        rules.push(change(Path::new("/")));
    } else if files != 0 {
        // Devices and a process's own knobs are written to, and nothing is made there.
        let write = files & rights::WRITE_FILE;
        rules.extend(["/dev", "/proc"].map(|path| Rule { path: path.into(), access: write }));
        rules.extend(written(policy, place).map(|path| change(path)));
    }
    if files & rights::RESOLVE_UNIX != 0 {
        let named = named_directories(&place.readable, &place.writable);
        let reach = |path: &Path| Rule { path: path.to_owned(), access: rights::RESOLVE_UNIX };
        rules.extend(named.map(reach));
    }
    let scopes = known_scopes(abi);
    (files | scopes != 0).then_some(Ruleset { files, network: 0, scopes, rules })
}

/// Directories of a view that are the session's alone.
const PRIVATE: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev/shm"];

/// The rule for one of them, where it is not the machine's after all because the policy names it.
fn private(path: &Path, files: u64, place: &Place) -> Rule {
    let of_machine = place.writable.iter().any(|root| root == path);
    let make_socket = if of_machine { 0 } else { rights::MAKE_SOCKET };
    let others = files & !(rights::MAKE_SOCKET | rights::RESOLVE_UNIX);
    Rule { path: path.to_owned(), access: others | (make_socket & files) }
}

/// The only wall: reading, writing, TCP and signals.
pub(super) fn alone(policy: &Policy, machine: &Machine, place: &Place) -> Ruleset {
    let abi = machine.landlock_abi;
    let files = known_files(abi);
    let network = match policy.network {
        Network::Open => 0,
        Network::None | Network::Hosts(_) if abi >= 4 => rights::BIND_TCP | rights::CONNECT_TCP,
        Network::None | Network::Hosts(_) => 0,
    };
    let mut rules = Vec::new();
    let carve = |roots: &mut dyn Iterator<Item = &PathBuf>, access, rules: &mut Vec<Rule>| {
        for root in roots {
            carve_out(root, place, access & files, rules);
        }
    };
    let device = rights::READ_FILE | rights::WRITE_FILE | rights::IOCTL_DEV;
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        rules.push(Rule { path: Path::new("/dev").join(name), access: device & files });
    }
    for name in KERNEL_FILES {
        rules.push(Rule { path: name.into(), access: rights::READ_FILE | rights::READ_DIR });
    }
    carve(&mut place.readable.iter(), rights::READ, &mut rules);
    let program = place.program.iter();
    rules.extend(program.map(|path| Rule { path: path.clone(), access: rights::READ }));
    // Without what is hidden below it.
    carve(&mut place.needed(), rights::READ, &mut rules);
    // A writable root is open as a whole: names in it cannot be cut out without forbidding to make
    // new ones. What is hidden in it can, by not opening the root itself.
    let all = rights::READ | rights::CHANGE | rights::IOCTL_DEV;
    carve(&mut written(policy, place), all, &mut rules);
    if policy.workspace == WorkspaceAccess::Read {
        let own = [Some(&place.workspace), place.family.as_ref()].into_iter().flatten();
        carve(&mut own.into_iter(), rights::READ, &mut rules);
    }
    rules.extend(place.tmp.iter().map(|path| Rule { path: path.clone(), access: all & files }));
    Ruleset { files, network, scopes: known_scopes(abi), rules }
}

/// What programs ask the kernel about the machine. `/proc` as a whole stays closed: it shows the
/// processes of others.
const KERNEL_FILES: [&str; 9] = [
    // Not the link but what it stands for.
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

fn written<'a>(policy: &Policy, place: &'a Place) -> impl Iterator<Item = &'a PathBuf> {
    let own = [Some(&place.workspace), place.family.as_ref()].into_iter().flatten();
    let own = own.filter(|_| policy.workspace == WorkspaceAccess::Write);
    place.writable.iter().chain(own)
}

/// Places that are never opened as a whole, whatever the policy says is readable.
const NEVER: [&str; 2] = ["/proc", "/dev"];

/// Allows `root` without what is hidden in it: the root itself if nothing is, else everything in it
/// one by one, and so on down.
fn carve_out(root: &Path, place: &Place, access: u64, rules: &mut Vec<Rule>) {
    let closed = || {
        let listed = place.hidden.keys().chain(place.system.keys()).map(PathBuf::as_path);
        listed.chain(NEVER.iter().map(Path::new))
    };
    let is_hidden = |path: &Path| closed().any(|hidden| hidden == path);
    let holds_hidden = |path: &Path| closed().any(|hidden| hidden.starts_with(path));
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        if is_hidden(&path) && path != root {
            continue;
        }
        if !holds_hidden(&path) || path == root && is_hidden(&path) {
            rules.push(Rule { path, access });
            continue;
        }
        // What nobody looked into stays closed.
        let entries = place.siblings.get(&path).into_iter().flatten();
        waiting.extend(entries.rev().cloned());
    }
}
