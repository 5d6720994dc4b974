//! Packages through the proxy: unmodified pip and curl install from an index on the list, and report the
//! refusal of one that is not.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use windlass_client::protocol::Outcome;
use windlass_client::protocol::api::CreateSession;
use windlass_testkit::{TestNode, python, turn, within};

use crate::PROGRAM;
use crate::inside::{Inside, rules};

/// How long the creation of a virtual environment or an installation may take on a busy machine.
const SLOW: Duration = Duration::from_secs(120);

/// Creates an index with one small package in the given directory.
const MAKE_INDEX: &str = r#"
import pathlib, sys, zipfile

root = pathlib.Path(sys.argv[1])
page = root / "simple" / "tinypkg"
page.mkdir(parents=True)
name = "tinypkg-1.0-py3-none-any.whl"
about = "tinypkg-1.0.dist-info"
with zipfile.ZipFile(page / name, "w") as wheel:
    wheel.writestr("tinypkg.py", "WORDS = 'from the index'\n")
    wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n")
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    wheel.writestr(f"{about}/WHEEL", tag)
    wheel.writestr(f"{about}/RECORD", "")
(page / "index.html").write_text(f'<!doctype html><a href="{name}">{name}</a>')
"#;

/// Code that runs a program as a user would, and returns its output.
const RUN: &str = r#"
import os, subprocess, sys

def run(*command):
    # The machine's own settings for pip are not the test's.
    environment = dict(os.environ, PIP_CONFIG_FILE=os.devnull, PIP_NO_CACHE_DIR="1")
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    return f"{ran.returncode}\n{ran.stdout}{ran.stderr}"
"#;

/// A package index, served to this machine. Dropping it ends the server.
struct Index {
    server: Child,
    port: u16,
    log: PathBuf,
    // The last field: removed after the server has ended.
    _place: TempDir,
}

impl Index {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let files = place.path().join("files");
        let made = Command::new(python()).args(["-c", MAKE_INDEX]).arg(&files).status().unwrap();
        assert!(made.success());
        let log = place.path().join("log");
        let mut server = Command::new(python())
            .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "0", "--directory"])
            .arg(&files)
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let stdout = server.stdout.take().unwrap();
        let mut index = Self { server, port: 0, log, _place: place };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let port = line.split_once(" port ").and_then(|(_, rest)| rest.split(' ').next());
        index.port = port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{line:?}"));
        index
    }

    /// The requests that the server has received.
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Inside {
    /// Runs a program in the session. Returns whether it succeeded, and its output.
    async fn run(&self, command: &[&str]) -> (bool, String) {
        let code = format!("print(run(*{command:?}))");
        let turn = within(SLOW, self.client.run_turn(&self.session, turn(code))).await.unwrap();
        assert_eq!(turn.outcome, Some(Outcome::Ok), "{turn:?}");
        let (status, said) = turn.output.text.split_once('\n').unwrap();
        (status == "0", said.to_owned())
    }
}

async fn in_workspace(node: &TestNode, workspace: &Path, rule: String) -> Inside {
    let workspace = Some(workspace.display().to_string());
    let create = CreateSession { workspace, ..TestNode::create() };
    let inside = Inside::with(node, rules(&[rule]), create).await;
    windlass_testkit::run_ok(&inside.client, &inside.session, RUN).await;
    inside
}

#[tokio::test]
async fn contract_52_pip_installs_from_an_index_on_the_list_and_from_no_other() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let workspace = node.base().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let index = Index::new();
    let port = index.port;
    let elsewhere = in_workspace(&node, &workspace, "elsewhere.test".to_owned()).await;
    let listed = in_workspace(&node, &workspace, format!("index.test:{port}=127.0.0.1")).await;

    let interpreter = python();
    let (made, said) = listed.run(&[interpreter.to_str().unwrap(), "-m", "venv", ".venv"]).await;
    assert!(made, "{said}");
    let [plain, secure] =
        ["http", "https"].map(|scheme| format!("{scheme}://index.test:{port}/simple"));
    let install = [".venv/bin/pip", "install", "--trusted-host", "index.test", "--index-url"];
    let from = |address| [&install[..], &[address, "tinypkg"]].concat();

    let refusal = "Refused by policy.network.hosts: no rule names it";
    // For an index over plain HTTP, pip shows the reason only in verbose mode.
    let (installed, said) = elsewhere.run(&[&from(&plain)[..], &["-vv"]].concat()).await;
    assert!(!installed && said.contains(refusal), "{said}");
    let (installed, said) =
        elsewhere.run(&[&from(&secure)[..], &["--retries", "1"]].concat()).await;
    assert!(!installed && said.contains(refusal), "{said}");
    let refused = elsewhere.refusals().await;
    assert_eq!(refused, [("index.test".to_owned(), port, "no rule names it".to_owned())]);
    assert_eq!(index.log(), "", "nothing arrived");

    let (installed, said) = listed.run(&from(&plain)).await;
    assert!(installed && said.contains("Successfully installed tinypkg-1.0"), "{said}");
    let import = "import tinypkg; print(tinypkg.WORDS)";
    let (imported, said) = listed.run(&[".venv/bin/python", "-c", import]).await;
    assert!(imported && said.trim() == "from the index", "{said}");
    assert!(index.log().contains("GET /simple/tinypkg/tinypkg-1.0"), "{}", index.log());
    check_curl(&listed, &elsewhere, &plain, refusal).await;
}

/// The same with curl, if this machine has it.
async fn check_curl(listed: &Inside, elsewhere: &Inside, index: &str, refusal: &str) {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("not tried: curl is not installed");
        return;
    }
    let page = format!("{index}/tinypkg/");
    let curl = ["curl", "--silent", "--show-error", "--include", &page];
    let (went, said) = listed.run(&curl).await;
    assert!(went && said.contains("tinypkg-1.0-py3"), "{said}");
    let (_, said) = elsewhere.run(&curl).await;
    assert!(said.contains(refusal) && !said.contains("tinypkg-1.0-py3"), "{said}");
}
