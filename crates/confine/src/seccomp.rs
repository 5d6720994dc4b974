//! The system calls that a confined process is refused, each with its reason, compiled to the
//! kernel's filter programs. Everything not named here is allowed: interpreters and what they load
//! use most of the rest. Calls that are newer than the last review are refused.

mod arguments;
mod newer;
mod search;
#[cfg(test)]
mod trial;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use windlass_protocol::policy::UnixSockets;

use self::arguments::{Condition, Rule};
use self::newer::Verdict;
use self::search::Answer;
pub(crate) use self::search::Program;
use crate::plan::{Internet, Sockets};

/// One instruction of a filter program.
pub(crate) type Instruction = libc::sock_filter;

/// Why a filter cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("the system call filter cannot be made: it names more calls than a jump can span")]
    TooLong,
}

/// Calls that are refused with EPERM, whatever their arguments. [`newer`] has those from 424 on.
#[rustfmt::skip]
const REFUSED: &[(i64, &str)] = &[
    (libc::SYS_bpf, "programs inside the kernel"),
    (libc::SYS_ptrace, "reads and steers other processes"),
    (libc::SYS_process_vm_readv, "reads other processes' memory"),
    (libc::SYS_process_vm_writev, "writes other processes' memory"),
    (libc::SYS_kcmp, "tells kernel addresses of other processes apart"),
    (libc::SYS_keyctl, "the kernel's key rings are not separated by namespaces"),
    (libc::SYS_add_key, "the kernel's key rings are not separated by namespaces"),
    (libc::SYS_request_key, "the kernel's key rings are not separated by namespaces"),
    (libc::SYS_mount, "changes the view of the files"),
    (libc::SYS_umount2, "changes the view of the files"),
    (libc::SYS_pivot_root, "changes the view of the files"),
    (libc::SYS_chroot, "changes the view of the files"),
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

/// The setuid and setgid bits of a mode. A file that has them would give its rights to whoever runs it
/// outside.
const SET_ID: u32 = 0o6000;

/// Calls that give a mode to a file, by the argument that is the mode.
#[rustfmt::skip]
const MODES: &[(i64, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
    (libc::SYS_mkdirat, 2),
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
];

/// Calls that open files, by the arguments that are the flags and, where a file is made, the mode.
#[rustfmt::skip]
const OPENS: &[(i64, u8, u8)] = &[
    (libc::SYS_openat, 2, 3),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1, 2),
];

/// A file is made: `O_CREAT`, or the part of `O_TMPFILE` that is not `O_DIRECTORY`.
const MAKES_FILE: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)).cast_unsigned();

/// Namespaces that `clone` could make. CLONE_NEWTIME shares its bit with the exit signal there.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP)
    .cast_unsigned();

/// Puts characters into a terminal as if they were typed; steers the console.
const TERMINAL_INJECTION: [u32; 2] = [0x5412, 0x541C];

/// The one socket family that asks which interfaces there are, and its only harmless protocol.
const NETLINK_ROUTE: u32 = 0;

/// Protocols of internet sockets: whatever the type means by itself, TCP and UDP. Others (MPTCP, SCTP,
/// DCCP, UDP-Lite, L2TP, ...) are rarely used code of the kernel.
const PROTOCOLS: [i32; 3] = [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP];

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
static COMPILED: OnceLock<Vec<(Shape, Program)>> = OnceLock::new();

/// Compiles the filters that plans ask for, for a process whose children will need them.
pub(crate) fn warm() {
    use self::Namespaces::{Machine, Own};
    let shapes = [
        (UnixSockets::Local, Internet::Own, Own),
        (UnixSockets::Local, Internet::Machine, Own),
        (UnixSockets::None, Internet::Own, Own),
        (UnixSockets::None, Internet::Machine, Own),
        (UnixSockets::None, Internet::None, Machine),
        (UnixSockets::None, Internet::Machine, Machine),
    ];
    let compiled = shapes.into_iter().filter_map(|(unix, internet, namespaces)| {
        let shape = Shape { sockets: Sockets { unix, internet }, namespaces };
        Some((shape, compile_all(shape).ok()?))
    });
    COMPILED.get_or_init(|| compiled.collect());
}

