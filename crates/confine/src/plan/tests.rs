//! Policies on machines, and their plans: one line for each mount or rule, and for each control that is not
//! enforced.

use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use windlass_protocol::confinement::{Control, ControlState};
use windlass_protocol::policy::PolicyRequest;

use super::*;
use crate::survey::names::{ProtectedEntry, ProtectedNames};
use crate::survey::{DirectoryEntry, MachineLayout, SocketCovers, Unreadable};
use windlass_procs::cgroup::CgroupSupport;

fn machine() -> MachineSupport {
    MachineSupport {
        kernel: "6.0".to_owned(),
        uid: 1000,
        namespaces: Support::Yes,
        landlock_abi: 7,
        seccomp: Support::Yes,
        cgroups: CgroupSupport::None { reason: "none".to_owned(), remedy: "some".to_owned() },
    }
}

fn no_namespaces(landlock_abi: u32) -> MachineSupport {
    let why = "cannot make namespaces".to_owned();
    let namespaces = Support::No { why, remedy: "allow them".to_owned() };
    MachineSupport { namespaces, landlock_abi, ..machine() }
}

/// The survey of a home with a key and a workspace, on a machine with the usual directories.
fn surveyed(policy: &Policy) -> FileSurvey {
    let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
    let entries = |dir: &str, names: &[&str]| {
        let dir = PathBuf::from(dir);
        let entries = names.iter().map(|name| dir.join(name)).collect();
        (dir, entries)
    };
    let kinds = |list: &[(&str, PathKind)]| {
        list.iter().map(|(path, kind)| (PathBuf::from(path), *kind)).collect()
    };
    FileSurvey {
        workspace: PathBuf::from("/h/u/work"),
        node_files: vec![PathBuf::from("/h/u/.state/workers")],
        needed: paths(&["/usr"]),
        readable: paths(&policy.readable.iter().map(String::as_str).collect::<Vec<_>>()),
        writable: paths(&policy.writable.iter().map(String::as_str).collect::<Vec<_>>()),
        hidden: kinds(&[
            ("/h/u/.ssh", PathKind::Directory),
            ("/h/u/.netrc", PathKind::File),
            ("/h/u/.state", PathKind::Directory),
            ("/tmp/agent.sock", PathKind::File),
        ]),
        names: ProtectedNames {
            protected: std::iter::once("/h/u/work/.git")
                .map(|path| (PathBuf::from(path), ProtectedEntry::Real(PathKind::Directory)))
                .collect(),
            unheld: None,
        },
        layout: MachineLayout {
            system: kinds(&[
                ("/tmp", PathKind::Directory),
                ("/run", PathKind::Directory),
                ("/sys/fs/cgroup", PathKind::Directory),
            ]),
            siblings: [
                entries("/", &["h", "tmp", "run", "sys", "usr", "etc", "proc", "dev"]),
                entries("/h", &["u", "v"]),
                entries("/h/u", &[".ssh", ".netrc", ".state", "work", "notes"]),
                entries("/h/u/.state", &["workers", "journal"]),
                entries("/sys", &["fs", "class"]),
                entries("/sys/fs", &["cgroup", "ext4"]),
            ]
            .into_iter()
            .collect(),
            ..MachineLayout::default()
        },
        ..FileSurvey::default()
    }
}

fn check(request: &str, machine: &MachineSupport, expected: &Expect) {
    let request: PolicyRequest = serde_json::from_str(request).expect("a request");
    let policy = request.resolve().expect("a policy");
    let shown = match plan(&policy, machine, &surveyed(&policy)) {
        Ok(plan) => show(&plan),
        Err(error) => format!("refused: {error}\n"),
    };
    expected.assert_eq(&shown);
}

