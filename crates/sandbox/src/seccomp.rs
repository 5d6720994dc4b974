//! The system calls that a confined process is refused, each with its reason, compiled to the
//! kernel's filter programs. Everything not named here is allowed: interpreters and what they load
//! use most of the rest.

mod search;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use self::search::Answer;
use crate::plan::Sockets;

/// Why a filter cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("the system call filter cannot be made: {0}")]
    Compile(#[from] seccompiler::BackendError),
    #[error("the system call filter cannot be made: it names more calls than a jump can span")]
    TooLong,
}

/// Calls that are refused with EPERM, whatever their arguments.
#[rustfmt::skip]
const REFUSED: &[(i64, &str)] = &[
    (libc::SYS_bpf, "programs inside the kernel"),
    (libc::SYS_io_uring_setup, "performs calls past this filter"),
    (libc::SYS_io_uring_enter, "performs calls past this filter"),
    (libc::SYS_io_uring_register, "performs calls past this filter"),
    (libc::SYS_ptrace, "reads and steers other processes"),
    (libc::SYS_process_vm_readv, "reads other processes' memory"),
    (libc::SYS_process_vm_writev, "writes other processes' memory"),
    (libc::SYS_pidfd_getfd, "takes other processes' descriptors"),
    (libc::SYS_kcmp, "tells kernel addresses of other processes apart"),
    (libc::SYS_keyctl, "the kernel's key rings are not separated by namespaces"),
    (libc::SYS_add_key, "the kernel's key rings are not separated by namespaces"),
    (libc::SYS_request_key, "the kernel's key rings are not separated by namespaces"),
    (libc::SYS_mount, "changes the view of the files"),
    (libc::SYS_umount2, "changes the view of the files"),
    (libc::SYS_pivot_root, "changes the view of the files"),
    (libc::SYS_chroot, "changes the view of the files"),
    (libc::SYS_open_tree, "changes the view of the files"),
    (libc::SYS_move_mount, "changes the view of the files"),
    (libc::SYS_fsopen, "changes the view of the files"),
    (libc::SYS_fsconfig, "changes the view of the files"),
    (libc::SYS_fsmount, "changes the view of the files"),
    (libc::SYS_fspick, "changes the view of the files"),
    (libc::SYS_mount_setattr, "changes the view of the files"),
    (libc::SYS_open_by_handle_at, "opens files without walking the view"),
    (libc::SYS_unshare, "a new user namespace brings capabilities"),
    (libc::SYS_setns, "enters namespaces of others"),
    (libc::SYS_perf_event_open, "watches the kernel and others; a long list of holes"),
    (libc::SYS_init_module, "loads code into the kernel"),
    (libc::SYS_finit_module, "loads code into the kernel"),
    (libc::SYS_delete_module, "removes code from the kernel"),
    (libc::SYS_kexec_load, "replaces the kernel"),
    (libc::SYS_kexec_file_load, "replaces the kernel"),
    (libc::SYS_reboot, "stops the machine"),
    (libc::SYS_swapon, "the machine's memory"),
    (libc::SYS_swapoff, "the machine's memory"),
    (libc::SYS_userfaultfd, "stops the kernel in the middle of a copy; used in exploits"),
    (libc::SYS_fanotify_init, "watches other processes' files"),
    (libc::SYS_acct, "the machine's accounting"),
    (libc::SYS_quotactl, "the machine's quotas"),
    (libc::SYS_quotactl_fd, "the machine's quotas"),
    (libc::SYS_syslog, "the kernel's log holds addresses"),
    (libc::SYS_settimeofday, "the machine's clock"),
    (libc::SYS_clock_settime, "the machine's clock"),
    (libc::SYS_clock_adjtime, "the machine's clock"),
    (libc::SYS_adjtimex, "the machine's clock"),
    (libc::SYS_vhangup, "other people's terminals"),
    (libc::SYS_move_pages, "other processes' memory"),
    (libc::SYS_migrate_pages, "other processes' memory"),
    (libc::SYS_lookup_dcookie, "paths outside of the view"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_iopl, "the machine's ports"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_ioperm, "the machine's ports"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_modify_ldt, "16-bit segments; used in exploits"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_uselib, "loads libraries without checks"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_nfsservctl, "the machine's file server"),
];

