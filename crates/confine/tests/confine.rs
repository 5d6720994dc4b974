//! Runs real processes under real plans: what a confined program can do, and what is refused. Each test runs
//! one program; the contract has the whole list.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Read;
use std::os::fd::AsFd;

use windlass_confine::enter::try_owner_map;
use windlass_confine::plan::{Mount, PathKind};
use windlass_confine::{
    Depth, MachineSupport, Plan, SpawnCommand, SpawnError, StartedProcess, SurveyInput, plan,
    spawn, survey,
};
use windlass_protocol::confinement::{Control, ControlState, Isolation};
use windlass_protocol::policy::{Policy, PolicyRequest};

struct ConfinedHome {
    home: tempfile::TempDir,
}

impl ConfinedHome {
    fn new() -> Self {
        rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1)).unwrap();
        let home = tempfile::tempdir_in("/var").or_else(|_| tempfile::tempdir()).unwrap();
        std::fs::create_dir_all(home.path().join(".ssh")).unwrap();
        std::fs::write(home.path().join(".ssh/id"), "secret").unwrap();
        std::fs::create_dir_all(home.path().join("work/.git")).unwrap();
        Self { home }
    }

    fn survey_input(&self) -> SurveyInput {
        SurveyInput {
            workspace: self.home.path().join("work"),
            home: Some(self.home.path().to_owned()),
            ..SurveyInput::default()
        }
    }

    fn run(&self, request: &str, code: &str) -> ProgramRun {
        let policy = serde_json::from_str::<PolicyRequest>(request).unwrap().resolve().unwrap();
        self.run_policy(&policy, code)
    }

    fn run_policy(&self, policy: &Policy, code: &str) -> ProgramRun {
        let found = survey(policy, &self.survey_input(), Depth::Rules);
        self.run_plan(&plan(policy, &MachineSupport::detect(), &found).unwrap(), code).unwrap()
    }

    fn run_plan(&self, plan: &Plan, code: &str) -> Result<ProgramRun, SpawnError> {
        let null = std::fs::File::open("/dev/null").unwrap();
        let (mut out, out_end) = std::io::pipe().unwrap();
        let argv = ["/usr/bin/python3", "-Ic", code].map(str::to_owned);
        let command = SpawnCommand {
            argv: &argv,
            env: &[],
            cwd: &self.home.path().join("work"),
            stdin: null.as_fd(),
            stdout: out_end.as_fd(),
            stderr: out_end.as_fd(),
            kept: null.as_fd(),
            cgroups: &[],
            plan,
        };
        let started = spawn(&command)?;
        drop(out_end);
        let mut said = String::new();
        out.read_to_string(&mut said).unwrap();
        end(&started);
        Ok(ProgramRun { said, started })
    }
}

struct ProgramRun {
    said: String,
    started: StartedProcess,
}

