//! Chooses the canaries of a plan: forbidden operations that the confined process tries before the worker
//! starts. A session gets a few cheap canaries for each enforced control. A thorough plan has many more;
//! `windlass doctor` uses it.

use std::path::{Path, PathBuf};

use windlass_protocol::confinement::{Control, ControlState, Isolation};
use windlass_protocol::policy::{Network, Policy, UnixSockets, WorkspaceAccess};

use super::{Attempt, Canary, PathKind, Plan};
use crate::enter::canary::CANARIES_MAX;
use crate::survey::FileSurvey;
use crate::survey::names::{Placeholder, ProtectedEntry};

/// Maximum number of hidden paths that a session tries. The other hidden paths are mounted in the same way.
const HIDDEN_TRIED_MAX: usize = 4;

pub(super) fn choose(plan: &Plan, policy: &Policy, survey: &FileSurvey) -> Vec<Canary> {
    if plan.isolation == Isolation::None {
        return Vec::new();
    }
    let mut canaries = Vec::new();
    let mut add = |control, attempt| canaries.push(Canary { control, attempt });
    for path in tried_hidden(survey) {
        add(Control::Hidden, Attempt::Read { path });
    }
    if let Some(directory) = not_writable(policy, survey) {
        add(Control::Write, Attempt::Create { directory });
    }
    if let Some(path) = survey.names.protected.keys().find(|path| path.ends_with(".git"))
        && plan.isolation == Isolation::Full
        && policy.workspace == WorkspaceAccess::Write
    {
        add(Control::Protected, Attempt::Create { directory: path.clone() });
    }
    if policy.network != Network::Open {
        add(Control::Network, Attempt::Route);
        add(Control::Network, Attempt::Netlink);
    }
    if plan.sockets.is_some_and(|sockets| sockets.unix == UnixSockets::None) {
        add(Control::Sockets, Attempt::UnixSocket);
    }
    add(Control::Processes, Attempt::SignalParent);
    add(Control::Ipc, Attempt::SharedMemory);
    add(Control::Privileges, Attempt::Capability);
    add(Control::Privileges, Attempt::UserNamespace);
    add(Control::Syscalls, Attempt::Bpf);
    add(Control::Syscalls, Attempt::Ptrace);
    add(Control::Syscalls, Attempt::Keyring);
    add(Control::Syscalls, Attempt::IoUring);
    add(Control::Devices, Attempt::Open { path: "/dev/kmsg".into() });
    canaries.retain(|canary| is_enforced(plan, canary.control));
    canaries
}

/// The plan with many more canaries: every hidden path, every protected name, and more system directories,
/// devices and system calls.
pub fn thorough(mut plan: Plan, policy: &Policy, survey: &FileSurvey) -> Plan {
    if plan.isolation == Isolation::None {
        return plan;
    }
    let hidden = fully_hidden(survey);
    let hidden = hidden.into_iter().map(|path| (Control::Hidden, Attempt::Read { path }));
    let protected = survey.names.protected.iter().map(|(path, found)| {
        let attempt = match found {
            ProtectedEntry::Real(PathKind::Directory)
            | ProtectedEntry::Missing(Placeholder::Directory) => {
                Attempt::Create { directory: path.clone() }
            }
            _ => Attempt::Write { path: path.clone() },
        };
        (Control::Protected, attempt)
    });
    let parent = survey.workspace.parent().map(Path::to_owned);
    let system = SYSTEM.iter().map(PathBuf::from).chain(parent);
    let system = system
        .filter(|path| !is_writable(path, policy, survey))
        .map(|directory| (Control::Write, Attempt::Create { directory }));
    let devices =
        DEVICES.iter().map(|path| (Control::Devices, Attempt::Open { path: path.into() }));
    let calls = CALLS.iter().map(|(number, name)| {
        (Control::Syscalls, Attempt::Call { name: (*name).to_owned(), number: *number })
    });
    // Hidden paths come last: there may be many, and the list is cut off.
    let more: Vec<Canary> = protected
        .chain(system)
        .chain(devices)
        .chain(calls)
        .chain(hidden)
        .filter(|(control, _)| is_enforced(&plan, *control))
        .map(|(control, attempt)| Canary { control, attempt })
        .filter(|canary| !plan.canaries.contains(canary))
        .collect();
    // The session's canaries stay first: they include every control.
    plan.canaries.extend(more);
    plan.canaries.truncate(CANARIES_MAX);
    plan
}