/// Without an ipc namespace: shared memory, semaphores and queues that everybody can name.
#[rustfmt::skip]
const REFUSED_SHARED: &[(i64, &str)] = &[
    (libc::SYS_shmget, "memory shared with whoever knows the key"),
    (libc::SYS_shmat, "memory shared with whoever knows the key"),
    (libc::SYS_shmctl, "memory shared with whoever knows the key"),
    (libc::SYS_semget, "semaphores shared with whoever knows the key"),
    (libc::SYS_semop, "semaphores shared with whoever knows the key"),
    (libc::SYS_semtimedop, "semaphores shared with whoever knows the key"),
    (libc::SYS_semctl, "semaphores shared with whoever knows the key"),
    (libc::SYS_msgget, "queues shared with whoever knows the key"),
    (libc::SYS_msgsnd, "queues shared with whoever knows the key"),
    (libc::SYS_msgrcv, "queues shared with whoever knows the key"),
    (libc::SYS_msgctl, "queues shared with whoever knows the key"),
    (libc::SYS_mq_open, "queues shared with whoever knows the name"),
];

/// Without a pid namespace: calls that change another process of the same user, by the argument
/// that names it. 0 is the caller itself.
#[rustfmt::skip]
const REFUSED_FOR_OTHERS: &[(i64, u8, &str)] = &[
    (libc::SYS_prlimit64, 0, "limits of other processes"),
    (libc::SYS_setpriority, 1, "priorities of other processes"),
    (libc::SYS_ioprio_set, 1, "priorities of other processes"),
    (libc::SYS_sched_setaffinity, 0, "processors of other processes"),
    (libc::SYS_sched_setscheduler, 0, "scheduling of other processes"),
    (libc::SYS_sched_setparam, 0, "scheduling of other processes"),
    (libc::SYS_sched_setattr, 0, "scheduling of other processes"),
];

/// Where only pairs of sockets are allowed: what would make one reach further.
const REFUSED_FOR_PAIRS: &[(i64, &str)] = &[
    (libc::SYS_connect, "leads a socket to somebody else"),
    (libc::SYS_bind, "gives a socket a name for others"),
];

/// Calls that look as if the kernel did not know them, so that callers use the older ones, whose
/// arguments a filter can see.
const UNKNOWN: &[(i64, &str)] = &[(libc::SYS_clone3, "hides its flags in memory")];

/// Namespaces that `clone` could make. CLONE_NEWTIME shares its bit with the exit signal there.
const NEW_NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Puts characters into a terminal as if they were typed; steers the console.
const TERMINAL_INJECTION: [u64; 2] = [0x5412, 0x541C];

/// The one socket family that asks which interfaces there are, and its only harmless protocol.
const NETLINK_ROUTE: u64 = 0;

/// What a filter depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub sockets: Sockets,
    pub namespaces: Namespaces,
}

/// Whose processes and shared memory the process can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespaces {
    Own,
    Machine,
}

/// Filters that were compiled ahead: of each shape that plans have.
static COMPILED: OnceLock<Vec<(Shape, BpfProgram)>> = OnceLock::new();

/// Compiles the filters that plans ask for, for a process whose children will need them.
pub(crate) fn warm() {
    use self::Namespaces::{Machine, Own};
    let shapes = [
        (Sockets::Local, Own),
        (Sockets::Open, Own),
        (Sockets::Pairs, Machine),
        (Sockets::Open, Machine),
    ];
    let compiled = shapes.into_iter().filter_map(|(sockets, namespaces)| {
        let shape = Shape { sockets, namespaces };
        Some((shape, compile_all(shape).ok()?))
    });
    COMPILED.get_or_init(|| compiled.collect());
}

