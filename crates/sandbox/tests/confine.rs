//! Real processes under real plans: what a confined program can do and what it is refused. One
//! program per test; the contract has the whole list.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Read;
use std::os::fd::AsFd;

use windlass_protocol::confinement::{Control, ControlState, Isolation};
use windlass_protocol::policy::{Policy, PolicyRequest};
use windlass_sandbox::{Command, Depth, Machine, Site, Started, plan, spawn, survey};

struct Stage {
    home: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1)).unwrap();
        let home = tempfile::tempdir_in("/var").or_else(|_| tempfile::tempdir()).unwrap();
        std::fs::create_dir_all(home.path().join(".ssh")).unwrap();
        std::fs::write(home.path().join(".ssh/id"), "secret").unwrap();
        std::fs::create_dir_all(home.path().join("work/.git")).unwrap();
        Self { home }
    }

    fn site(&self) -> Site {
        Site {
            workspace: self.home.path().join("work"),
            home: Some(self.home.path().to_owned()),
            ..Site::default()
        }
    }

    fn run(&self, request: &str, code: &str) -> Ran {
        let policy = serde_json::from_str::<PolicyRequest>(request).unwrap().resolve().unwrap();
        self.run_policy(&policy, code)
    }

    fn run_policy(&self, policy: &Policy, code: &str) -> Ran {
        let plan =
            plan(policy, &Machine::detect(), &survey(policy, &self.site(), Depth::Rules)).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let (mut out, out_end) = std::io::pipe().unwrap();
        let argv = ["/usr/bin/python3", "-Ic", code].map(str::to_owned);
        let command = Command {
            argv: &argv,
            env: &[],
            cwd: &self.home.path().join("work"),
            stdin: null.as_fd(),
            stdout: out_end.as_fd(),
            stderr: out_end.as_fd(),
            kept: null.as_fd(),
            cgroups: &[],
            plan: &plan,
        };
        let started = spawn(&command).unwrap();
        drop(out_end);
        let mut said = String::new();
        out.read_to_string(&mut said).unwrap();
        end(&started);
        Ran { said, started }
    }
}

struct Ran {
    said: String,
    started: Started,
}

fn end(started: &Started) {
    let pids = [Some(started.pid), started.init];
    for pid in pids.into_iter().flatten() {
        let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(pid, None);
    }
}

const PROBE: &str = r#"
import os, socket
def attempt(name, act):
    try:
        print(name, "->", act())
    except Exception:
        print(name, "refused")
home = os.path.dirname(os.getcwd())
attempt("own file", lambda: open("new.txt", "w").write("x"))
attempt("hidden", lambda: open(home + "/.ssh/id").read())
attempt("system", lambda: open("/usr/evil", "w"))
attempt("git", lambda: open(".git/hook", "w").write("x"))
attempt("tcp", lambda: socket.create_connection(("192.0.2.1", 9), 0.2))
attempt("namespace", lambda: os.unshare(0x10000000) if hasattr(os, "unshare") else __import__("ctypes").CDLL(None, use_errno=True).unshare(0x10000000))
attempt("kill", lambda: os.kill(os.getppid() or 99999, 0))
attempt("system read", lambda: len(open("/etc/passwd").read()) > 0)
attempt("thread", lambda: __import__("threading").Thread(target=print).start())
attempt("process", lambda: os.waitpid(os.fork() or os._exit(0), 0)[1])
"#;

#[test]
fn a_workspace_session_at_level_full_is_confined() {
    let stage = Stage::new();
    let ran = stage.run(r#"{"isolation": "full"}"#, PROBE);
    expect_test::expect![[r#"
        own file -> 1
        hidden refused
        system refused
        git refused
        tcp refused
        namespace -> -1
        kill refused
        system read -> True

        thread -> None
        process -> 0
    "#]]
    .assert_eq(&ran.said);
    assert_tested(&ran.started, &[Control::Hidden, Control::Write, Control::Network]);
    assert!(stage.home.path().join("work/new.txt").exists());
}

#[test]
fn a_workspace_session_at_level_landlock_is_confined() {
    let stage = Stage::new();
    let ran = stage.run(r#"{"isolation": "landlock"}"#, PROBE);
    expect_test::expect![[r#"
        own file -> 1
        hidden refused
        system refused
        git -> 1
        tcp refused
        namespace -> -1
        kill refused
        system read -> True

        thread -> None
        process -> 0
    "#]]
    .assert_eq(&ran.said);
    assert_tested(&ran.started, &[Control::Hidden, Control::Write, Control::Network]);
    let state = ran.started.confinement.state(Control::Protected);
    assert_eq!(state, Some(ControlState::NotEnforced));
}

fn assert_tested(started: &Started, controls: &[Control]) {
    for control in controls {
        let report = started.confinement.controls.iter().find(|one| one.control == *control);
        let report = report.expect("every control is reported");
        assert_eq!(report.state, ControlState::Enforced, "{report:?}");
        assert!(report.tested, "{report:?}");
    }
}

#[test]
fn the_level_none_confines_nothing_and_says_so() {
    let stage = Stage::new();
    let ran = stage.run(
        r#"{"isolation": "none"}"#,
        "import os; print(open(os.path.dirname(os.getcwd()) + '/.ssh/id').read())",
    );
    assert_eq!(ran.said, "secret\n");
    assert_eq!(ran.started.confinement.isolation, Isolation::None);
    let state = ran.started.confinement.state(Control::Hidden);
    assert_eq!(state, Some(ControlState::NotEnforced));
}

#[test]
fn a_list_of_readable_roots_is_all_that_is_there() {
    let stage = Stage::new();
    let request = r#"{"isolation": "full", "readable": ["/usr", "/lib", "/lib64", "/etc/ssl"]}"#;
    let ran = stage.run(request, "import os; print(sorted(os.listdir('/')), os.listdir('/etc'))");
    assert!(!ran.said.contains("root") && ran.said.contains("usr"), "{}", ran.said);
    assert!(ran.said.contains("['ssl']"), "{}", ran.said);
}

#[test]
fn a_proxy_listener_is_handed_out_of_the_network_namespace() {
    let stage = Stage::new();
    let request = r#"{"isolation": "full", "network": {"hosts": ["a.test"]}}"#;
    let code = "import socket; s = socket.create_connection(('127.0.0.1', 3128), 5); print('in')";
    let ran = stage.run(request, code);
    assert_eq!(ran.said, "in\n");
    assert!(ran.started.listener.is_some());
}

#[test]
fn paths_that_do_not_exist_are_no_obstacle() {
    let stage = Stage::new();
    let mut policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    policy.hidden.push("/nowhere/at/all".to_owned());
    policy.isolation = Some(Isolation::Full);
    let ran = stage.run_policy(&policy, "print(1)");
    assert_eq!(ran.said, "1\n");
}
