//! The filter programs, run call by call as the kernel would.

use super::search::{ALLOW, ARCHITECTURE, refusal};
use super::*;

const SPECS: [(UnixSockets, Internet); 6] = [
    (UnixSockets::Local, Internet::None),
    (UnixSockets::Local, Internet::Own),
    (UnixSockets::Local, Internet::Machine),
    (UnixSockets::None, Internet::None),
    (UnixSockets::None, Internet::Own),
    (UnixSockets::None, Internet::Machine),
];

fn spec(unix: UnixSockets, internet: Internet) -> FilterSpec {
    FilterSpec { sockets: Sockets { unix, internet }, namespaces: Namespaces::Machine }
}

/// The error that a call fails with; 0 if it is allowed.
fn answer(spec: FilterSpec, call: i64, arguments: &[i32]) -> i32 {
    let mut all = [0; 6];
    for (at, argument) in arguments.iter().enumerate() {
        // The kernel ignores the upper half of an int argument, and so must the filter.
        all[at] = u64::from(argument.cast_unsigned()) | 0xdead_0000_0000_0000;
    }
    let program = filter(spec).unwrap();
    let (said, steps) = trial::run(&program, ARCHITECTURE, u32::try_from(call).unwrap(), all);
    assert!(steps < 64, "{steps} steps for call {call}");
    let errnos = [
        libc::EPERM,
        libc::ENOSYS,
        libc::EAFNOSUPPORT,
        libc::EPROTONOSUPPORT,
        libc::ESOCKTNOSUPPORT,
        libc::ENOPROTOOPT,
        libc::EOPNOTSUPP,
    ];
    if said == ALLOW { 0 } else { errnos.into_iter().find(|one| refusal(*one) == said).unwrap() }
}

#[test]
fn filters_are_short_for_every_specification() {
    for (unix, internet) in SPECS {
        for namespaces in [Namespaces::Own, Namespaces::Machine] {
            let filter =
                filter(FilterSpec { sockets: Sockets { unix, internet }, namespaces }).unwrap();
            assert!(filter.len() < 1024, "{}", filter.len());
        }
    }
    assert!(among_twins().unwrap().len() < 128);
}

#[test]
fn every_refused_call_has_a_reason_and_is_named_once() {
    let for_others: Vec<_> =
        REFUSED_FOR_OTHERS.iter().map(|(call, _, reason)| (*call, *reason)).collect();
    let lists = [REFUSED, REFUSED_SHARED, REFUSED_FOR_PAIRS, &for_others];
    let all: Vec<_> = lists.into_iter().flatten().collect();
    assert!(all.iter().all(|(_, reason)| !reason.is_empty()));
    let asked = [libc::SYS_clone, libc::SYS_ioctl, libc::SYS_personality, libc::SYS_prctl];
    let sockets = [libc::SYS_socket, libc::SYS_socketpair, libc::SYS_setsockopt];
    let modes = MODES.iter().map(|(call, _)| *call).chain(OPENS.iter().map(|(call, ..)| *call));
    let newer = [CallVerdict::Refused, CallVerdict::Unknown].into_iter().flat_map(newer::with);
    let calls = all.iter().map(|(call, _)| *call).chain(asked).chain(sockets);
    let calls: Vec<i64> = calls.chain(modes).chain(newer).collect();
    let numbers: std::collections::BTreeSet<_> = calls.iter().collect();
    assert_eq!(numbers.len(), calls.len());
    // Each call whose arguments decide has a rule.
    assert!(newer::with(CallVerdict::ByArguments).all(|call| numbers.contains(&call)));
}

#[test]
fn unix_sockets_with_a_name_and_datagram_pairs_are_refused_where_only_pairs_are_allowed() {
    let (unix, stream) = (libc::AF_UNIX, libc::SOCK_STREAM);
    for (kind, of_pairs) in [
        (libc::SOCK_STREAM, 0),
        (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0),
        (libc::SOCK_DGRAM, libc::ESOCKTNOSUPPORT),
        (libc::SOCK_RAW, libc::ESOCKTNOSUPPORT),
        (libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::ESOCKTNOSUPPORT),
        (libc::SOCK_RDM, libc::ESOCKTNOSUPPORT),
        (10, libc::ESOCKTNOSUPPORT),
        (15, libc::ESOCKTNOSUPPORT),
        (0, libc::ESOCKTNOSUPPORT),
    ] {
        for (sockets, internet) in SPECS {
            let spec = spec(sockets, internet);
            let named = if sockets == UnixSockets::Local { 0 } else { libc::EAFNOSUPPORT };
            assert_eq!(answer(spec, libc::SYS_socket, &[unix, kind, 0]), named, "{kind}");
            let pair = if sockets == UnixSockets::Local { 0 } else { of_pairs };
            assert_eq!(answer(spec, libc::SYS_socketpair, &[unix, kind, 0]), pair, "{kind}");
            for family in [libc::AF_INET, libc::AF_TIPC, libc::AF_NETLINK, 0] {
                let pair = answer(spec, libc::SYS_socketpair, &[family, stream, 0]);
                assert_eq!(pair, libc::EAFNOSUPPORT, "family {family}");
            }
        }
    }
    let pairs_only = spec(UnixSockets::None, Internet::None);
    for call in [libc::SYS_connect, libc::SYS_bind] {
        assert_eq!(answer(pairs_only, call, &[]), libc::EPERM);
        assert_eq!(answer(spec(UnixSockets::None, Internet::Machine), call, &[]), 0);
    }
}

