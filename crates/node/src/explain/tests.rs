//! Tables: which end of a turn under which policy gives which sentence, and which gives none.

use windlass_egress::RefusalReason;
use windlass_protocol::confinement::ControlReport;
use windlass_protocol::policy::{PolicyRequest, WorkspaceAccess};
use windlass_protocol::refusal::TRIED_BYTES_MAX;

use super::*;

const WORKSPACE: &str = "/w/project";

/// What a row of a table changes.
struct Case {
    policy: Policy,
    isolation: Isolation,
    not_enforced: Vec<Control>,
}

fn under(request: &str) -> Case {
    let request: PolicyRequest = serde_json::from_str(request).unwrap();
    let policy = request.resolve().unwrap();
    Case { policy, isolation: Isolation::Full, not_enforced: Vec::new() }
}

fn usual() -> Case {
    under("{}")
}

impl Case {
    fn at(self, isolation: Isolation) -> Self {
        Self { isolation, ..self }
    }

    fn explain(&self, turn: TurnFacts<'_>) -> Option<PolicyRefusal> {
        let report = |control| {
            let state = match self.not_enforced.contains(&control) {
                true => ControlState::NotEnforced,
                false => ControlState::Enforced,
            };
            ControlReport { control, state, mechanism: String::new(), tested: true, remedy: None }
        };
        let controls = Control::ALL.map(report).to_vec();
        let confinement = Confinement { isolation: self.isolation, controls };
        let session = ConfinedSession {
            policy: &self.policy,
            confinement: Some(&confinement),
            workspace: Path::new(WORKSPACE),
            home: Some(Path::new("/people/u")),
            own: &[PathBuf::from("/state/tmp/s1")],
        };
        explain(session, turn)
    }

    /// The explanation of an error with this output before it.
    fn error(&self, name: &str, message: &str, tail: &str) -> Option<PolicyRefusal> {
        let error = TurnError { code: None, name: name.to_owned(), message: message.to_owned() };
        let tail = if reads_output(Outcome::Error, Some(&error)) { tail } else { "" };
        self.explain(TurnFacts { error: Some(&error), tail, ..FAILED })
    }

    /// The explanation of a shell turn with this output.
    fn shell(&self, tail: &str) -> Option<PolicyRefusal> {
        self.error("ExitStatus", "exit status 1", tail)
    }
}

const FAILED: TurnFacts<'_> =
    TurnFacts { outcome: Outcome::Error, error: None, limit: None, refused: None, tail: "" };

#[track_caller]
fn check(found: Option<PolicyRefusal>, control: Control, option: &str) -> PolicyRefusal {
    let found = found.expect("the policy is named");
    assert_eq!(found.control, control, "{found:?}");
    assert_eq!(found.option.as_deref(), Some(option), "{found:?}");
    assert!(found.message.contains(&format!("`{option}`")), "{found:?}");
    let is_field = |field: &String| field.starts_with("policy.") || field == "allow_packages";
    assert!(found.field.as_ref().is_some_and(is_field), "{found:?}");
    found
}

#[test]
fn a_missing_network_is_named_with_the_host() {
    let gaierror = "[Errno -3] Temporary failure in name resolution";
    for (tail, option) in [
        ("    urllib.request.urlopen('https://example.org/x')\n", "--allow-host example.org"),
        ("    socket.create_connection(address)\n", "--allow-host HOST"),
    ] {
        let found = usual().error("URLError", &format!("<urlopen error {gaierror}>"), tail);
        check(found, Control::Network, option);
    }
    for (line, host) in [
        ("curl: (6) Could not resolve host: example.org", "example.org"),
        (
            "fatal: unable to access 'https://git.test/x/': Could not resolve host: git.test",
            "git.test",
        ),
        (
            "npm error request to https://registry.test/x failed, reason: getaddrinfo EAI_AGAIN registry.test",
            "registry.test",
        ),
        ("Error: getaddrinfo ENOTFOUND api.test", "api.test"),
        ("ping: example.org: Temporary failure in name resolution", "example.org"),
        ("wget: unable to resolve host address ‘a.test’", "a.test"),
        ("dial tcp: lookup go.test: no such host", "go.test"),
        ("HTTPSConnectionPool(host='a.test', port=443): Failed to resolve", "a.test"),
    ] {
        let found = usual().shell(&format!("before\n{line}\n"));
        let found = check(found, Control::Network, &format!("--allow-host {host}"));
        assert_eq!(found.tried, format!("connect to {host}"));
        assert!(found.message.starts_with("this session has no network"), "{found:?}");
    }
    check(
        usual().error("OSError", "[Errno 101] Network is unreachable", ""),
        Control::Network,
        "--allow-host HOST",
    );
    let fetch = "TypeError: fetch failed\n  [cause]: Error: getaddrinfo EAI_AGAIN api.test\n";
    check(
        usual().error("TypeError", "fetch failed", fetch),
        Control::Network,
        "--allow-host api.test",
    );
    assert_eq!(usual().error("TypeError", "x is not a function", fetch), None);
}