/// The filter of a confined process.
pub(crate) fn filter(shape: Shape) -> Result<BpfProgram, FilterError> {
    let ahead = COMPILED.get().and_then(|all| all.iter().find(|(of, _)| *of == shape));
    match ahead {
        Some((_, filter)) => Ok(filter.clone()),
        None => compile_all(shape),
    }
}

fn compile_all(shape: Shape) -> Result<BpfProgram, FilterError> {
    let mut refused: Rules = REFUSED.iter().map(|(call, _)| (*call, vec![])).collect();
    if shape.namespaces == Namespaces::Machine {
        refused.extend(REFUSED_SHARED.iter().map(|(call, _)| (*call, vec![])));
        for (call, argument, _) in REFUSED_FOR_OTHERS {
            refused.insert(*call, vec![rule(vec![condition(*argument, SeccompCmpOp::Ne, 0)?])?]);
        }
    }
    if shape.sockets == Sockets::Pairs {
        refused.extend(REFUSED_FOR_PAIRS.iter().map(|(call, _)| (*call, vec![])));
    }
    refused.insert(libc::SYS_clone, any_bit(0, &NEW_NAMESPACES)?);
    refused.insert(libc::SYS_ioctl, any_value(1, &TERMINAL_INJECTION)?);
    refused.insert(libc::SYS_personality, other_personalities()?);
    refused.insert(libc::SYS_prctl, hiding_itself()?);
    let unknown = UNKNOWN.iter().map(|(call, _)| (*call, vec![])).collect();
    let sockets = refused_sockets(shape.sockets)?;
    join([(refused, libc::EPERM), (unknown, libc::ENOSYS), (sockets, libc::EAFNOSUPPORT)])
}

/// One filter with these rules, each list of them with the error that it gives. No call is in two.
fn join<const N: usize>(lists: [(Rules, i32); N]) -> Result<BpfProgram, FilterError> {
    let mut answers = BTreeMap::new();
    let mut programs = Vec::new();
    for (rules, errno) in lists {
        let (always, sometimes): (Rules, Rules) =
            rules.into_iter().partition(|(_, when)| when.is_empty());
        answers.extend(always.into_keys().map(|call| (call, Answer::Refused(errno))));
        if !sometimes.is_empty() {
            let asked = Answer::Asked(programs.len());
            answers.extend(sometimes.keys().map(|call| (*call, asked)));
            programs.push(compile(sometimes, errno)?);
        }
    }
    search::program(&answers, &programs)
}

/// The filter of [`among_twins`], which is compiled once.
static AMONG_TWINS: OnceLock<BpfProgram> = OnceLock::new();

/// What twins are refused to do to each other, who have one pid namespace: what signals and tracing do
/// not cover.
pub(crate) fn among_twins() -> Result<&'static BpfProgram, FilterError> {
    if let Some(filter) = AMONG_TWINS.get() {
        return Ok(filter);
    }
    let mut refused = Rules::new();
    for (call, argument, _) in REFUSED_FOR_OTHERS {
        refused.insert(*call, vec![rule(vec![condition(*argument, SeccompCmpOp::Ne, 0)?])?]);
    }
    let filter = compile(refused, libc::EPERM)?;
    Ok(AMONG_TWINS.get_or_init(|| filter))
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn compile(rules: Rules, errno: i32) -> Result<BpfProgram, FilterError> {
    let arch = if cfg!(target_arch = "aarch64") { TargetArch::aarch64 } else { TargetArch::x86_64 };
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?;
    Ok(filter.try_into()?)
}

/// Matches when any of the flags is set in the argument.
fn any_bit(argument: u8, flags: &[i32]) -> Result<Vec<SeccompRule>, FilterError> {
    flags
        .iter()
        .map(|flag| {
            let bit = u64::from(flag.cast_unsigned());
            rule(vec![condition(argument, SeccompCmpOp::MaskedEq(bit), bit)?])
        })
        .collect()
}

