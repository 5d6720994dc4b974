//! Describes the isolation levels and mechanisms of this machine.

use windlass_confine::{MachineSupport, Support};
use windlass_procs::cgroup::{CgroupSupport, Controller};
use windlass_protocol::confinement::Isolation;

use super::report::CheckItem;

/// The available levels that confine, the strongest first.
pub fn available(machine: &MachineSupport) -> impl Iterator<Item = Isolation> {
    let confines = |level: &Isolation| *level != Isolation::None;
    let is_there = |level: &Isolation| machine.level(*level) == Support::Yes;
    Isolation::ALL.into_iter().filter(confines).filter(is_there)
}

pub fn levels(machine: &MachineSupport) -> Vec<CheckItem> {
    Isolation::ALL
        .into_iter()
        .map(|level| match (machine.level(level), level) {
            (Support::No { why, remedy }, _) => CheckItem::bad(level.as_str(), why, remedy),
            (Support::Yes, Isolation::Full) => {
                CheckItem::good("full", "namespaces, a private mount view, Landlock, seccomp")
            }
            (Support::Yes, Isolation::Landlock) => CheckItem::good("landlock", "Landlock, seccomp"),
            (Support::Yes, Isolation::None) => {
                CheckItem::lacking("none", "no confinement; used only with --isolation none")
            }
        })
        .collect()
}

pub fn items(machine: &MachineSupport) -> Vec<CheckItem> {
    vec![
        supported("namespaces", &machine.namespaces, "user, mount, pid, network, ipc, uts"),
        landlock(machine.landlock_abi),
        supported("seccomp", &machine.seccomp, "system call filters"),
        cgroups(&machine.cgroups),
    ]
}

fn supported(name: &str, support: &Support, says: &str) -> CheckItem {
    match support {
        Support::Yes => CheckItem::good(name, says),
        Support::No { why, remedy } => CheckItem::bad(name, why, remedy),
    }
}

/// What each Landlock version added, and the kernel version that has it.
const LANDLOCK: [(u32, &str, &str); 6] = [
    (1, "files", "5.13"),
    (2, "renames between directories", "5.19"),
    (3, "truncation", "6.2"),
    (4, "TCP", "6.7"),
    (5, "device control", "6.10"),
    (6, "signals and abstract sockets", "6.12"),
];

fn landlock(abi: u32) -> CheckItem {
    if abi == 0 {
        let help = "boot a kernel of 5.13 or newer with landlock in its lsm= list";
        return CheckItem::bad("landlock", "this kernel has no Landlock", help);
    }
    let names = |there: bool| {
        let wanted = LANDLOCK.iter().filter(|(since, ..)| (*since <= abi) == there);
        wanted.map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ")
    };
    let says = format!("version {abi}: {}", names(true));
    match LANDLOCK.iter().rfind(|(since, ..)| *since > abi) {
        None => CheckItem::good("landlock", says),
        Some((_, _, kernel)) => {
            CheckItem::lacking("landlock", format!("{says}; lacks {}", names(false)))
                .with_help(format!("a kernel of {kernel} or newer has them"))
        }
    }
}

fn cgroups(support: &CgroupSupport) -> CheckItem {
    let version = match support {
        CgroupSupport::V2 { .. } => "2",
        CgroupSupport::V1 { .. } => "1",
        CgroupSupport::None { reason, remedy } => {
            return CheckItem::lacking("cgroups", reason).with_help(remedy);
        }
    };
    let (there, missing): (Vec<Controller>, Vec<Controller>) =
        Controller::ALL.into_iter().partition(|controller| support.has(*controller));
    let names = |list: &[Controller]| {
        list.iter().map(|controller| controller.as_str()).collect::<Vec<_>>().join(", ")
    };
    let says = format!("version {version}: {}", names(&there));
    match missing.is_empty() {
        true => CheckItem::good("cgroups", says),
        false => CheckItem::lacking("cgroups", format!("{says}; lacks {}", names(&missing)))
            .with_help("enable it in the parent cgroup of the node; with systemd: Delegate=yes"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::CheckState;
    use super::*;

    #[test]
    fn an_old_landlock_names_what_it_lacks_and_the_kernel_that_has_it() {
        let old = landlock(3);
        assert_eq!(old.state, CheckState::Lacking);
        assert!(old.says.starts_with("version 3: files"), "{}", old.says);
        assert!(old.says.ends_with("lacks TCP, device control, signals and abstract sockets"));
        assert!(old.help.unwrap().contains("6.12"));
        assert_eq!(landlock(7).state, CheckState::Good);
        assert_eq!(landlock(0).state, CheckState::Bad);
    }

    #[test]
    fn a_missing_controller_is_named() {
        let support = CgroupSupport::V2 {
            parent: "/sys/fs/cgroup".into(),
            controllers: vec![Controller::Memory, Controller::Pids],
        };
        let item = cgroups(&support);
        assert_eq!(item.says, "version 2: memory, pids; lacks cpu");
        assert_eq!(item.state, CheckState::Lacking);
    }
}
