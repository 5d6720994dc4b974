//! Programs that people use reach a host with a secret, without settings of their own.

use std::process::Command;
use std::time::Duration;

use windlass_testkit::{TestNode, run_ok, skip, within};

use super::{Scene, VALUE};

/// How long all programs together may take on a busy machine.
const SLOW: Duration = Duration::from_secs(180);

/// Runs a command, and returns its status and output.
const RUN: &str = r#"
import os, shutil, subprocess, sys

def run(*command, **variables):
    if shutil.which(command[0]) is None and not os.path.exists(command[0]):
        return "missing " + command[0]
    # The machine's own settings for pip and npm are not the test's.
    environment = dict(os.environ, PIP_CONFIG_FILE=os.devnull, PIP_NO_CACHE_DIR="1", HOME=os.getcwd(),
                       NPM_CONFIG_USERCONFIG=os.devnull, GIT_CONFIG_GLOBAL=os.devnull, **variables)
    environment.pop("PIP_INDEX_URL", None)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    return f"{ran.returncode}\n{ran.stdout}{ran.stderr}"
"#;

/// Puts a git repository, a Python package and an npm package into the host's files.
const MAKE_FILES: &str = r#"
import base64, hashlib, io, json, os, pathlib, subprocess, sys, tarfile, zipfile
root = pathlib.Path(sys.argv[1])
url = sys.argv[2]
page = root / "simple" / "tinypkg"
page.mkdir(parents=True)
name = "tinypkg-1.0-py3-none-any.whl"
about = "tinypkg-1.0.dist-info"
with zipfile.ZipFile(page / name, "w") as wheel:
    wheel.writestr("tinypkg.py", "WORDS = 'from the index'\n")
    wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n")
    wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{about}/RECORD", "")
(page / "index.html").write_text(f'<!doctype html><a href="{name}">{name}</a>')
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w:gz") as tar:
    text = json.dumps({"name": "tinynpm", "version": "1.0.0"}).encode()
    entry = tarfile.TarInfo("package/package.json")
    entry.size = len(text)
    tar.addfile(entry, io.BytesIO(text))
packed = packed.getvalue()
npm = root / "npm"
npm.mkdir()
(npm / "tinynpm-1.0.0.tgz").write_bytes(packed)
integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
dist = {"tarball": url + "npm/tinynpm-1.0.0.tgz", "integrity": integrity}
version = {"name": "tinynpm", "version": "1.0.0", "dist": dist}
(npm / "tinynpm").write_text(json.dumps({"name": "tinynpm", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}))
if len(sys.argv) > 3:
    git = dict(os.environ, GIT_CONFIG_GLOBAL=os.devnull, GIT_AUTHOR_NAME="t", GIT_AUTHOR_EMAIL="t@t", GIT_COMMITTER_NAME="t", GIT_COMMITTER_EMAIL="t@t")
    work = root / "work"
    for command in (["init", "-q", str(work)], ["-C", str(work), "commit", "-q", "--allow-empty", "-m", "first"],
                    ["clone", "-q", "--bare", str(work), str(root / "repo.git")],
                    ["-C", str(root / "repo.git"), "update-server-info"]):
        subprocess.run(["git", *command], check=True, env=git)
"#;

#[tokio::test]
async fn contract_97_programs_send_a_secret_without_settings_of_their_own() {
    let Some(python) = std::env::var_os("WINDLASS_TEST_JUPYTER_PYTHON") else {
        return skip("WINDLASS_TEST_JUPYTER_PYTHON names no Python with requests and httpx");
    };
    let scene = Scene::new().await;
    let url = format!("https://api.test:{}/files/", scene.host.port);
    let mut make = Command::new(windlass_testkit::python());
    make.args(["-c", MAKE_FILES]).arg(scene.host.files()).args([&*url, "git"]);
    assert!(make.status().unwrap().success());
    let mut create = TestNode::create();
    create.interpreter = Some(python.to_str().unwrap().to_owned());
    let rules = vec![scene.rule("/files/,basic_user=x-access-token"), scene.rule("/v1/")];
    let session = scene.session_with(rules, create).await;
    run_ok(&scene.client, &session, RUN).await;
    let node = std::env::var("WINDLASS_TEST_NODE").unwrap_or_else(|_| "node".to_owned());
    let port = scene.host.port;
    let programs = [
        ("urllib", "get('/v1/urllib')".to_owned(), "200"),
        (
            "requests",
            format!("__import__('requests').get('https://api.test:{port}/v1/requests').text"),
            "/v1/requests",
        ),
        (
            "httpx",
            format!("__import__('httpx').get('https://api.test:{port}/v1/httpx').text"),
            "/v1/httpx",
        ),
        ("curl", format!("run('curl', '-sS', 'https://api.test:{port}/v1/curl')"), "/v1/curl"),
        (
            "node",
            format!(
                "run({node:?}, '-e', 'fetch(process.argv[1]).then(a => a.text()).then(console.log)', 'https://api.test:{port}/v1/node')"
            ),
            "/v1/node",
        ),
        ("git", format!("run('git', 'clone', '{url}repo.git', 'cloned')"), "0\n"),
        (
            "pip",
            format!(
                "run(sys.executable, '-m', 'pip', 'download', '--no-deps', '--index-url', '{url}simple/', 'tinypkg')"
            ),
            "Successfully downloaded",
        ),
        (
            "npm",
            format!("run('npm', 'pack', '--silent', '--registry', '{url}npm/', 'tinynpm')"),
            "tinynpm-1.0.0.tgz",
        ),
    ];
    let mut missing = Vec::new();
    for (program, call, expected) in programs {
        let got = within(SLOW, scene.says(&session, &call)).await;
        if got.starts_with("missing ") {
            missing.push(program);
            continue;
        }
        assert!(got.contains(expected), "{program}: {got}");
        assert!(!got.contains(VALUE), "{program}: {got}");
    }
    let heard = scene.host.heard();
    for path in ["urllib", "requests", "httpx"] {
        let line = heard.lines().find(|line| line.contains(&format!("/v1/{path}"))).unwrap();
        assert!(line.contains(&format!("Bearer {VALUE}")), "{line}");
    }
    if !missing.is_empty() {
        eprintln!("not on this machine: {}", missing.join(", "));
    }
}
