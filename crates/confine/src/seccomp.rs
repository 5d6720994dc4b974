//! The system calls that a confined process must not make, each with its reason, and their compilation to a
//! kernel filter program. Every other reviewed call is allowed: interpreters and their libraries use most of
//! them. Calls that are newer than the last review are refused.

mod arguments;
mod newer;
mod search;
#[cfg(test)]
mod trial;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use windlass_protocol::policy::UnixSockets;

use self::arguments::{ArgumentCondition, FilterRule};
use self::newer::CallVerdict;
use self::search::FilterAnswer;
pub(crate) use self::search::FilterProgram;
use crate::plan::{Internet, Sockets};

/// One instruction of a filter program.
pub(crate) type Instruction = libc::sock_filter;

/// Why a filter cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("the system call filter cannot be made: it names more calls than a jump can span")]
    TooLong,
}

/// Calls that fail with EPERM, whatever their arguments. [`newer`] has the calls from number 424 on.
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

/// Refused without an ipc namespace: shared memory, semaphores and queues that any process of the machine can
/// open.
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

/// Refused without a pid namespace: calls that change another process of the same user. The number is the
/// index of the argument that names the process; the value 0 means the caller itself.
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

/// Refused if only socket pairs are allowed: calls that would connect a socket to another process.
const REFUSED_FOR_PAIRS: &[(i64, &str)] = &[
    (libc::SYS_connect, "leads a socket to somebody else"),
    (libc::SYS_bind, "gives a socket a name for others"),
];

/// The setuid and setgid bits of a mode. A program outside the session that runs such a file would get its
/// owner's rights.
const SET_ID: u32 = 0o6000;

/// Calls that set the mode of a file, with the index of the mode argument.
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

/// Calls that open files, with the indices of the flags argument and of the mode argument, which matters only
/// if the call creates a file.
#[rustfmt::skip]
const OPENS: &[(i64, u8, u8)] = &[
    (libc::SYS_openat, 2, 3),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1, 2),
];

/// Flags that create a file: `O_CREAT`, or the part of `O_TMPFILE` that is not `O_DIRECTORY`.
const MAKES_FILE: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)).cast_unsigned();

/// Namespaces that `clone` could make. CLONE_NEWTIME is not among them: `clone` uses its bit for the exit
/// signal.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP)
    .cast_unsigned();

/// `TIOCSTI` inserts characters into a terminal as if a user typed them. `TIOCLINUX` controls the console.
const TERMINAL_INJECTION: [u32; 2] = [0x5412, 0x541C];

/// The only harmless protocol of netlink sockets. It lists the network interfaces.
const NETLINK_ROUTE: u32 = 0;

/// Allowed protocols of internet sockets: the default of the socket type, TCP and UDP. Other protocols
/// (MPTCP, SCTP, DCCP, UDP-Lite, L2TP, ...) are rarely used kernel code.
const PROTOCOLS: [i32; 3] = [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP];

/// The properties of a plan that decide which filter it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterSpec {
    pub sockets: Sockets,
    pub namespaces: Namespaces,
}

/// Which processes and shared memory the confined process can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespaces {
    Own,
    Machine,
}

/// Filters that [`warm`] has compiled, one for each specification that plans have.
static COMPILED: OnceLock<Vec<(FilterSpec, FilterProgram)>> = OnceLock::new();

/// Compiles the filters of all plans in a zygote, so that its children need not do it.
pub(crate) fn warm() {
    use self::Namespaces::{Machine, Own};
    let specs = [
        (UnixSockets::Local, Internet::Own, Own),
        (UnixSockets::Local, Internet::Machine, Own),
        (UnixSockets::None, Internet::Own, Own),
        (UnixSockets::None, Internet::Machine, Own),
        (UnixSockets::None, Internet::None, Machine),
        (UnixSockets::None, Internet::Machine, Machine),
    ];
    let compiled = specs.into_iter().filter_map(|(unix, internet, namespaces)| {
        let spec = FilterSpec { sockets: Sockets { unix, internet }, namespaces };
        Some((spec, compile_all(spec).ok()?))
    });
    COMPILED.get_or_init(|| compiled.collect());
}

/// The filter of a confined process.
pub(crate) fn filter(spec: FilterSpec) -> Result<FilterProgram, FilterError> {
    let compiled = COMPILED.get().and_then(|all| all.iter().find(|(of, _)| *of == spec));
    match compiled {
        Some((_, filter)) => Ok(filter.clone()),
        None => compile_all(spec),
    }
}

/// The rules of each call. A rule without conditions refuses the call with any arguments.
type CallRules = BTreeMap<i64, Vec<FilterRule>>;