fn end(started: &StartedProcess) {
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
def thread():
    started = __import__("threading").Thread(target=print)
    started.start()
    started.join()
attempt("thread", thread)
attempt("process", lambda: os.waitpid(os.fork() or os._exit(0), 0)[1])
"#;

#[test]
fn a_workspace_session_at_level_full_is_confined() {
    let stage = ConfinedHome::new();
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
    let stage = ConfinedHome::new();
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

fn assert_tested(started: &StartedProcess, controls: &[Control]) {
    for control in controls {
        let report = started.confinement.controls.iter().find(|one| one.control == *control);
        let report = report.expect("every control is reported");
        assert_eq!(report.state, ControlState::Enforced, "{report:?}");
        assert!(report.tested, "{report:?}");
    }
}

#[test]
fn the_level_none_confines_nothing_and_reports_it() {
    let stage = ConfinedHome::new();
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
fn a_view_with_readable_roots_contains_nothing_else() {
    let stage = ConfinedHome::new();
    let request = r#"{"isolation": "full", "readable": ["/usr", "/lib", "/lib64", "/etc/ssl"]}"#;
    let ran = stage.run(request, "import os; print(sorted(os.listdir('/')), os.listdir('/etc'))");
    assert!(!ran.said.contains("root") && ran.said.contains("usr"), "{}", ran.said);
    assert!(ran.said.contains("['ssl']"), "{}", ran.said);
}

#[test]
fn a_proxy_listener_is_handed_out_of_the_network_namespace() {
    let stage = ConfinedHome::new();
    let request = r#"{"isolation": "full", "network": {"hosts": ["a.test"]}}"#;
    let code = "import socket; s = socket.create_connection(('127.0.0.1', 3128), 5); print('in')";
    let ran = stage.run(request, code);
    assert_eq!(ran.said, "in\n");
    assert!(ran.started.listener.is_some());
}

#[test]
fn a_hidden_path_that_does_not_exist_is_skipped() {
    let stage = ConfinedHome::new();
    let mut policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    policy.hidden.push("/nowhere/at/all".to_owned());
    policy.isolation = Some(Isolation::Full);
    let ran = stage.run_policy(&policy, "print(1)");
    assert_eq!(ran.said, "1\n");
}

/// The plan of an ordinary session at level full, with one more mount in its view.
fn plan_with(stage: &ConfinedHome, mount: Mount) -> Plan {
    let mut policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    policy.isolation = Some(Isolation::Full);
    let found = survey(&policy, &stage.survey_input(), Depth::View);
    let mut plan = plan(&policy, &MachineSupport::detect(), &found).unwrap();
    // The last two steps mount `/proc` and `/dev`.
    let at = plan.view.len() - 2;
    plan.view.insert(at, mount);
    plan
}

#[test]
fn the_error_of_a_failed_mount_names_its_path() {
    let stage = ConfinedHome::new();
    let link = stage.home.path().join("link");
    std::os::unix::fs::symlink(stage.home.path(), &link).unwrap();
    let path = link.join("work");
    let plan = plan_with(&stage, Mount::Hide { path: path.clone(), kind: PathKind::Directory });
    let error = stage.run_plan(&plan, "print(1)").err().unwrap().to_string();
    assert!(error.starts_with(&format!("cannot hide {}: ", path.display())), "{error}");
}

#[test]
fn a_replaced_file_is_skipped_and_a_socket_is_covered() {
    let stage = ConfinedHome::new();
    // Not in the home itself: the view shows only files, directories and symlinks of a home.
    let shared = stage.home.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::os::unix::fs::symlink("/usr", shared.join("link")).unwrap();
    std::fs::write(shared.join("file"), "x").unwrap();
    let listener = std::os::unix::net::UnixListener::bind(shared.join("socket")).unwrap();
    for (name, expected) in [
        ("link", "True"),
        ("link/bin", "True"),
        ("gone", "False"),
        ("file", "True"),
        ("file/below", "False"),
    ] {
        let path = shared.join(name);
        let code = format!("import os; print(os.path.exists({path:?}))");
        let ran = stage.run_plan(&plan_with(&stage, Mount::Cover { path }), &code).unwrap();
        assert_eq!(ran.said.trim(), expected, "{name}");
    }
    let path = shared.join("socket");
    let code = format!(
        "import socket\ntry: socket.socket(socket.AF_UNIX).connect({path:?})\n\
         except OSError as error: print(type(error).__name__)"
    );
    let ran = stage.run_plan(&plan_with(&stage, Mount::Cover { path }), &code).unwrap();
    assert_eq!(ran.said.trim(), "PermissionError");
    drop(listener);
}

#[test]
fn a_socket_in_a_closed_directory_of_another_user_is_skipped() {
    if !rustix::process::geteuid().is_root() {
        // Only root can make a directory of another user.
        return;
    }
    let stage = ConfinedHome::new();
    let closed = stage.home.path().join("closed");
    std::fs::create_dir_all(closed.join("deeper")).unwrap();
    let path = closed.join("deeper/agent");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    for directory in [closed.join("deeper"), closed.clone()] {
        std::os::unix::fs::chown(&directory, Some(65534), Some(65534)).unwrap();
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .unwrap();
    }
    let input = stage.survey_input();
    let mut policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    policy.isolation = Some(Isolation::Full);
    assert!(survey(&policy, &input, Depth::View).sockets.covered.contains(&path));
    for mount in [
        Mount::Cover { path: path.clone() },
        Mount::Hide { path: path.clone(), kind: PathKind::File },
    ] {
        let code = format!("import os; print(os.access({closed:?}, os.X_OK))");
        let ran = stage.run_plan(&plan_with(&stage, mount), &code).unwrap();
        assert_eq!(ran.said.trim(), "False");
    }
    drop(listener);
}

/// A program that sets ordinary modes, and modes that are refused.
const MODES: &str = r#"
import io, os, shutil, stat, subprocess, sys, tarfile, zipfile
def mode(path):
    return oct(stat.S_IMODE(os.stat(path).st_mode))
os.umask(0o022)
open("a", "w").close()
os.chmod("a", 0o755)
shutil.copy2("a", "b")
print("copied", mode("b"))
shutil.copystat("a", "b")
os.makedirs("tree/inside", 0o750)
os.chmod("tree/inside", 0o1777)
shutil.copytree("tree", "copy")
print("tree", mode("copy/inside"))
with tarfile.open("all.tar", "w") as tar:
    tar.add("a")
    tar.add("tree")
with tarfile.open("all.tar") as tar:
    tar.extractall("out")
print("tar", mode("out/a"), mode("out/tree/inside"))
with zipfile.ZipFile("tiny-1-py3-none-any.whl", "w") as wheel:
    for name, text in (
        ("tiny.py", "x = 1"),
        ("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n"),
        ("tiny-1.dist-info/WHEEL",
         "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
        ("tiny-1.dist-info/RECORD", "tiny.py,,\n"),
    ):
        wheel.writestr(name, text)
def ran(*argv):
    env = {"HOME": os.getcwd(), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(argv, capture_output=True, text=True, env=env)
    return done.returncode or "well" if shutil.which(argv[0], path=env["PATH"]) else "well"
print("git", ran("git", "init", "-q", "repository"))
print("pip", ran(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
                 "--target", "input", "tiny-1-py3-none-any.whl"))
def attempt(name, act):
    try:
        act()
        print(name, "GOT THROUGH")
    except PermissionError:
        print(name, "refused")
for bits in (0o4755, 0o2755, 0o6755):
    attempt("chmod", lambda: os.chmod("a", bits))
    attempt("fchmod", lambda: os.chmod(os.open("a", os.O_RDONLY), bits))
    attempt("fchmodat", lambda: os.chmod("a", bits, dir_fd=os.open(".", os.O_RDONLY)))
    attempt("open", lambda: os.open(f"new{bits}", os.O_CREAT | os.O_WRONLY, bits))
    attempt("tmpfile", lambda: os.open(".", os.O_TMPFILE | os.O_WRONLY, bits))
    attempt("mkdir", lambda: os.mkdir(f"dir{bits}", bits))
    attempt("mknod", lambda: os.mknod(f"node{bits}", bits | stat.S_IFREG))
print("left", [name for name in os.listdir() if os.stat(name).st_mode & 0o6000])
"#;

#[test]
fn setuid_and_setgid_bits_are_refused_and_ordinary_modes_are_not() {
    for level in ["full", "landlock"] {
        let stage = ConfinedHome::new();
        let ran = stage.run(&format!(r#"{{"isolation": "{level}"}}"#), MODES);
        let refused =
            ["chmod", "fchmod", "fchmodat", "open", "tmpfile", "mkdir", "mknod"].repeat(3);
        let refused: String = refused.iter().map(|name| format!("{name} refused\n")).collect();
        let expected = format!(
            "copied 0o755\ntree 0o1777\ntar 0o755 0o1777\ngit well\npip well\n{refused}left []\n"
        );
        assert_eq!(ran.said, expected, "{level}");
    }
}

/// A user id that no user of a machine has.
const OWN_UID: u32 = 1_900_000_017;

/// The plan of a session that writes its workspace and has a user id of its own.
fn plan_with_own_user(stage: &ConfinedHome) -> Plan {
    let mut policy = Policy::of(windlass_protocol::policy::Preset::Workspace);
    policy.isolation = Some(Isolation::Full);
    let found = survey(&policy, &stage.survey_input(), Depth::View);
    let plan = plan(&policy, &MachineSupport::detect(), &found).unwrap();
    plan.with_own_user(OWN_UID).unwrap()
}

const OWN_USER: &str = r#"
import os
print(*open("/proc/self/uid_map").read().split())
print(*open("/proc/self/gid_map").read().split(), os.getgroups())
print(os.getuid(), os.getgid())
open("new.txt", "w").write("x")
print("owners", os.stat("new.txt").st_uid, os.stat(".").st_uid, os.stat("/run").st_uid)
open("/run/file", "w").write("x")
"#;

#[test]
fn a_session_with_a_user_id_of_its_own_is_no_other_user_outside() {
    if !rustix::process::geteuid().is_root() {
        // Only root can give a session another user id.
        return;
    }
    let stage = ConfinedHome::new();
    let ran = stage.run_plan(&plan_with_own_user(&stage), OWN_USER).unwrap();
    let of_map = format!("0 {OWN_UID} 1");
    let expected = format!("{of_map}\n{of_map} []\n0 0\nowners 0 0 0\n");
    assert_eq!(ran.said, expected);
    let made = std::fs::metadata(stage.home.path().join("work/new.txt")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), 0, "the file keeps the owner");
    let controls = &ran.started.confinement.controls;
    let told = controls.iter().find(|report| report.control == Control::Privileges).unwrap();
    assert!(told.tested, "{told:?}");
    assert!(told.mechanism.starts_with(&format!("own user id {OWN_UID}, ")), "{told:?}");
}

#[test]
fn a_workspace_whose_owner_cannot_be_mapped_is_refused() {
    if !rustix::process::geteuid().is_root() {
        // Only root can mount a file system without id-mapped mounts.
        return;
    }
    let stage = ConfinedHome::new();
    let work = stage.home.path().join("work");
    let nothing = None::<&str>;
    let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    nix::mount::mount(nothing, "/", nothing, private, nothing).unwrap();
    let plain = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("ramfs"), &work, Some("ramfs"), plain, nothing).unwrap();
    let refused = stage.run_plan(&plan_with_own_user(&stage), "print(1)");
    let tried = try_owner_map(&work, OWN_UID);
    nix::mount::umount(&work).unwrap();
    let expected = format!("cannot map the owner of {} ", work.display());
    for error in [refused.err().unwrap().to_string(), tried.unwrap_err().to_string()] {
        assert!(error.starts_with(&expected), "{error}");
    }
    try_owner_map(&work, OWN_UID).unwrap();
}
