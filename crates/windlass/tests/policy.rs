//! The commands about policies and the machine: their output, and that sessions get what it says.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use windlass_testkit::raw_http::{RawHttp, request};
use windlass_testkit::{PATIENCE, TestNode, python, within};

/// Private directories with a home and a repository as workspace. The home is not below `/tmp`, which is
/// private in a session.
struct Place {
    node: TestNode,
    home: tempfile::TempDir,
}

fn place() -> Place {
    let node = TestNode::builder(env!("CARGO_BIN_EXE_windlass")).prepare().unwrap();
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = Place { node, home };
    std::fs::create_dir_all(place.home.path().join(".ssh")).unwrap();
    std::fs::write(place.home.path().join(".ssh/id"), "secret").unwrap();
    std::fs::create_dir_all(place.work().join(".git")).unwrap();
    place
}

impl Place {
    fn work(&self) -> std::path::PathBuf {
        self.home.path().join("work")
    }
}

fn windlass(place: &Place, args: &[&str]) -> Output {
    let beside_python = python().parent().map(Path::to_owned).unwrap();
    Command::new(place.node.program())
        .args(args)
        .env_clear()
        .env("HOME", place.home.path())
        .env("WINDLASS_RUNTIME_DIR", &place.node.dirs().runtime)
        .env("WINDLASS_STATE_DIR", &place.node.dirs().state)
        .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", beside_python.display()))
        .current_dir(place.work())
        .output()
        .unwrap()
}

#[track_caller]
fn text(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stdout}{stderr}");
    stdout
}

#[track_caller]
fn json(output: &Output, code: i32) -> Value {
    serde_json::from_str(&text(output, code)).unwrap()
}

/// The state of a control in a list of reports.
#[track_caller]
fn state<'a>(controls: &'a Value, control: &str) -> &'a str {
    let is = |report: &&Value| report["control"] == control;
    let report = controls.as_array().unwrap().iter().find(is);
    report.unwrap_or_else(|| panic!("no {control} in {controls}"))["state"].as_str().unwrap()
}

#[test]
fn show_reports_how_a_policy_is_enforced_without_a_node() {
    let place = place();
    let args = ["policy", "show", "--json", "--isolation=landlock", "--memory=1G", "--hide=keys"];
    let shown = json(&windlass(&place, &args), 0);
    assert_eq!(shown["isolation"], "landlock");
    assert_eq!(shown["policy"]["limits"]["memory_bytes"], 1 << 30);
    let hidden = place.work().join("keys").display().to_string();
    let lists = shown["policy"]["hidden"].as_array().unwrap();
    assert!(lists.iter().any(|path| *path == hidden), "{lists:?}");
    assert_eq!(state(&shown["controls"], "protected"), "not_enforced");
    assert_eq!(state(&shown["controls"], "network"), "enforced");
    assert!(!place.node.dirs().socket().exists());

    let args = ["policy", "show", "--isolation=landlock", "--allow-host=a.test"];
    let refused = text(&windlass(&place, &args), 1);
    assert!(refused.contains("would not start here"), "{refused}");
}

#[test]
fn explain_describes_the_policy_in_sentences() {
    let place = place();
    let said = text(&windlass(&place, &["policy", "explain", "--isolation=landlock"]), 0);
    for part in [
        "except ~/.ssh",
        "may write only the workspace",
        "cannot change .git: NOT ENFORCED HERE",
        "cannot reach any network\n",
        "memory: 4 GiB",
    ] {
        assert!(said.contains(part), "no {part:?} in:\n{said}");
    }
    let shown = text(&windlass(&place, &["policy", "explain", "--show=.git", "--show=~/.ssh"]), 0);
    assert!(!shown.contains(".ssh") && !shown.contains(".git"), "{shown}");
}