/// The filter of a confined process.
pub(crate) fn filter(shape: Shape) -> Result<Program, FilterError> {
    let ahead = COMPILED.get().and_then(|all| all.iter().find(|(of, _)| *of == shape));
    match ahead {
        Some((_, filter)) => Ok(filter.clone()),
        None => compile_all(shape),
    }
}

/// What is refused of each call; every rule of a call without conditions is a refusal of all of it.
type Rules = BTreeMap<i64, Vec<Rule>>;

fn compile_all(shape: Shape) -> Result<Program, FilterError> {
    let always = |errno| move |call: i64| (call, vec![Rule { when: vec![], errno }]);
    let mut rules: Rules = REFUSED.iter().map(|(call, _)| *call).map(always(libc::EPERM)).collect();
    rules.extend(newer::with(Verdict::Refused).map(always(libc::EPERM)));
    rules.extend(newer::with(Verdict::Unknown).map(always(libc::ENOSYS)));
    if shape.namespaces == Namespaces::Machine {
        rules.extend(REFUSED_SHARED.iter().map(|(call, _)| *call).map(always(libc::EPERM)));
        rules.extend(for_others());
    }
    if shape.sockets == PAIRS_ONLY {
        rules.extend(REFUSED_FOR_PAIRS.iter().map(|(call, _)| *call).map(always(libc::EPERM)));
    }
    rules
        .insert(libc::SYS_clone, refuse([Condition::HasAny { argument: 0, bits: NEW_NAMESPACES }]));
    let injection = TERMINAL_INJECTION.map(|value| Condition::Is { argument: 1, value });
    rules.insert(libc::SYS_ioctl, injection.into_iter().flat_map(|one| refuse([one])).collect());
    rules.insert(libc::SYS_personality, other_personalities());
    rules.insert(libc::SYS_prctl, hiding_itself());
    rules.extend(set_id_modes());
    rules.extend(refused_sockets(shape.sockets));
    compile(&rules)
}

/// The filter of [`among_twins`], which is compiled once.
static AMONG_TWINS: OnceLock<Program> = OnceLock::new();

/// What twins are refused to do to each other, who have one pid namespace: what signals and tracing do
/// not cover.
pub(crate) fn among_twins() -> Result<&'static Program, FilterError> {
    if let Some(filter) = AMONG_TWINS.get() {
        return Ok(filter);
    }
    let filter = compile(&for_others().collect())?;
    Ok(AMONG_TWINS.get_or_init(|| filter))
}

fn compile(rules: &Rules) -> Result<Program, FilterError> {
    let mut answers = BTreeMap::new();
    let mut programs = Vec::new();
    for (call, rules) in rules {
        let answer = match rules.as_slice() {
            [Rule { when, errno }] if when.is_empty() => Answer::Refused(*errno),
            rules => {
                programs.push(arguments::program(rules)?);
                Answer::Asked(programs.len() - 1)
            }
        };
        answers.insert(*call, answer);
    }
    search::program(&answers, &programs)
}

/// Refused with EPERM when all of these hold.
fn refuse<const N: usize>(when: [Condition; N]) -> Vec<Rule> {
    vec![Rule { when: when.to_vec(), errno: libc::EPERM }]
}

fn for_others() -> impl Iterator<Item = (i64, Vec<Rule>)> {
    REFUSED_FOR_OTHERS.iter().map(|(call, argument, _)| {
        (*call, refuse([Condition::IsNot { argument: *argument, value: 0 }]))
    })
}

/// Emulating other systems turns protections off; asking which one is in force does not.
fn other_personalities() -> Vec<Rule> {
    const ASK: u32 = 0xffff_ffff;
    refuse([0, ASK].map(|value| Condition::IsNot { argument: 0, value }))
}

/// A process that nobody may look into keeps what it holds from the keeper, who counts it where no
/// cgroup does.
fn hiding_itself() -> Vec<Rule> {
    let set_dumpable = Condition::Is { argument: 0, value: libc::PR_SET_DUMPABLE.cast_unsigned() };
    refuse([set_dumpable, Condition::Is { argument: 1, value: 0 }])
}