fn compile_all(spec: FilterSpec) -> Result<FilterProgram, FilterError> {
    let always = |errno| move |call: i64| (call, vec![FilterRule { when: vec![], errno }]);
    let mut rules: CallRules =
        REFUSED.iter().map(|(call, _)| *call).map(always(libc::EPERM)).collect();
    rules.extend(newer::with(CallVerdict::Refused).map(always(libc::EPERM)));
    rules.extend(newer::with(CallVerdict::Unknown).map(always(libc::ENOSYS)));
    if spec.namespaces == Namespaces::Machine {
        rules.extend(REFUSED_SHARED.iter().map(|(call, _)| *call).map(always(libc::EPERM)));
        rules.extend(for_others());
    }
    if spec.sockets == PAIRS_ONLY {
        rules.extend(REFUSED_FOR_PAIRS.iter().map(|(call, _)| *call).map(always(libc::EPERM)));
    }
    rules.insert(
        libc::SYS_clone,
        refuse([ArgumentCondition::HasAny { argument: 0, bits: NEW_NAMESPACES }]),
    );
    let injection = TERMINAL_INJECTION.map(|value| ArgumentCondition::Is { argument: 1, value });
    rules.insert(libc::SYS_ioctl, injection.into_iter().flat_map(|one| refuse([one])).collect());
    rules.insert(libc::SYS_personality, other_personalities());
    rules.insert(libc::SYS_prctl, hiding_itself());
    rules.extend(set_id_modes());
    rules.extend(refused_sockets(spec.sockets));
    compile(&rules)
}

/// The filter of [`among_twins`], compiled once.
static AMONG_TWINS: OnceLock<FilterProgram> = OnceLock::new();

/// The filter that protects twins from each other. Twins share a pid namespace. Landlock restricts signals
/// and tracing between them; this filter refuses other calls that change a process.
pub(crate) fn among_twins() -> Result<&'static FilterProgram, FilterError> {
    if let Some(filter) = AMONG_TWINS.get() {
        return Ok(filter);
    }
    let filter = compile(&for_others().collect())?;
    Ok(AMONG_TWINS.get_or_init(|| filter))
}

fn compile(rules: &CallRules) -> Result<FilterProgram, FilterError> {
    let mut answers = BTreeMap::new();
    let mut programs = Vec::new();
    for (call, rules) in rules {
        let answer = match rules.as_slice() {
            [FilterRule { when, errno }] if when.is_empty() => FilterAnswer::Refused(*errno),
            rules => {
                programs.push(arguments::program(rules)?);
                FilterAnswer::ByArguments(programs.len() - 1)
            }
        };
        answers.insert(*call, answer);
    }
    search::program(&answers, &programs)
}

/// A rule that refuses a call with EPERM if all conditions hold.
fn refuse<const N: usize>(when: [ArgumentCondition; N]) -> Vec<FilterRule> {
    vec![FilterRule { when: when.to_vec(), errno: libc::EPERM }]
}

fn for_others() -> impl Iterator<Item = (i64, Vec<FilterRule>)> {
    REFUSED_FOR_OTHERS.iter().map(|(call, argument, _)| {
        (*call, refuse([ArgumentCondition::IsNot { argument: *argument, value: 0 }]))
    })
}

/// Other execution domains turn protections off, so setting one is refused. Reading the current one is
/// allowed.
fn other_personalities() -> Vec<FilterRule> {
    const ASK: u32 = 0xffff_ffff;
    refuse([0, ASK].map(|value| ArgumentCondition::IsNot { argument: 0, value }))
}

/// A process that makes itself unreadable hides its memory from the keeper, which measures it where there is
/// no cgroup.
fn hiding_itself() -> Vec<FilterRule> {
    let set_dumpable =
        ArgumentCondition::Is { argument: 0, value: libc::PR_SET_DUMPABLE.cast_unsigned() };
    refuse([set_dumpable, ArgumentCondition::Is { argument: 1, value: 0 }])
}

fn set_id_modes() -> impl Iterator<Item = (i64, Vec<FilterRule>)> {
    let set_id = |argument: u8| ArgumentCondition::HasAny { argument, bits: SET_ID };
    let modes = MODES.iter().map(move |(call, mode)| (*call, refuse([set_id(*mode)])));
    let opens = OPENS.iter().map(move |(call, flags, mode)| {
        let makes = ArgumentCondition::HasAny { argument: *flags, bits: MAKES_FILE };
        (*call, refuse([makes, set_id(*mode)]))
    });
    modes.chain(opens)
}

