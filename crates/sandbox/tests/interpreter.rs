//! The C interface, called by a process that is an interpreter already: a real Python loads the
//! shared object, forks, and confines its child.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::Command;

use windlass_protocol::policy::PolicyRequest;
use windlass_sandbox::{Depth, Machine, Site, plan, survey};

/// A child in its own namespaces and view, its state from before the fork intact.
const CONFINE: &str = r#"
import ctypes, os, sys
library, plan, secret = ctypes.CDLL(sys.argv[1]), open(sys.argv[2], "rb").read(), sys.argv[3]
state = {"answer": 42}
print("before", open(secret).read(), flush=True)
between = os.fork()
if between == 0:
    made = library.windlass_make_namespaces(plan, ctypes.c_size_t(len(plan)))
    if made != 0:
        print("namespaces", made, flush=True)
        os._exit(1)
    child = os.fork()
    if child == 0:
        entered = library.windlass_enter(plan, ctypes.c_size_t(len(plan)), -1)
        print("entered", entered, "pid", os.getpid(), "state", state["answer"], flush=True)
        try:
            print("after", open(secret).read(), flush=True)
        except OSError:
            print("after refused", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    os._exit(0)
os.waitpid(between, 0)
"#;

#[test]
fn an_interpreter_can_confine_its_forked_child() {
    let home = tempfile::tempdir().unwrap();
    let secret = home.path().join(".ssh/id");
    std::fs::create_dir_all(home.path().join(".ssh")).unwrap();
    std::fs::create_dir_all(home.path().join("work")).unwrap();
    std::fs::write(&secret, "secret").unwrap();
    let policy = PolicyRequest::default().resolve().unwrap();
    let site = Site {
        workspace: home.path().join("work"),
        home: Some(home.path().to_owned()),
        ..Site::default()
    };
    let plan = plan(&policy, &Machine::detect(), &survey(&policy, &site, Depth::View)).unwrap();
    let file = home.path().join("plan.json");
    std::fs::write(&file, serde_json::to_vec(&plan).unwrap()).unwrap();
    let ran = Command::new("/usr/bin/python3")
        .args(["-I", "-c", CONFINE])
        .args([&library(), &file, &secret])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(
        said,
        "before secret\nentered 0 pid 1 state 42\nafter refused\n",
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// Beside this program, where cargo puts what it builds of the crate.
fn library() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let name = "libwindlass_sandbox.so";
    let found =
        here.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.exists());
    found.expect("the crate is built as a shared object too")
}