#[test]
fn pip_that_reaches_no_index_is_named_by_its_output() {
    let output = "ERROR: Could not find a version that satisfies the requirement six (from versions: none)\n\
                  ERROR: No matching distribution found for six\n";
    let message = "Command '['pip', 'install', 'six']' returned non-zero exit status 1.";
    let allow = "--allow-packages";
    let found = usual().error("CalledProcessError", message, output);
    let found = check(found, Control::Network, allow);
    assert!(found.message.contains("`--with PACKAGES`"), "{found:?}");
    let managed =
        "error: externally-managed-environment\n\n× This environment is externally managed\n";
    check(usual().error("CalledProcessError", message, managed), Control::Write, allow);
    let cache = "error: Failed to initialize cache at `/people/u/.cache/uv`\n  \
                 cause: failed to create directory `/people/u/.cache/uv`: Read-only file system (os error 30)\n";
    check(usual().error("CalledProcessError", message, cache), Control::Write, allow);
    let uv = "  hint: Packages were unavailable because the network was disabled. When the network is disabled\n";
    check(usual().error("CalledProcessError", message, uv), Control::Network, allow);
    let read_only = "ERROR: Could not install packages due to an OSError: [Errno 30] Read-only file system: \
                     '/w/project/.venv/lib/python3.11/site-packages/six.py'\n";
    let found = usual().error("CalledProcessError", message, read_only);
    let found = check(found, Control::Write, allow);
    assert!(found.message.starts_with("/w/project/.venv is read-only"), "{found:?}");
    let local = format!("Looking in links: /wheels\n{output}");
    assert_eq!(usual().error("CalledProcessError", message, &local), None);
    assert_eq!(under(r#"{"network": "open"}"#).shell(output), None);
}

#[test]
fn the_network_is_blamed_only_if_the_policy_closes_it() {
    let unreachable = "[Errno 101] Network is unreachable";
    assert_eq!(under(r#"{"network": "open"}"#).error("OSError", unreachable, ""), None);
    let not_enforced = Case { not_enforced: vec![Control::Network], ..usual() };
    assert_eq!(not_enforced.error("OSError", unreachable, ""), None);
    assert_eq!(usual().at(Isolation::None).error("OSError", unreachable, ""), None);
    // At this level there are no lists of hosts, and no internet socket can be made.
    let landlock = || usual().at(Isolation::Landlock);
    let family = "[Errno 97] Address family not supported by protocol";
    check(landlock().error("OSError", family, ""), Control::Network, "--policy open");
    assert_eq!(usual().error("OSError", family, ""), None);
    let listed = under(r#"{"network": {"hosts": ["a.test:8443"]}}"#);
    let unlisted = listed.shell("curl: (6) Could not resolve host: b.test");
    check(unlisted, Control::Network, "--allow-host b.test");
    let past_the_proxy = listed.shell("curl: (6) Could not resolve host: a.test");
    check(past_the_proxy, Control::Network, "--policy open");
}

#[test]
fn a_refusal_of_the_proxy_names_the_host_also_if_the_turn_ended_well() {
    let decision = |host: &str, reason: &str| EgressDecision {
        host: host.to_owned(),
        port: 443,
        allowed: false,
        reason: reason.to_owned(),
        count: 1,
        sent_bytes: 0,
        received_bytes: 0,
        last_at_ms: 0,
    };
    let case = under(r#"{"network": {"hosts": ["a.test"]}}"#);
    let refused = decision("b.test", &RefusalReason::NotNamed.to_string());
    for outcome in [Outcome::Ok, Outcome::Error, Outcome::TimedOut] {
        let found = case.explain(TurnFacts { outcome, refused: Some(&refused), ..FAILED });
        let found = check(found, Control::Network, "--allow-host b.test");
        assert!(found.message.starts_with("b.test is not in this session's list of hosts"));
    }
    let private = decision("c.test", &RefusalReason::PrivateAddress.to_string());
    let found = case.explain(TurnFacts { refused: Some(&private), ..FAILED });
    check(found, Control::Network, "--allow-host c.test=ADDRESS");
    let placeholder = decision("a.test", &RefusalReason::SecretPlaceholder.to_string());
    let found = case.explain(TurnFacts { refused: Some(&placeholder), ..FAILED }).unwrap();
    assert!(found.option.is_none() && found.message.contains("placeholder"), "{found:?}");
    // An error of a path is about the path, whatever the proxy refused before it.
    let error = TurnError {
        code: None,
        name: "OSError".to_owned(),
        message: "[Errno 30] Read-only file system: '/data/x'".to_owned(),
    };
    let turn = TurnFacts { error: Some(&error), refused: Some(&refused), ..FAILED };
    check(case.explain(turn), Control::Write, "--writable /data");
    let lost = TurnFacts { outcome: Outcome::Lost, refused: Some(&refused), ..FAILED };
    assert_eq!(case.explain(lost), None);
}

#[test]
fn a_read_only_path_is_named_as_each_program_says_it() {
    for line in [
        "OSError: [Errno 30] Read-only file system: '/data/x'",
        "touch: cannot touch '/data/x': Read-only file system",
        "mkdir: cannot create directory ‘/data/x’: Read-only file system",
        "bash: line 1: /data/x: Read-only file system",
        "/bin/sh: 1: cannot create /data/x: Read-only file system",
        "Error: EROFS: read-only file system, open '/data/x'",
        "open /data/x: read-only file system",
        "error: failed to create `/data/x`: Read-only file system (os error 30)",
        "OSError: [Errno 30] Read-only file system: 'a' -> '/data/x'",
        "touch: cannot touch '../../data/x': Read-only file system",
    ] {
        let found = check(usual().shell(line), Control::Write, "--writable /data");
        assert_eq!(found.tried, "write /data/x", "{line}");
    }
    check(
        usual().shell("touch: cannot touch '/x': Read-only file system"),
        Control::Write,
        "--writable /x",
    );
    let spaced = usual().shell("touch: cannot touch '/my data/x': Read-only file system");
    check(spaced, Control::Write, "--writable '/my data'");
}

#[test]
fn a_path_is_blamed_only_if_the_policy_refuses_it() {
    let read_only = |path: &str| format!("[Errno 30] Read-only file system: '{path}'");
    for path in ["x", "/w/project/a/../x", "/tmp/x", "/proc/sys/x", "/state/tmp/s1/x"] {
        assert_eq!(usual().error("OSError", &read_only(path), ""), None, "{path}");
    }
    let writable = under(r#"{"writable": ["/data/", "~/out"]}"#);
    for path in ["/data/x", "/people/u/out/x", "~/out"] {
        assert_eq!(writable.error("OSError", &read_only(path), ""), None, "{path}");
    }
    check(
        writable.error("OSError", &read_only("/data2/x"), ""),
        Control::Write,
        "--writable /data2",
    );
    let read_only_preset = under(r#"{"preset": "read-only"}"#);
    assert_eq!(read_only_preset.policy.workspace, WorkspaceAccess::Read);
    let found = read_only_preset.error("OSError", &read_only("x"), "");
    check(found, Control::Write, "--policy workspace");
}

#[test]
fn a_permission_of_a_file_is_not_the_policys() {
    let denied = |path: &str| format!("[Errno 13] Permission denied: '{path}'");
    let reading = "    open('/srv/secret').read()\n";
    assert_eq!(usual().error("PermissionError", &denied("/srv/secret"), reading), None);
    assert_eq!(usual().error("PermissionError", &denied("x"), "open('x', 'w')"), None);
    assert_eq!(
        usual().error("PermissionError", "[Errno 1] Operation not permitted: '/srv/x'", ""),
        None
    );
    // Landlock refuses reading and writing alike.
    let landlock = usual().at(Isolation::Landlock);
    assert_eq!(landlock.error("PermissionError", &denied("/srv/secret"), reading), None);
    let writing = "    open('/srv/x', 'w')\n";
    check(
        landlock.error("PermissionError", &denied("/srv/x"), writing),
        Control::Write,
        "--writable /srv",
    );
    assert_eq!(landlock.error("PermissionError", &denied("x"), writing), None);
}

#[test]
fn hidden_protected_and_unlisted_paths_are_named() {
    let denied = "[Errno 13] Permission denied: '/people/u/.ssh/id'";
    check(usual().error("PermissionError", denied, ""), Control::Hidden, "--show ~/.ssh");
    let missing = "cat: /people/u/.aws/config: No such file or directory\n";
    check(usual().shell(missing), Control::Hidden, "--show ~/.aws");
    let cache = "[Errno 30] Read-only file system: '/people/u/.cache/x'";
    check(
        usual().error("OSError", cache, ""),
        Control::Hidden,
        "--show ~/.cache --writable ~/.cache",
    );
    let shown = under(r#"{"shown": ["~/.ssh"]}"#);
    assert_eq!(shown.error("PermissionError", denied, ""), None);
    let ordinary = "[Errno 2] No such file or directory: 'data.csv'";
    assert_eq!(usual().error("FileNotFoundError", ordinary, missing), None);

    let config = "error: could not lock config file .git/config: Read-only file system\n";
    check(usual().shell(config), Control::Protected, "--show .git");
    let held = "bash: line 1: AGENTS.md: Is a directory\n";
    check(usual().shell(held), Control::Protected, "--show AGENTS.md");
    assert_eq!(usual().shell("cat: AGENTS.md: Is a directory\n"), None);
    for (mode, is_writing) in [("\"w\"", true), (" mode='ab'", true), (" 'r'", false), ("", false)]
    {
        let code = format!("    open('AGENTS.md',{mode})\n");
        let message = "[Errno 21] Is a directory: 'AGENTS.md'";
        let found = usual().error("IsADirectoryError", message, &code);
        assert_eq!(found.is_some(), is_writing, "{code}");
    }
    let few = under(r#"{"readable": ["/usr"]}"#);
    let unlisted = "[Errno 2] No such file or directory: '/srv/data'";
    check(few.error("FileNotFoundError", unlisted, ""), Control::Read, "--policy-file FILE");
    assert_eq!(
        few.error("FileNotFoundError", "[Errno 2] No such file or directory: '/usr/x'", ""),
        None
    );
}

#[test]
fn directories_of_programs_in_a_writable_home_are_named() {
    let home = under(r#"{"writable": ["~"]}"#);
    for (path, option) in [
        ("/people/u/.local/bin/evil", "--writable /people/u/.local/bin"),
        ("/people/u/.cargo/config.toml", "--writable /people/u/.cargo"),
        ("/people/u/bin", "--writable /people/u/bin"),
        ("/people/u/bin/evil", "--writable /people/u/bin"),
    ] {
        let message = format!("[Errno 30] Read-only file system: '{path}'");
        check(home.error("OSError", &message, ""), Control::Protected, option);
    }
    // Only in the home.
    let project = "[Errno 30] Read-only file system: '/w/project/.local/x'";
    assert_eq!(home.error("OSError", project, ""), None);
    let elsewhere = "[Errno 30] Read-only file system: '/people/u/.local/x'";
    check(usual().error("OSError", elsewhere, ""), Control::Write, "--writable /people/u/.local");
}

#[test]
fn limits_are_named_with_their_option() {
    let limits = r#"{"limits": {"memory_bytes": 67108864, "processes": 8, "file_bytes": 1048576}}"#;
    let case = || under(limits);
    for (code, control, option) in [
        (ErrorCode::LimitMemory, Control::Memory, "--memory 128M"),
        (ErrorCode::LimitProcesses, Control::ProcessCount, "--processes 16"),
        (ErrorCode::LimitDisk, Control::Disk, "--policy-file FILE"),
    ] {
        let error = TurnError { code: Some(code), name: String::new(), message: String::new() };
        let lost = TurnFacts { outcome: Outcome::Lost, error: Some(&error), ..FAILED };
        check(case().explain(lost), control, option);
        check(case().at(Isolation::None).explain(lost), control, option);
    }
    for (name, message, control, option) in [
        ("MemoryError", "", Control::Memory, "--memory 128M"),
        ("RuntimeError", "can't start new thread", Control::ProcessCount, "--processes 16"),
        (
            "BlockingIOError",
            "os.fork: [Errno 11] Resource temporarily unavailable",
            Control::ProcessCount,
            "--processes 16",
        ),
        ("OSError", "[Errno 27] File too large", Control::FileSize, "--policy-file FILE"),
        (
            "OSError",
            "[Errno 24] Too many open files: 'x'",
            Control::OpenFiles,
            "--policy-file FILE",
        ),
        (
            "OSError",
            "[Errno 28] No space left on device: '/tmp/x'",
            Control::Disk,
            "--policy-file FILE",
        ),
    ] {
        check(case().error(name, message, ""), control, option);
    }
    assert_eq!(case().error("OSError", "[Errno 28] No space left on device: 'x'", ""), None);
    let again = "[Errno 11] Resource temporarily unavailable";
    for (tail, option) in [
        ("    self.pid = _fork_exec(\n               ^^^^^^^^^^^\n", Some("--processes 16")),
        ("    socket.recv(1)\n", None),
    ] {
        let found = case().error("BlockingIOError", again, tail);
        assert_eq!(found.and_then(|found| found.option).as_deref(), option, "{tail}");
    }
    let tiny = under(r#"{"limits": {"memory_bytes": 1}}"#);
    check(tiny.error("MemoryError", "", ""), Control::Memory, "--memory 64M");
    // A child was killed at the limit, and the turn went on.
    let killed = TurnFacts { outcome: Outcome::Ok, limit: Some(Limit::Memory), ..FAILED };
    check(case().explain(killed), Control::Memory, "--memory 128M");
    let died = TurnError {
        code: Some(ErrorCode::WorkerDied),
        name: String::new(),
        message: String::new(),
    };
    assert_eq!(
        case().explain(TurnFacts { outcome: Outcome::Lost, error: Some(&died), ..FAILED }),
        None
    );
}

#[test]
fn refused_calls_and_sockets_are_named() {
    let trace =
        "    os.unshare(os.CLONE_NEWUSER)\nPermissionError: [Errno 1] Operation not permitted\n";
    let found = usual().error("PermissionError", "[Errno 1] Operation not permitted", trace);
    check(found, Control::Syscalls, "--isolation none");
    check(
        usual().shell("strace: PTRACE_TRACEME: Operation not permitted"),
        Control::Syscalls,
        "--isolation none",
    );
    check(
        usual().shell("sudo: The \"no new privileges\" flag is set"),
        Control::Privileges,
        "--isolation none",
    );
    let docker = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n";
    check(usual().shell(docker), Control::Sockets, "--writable /var/run");
    let closed = under(r#"{"unix_sockets": "none"}"#);
    let family = "[Errno 97] Address family not supported by protocol";
    let trace = "    socket.socket(socket.AF_UNIX)\n";
    check(closed.error("OSError", family, trace), Control::Sockets, "--unix-sockets local");
    assert_eq!(usual().error("OSError", family, trace), None);
    let landlock = usual().at(Isolation::Landlock);
    check(landlock.error("OSError", family, trace), Control::Sockets, "--isolation full");
}

#[test]
fn an_ordinary_error_is_not_blamed_whatever_was_printed() {
    let printed = "touch: cannot touch '/data/x': Read-only file system\n";
    assert_eq!(usual().error("ZeroDivisionError", "division by zero", printed), None);
    assert_eq!(usual().error("ValueError", "Network is unreachable", printed), None);
    let nearer = format!("{printed}cat: /nowhere: No such file or directory\n");
    assert_eq!(usual().shell(&nearer), None, "the last symptom is the one that counts");
    let well = TurnFacts { outcome: Outcome::Ok, tail: printed, ..FAILED };
    assert_eq!(usual().explain(well), None);
    let starting = ConfinedSession {
        policy: &usual().policy,
        confinement: None,
        workspace: Path::new(WORKSPACE),
        home: None,
        own: &[],
    };
    assert_eq!(explain(starting, TurnFacts { tail: printed, ..FAILED }), None);
}

#[test]
fn hostile_text_is_bounded_and_plain() {
    let long = "x".repeat(3000);
    let texts = [
        format!("touch: cannot touch '/data/{long}': Read-only file system"),
        "touch: cannot touch '/data/\u{1b}[2J\u{202e}a\u{200b}b': Read-only file system".to_owned(),
        "touch: cannot touch '/data$(rm -rf ~)/x;`id`': Read-only file system".to_owned(),
        format!("curl: (6) Could not resolve host: {long}"),
        "curl: (6) Could not resolve host: a.test;rm".to_owned(),
        "'‘`\"Read-only file system'‘`\"".to_owned(),
        "\u{fffd}\u{fffd}erofsé".to_owned(),
    ];
    for text in texts {
        let Some(found) = usual().shell(&text) else { continue };
        assert!(found.tried.len() <= TRIED_BYTES_MAX, "{found:?}");
        assert!(found.message.len() <= 1024, "{found:?}");
        let all = format!("{found:?}");
        for bad in ["\\u{1b}", "\\u{202e}", "\\u{200b}"] {
            assert!(!all.contains(bad), "{all}");
        }
        let option = found.option.unwrap();
        let is_plain = |char: char| char.is_ascii_alphanumeric() || " ./-:_".contains(char);
        assert!(option.chars().all(is_plain), "{option}");
    }
}