#[test]
fn internet_sockets_have_the_usual_protocols_only() {
    const UDP_LITE: i32 = 136;
    const L2TP: i32 = 115;
    const AF_SMC: i32 = 43;
    let (stream, datagram) = (libc::SOCK_STREAM, libc::SOCK_DGRAM);
    let (none, protocol) = (libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT);
    let kinds = libc::ESOCKTNOSUPPORT;
    for (family, ping) in
        [(libc::AF_INET, libc::IPPROTO_ICMP), (libc::AF_INET6, libc::IPPROTO_ICMPV6)]
    {
        for (kind, number, own, machine) in [
            (stream, 0, 0, 0),
            (stream, libc::IPPROTO_TCP, 0, 0),
            (datagram, libc::IPPROTO_UDP, 0, 0),
            (datagram, ping, protocol, 0),
            (stream, libc::IPPROTO_MPTCP, protocol, protocol),
            (stream, libc::IPPROTO_SCTP, protocol, protocol),
            (libc::SOCK_DCCP, libc::IPPROTO_DCCP, protocol, protocol),
            (libc::SOCK_DCCP, 0, kinds, kinds),
            (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, kinds, kinds),
            (libc::SOCK_RAW, 0, 0, 0),
            (datagram, UDP_LITE, protocol, protocol),
            (datagram, L2TP, protocol, protocol),
            (libc::SOCK_RAW, libc::IPPROTO_RAW, protocol, protocol),
        ] {
            for unix in [UnixSockets::Local, UnixSockets::None] {
                let said = |internet| {
                    answer(spec(unix, internet), libc::SYS_socket, &[family, kind, number])
                };
                assert_eq!(said(Internet::None), none, "{number}");
                assert_eq!(said(Internet::Own), own, "{number}");
                assert_eq!(said(Internet::Machine), machine, "{number}");
            }
        }
    }
    let said = |internet, family, number| {
        answer(spec(UnixSockets::Local, internet), libc::SYS_socket, &[family, datagram, number])
    };
    assert_eq!(said(Internet::Own, libc::AF_NETLINK, 0), libc::EOPNOTSUPP);
    assert_eq!(said(Internet::Machine, libc::AF_NETLINK, 0), 0);
    assert_eq!(said(Internet::Machine, libc::AF_NETLINK, 4), protocol, "sock_diag");
    for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_XDP, AF_SMC, 0] {
        assert_eq!(said(Internet::Machine, family, 0), none, "family {family}");
    }
    let spec = spec(UnixSockets::Local, Internet::Machine);
    let option = |level, name| answer(spec, libc::SYS_setsockopt, &[3, level, name]);
    assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_ULP), libc::ENOPROTOOPT);
    assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_NODELAY), 0);
    assert_eq!(option(libc::SOL_SOCKET, libc::TCP_ULP), 0);
}

#[test]
fn no_call_gives_a_file_the_setuid_or_the_setgid_bit() {
    let spec = spec(UnixSockets::Local, Internet::Own);
    for (mode, errno) in [
        (0o644, 0),
        (0o1777, 0),
        (0o777, 0),
        (0o4755, libc::EPERM),
        (0o2755, libc::EPERM),
        (0o6000, libc::EPERM),
        (libc::S_IFREG.cast_signed() | 0o4711, libc::EPERM),
    ] {
        for (call, argument) in MODES {
            let mut arguments = [0; 6];
            arguments[usize::from(*argument)] = mode;
            assert_eq!(answer(spec, *call, &arguments), errno, "call {call}, mode {mode:o}");
        }
        for (call, flags, at) in OPENS {
            for (flag, errno) in [
                (libc::O_CREAT | libc::O_WRONLY, errno),
                (libc::O_TMPFILE | libc::O_RDWR, errno),
                // No file is created, and the mode is whatever was in the register.
                (libc::O_RDONLY, 0),
                (libc::O_RDWR | libc::O_DIRECTORY | libc::O_CLOEXEC, 0),
            ] {
                let mut arguments = [0; 6];
                arguments[usize::from(*flags)] = flag;
                arguments[usize::from(*at)] = mode;
                assert_eq!(answer(spec, *call, &arguments), errno, "{call} {flag:o} {mode:o}");
            }
        }
    }
    assert_eq!(answer(spec, libc::SYS_openat2, &[]), libc::ENOSYS);
}

#[test]
fn calls_that_were_not_reviewed_are_unknown() {
    let spec = spec(UnixSockets::Local, Internet::Own);
    for (call, errno) in [
        (467, libc::EPERM),
        (libc::SYS_memfd_secret, libc::EPERM),
        (libc::SYS_io_uring_setup, libc::EPERM),
        (libc::SYS_clone3, libc::ENOSYS),
        (469, libc::ENOSYS),
        (470, libc::ENOSYS),
        (471, libc::ENOSYS),
        (1000, libc::ENOSYS),
        (libc::SYS_close_range, 0),
        (libc::SYS_landlock_restrict_self, 0),
        (libc::SYS_read, 0),
    ] {
        assert_eq!(answer(spec, call, &[]), errno, "call {call}");
    }
    let clone = |flags| answer(spec, libc::SYS_clone, &[flags]);
    assert_eq!(clone(libc::CLONE_NEWUSER | libc::SIGCHLD), libc::EPERM);
    assert_eq!(clone(libc::CLONE_VM | libc::CLONE_THREAD | libc::SIGCHLD), 0);
}