fn show(plan: &Plan) -> String {
    let sockets =
        plan.sockets.map_or("sockets not held".to_owned(), |Sockets { unix, internet }| {
            format!("sockets unix {unix:?} internet {internet:?}")
        });
    let mut lines = vec![format!("{} network {:?} {sockets}", plan.isolation, plan.network)];
    lines.extend(plan.view.iter().map(|mount| match mount {
        Mount::Machine { access } => format!("machine {access:?}"),
        Mount::Bind { path, access, .. } => format!("bind {} {access:?}", path.display()),
        Mount::Hold { path, access } => format!("hold {} {access:?}", path.display()),
        Mount::Private { path, bytes, .. } => format!("private {} {bytes:?}", path.display()),
        Mount::Hide { path, .. } => format!("hide {}", path.display()),
        Mount::Cover { path } => format!("cover {}", path.display()),
        Mount::Shell { path } => format!("shell {}", path.display()),
        other => format!("{other:?}"),
    }));
    if let Some(ruleset) = &plan.landlock {
        lines.push(format!(
            "landlock files {:x} network {:x} scopes {:x}",
            ruleset.files, ruleset.network, ruleset.scopes
        ));
        if plan.isolation == Isolation::Landlock {
            let rule =
                |rule: &LandlockRule| format!("allow {:x} {}", rule.access, rule.path.display());
            lines.extend(ruleset.rules.iter().map(rule));
        }
    }
    let open = plan.controls.iter().filter(|report| report.state == ControlState::NotEnforced);
    lines.extend(open.map(|report| {
        let first = report.mechanism.split(';').next().unwrap_or_default();
        format!("not enforced: {}: {first}", report.control)
    }));
    lines.join("\n") + "\n"
}