fn set_id_modes() -> impl Iterator<Item = (i64, Vec<Rule>)> {
    let set_id = |argument: u8| Condition::HasAny { argument, bits: SET_ID };
    let modes = MODES.iter().map(move |(call, mode)| (*call, refuse([set_id(*mode)])));
    let opens = OPENS.iter().map(move |(call, flags, mode)| {
        let makes = Condition::HasAny { argument: *flags, bits: MAKES_FILE };
        (*call, refuse([makes, set_id(*mode)]))
    });
    modes.chain(opens)
}

const PAIRS_ONLY: Sockets = Sockets { unix: UnixSockets::None, internet: Internet::None };

/// Which calls that make sockets are refused. Pairs stay: a pair names nothing outside. But not pairs
/// of datagram sockets, where no named unix socket can be made: a datagram can be sent to any path.
fn refused_sockets(sockets: Sockets) -> Rules {
    let not = |family: i32| Condition::IsNot { argument: 0, value: family.cast_unsigned() };
    let (local, internet) = (sockets.unix == UnixSockets::Local, sockets.internet);
    let families = [
        (libc::AF_UNIX, local),
        (libc::AF_INET, internet != Internet::None),
        (libc::AF_INET6, internet != Internet::None),
        (libc::AF_NETLINK, internet == Internet::Machine),
    ];
    let allowed = families.into_iter().filter(|(_, allowed)| *allowed);
    let other_family = allowed.map(|(family, _)| not(family)).collect();
    let mut socket = vec![Rule { when: other_family, errno: libc::EAFNOSUPPORT }];
    if internet != Internet::None {
        socket.push(other_protocols(libc::AF_INET, libc::IPPROTO_ICMP, internet));
        socket.push(other_protocols(libc::AF_INET6, libc::IPPROTO_ICMPV6, internet));
        socket.extend([libc::AF_INET, libc::AF_INET6].map(other_types));
    }
    if internet == Internet::Machine {
        let is_netlink = Condition::Is { argument: 0, value: libc::AF_NETLINK.cast_unsigned() };
        let not_route = Condition::IsNot { argument: 2, value: NETLINK_ROUTE };
        socket.push(Rule { when: vec![is_netlink, not_route], errno: libc::EPROTONOSUPPORT });
    }
    let mut pair = vec![Rule { when: vec![not(libc::AF_UNIX)], errno: libc::EAFNOSUPPORT }];
    if !local {
        // The kernel makes datagram sockets of a pair that asks for SOCK_RAW.
        let when = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(is_not_of_type).to_vec();
        pair.push(Rule { when, errno: libc::ESOCKTNOSUPPORT });
    }
    let tcp = Condition::Is { argument: 1, value: libc::IPPROTO_TCP.cast_unsigned() };
    let ulp = Condition::Is { argument: 2, value: libc::TCP_ULP.cast_unsigned() };
    // Loads another protocol on top of TCP (TLS, MPTCP, SMC) into the kernel.
    let ulp = vec![Rule { when: vec![tcp, ulp], errno: libc::ENOPROTOOPT }];
    Rules::from([
        (libc::SYS_socket, socket),
        (libc::SYS_socketpair, pair),
        (libc::SYS_setsockopt, ulp),
    ])
}

/// Refuses other protocols than the usual ones, and where there is a network its `ping`.
fn other_protocols(family: i32, ping: i32, internet: Internet) -> Rule {
    let ping = (internet == Internet::Machine).then_some(ping);
    let mut when = vec![Condition::Is { argument: 0, value: family.cast_unsigned() }];
    when.extend(
        PROTOCOLS
            .into_iter()
            .chain(ping)
            .map(|protocol| Condition::IsNot { argument: 2, value: protocol.cast_unsigned() }),
    );
    Rule { when, errno: libc::EPROTONOSUPPORT }
}

/// Refuses internet sockets of other types than the usual ones. With protocol 0 the type alone chooses
/// one: SCTP for SOCK_SEQPACKET, DCCP for its own type.
fn other_types(family: i32) -> Rule {
    let mut when = vec![Condition::Is { argument: 0, value: family.cast_unsigned() }];
    when.extend([libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW].map(is_not_of_type));
    Rule { when, errno: libc::ESOCKTNOSUPPORT }
}

/// The type without its flags is another one.
fn is_not_of_type(kind: i32) -> Condition {
    const TYPE: u32 = 0xf;
    Condition::MaskedIsNot { argument: 1, mask: TYPE, value: kind.cast_unsigned() }
}

#[cfg(test)]
mod tests;
