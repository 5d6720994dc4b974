//! The calls from number 424 on, which have the same number on every architecture, each with its verdict. A
//! call that is not in this table is newer than the last review. It fails with ENOSYS, as if the kernel did
//! not know it, so callers fall back to older calls.

/// What the filter does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallVerdict {
    Allowed,
    /// Fails with EPERM.
    Refused,
    /// Fails with ENOSYS, so that callers fall back to an older call, whose arguments a filter can see.
    Unknown,
    /// The arguments decide: `seccomp::compile_all` has the rule.
    ByArguments,
}

/// The first number in the table.
pub(super) const FIRST: u32 = 424;

/// The newest reviewed call (Linux 6.18). Every higher number is refused.
pub(super) const NEWEST_REVIEWED: u32 = 469;

const ALLOWED: CallVerdict = CallVerdict::Allowed;
const REFUSED: CallVerdict = CallVerdict::Refused;
const UNKNOWN: CallVerdict = CallVerdict::Unknown;
const BY_ARGUMENTS: CallVerdict = CallVerdict::ByArguments;

const OF_NAMESPACE: &str = "signals and processes are held by the pid namespace or by Landlock";
const OWN_FILES: &str = "changes what the older calls can change, under the same checks";

/// The reviewed calls in the order of their numbers, each with the reason.
#[rustfmt::skip]
pub(super) const REVIEWED: &[(&str, CallVerdict, &str)] = &[
    ("pidfd_send_signal", ALLOWED, OF_NAMESPACE),
    ("io_uring_setup", REFUSED, "performs calls past this filter"),
    ("io_uring_enter", REFUSED, "performs calls past this filter"),
    ("io_uring_register", REFUSED, "performs calls past this filter"),
    ("open_tree", REFUSED, "changes the view of the files"),
    ("move_mount", REFUSED, "changes the view of the files"),
    ("fsopen", REFUSED, "changes the view of the files"),
    ("fsconfig", REFUSED, "changes the view of the files"),
    ("fsmount", REFUSED, "changes the view of the files"),
    ("fspick", REFUSED, "changes the view of the files"),
    ("pidfd_open", ALLOWED, OF_NAMESPACE),
    ("clone3", UNKNOWN, "hides its flags in memory"),
    ("close_range", ALLOWED, "its own descriptors"),
    ("openat2", UNKNOWN, "hides its mode in memory"),
    ("pidfd_getfd", REFUSED, "takes other processes' descriptors"),
    ("faccessat2", ALLOWED, "asks what it may do"),
    ("process_madvise", ALLOWED, "of other processes only with a capability"),
    ("epoll_pwait2", ALLOWED, "waits"),
    ("mount_setattr", REFUSED, "changes the view of the files"),
    ("quotactl_fd", REFUSED, "the machine's quotas"),
    ("landlock_create_ruleset", ALLOWED, "takes rights away"),
    ("landlock_add_rule", ALLOWED, "takes rights away"),
    ("landlock_restrict_self", ALLOWED, "takes rights away"),
    ("memfd_secret", REFUSED, "memory that nobody can look into or count"),
    ("process_mrelease", REFUSED, "other processes' memory"),
    ("futex_waitv", ALLOWED, "waits"),
    ("set_mempolicy_home_node", ALLOWED, "its own memory"),
    ("cachestat", ALLOWED, "asks about a file that it has opened"),
    ("fchmodat2", BY_ARGUMENTS, "can leave setuid and setgid files behind"),
    ("map_shadow_stack", ALLOWED, "its own memory"),
    ("futex_wake", ALLOWED, "its own memory"),
    ("futex_wait", ALLOWED, "waits"),
    ("futex_requeue", ALLOWED, "its own memory"),
    ("statmount", UNKNOWN, "shows mounts by number; /proc/self/mountinfo has its own"),
    ("listmount", UNKNOWN, "shows mounts by number; /proc/self/mountinfo has its own"),
    ("lsm_get_self_attr", ALLOWED, "asks"),
    ("lsm_set_self_attr", UNKNOWN, "changes which security profile it has"),
    ("lsm_list_modules", ALLOWED, "asks"),
    ("mseal", ALLOWED, "its own memory"),
    ("setxattrat", ALLOWED, OWN_FILES),
    ("getxattrat", ALLOWED, "asks"),
    ("listxattrat", ALLOWED, "asks"),
    ("removexattrat", ALLOWED, OWN_FILES),
    ("open_tree_attr", REFUSED, "changes the view of the files"),
    ("file_getattr", ALLOWED, "asks"),
    ("file_setattr", UNKNOWN, "changes attributes of a file that it need not be able to open"),
];

/// The numbers of the calls with this verdict.
pub(super) fn with(verdict: CallVerdict) -> impl Iterator<Item = i64> {
    let numbered = (i64::from(FIRST)..).zip(REVIEWED);
    numbered.filter(move |(_, (_, of, _))| *of == verdict).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_up_to_the_newest_was_reviewed() {
        assert_eq!(REVIEWED.len(), (NEWEST_REVIEWED - FIRST + 1) as usize);
        assert!(REVIEWED.iter().all(|(name, _, reason)| !name.is_empty() && !reason.is_empty()));
        let number = |name| {
            let at = REVIEWED.iter().position(|(one, ..)| *one == name).unwrap();
            i64::from(FIRST) + i64::try_from(at).unwrap()
        };
        for (name, known) in [
            ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
            ("io_uring_register", libc::SYS_io_uring_register),
            ("clone3", libc::SYS_clone3),
            ("openat2", libc::SYS_openat2),
            ("pidfd_getfd", libc::SYS_pidfd_getfd),
            ("mount_setattr", libc::SYS_mount_setattr),
            ("memfd_secret", libc::SYS_memfd_secret),
            ("set_mempolicy_home_node", libc::SYS_set_mempolicy_home_node),
            ("fchmodat2", libc::SYS_fchmodat2),
            ("mseal", libc::SYS_mseal),
            ("open_tree_attr", 467),
        ] {
            assert_eq!(number(name), known, "{name}");
        }
    }
}