/// System directories in which the canary tries to create a file.
const SYSTEM: [&str; 7] = ["/", "/etc", "/opt", "/srv", "/usr", "/usr/local", "/var"];

/// Devices that give access to the machine.
const DEVICES: [&str; 8] = [
    "/dev/fuse",
    "/dev/kvm",
    "/dev/mem",
    "/dev/port",
    "/dev/sda",
    "/dev/vda",
    "/dev/net/tun",
    "/dev/mapper/control",
];

/// System calls that do nothing when their arguments are invalid.
const CALLS: [(i64, &str); 20] = [
    (libc::SYS_mount, "mount"),
    (libc::SYS_umount2, "umount2"),
    (libc::SYS_pivot_root, "pivot_root"),
    (libc::SYS_chroot, "chroot"),
    (libc::SYS_open_tree, "open_tree"),
    (libc::SYS_move_mount, "move_mount"),
    (libc::SYS_fsopen, "fsopen"),
    (libc::SYS_setns, "setns"),
    (libc::SYS_perf_event_open, "perf_event_open"),
    (libc::SYS_finit_module, "finit_module"),
    (libc::SYS_userfaultfd, "userfaultfd"),
    (libc::SYS_open_by_handle_at, "open_by_handle_at"),
    (libc::SYS_process_vm_readv, "process_vm_readv"),
    (libc::SYS_pidfd_getfd, "pidfd_getfd"),
    (libc::SYS_add_key, "add_key"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_syslog, "syslog"),
    (libc::SYS_clock_settime, "clock_settime"),
    (libc::SYS_memfd_secret, "memfd_secret"),
    (467, "open_tree_attr"),
];

fn is_enforced(plan: &Plan, control: Control) -> bool {
    let is = |state| state == ControlState::Enforced;
    plan.controls.iter().any(|report| report.control == control && is(report.state))
}

/// A few hidden paths, evenly spread over the list.
fn tried_hidden(survey: &FileSurvey) -> Vec<PathBuf> {
    let paths = fully_hidden(survey);
    let step = paths.len().div_ceil(HIDDEN_TRIED_MAX).max(1);
    paths.into_iter().step_by(step).collect()
}

/// Hidden paths that contain no visible path. The others can be listed, so they are no canaries.
fn fully_hidden(survey: &FileSurvey) -> Vec<PathBuf> {
    let shown = || {
        let readable = survey.node_files.iter().chain(survey.needed()).chain(&survey.readable);
        readable.chain(&survey.writable).chain([&survey.workspace])
    };
    let holds = |path: &Path| shown().any(|inner| inner != path && inner.starts_with(path));
    survey.hidden.keys().filter(|path| !holds(path)).cloned().collect()
}

/// A system directory in which the session must not create a file.
fn not_writable(policy: &Policy, survey: &FileSurvey) -> Option<PathBuf> {
    let refused = |path: &PathBuf| !is_writable(path, policy, survey);
    ["/usr", "/etc", "/"].into_iter().map(PathBuf::from).find(refused)
}

fn is_writable(path: &Path, policy: &Policy, survey: &FileSurvey) -> bool {
    let private = ["/tmp", "/var/tmp", "/run"].iter().any(|own| path.starts_with(own));
    private
        || survey.writable.iter().any(|root| path.starts_with(root))
        || policy.workspace == WorkspaceAccess::Write && path.starts_with(&survey.workspace)
}