fn any_value(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, FilterError> {
    values.iter().map(|value| rule(vec![condition(argument, SeccompCmpOp::Eq, *value)?])).collect()
}

/// Emulating other systems turns protections off; asking which one is in force does not.
fn other_personalities() -> Result<Vec<SeccompRule>, FilterError> {
    const ASK: u64 = 0xffff_ffff;
    Ok(vec![rule(vec![condition(0, SeccompCmpOp::Ne, 0)?, condition(0, SeccompCmpOp::Ne, ASK)?])?])
}

/// A process that nobody may look into keeps what it holds from the keeper, who counts it where no
/// cgroup does.
fn hiding_itself() -> Result<Vec<SeccompRule>, FilterError> {
    const SET_DUMPABLE: u64 = libc::PR_SET_DUMPABLE.cast_unsigned() as u64;
    let option = condition(0, SeccompCmpOp::Eq, SET_DUMPABLE)?;
    Ok(vec![rule(vec![option, condition(1, SeccompCmpOp::Eq, 0)?])?])
}

/// Which calls that make sockets are refused. A pair names nothing outside and stays, but for
/// datagrams: one of those can be sent to any path.
fn refused_sockets(sockets: Sockets) -> Result<Rules, FilterError> {
    let family = |family: i32| u64::from(family.cast_unsigned());
    let not = |value| condition(0, SeccompCmpOp::Ne, value);
    let local = || -> Result<Vec<SeccompCondition>, FilterError> {
        Ok(vec![
            not(family(libc::AF_UNIX))?,
            not(family(libc::AF_INET))?,
            not(family(libc::AF_INET6))?,
        ])
    };
    let refused = match sockets {
        Sockets::Pairs => vec![],
        Sockets::Local => vec![rule(local()?)?],
        Sockets::Open => {
            let netlink = family(libc::AF_NETLINK);
            let mut others = local()?;
            others.push(not(netlink)?);
            let is_netlink = condition(0, SeccompCmpOp::Eq, netlink)?;
            let not_route = condition(2, SeccompCmpOp::Ne, NETLINK_ROUTE)?;
            vec![rule(others)?, rule(vec![is_netlink, not_route])?]
        }
    };
    let mut rules = Rules::from([(libc::SYS_socket, refused)]);
    if sockets == Sockets::Pairs {
        const TYPE: u64 = 0xf;
        let datagram = u64::from(libc::SOCK_DGRAM.cast_unsigned());
        let condition = condition(1, SeccompCmpOp::MaskedEq(TYPE), datagram)?;
        rules.insert(libc::SYS_socketpair, vec![rule(vec![condition])?]);
    }
    Ok(rules)
}

fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, FilterError> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, FilterError> {
    Ok(SeccompRule::new(conditions)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_compile_for_every_shape() {
        for sockets in [Sockets::Pairs, Sockets::Local, Sockets::Open] {
            for namespaces in [Namespaces::Own, Namespaces::Machine] {
                let filter = filter(Shape { sockets, namespaces }).unwrap();
                assert!(filter.len() < 4096);
            }
        }
    }

    #[test]
    fn every_refused_call_has_a_reason_and_is_named_once() {
        let for_others: Vec<_> =
            REFUSED_FOR_OTHERS.iter().map(|(call, _, reason)| (*call, *reason)).collect();
        let lists = [REFUSED, REFUSED_SHARED, REFUSED_FOR_PAIRS, UNKNOWN, &for_others];
        let all: Vec<_> = lists.into_iter().flatten().collect();
        assert!(all.iter().all(|(_, reason)| !reason.is_empty()));
        let numbers: std::collections::BTreeSet<_> = all.iter().map(|(call, _)| call).collect();
        assert_eq!(numbers.len(), all.len());
    }
}
