//! Policies on machines, and the plans they give: one line per mount or rule, one per control that
//! is not simply enforced.

use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use windlass_protocol::confinement::{Control, ControlState};
use windlass_protocol::policy::PolicyRequest;

use super::*;
use crate::survey::names::Protected;
use crate::survey::{Entry, Unreadable};
use windlass_procs::cgroup::CgroupSupport;

fn machine() -> Machine {
    Machine {
        kernel: "6.0".to_owned(),
        uid: 1000,
        namespaces: Support::Yes,
        landlock_abi: 7,
        seccomp: Support::Yes,
        cgroups: CgroupSupport::None { reason: "none".to_owned(), remedy: "some".to_owned() },
    }
}

fn no_namespaces(landlock_abi: u32) -> Machine {
    let why = "cannot make namespaces".to_owned();
    let namespaces = Support::No { why, remedy: "allow them".to_owned() };
    Machine { namespaces, landlock_abi, ..machine() }
}

/// A home with a key and a workspace in it, on a machine with the usual directories.
fn place(policy: &Policy) -> Place {
    let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
    let entries = |dir: &str, names: &[&str]| {
        let dir = PathBuf::from(dir);
        let entries = names.iter().map(|name| dir.join(name)).collect();
        (dir, entries)
    };
    let kinds = |list: &[(&str, Kind)]| {
        list.iter().map(|(path, kind)| (PathBuf::from(path), *kind)).collect()
    };
    Place {
        workspace: PathBuf::from("/h/u/work"),
        program: Some(PathBuf::from("/h/u/.state/workers")),
        needed: paths(&["/usr"]),
        readable: paths(&policy.readable.iter().map(String::as_str).collect::<Vec<_>>()),
        writable: paths(&policy.writable.iter().map(String::as_str).collect::<Vec<_>>()),
        hidden: kinds(&[
            ("/h/u/.ssh", Kind::Directory),
            ("/h/u/.netrc", Kind::File),
            ("/h/u/.state", Kind::Directory),
            ("/tmp/agent.sock", Kind::File),
        ]),
        protected: std::iter::once("/h/u/work/.git")
            .map(|path| (PathBuf::from(path), Protected::Real(Kind::Directory)))
            .collect(),
        system: kinds(&[
            ("/tmp", Kind::Directory),
            ("/run", Kind::Directory),
            ("/sys/fs/cgroup", Kind::Directory),
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
        ..Place::default()
    }
}

fn check(request: &str, machine: &Machine, expected: &Expect) {
    let request: PolicyRequest = serde_json::from_str(request).expect("a request");
    let policy = request.resolve().expect("a policy");
    let shown = match plan(&policy, machine, &place(&policy)) {
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
            let rule = |rule: &Rule| format!("allow {:x} {}", rule.access, rule.path.display());
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
fn a_home_is_put_together_from_what_is_not_hidden() {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let entries = [
        (".ssh", Entry::Real(Kind::Directory)),
        ("notes", Entry::Real(Kind::Directory)),
        ("todo", Entry::Real(Kind::File)),
        ("link", Entry::Link("notes".into())),
        ("work", Entry::Real(Kind::Directory)),
    ];
    let home = PathBuf::from("/h/u");
    let entries = entries.map(|(name, entry)| (home.join(name), entry)).into();
    let place = Place { opened: [(home, entries)].into(), ..place(&policy) };
    let shown = show(&plan(&policy, &machine(), &place).expect("a plan"));
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
fn hosts_are_reached_through_a_listener_of_its_own() {
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
fn what_an_old_landlock_cannot_do_is_said_or_refused() {
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
            not enforced: processes: this kernel's Landlock cannot keep signals in
        "#]],
    );
    check(
        "{}",
        &no_namespaces(2),
        &expect![[r#"
        refused: the policy requires the control "write", and it cannot be enforced here: this kernel's Landlock cannot keep files from being truncated; allow them
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
fn what_cannot_be_enforced_and_is_required_stops_the_session() {
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
fn none_is_for_who_asks_for_it() {
    check(
        r#"{"isolation": "none"}"#,
        &no_namespaces(0),
        &expect![[r#"
            none network Machine sockets not held
            not enforced: write: the level none was asked for
            not enforced: hidden: the level none was asked for
            not enforced: protected: the level none was asked for
            not enforced: network: the level none was asked for
            not enforced: sockets: the level none was asked for
            not enforced: processes: the level none was asked for
            not enforced: ipc: the level none was asked for
            not enforced: privileges: the level none was asked for
            not enforced: syscalls: the level none was asked for
            not enforced: devices: the level none was asked for
            not enforced: process_count: the keeper ends a session with more processes, but the kernel does not refuse the fork
            not enforced: open_files: the level none was asked for
            not enforced: file_size: the level none was asked for
        "#]],
    );
}

#[test]
fn a_thorough_plan_tries_whatever_is_hidden_or_protected_and_nothing_twice() {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let place = place(&policy);
    let usual = plan(&policy, &machine(), &place).expect("a plan");
    let plan = thorough(usual.clone(), &policy, &place);
    assert_eq!(plan.canaries[..usual.canaries.len()], usual.canaries, "the usual come first");
    let tries = |attempt: &Attempt| plan.canaries.iter().any(|one| one.attempt == *attempt);
    for path in place.hidden.keys() {
        // What the worker needs lies in it: it can be listed.
        let holds = place.program.iter().any(|program| program.starts_with(path));
        let attempt = Attempt::Read { path: path.clone() };
        assert_eq!(tries(&attempt), !holds, "{path:?}");
    }
    for path in place.protected.keys() {
        assert!(tries(&Attempt::Create { directory: path.clone() }), "{path:?} is not tried");
    }
    for (place, canary) in plan.canaries.iter().enumerate() {
        assert!(!plan.canaries[..place].contains(canary), "{canary:?} is tried twice");
    }
}

/// What a policy comes to for sockets on a kernel with this version of Landlock: unix sockets that can be
/// made, the state of the control, and the rights over sockets that Landlock rules over.
fn sockets(request: &str, landlock_abi: u32) -> (UnixSockets, ControlState, u64) {
    let policy = serde_json::from_str::<PolicyRequest>(request).unwrap().resolve().unwrap();
    let machine = Machine { landlock_abi, ..machine() };
    let plan = plan(&policy, &machine, &place(&policy)).unwrap();
    let report = plan.controls.iter().find(|report| report.control == Control::Sockets).unwrap();
    let ruled = plan.landlock.map_or(0, |ruleset| ruleset.files);
    let of_sockets = ruled & (rights::MAKE_SOCKET | rights::RESOLVE_UNIX);
    (plan.sockets.unwrap().unix, report.state, of_sockets)
}

#[test]
fn unix_sockets_are_held_by_the_level_the_policy_or_the_kernel() {
    use windlass_protocol::confinement::ControlState::{Enforced, NotEnforced};
    let (make, both) = (rights::MAKE_SOCKET, rights::MAKE_SOCKET | rights::RESOLVE_UNIX);
    let (local, none) = (UnixSockets::Local, UnixSockets::None);
    for (request, abi, expected) in [
        ("{}", 7, (local, NotEnforced, make)),
        ("{}", 9, (local, Enforced, both)),
        (r#"{"unix_sockets": "none"}"#, 7, (none, Enforced, make)),
        (r#"{"preset": "open"}"#, 7, (local, NotEnforced, make)),
        // In the machine's network, where the kernel cannot keep abstract sockets out of reach.
        (r#"{"preset": "open"}"#, 5, (none, Enforced, make)),
        (r#"{"preset": "open"}"#, 1, (none, Enforced, 0)),
        (r#"{"isolation": "landlock"}"#, 7, (none, Enforced, make)),
        (r#"{"isolation": "landlock", "network": "open"}"#, 7, (none, Enforced, make)),
    ] {
        assert_eq!(sockets(request, abi), expected, "{request} with Landlock {abi}");
    }
}

#[test]
fn sockets_of_others_are_covered_where_they_are_seen() {
    let policy = PolicyRequest::default().resolve().unwrap();
    let paths = ["/h/v/agent", "/h/u/.ssh/agent", "/tmp/x", "/h/u/work/late", "/h/v/full"];
    let sockets = paths.map(PathBuf::from).to_vec();
    let place = Place { sockets, uncovered_sockets: 3, ..place(&policy) };
    let plan = plan(&policy, &machine(), &place).unwrap();
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
        let rules = plan(&policy, &machine(), &place(&policy)).unwrap().landlock.unwrap().rules;
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
fn what_is_hidden_stays_hidden_when_an_interpreter_is_said_to_be_there() {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let hidden = ["/h/u/.ssh", "/h/u/.ssh/id", "/h/u/.netrc", "/h/u/.state/journal"];
    for machine in [machine(), no_namespaces(7)] {
        let usual = place(&policy);
        let needed = hidden.iter().map(PathBuf::from).chain(usual.needed.clone()).collect();
        let asked = Place { needed, ..usual.clone() };
        let plan = |place: &Place| show(&plan(&policy, &machine, place).expect("a plan"));
        assert_eq!(plan(&asked), plan(&usual));
    }
}

#[test]
fn what_is_hidden_inside_of_an_interpreter_stays_hidden_by_rules() {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let usual = place(&policy);
    let asked = Place { needed: vec![PathBuf::from("/h/u")], ..usual.clone() };
    let plan = plan(&policy, &no_namespaces(7), &asked).expect("a plan");
    let rules = plan.landlock.expect("rules").rules;
    for hidden in ["/h/u/.ssh", "/h/u/.netrc"] {
        let opens = |rule: &&Rule| std::path::Path::new(hidden).starts_with(&rule.path);
        assert_eq!(rules.iter().find(opens), None, "{hidden}");
    }
}

#[test]
fn a_path_is_readable_by_the_deepest_rule_about_it() {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let place = Place { needed: vec![PathBuf::from("/tmp/py")], ..place(&policy) };
    let check = |path: &str| place.check_readable(std::path::Path::new(path));
    let hidden = |path: &str| Err(Unreadable::Hidden(PathBuf::from(path)));
    assert_eq!(check("/usr/bin/python3"), Ok(()));
    assert_eq!(check("/h/u/work/.venv/bin/python"), Ok(()));
    assert_eq!(check("/h/u/.state/workers/main.py"), Ok(()));
    assert_eq!(check("/h/u/.state/token"), hidden("/h/u/.state"));
    assert_eq!(check("/h/u/.ssh/bin/python"), hidden("/h/u/.ssh"));
    assert_eq!(check("/tmp/py/bin/python"), Ok(()));
    assert_eq!(check("/tmp/other/python"), Err(Unreadable::Private(PathBuf::from("/tmp"))));
    let listed = Place { readable: vec![PathBuf::from("/etc")], needed: Vec::new(), ..place };
    let outside = listed.check_readable(std::path::Path::new("/usr/bin/python3"));
    assert_eq!(outside, Err(Unreadable::NotListed));
}

/// The steps of a view that concern the workspace, with more that is protected in it.
fn held(more: &[(&str, Protected)], unheld: Option<&str>) -> (Vec<String>, ControlState) {
    let policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    let mut place = place(&policy);
    place.protected.extend(more.iter().map(|(path, found)| (PathBuf::from(path), *found)));
    place.hidden.insert("/h/u/work/.aws".into(), Kind::Directory);
    place.hidden.insert("/h/u/work/conf/keys".into(), Kind::File);
    place.unheld = unheld.map(str::to_owned);
    let plan = plan(&policy, &machine(), &place).expect("a plan");
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
fn what_leads_to_a_protected_or_hidden_path_cannot_be_renamed() {
    let real = Protected::Real(Kind::File);
    let more = [
        ("/h/u/work/.aws", Protected::Real(Kind::Directory)),
        ("/h/u/work/AGENTS.md", Protected::Link),
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
fn names_that_cannot_be_held_are_reported_and_if_required_nothing_starts() {
    assert_eq!(held(&[], Some("no room")).1, ControlState::NotEnforced);
    let mut policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    policy.required.push(Control::Protected);
    let mut place = place(&policy);
    place.unheld = Some("no room".to_owned());
    let error = plan(&policy, &machine(), &place).expect_err("it is required").to_string();
    assert!(error.contains("protected") && error.contains("no room"), "{error}");
}