#[test]
fn options_of_run_set_the_policy_of_its_session() {
    let place = place();
    let python = python();
    let code = place.work().join("code.py");
    let secret = place.home.path().join(".ssh/id");
    std::fs::write(&code, format!("print(open({:?}).read())", secret.to_str().unwrap())).unwrap();
    let run = |options: &[&str]| {
        let usual = ["run", "--python", python.to_str().unwrap()];
        windlass(&place, &[&usual[..], options, &[code.to_str().unwrap()]].concat())
    };
    let confined = run(&[]);
    assert_eq!(confined.status.code(), Some(1));
    assert!(!text(&confined, 1).contains("secret"));
    // No confinement, because the command requested it by name.
    let open = run(&["--isolation=none", "--keep"]);
    assert_eq!(text(&open, 0), "secret\n");
    let note = String::from_utf8_lossy(&open.stderr).into_owned();
    let session = note.split_whitespace().nth(1).unwrap();
    let shown = json(&windlass(&place, &["policy", "show", "--session", session, "--json"]), 0);
    assert_eq!(shown["policy"]["isolation"], "none");
    assert_eq!(shown["isolation"], "none");
    assert_eq!(state(&shown["controls"], "hidden"), "not_enforced");

    // A home below /tmp does not exist in the session: that directory is private.
    if !place.home.path().starts_with("/tmp") {
        assert_eq!(text(&run(&["--show=~/.ssh"]), 0), "secret\n");
    }
    let refused = run(&["--isolation=landlock", "--allow-host=a.test"]);
    assert_eq!(refused.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(stderr.contains("not_enforceable") && stderr.contains("help:"), "{stderr}");
    let both = windlass(&place, &["run", "--session", session, "--isolation=none", "-"]);
    assert_eq!(both.status.code(), Some(2), "a session that lives has its policy");
}

#[test]
fn doctor_tests_each_level_and_reports_what_was_refused() {
    let place = place();
    let found = windlass(&place, &["doctor", "--json"]);
    let code = found.status.code().unwrap();
    let report = json(&found, code);
    assert_eq!(code == 0, !report["confined"].is_null(), "{report}");
    for test in report["tests"].as_array().unwrap() {
        assert!(test["error"].is_null(), "{test}");
        assert!(test["attempts"].as_u64().unwrap() > 20, "{test}");
        for control in ["write", "hidden", "network", "privileges", "syscalls", "devices"] {
            let is = |one: &&Value| one["control"] == control;
            let one = test["controls"].as_array().unwrap().iter().find(is).unwrap();
            assert_eq!(
                (&one["state"], &one["tested"]),
                (&"enforced".into(), &true.into()),
                "{one}"
            );
        }
    }
    let programs = report["programs"].as_array().unwrap();
    let python = programs.iter().find(|program| program["name"] == "python3").unwrap();
    assert!(python["version"].as_str().unwrap().starts_with("3."), "{python}");
    // It left nothing behind: no node, no file of a canary.
    assert!(!place.node.dirs().socket().exists());
    let left: Vec<_> = std::fs::read_dir(place.work().join(".git")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");

    let page = text(&windlass(&place, &["doctor", "--session-test"]), code);
    assert!(page.contains("A real session"), "{page}");
    assert!(!page.contains('\u{1b}'), "colours in a pipe");
}

#[tokio::test]
async fn a_node_tests_for_a_client_what_the_command_tests() {
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let mut door = RawHttp::connect(&node.dirs().socket()).await.unwrap();
    door.write(&request("POST", "/v1/node/doctor", b"")).await.unwrap();
    let (status, asked) = within(PATIENCE, door.answer()).await.unwrap();
    assert_eq!(status, 200, "{asked}");
    let found = node.command(&["doctor", "--json", "--empty-workspace"]).output().unwrap();
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(asked["confined"], found["confined"]);
    assert!(!asked["tests"].as_array().unwrap().is_empty(), "{asked}");
    assert_eq!(controls(&asked), controls(&found));
    // The workspace can be written, and the rest of the machine cannot.
    let write = controls(&asked).into_iter().filter(|(_, control, ..)| control == "write");
    for (level, _, state, tested) in write {
        assert_eq!((state.as_str(), tested), ("enforced", true), "{level}: {asked}");
    }
}

/// Level, control, state and whether it was tested, from a report of the doctor.
fn controls(report: &Value) -> Vec<(String, String, String, bool)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of_test = |test: &Value| -> Vec<_> {
        let level = text(&test["level"]);
        let one = |one: &Value| {
            let tested = one["tested"].as_bool().unwrap_or(false);
            (level.clone(), text(&one["control"]), text(&one["state"]), tested)
        };
        test["controls"].as_array().unwrap().iter().map(one).collect()
    };
    report["tests"].as_array().unwrap().iter().flat_map(of_test).collect()
}