const PAIRS_ONLY: Sockets = Sockets { unix: UnixSockets::None, internet: Internet::None };

/// The rules for calls that make sockets. Socket pairs stay allowed, because a pair reaches no other process.
/// If named unix sockets are refused, datagram pairs are refused too: a datagram socket can send to any path.
fn refused_sockets(sockets: Sockets) -> CallRules {
    let not = |family: i32| ArgumentCondition::IsNot { argument: 0, value: family.cast_unsigned() };
    let (local, internet) = (sockets.unix == UnixSockets::Local, sockets.internet);
    let families = [
        (libc::AF_UNIX, local),
        (libc::AF_INET, internet != Internet::None),
        (libc::AF_INET6, internet != Internet::None),
        // A rule below refuses the rest of netlink.
        (libc::AF_NETLINK, internet != Internet::None),
    ];
    let allowed = families.into_iter().filter(|(_, allowed)| *allowed);
    let other_family = allowed.map(|(family, _)| not(family)).collect();
    let mut socket = vec![FilterRule { when: other_family, errno: libc::EAFNOSUPPORT }];
    if internet != Internet::None {
        socket.push(other_protocols(libc::AF_INET, libc::IPPROTO_ICMP, internet));
        socket.push(other_protocols(libc::AF_INET6, libc::IPPROTO_ICMPV6, internet));
        socket.extend([libc::AF_INET, libc::AF_INET6].map(other_types));
    }
    let is_netlink = ArgumentCondition::Is { argument: 0, value: libc::AF_NETLINK.cast_unsigned() };
    match internet {
        Internet::None => {}
        // ZeroMQ asks for the interfaces before it binds an address. It goes on after EOPNOTSUPP, and aborts
        // the process after EAFNOSUPPORT.
        Internet::Own => {
            socket.push(FilterRule { when: vec![is_netlink], errno: libc::EOPNOTSUPP });
        }
        Internet::Machine => {
            let not_route = ArgumentCondition::IsNot { argument: 2, value: NETLINK_ROUTE };
            let when = vec![is_netlink, not_route];
            socket.push(FilterRule { when, errno: libc::EPROTONOSUPPORT });
        }
    }
    let mut pair = vec![FilterRule { when: vec![not(libc::AF_UNIX)], errno: libc::EAFNOSUPPORT }];
    if !local {
        // The kernel turns a SOCK_RAW pair into datagram sockets.
        let when = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(is_not_of_type).to_vec();
        pair.push(FilterRule { when, errno: libc::ESOCKTNOSUPPORT });
    }
    let tcp = ArgumentCondition::Is { argument: 1, value: libc::IPPROTO_TCP.cast_unsigned() };
    let ulp = ArgumentCondition::Is { argument: 2, value: libc::TCP_ULP.cast_unsigned() };
    // TCP_ULP loads kernel code for another protocol on top of TCP (TLS, MPTCP, SMC).
    let ulp = vec![FilterRule { when: vec![tcp, ulp], errno: libc::ENOPROTOOPT }];
    CallRules::from([
        (libc::SYS_socket, socket),
        (libc::SYS_socketpair, pair),
        (libc::SYS_setsockopt, ulp),
    ])
}

/// Refuses all protocols except [`PROTOCOLS`] and, in the machine's network, `ping`.
fn other_protocols(family: i32, ping: i32, internet: Internet) -> FilterRule {
    let ping = (internet == Internet::Machine).then_some(ping);
    let mut when = vec![ArgumentCondition::Is { argument: 0, value: family.cast_unsigned() }];
    when.extend(
        PROTOCOLS.into_iter().chain(ping).map(|protocol| ArgumentCondition::IsNot {
            argument: 2,
            value: protocol.cast_unsigned(),
        }),
    );
    FilterRule { when, errno: libc::EPROTONOSUPPORT }
}

/// Refuses internet sockets of unusual types. With protocol 0 the type chooses the protocol: SOCK_SEQPACKET
/// means SCTP, SOCK_DCCP means DCCP.
fn other_types(family: i32) -> FilterRule {
    let mut when = vec![ArgumentCondition::Is { argument: 0, value: family.cast_unsigned() }];
    when.extend([libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW].map(is_not_of_type));
    FilterRule { when, errno: libc::ESOCKTNOSUPPORT }
}

/// The socket type, without its flags, is not `kind`.
fn is_not_of_type(kind: i32) -> ArgumentCondition {
    const TYPE: u32 = 0xf;
    ArgumentCondition::MaskedIsNot { argument: 1, mask: TYPE, value: kind.cast_unsigned() }
}

#[cfg(test)]
mod tests;