#[test]
fn the_default_reads_the_system_and_writes_the_workspace() {
    check(
        "{}",
        &machine(),
        &expect![[r#"
            full network Own sockets unix Local internet Own
            machine Read
            private /run Some(67108864)
            private /tmp Some(1073741824)
            hide /h/u/.netrc
            hide /h/u/.ssh
            shell /h/u/.state
            bind /h/u/work Write
            hide /sys/fs/cgroup
            bind /h/u/.state/workers Read
            hold /h/u/work/.git Read
            Processes
            Devices { shm_bytes: Some(1073741824) }
            landlock files 7ff2 network 0 scopes 3
            not enforced: sockets: sockets with an absolute path that exist at the start are covered
        "#]],
    );
}

#[test]
fn read_only_writes_nothing_but_private_places() {
    check(
        r#"{"preset": "read-only"}"#,
        &machine(),
        &expect![[r#"
            full network Own sockets unix Local internet Own
            machine Read
            private /run Some(67108864)
            private /tmp Some(1073741824)
            hide /h/u/.netrc
            hide /h/u/.ssh
            shell /h/u/.state
            hide /sys/fs/cgroup
            bind /h/u/.state/workers Read
            Processes
            Devices { shm_bytes: Some(1073741824) }
            landlock files 7ff2 network 0 scopes 3
            not enforced: sockets: sockets with an absolute path that exist at the start are covered
        "#]],
    );
}

#[test]
fn open_writes_everything_that_is_not_hidden() {
    check(
        r#"{"preset": "open"}"#,
        &machine(),
        &expect![[r#"
            full network Machine sockets unix Local internet Machine
            machine Write
            private /run Some(67108864)
            private /tmp Some(1073741824)
            hide /h/u/.netrc
            hide /h/u/.ssh
            shell /h/u/.state
            bind /h/u/work Write
            hide /sys/fs/cgroup
            bind /h/u/.state/workers Read
            hold /h/u/work/.git Read
            Processes
            Devices { shm_bytes: Some(1073741824) }
            landlock files 2200 network 0 scopes 3
            not enforced: sockets: sockets with an absolute path that exist at the start are covered
        "#]],
    );
}

#[test]
fn a_home_is_rebuilt_from_its_visible_entries() {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let entries = [
        (".ssh", DirectoryEntry::Real(PathKind::Directory)),
        ("notes", DirectoryEntry::Real(PathKind::Directory)),
        ("todo", DirectoryEntry::Real(PathKind::File)),
        ("link", DirectoryEntry::Link("notes".into())),
        ("work", DirectoryEntry::Real(PathKind::Directory)),
    ];
    let home = PathBuf::from("/h/u");
    let entries = entries.map(|(name, entry)| (home.join(name), entry)).into();
    let mut survey = surveyed(&policy);
    survey.layout.opened = [(home, entries)].into();
    let shown = show(&plan(&policy, &machine(), &survey).expect("a plan"));
    expect![[r#"
        full network Own sockets unix Local internet Own
        machine Read
        private /run Some(67108864)
        private /tmp Some(1073741824)
        shell /h/u
        bind /h/u/notes Read
        bind /h/u/todo Read
        bind /h/u/work Write
        hide /sys/fs/cgroup
        bind /h/u/.state/workers Read
        hold /h/u/work/.git Read
        Link { path: "/h/u/link", target: "notes" }
        Processes
        Devices { shm_bytes: Some(1073741824) }
        landlock files 7ff2 network 0 scopes 3
        not enforced: sockets: sockets with an absolute path that exist at the start are covered
    "#]]
    .assert_eq(&shown);
}

#[test]
fn readable_roots_are_bound_into_an_empty_view() {
    check(
        r#"{"readable": ["/usr"]}"#,
        &machine(),
        &expect![[r#"
            full network Own sockets unix Local internet Own
            Empty
            private /run Some(67108864)
            private /tmp Some(1073741824)
            bind /usr Read
            bind /h/u/work Write
            bind /h/u/.state/workers Read
            hold /h/u/work/.git Read
            Processes
            Devices { shm_bytes: Some(1073741824) }
            landlock files 7ff2 network 0 scopes 3
            not enforced: sockets: sockets with an absolute path that exist at the start are covered
        "#]],
    );
}

#[test]
fn hosts_are_reached_through_the_proxy_listener() {
    check(
        r#"{"network": {"hosts": ["a.org"]}}"#,
        &machine(),
        &expect![[r#"
            full network Proxy sockets unix Local internet Own
            machine Read
            private /run Some(67108864)
            private /tmp Some(1073741824)
            hide /h/u/.netrc
            hide /h/u/.ssh
            shell /h/u/.state
            bind /h/u/work Write
            hide /sys/fs/cgroup
            bind /h/u/.state/workers Read
            hold /h/u/work/.git Read
            Processes
            Devices { shm_bytes: Some(1073741824) }
            landlock files 7ff2 network 0 scopes 3
            not enforced: sockets: sockets with an absolute path that exist at the start are covered
        "#]],
    );
}

#[test]
fn without_namespaces_rules_cut_hidden_paths_out() {
    check(
        "{}",
        &no_namespaces(7),
        &expect![[r#"
            landlock network Machine sockets unix None internet None
            landlock files ffff network 3 scopes 3
            allow 8006 /dev/null
            allow 8006 /dev/zero
            allow 8006 /dev/full
            allow 8006 /dev/random
            allow 8006 /dev/urandom
            allow 8006 /dev/tty
            allow c /proc/self/.
            allow c /proc/cpuinfo
            allow c /proc/meminfo
            allow c /proc/stat
            allow c /proc/version
            allow c /proc/filesystems
            allow c /proc/loadavg
            allow c /proc/uptime
            allow c /proc/sys/kernel/ngroups_max
            allow d /etc
            allow d /h/u/notes
            allow d /h/u/work
            allow d /h/v
            allow d /sys/class
            allow d /sys/fs/ext4
            allow d /usr
            allow d /h/u/.state/workers
            allow d /usr
            allow ffff /h/u/work
            not enforced: protected: Landlock cannot cut a name out of a directory that is writable
        "#]],
    );
}

#[test]
fn what_an_old_landlock_cannot_enforce_is_reported_or_refused() {
    check(
        "{}",
        &no_namespaces(4),
        &expect![[r#"
            landlock network Machine sockets unix None internet None
            landlock files 7fff network 3 scopes 0
            allow 6 /dev/null
            allow 6 /dev/zero
            allow 6 /dev/full
            allow 6 /dev/random
            allow 6 /dev/urandom
            allow 6 /dev/tty
            allow c /proc/self/.
            allow c /proc/cpuinfo
            allow c /proc/meminfo
            allow c /proc/stat
            allow c /proc/version
            allow c /proc/filesystems
            allow c /proc/loadavg
            allow c /proc/uptime
            allow c /proc/sys/kernel/ngroups_max
            allow d /etc
            allow d /h/u/notes
            allow d /h/u/work
            allow d /h/v
            allow d /sys/class
            allow d /sys/fs/ext4
            allow d /usr
            allow d /h/u/.state/workers
            allow d /usr
            allow 7fff /h/u/work
            not enforced: protected: Landlock cannot cut a name out of a directory that is writable
            not enforced: processes: this kernel's Landlock cannot restrict signals
        "#]],
    );
    check(
        "{}",
        &no_namespaces(2),
        &expect![[r#"
        refused: the policy requires the control "write", and it cannot be enforced here: this kernel's Landlock cannot restrict truncating files; allow them
    "#]],
    );
    check(
        "{}",
        &no_namespaces(0),
        &expect![[r#"
        refused: the isolation level landlock is not available here: this kernel has no Landlock; boot a kernel of 5.13 or newer with landlock in its lsm= list
    "#]],
    );
}

#[test]
fn a_required_control_that_cannot_be_enforced_stops_the_session() {
    let bare = no_namespaces(7);
    check(
        r#"{"isolation": "full"}"#,
        &bare,
        &expect![[r#"
        refused: the isolation level full is not available here: cannot make namespaces; allow them
    "#]],
    );
    check(
        r#"{"network": {"hosts": ["a.org"]}}"#,
        &bare,
        &expect![[r#"
        refused: the policy requires the control "network", and it cannot be enforced here: a list of hosts needs a network namespace; allow them
    "#]],
    );
    check(
        r#"{"required": ["protected"]}"#,
        &bare,
        &expect![[r#"
        refused: the policy requires the control "protected", and it cannot be enforced here: Landlock cannot cut a name out of a directory that is writable; allow them
    "#]],
    );
}

#[test]
fn level_none_needs_an_explicit_request() {
    check(
        r#"{"isolation": "none"}"#,
        &no_namespaces(0),
        &expect![[r#"
            none network Machine sockets not held
            not enforced: write: the policy sets the isolation level none
            not enforced: hidden: the policy sets the isolation level none
            not enforced: protected: the policy sets the isolation level none
            not enforced: network: the policy sets the isolation level none
            not enforced: sockets: the policy sets the isolation level none
            not enforced: processes: the policy sets the isolation level none
            not enforced: ipc: the policy sets the isolation level none
            not enforced: privileges: the policy sets the isolation level none
            not enforced: syscalls: the policy sets the isolation level none
            not enforced: devices: the policy sets the isolation level none
            not enforced: process_count: the keeper ends a session with more processes, but the kernel does not refuse the fork
            not enforced: open_files: the policy sets the isolation level none
            not enforced: file_size: the policy sets the isolation level none
        "#]],
    );
}

#[test]
fn a_thorough_plan_tries_each_hidden_and_protected_path_once() {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let survey = surveyed(&policy);
    let usual = plan(&policy, &machine(), &survey).expect("a plan");
    let plan = thorough(usual.clone(), &policy, &survey);
    assert_eq!(
        plan.canaries[..usual.canaries.len()],
        usual.canaries,
        "the session's canaries come first"
    );
    let tries = |attempt: &Attempt| plan.canaries.iter().any(|one| one.attempt == *attempt);
    for path in survey.hidden.keys() {
        // A hidden path that contains the worker's program can be listed.
        let holds = survey.node_files.iter().any(|shown| shown.starts_with(path));
        let attempt = Attempt::Read { path: path.clone() };
        assert_eq!(tries(&attempt), !holds, "{path:?}");
    }
    for path in survey.names.protected.keys() {
        assert!(tries(&Attempt::Create { directory: path.clone() }), "{path:?} is not tried");
    }
    for (index, canary) in plan.canaries.iter().enumerate() {
        assert!(!plan.canaries[..index].contains(canary), "{canary:?} is tried twice");
    }
}

/// The result of a policy for sockets on a kernel with this Landlock version: which unix sockets the session
/// can make, the state of the control, and the socket rights that the ruleset handles.
fn sockets(request: &str, landlock_abi: u32) -> (UnixSockets, ControlState, u64) {
    let policy = serde_json::from_str::<PolicyRequest>(request).unwrap().resolve().unwrap();
    let machine = MachineSupport { landlock_abi, ..machine() };
    let plan = plan(&policy, &machine, &surveyed(&policy)).unwrap();
    let report = plan.controls.iter().find(|report| report.control == Control::Sockets).unwrap();
    let ruled = plan.landlock.map_or(0, |ruleset| ruleset.files);
    let of_sockets = ruled & (rights::MAKE_SOCKET | rights::RESOLVE_UNIX);
    (plan.sockets.unwrap().unix, report.state, of_sockets)
}

#[test]
fn unix_sockets_are_restricted_by_the_level_the_policy_or_the_kernel() {
    use windlass_protocol::confinement::ControlState::{Enforced, NotEnforced};
    let (make, both) = (rights::MAKE_SOCKET, rights::MAKE_SOCKET | rights::RESOLVE_UNIX);
    let (local, none) = (UnixSockets::Local, UnixSockets::None);
    for (request, abi, expected) in [
        ("{}", 7, (local, NotEnforced, make)),
        ("{}", 9, (local, Enforced, both)),
        (r#"{"unix_sockets": "none"}"#, 7, (none, Enforced, make)),
        (r#"{"preset": "open"}"#, 7, (local, NotEnforced, make)),
        // In the machine's network namespace, where this kernel cannot restrict abstract sockets.
        (r#"{"preset": "open"}"#, 5, (none, Enforced, make)),
        (r#"{"preset": "open"}"#, 1, (none, Enforced, 0)),
        (r#"{"isolation": "landlock"}"#, 7, (none, Enforced, make)),
        (r#"{"isolation": "landlock", "network": "open"}"#, 7, (none, Enforced, make)),
    ] {
        assert_eq!(sockets(request, abi), expected, "{request} with Landlock {abi}");
    }
}

#[test]
fn visible_sockets_of_other_programs_are_covered() {
    let policy = PolicyRequest::default().resolve().unwrap();
    let paths = ["/h/v/agent", "/h/u/.ssh/agent", "/tmp/x", "/h/u/work/late", "/h/v/full"];
    let covered = paths.map(PathBuf::from).to_vec();
    let sockets = SocketCovers { covered, uncovered: 3 };
    let survey = FileSurvey { sockets, ..surveyed(&policy) };
    let plan = plan(&policy, &machine(), &survey).unwrap();
    let covered: Vec<_> = plan
        .view
        .iter()
        .filter(|mount| matches!(mount, Mount::Cover { .. }))
        .filter_map(Mount::path)
        .collect();
    assert_eq!(covered, ["/h/v/agent", "/h/v/full", "/h/u/work/late"].map(Path::new));
    let report = plan.controls.iter().find(|report| report.control == Control::Sockets).unwrap();
    assert!(report.mechanism.contains("but 3, which are too many"), "{report:?}");
}

#[test]
fn a_session_makes_sockets_with_a_path_in_its_private_directories_only() {
    for (request, private) in [("{}", true), (r#"{"writable": ["/tmp"]}"#, false)] {
        let policy = serde_json::from_str::<PolicyRequest>(request).unwrap().resolve().unwrap();
        let rules = plan(&policy, &machine(), &surveyed(&policy)).unwrap().landlock.unwrap().rules;
        let can = |path: &str| {
            let at = rules.iter().filter(|rule| rule.path == Path::new(path));
            at.map(|rule| rule.access).fold(0, |all, access| all | access) & rights::MAKE_SOCKET
                != 0
        };
        assert!(can("/run") && !can("/h/u/work"), "{request}");
        assert_eq!(can("/tmp"), private, "{request}");
    }
}

#[test]
fn a_hidden_path_stays_hidden_if_the_interpreter_lies_in_it() {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let hidden = ["/h/u/.ssh", "/h/u/.ssh/id", "/h/u/.netrc", "/h/u/.state/journal"];
    for machine in [machine(), no_namespaces(7)] {
        let usual = surveyed(&policy);
        let needed = hidden.iter().map(PathBuf::from).chain(usual.needed.clone()).collect();
        let asked = FileSurvey { needed, ..usual.clone() };
        let plan = |survey: &FileSurvey| show(&plan(&policy, &machine, survey).expect("a plan"));
        assert_eq!(plan(&asked), plan(&usual));
    }
}

#[test]
fn a_hidden_path_inside_a_needed_path_stays_hidden_by_rules() {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let usual = surveyed(&policy);
    let asked = FileSurvey { needed: vec![PathBuf::from("/h/u")], ..usual.clone() };
    let plan = plan(&policy, &no_namespaces(7), &asked).expect("a plan");
    let rules = plan.landlock.expect("rules").rules;
    for hidden in ["/h/u/.ssh", "/h/u/.netrc"] {
        let opens = |rule: &&LandlockRule| std::path::Path::new(hidden).starts_with(&rule.path);
        assert_eq!(rules.iter().find(opens), None, "{hidden}");
    }
}

#[test]
fn a_path_is_readable_by_the_deepest_rule_about_it() {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let survey = FileSurvey { needed: vec![PathBuf::from("/tmp/py")], ..surveyed(&policy) };
    let check = |path: &str| survey.check_readable(std::path::Path::new(path));
    let hidden = |path: &str| Err(Unreadable::Hidden(PathBuf::from(path)));
    assert_eq!(check("/usr/bin/python3"), Ok(()));
    assert_eq!(check("/h/u/work/.venv/bin/python"), Ok(()));
    assert_eq!(check("/h/u/.state/workers/main.py"), Ok(()));
    assert_eq!(check("/h/u/.state/token"), hidden("/h/u/.state"));
    assert_eq!(check("/h/u/.ssh/bin/python"), hidden("/h/u/.ssh"));
    assert_eq!(check("/tmp/py/bin/python"), Ok(()));
    assert_eq!(check("/tmp/other/python"), Err(Unreadable::Private(PathBuf::from("/tmp"))));
    let listed = FileSurvey { readable: vec![PathBuf::from("/etc")], needed: Vec::new(), ..survey };
    let outside = listed.check_readable(std::path::Path::new("/usr/bin/python3"));
    assert_eq!(outside, Err(Unreadable::NotListed));
}

/// The steps of a view in the workspace, with more protected names in it, and the state of the control.
fn held(more: &[(&str, ProtectedEntry)], unheld: Option<&str>) -> (Vec<String>, ControlState) {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let mut survey = surveyed(&policy);
    survey.names.protected.extend(more.iter().map(|(path, found)| (PathBuf::from(path), *found)));
    survey.hidden.insert("/h/u/work/.aws".into(), PathKind::Directory);
    survey.hidden.insert("/h/u/work/conf/keys".into(), PathKind::File);
    survey.names.unheld = unheld.map(str::to_owned);
    let plan = plan(&policy, &machine(), &survey).expect("a plan");
    let of_workspace =
        |mount: &&Mount| mount.path().is_some_and(|path| path.starts_with("/h/u/work"));
    let steps = plan.view.iter().filter(of_workspace).map(|mount| match mount {
        Mount::Hold { path, access } => format!("hold {} {access:?}", path.display()),
        Mount::Hide { path, .. } => format!("hide {}", path.display()),
        other => format!("bind {}", other.path().unwrap_or(Path::new("")).display()),
    });
    let report = plan.controls.iter().find(|report| report.control == Control::Protected);
    (steps.collect(), report.expect("every control is reported").state)
}

#[test]
fn directories_above_a_protected_or_hidden_path_cannot_be_renamed() {
    let real = ProtectedEntry::Real(PathKind::File);
    let more = [
        ("/h/u/work/.aws", ProtectedEntry::Real(PathKind::Directory)),
        ("/h/u/work/AGENTS.md", ProtectedEntry::Link),
        ("/h/u/work/docs/deep/agents.md", real),
        ("/h/u/work/.git/config", real),
    ];
    let (steps, state) = held(&more, None);
    assert_eq!(
        steps,
        [
            "bind /h/u/work",
            "hide /h/u/work/.aws",
            "hold /h/u/work/.git Read",
            "hold /h/u/work/AGENTS.md Read",
            "hold /h/u/work/conf Write",
            "hold /h/u/work/docs Write",
            "hide /h/u/work/conf/keys",
            "hold /h/u/work/docs/deep Write",
            "hold /h/u/work/docs/deep/agents.md Read",
        ]
    );
    assert_eq!(state, ControlState::Enforced);
}

#[test]
fn names_that_cannot_be_protected_are_reported_or_stop_the_session() {
    assert_eq!(held(&[], Some("no room")).1, ControlState::NotEnforced);
    let mut policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    policy.required.push(Control::Protected);
    let mut survey = surveyed(&policy);
    survey.names.unheld = Some("no room".to_owned());
    let error = plan(&policy, &machine(), &survey).expect_err("it is required").to_string();
    assert!(error.contains("protected") && error.contains("no room"), "{error}");
}
