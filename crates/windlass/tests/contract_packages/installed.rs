//! Sessions whose code installs packages itself (`allow_packages`), with a real pip.

use std::path::{Path, PathBuf};

use windlass_client::protocol::confinement::Control;
use windlass_client::protocol::policy::Limits;
use windlass_testkit::{McpClient, outside_of_tmp};

use super::*;

/// Installs a package as programs do: through the running interpreter.
const BY_INTERPRETER: &str = "import subprocess, sys\n\
    subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', 'tinyfive'], check=True)\n\
    import tinyfive\n\
    tinyfive.answer";

/// Installs a package as a person does, and runs the program that it brings.
const BY_PROGRAM: &str = "import os\n\
    assert os.system('pip install -q tinysix') == 0\n\
    import tinysix\n\
    print(subprocess.run(['tinysix'], capture_output=True, text=True, check=True).stdout, end='')";

const SIX: &str = "def main(): print('six runs')";

fn index() -> Index {
    Index::start(&[("tinyfive", "answer = 5"), ("tinysix", SIX)])
}

fn allowing() -> CreateSession {
    CreateSession { allow_packages: true, ..TestNode::create() }
}

async fn create(client: &Client, create: &CreateSession) -> Session {
    within(PATIENCE, client.create_session(create)).await.unwrap().session
}

/// Where the session's code installs packages.
async fn scratch_of(client: &Client, session: &Session) -> PathBuf {
    let shown = run_ok(client, &session.id, "import os; print(os.environ['VIRTUAL_ENV'])").await;
    PathBuf::from(shown.trim_end())
}

#[tokio::test]
async fn contract_77_code_that_may_installs_packages_which_end_with_the_session() {
    let index = index();
    // Below /tmp sessions could write anyway.
    let outside = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let node = TestNode::builder(PROGRAM)
        .env("PIP_INDEX_URL", index.url())
        .state_dir(outside.path().join("state"))
        .start()
        .await
        .unwrap();
    let client = node.client().await.unwrap();
    let session = create(&client, &allowing()).await;
    assert_eq!(run_ok(&client, &session.id, BY_INTERPRETER).await, "5\n");
    assert_eq!(run_ok(&client, &session.id, BY_PROGRAM).await, "six runs\n");
    // A new interpreter of the session has them too, and so has the session after a restart of its worker.
    let child = "print(subprocess.run([sys.executable, '-c', 'import tinyfive; print(tinyfive.answer)'], \
                 capture_output=True, text=True, check=True).stdout, end='')";
    assert_eq!(run_ok(&client, &session.id, child).await, "5\n");
    client.reset_session(&session.id).await.unwrap();
    assert_eq!(run_ok(&client, &session.id, "import tinyfive; tinyfive.answer").await, "5\n");
    let scratch = scratch_of(&client, &session).await;
    assert!(scratch.join("pyvenv.cfg").exists(), "{scratch:?}");
    // No other session sees them.
    let other = create(&client, &allowing()).await;
    let missing = "import importlib.util; importlib.util.find_spec('tinyfive')";
    assert_eq!(run_ok(&client, &other.id, missing).await, "");
    let look = format!("import os; os.path.exists({:?})", scratch.join("bin"));
    assert_eq!(run_ok(&client, &other.id, &look).await, "False\n");
    client.close_session(&session.id, CloseQuery::default()).await.unwrap();
    assert!(!scratch.exists());
}

#[tokio::test]
async fn contract_77_packages_are_installed_beside_an_environment_that_stays_as_it_is() {
    let index = index();
    let Some(node) = node_with(&index).await else { return };
    let client = node.client().await.unwrap();
    let work = tempfile::tempdir().unwrap();
    let venv = work.path().join(".venv");
    let made = Command::new(python()).args(["-m", "venv", "--without-pip"]).arg(&venv).status();
    assert!(made.unwrap().success());
    let packages = std::fs::read_dir(venv.join("lib")).unwrap().next().unwrap().unwrap().path();
    let packages = packages.join("site-packages");
    std::fs::write(packages.join("of_project.py"), "word = 'project'").unwrap();
    let of_project = CreateSession {
        interpreter: None,
        workspace: Some(work.path().to_str().unwrap().to_owned()),
        ..allowing()
    };
    let built = make(&client, &request(Some("data"), &["tinysix"])).await;
    assert_eq!(built.state, PackageEnvironmentState::Ready, "{built:?}");
    let of_environment =
        CreateSession { interpreter: None, environment: Some(built.name), ..allowing() };
    for (wanted, module) in [(of_project, "of_project"), (of_environment, "tinysix")] {
        let session = create(&client, &wanted).await;
        assert_eq!(run_ok(&client, &session.id, BY_INTERPRETER).await, "5\n");
        let both = format!(
            "import {module}\n\
             print(subprocess.run([sys.executable, '-c', 'import {module}, tinyfive; print(tinyfive.answer)'], \
             capture_output=True, text=True, check=True).stdout, end='')"
        );
        assert_eq!(run_ok(&client, &session.id, &both).await, "5\n");
    }
    let mut names: Vec<_> =
        std::fs::read_dir(&packages).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.retain(|name| name != "__pycache__");
    assert_eq!(names, ["of_project.py"], "the project's environment has changed");
}

#[tokio::test]
async fn contract_77_a_python_that_the_system_manages_gets_packages_too() {
    let index = index();
    let Some(node) = node_with(&index).await else { return };
    let client = node.client().await.unwrap();
    let system = Path::new("/usr/bin/python3");
    let has_pip = Command::new(system).args(["-m", "pip", "--version"]).output();
    if !has_pip.is_ok_and(|ran| ran.status.success()) {
        return skip("the system's Python has no pip");
    }
    let interpreter = Some(system.display().to_string());
    let session = create(&client, &CreateSession { interpreter, ..allowing() }).await;
    assert_eq!(run_ok(&client, &session.id, BY_INTERPRETER).await, "5\n");
    assert_eq!(run_ok(&client, &session.id, BY_PROGRAM).await, "six runs\n");
}

#[tokio::test]
async fn contract_77_uv_installs_packages_in_a_session_that_may() {
    let index = index();
    let Some(node) = node_with_uv(&index).await else { return };
    let client = node.client().await.unwrap();
    let session = create(&client, &allowing()).await;
    let code = "import os\n\
                assert os.system('uv pip install -q tinyfive') == 0\n\
                import tinyfive; tinyfive.answer";
    assert_eq!(run_ok(&client, &session.id, code).await, "5\n");
}

#[tokio::test]
async fn contract_77_a_session_that_installs_packages_reaches_the_index_and_no_more_and_reads_no_password()
 {
    let index = index();
    let with_login = index.url().replacen("://", "://someone:hidden-word@", 1);
    let node = TestNode::builder(PROGRAM).env("PIP_INDEX_URL", with_login).start().await.unwrap();
    let client = node.client().await.unwrap();
    let hosts = |session: &Session| {
        let policy = serde_json::to_value(session.policy.as_ref().unwrap()).unwrap();
        policy["network"].to_string()
    };
    let rule = format!("127.0.0.1:{}=127.0.0.1", index.port);
    let session = create(&client, &allowing()).await;
    assert_eq!(hosts(&session), serde_json::json!({"hosts": [rule]}).to_string());
    let listed = serde_json::json!({"network": {"hosts": ["a.test"]}});
    let policy = Some(serde_json::from_value(listed).unwrap());
    let beside = create(&client, &CreateSession { policy, ..allowing() }).await;
    assert_eq!(hosts(&beside), serde_json::json!({"hosts": ["a.test", rule]}).to_string());
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let reach = format!(
        "import os, urllib.request\n\
         print(urllib.request.urlopen(os.environ['PIP_INDEX_URL'] + '/tinyfive/').status)\n\
         print('hidden-word' in str(os.environ))\n\
         urllib.request.urlopen('http://127.0.0.1:{port}/', timeout=20)"
    );
    let turn = run(&client, &session.id, &reach).await;
    assert!(turn.output.text.starts_with("200\nFalse\n"), "{turn:?}");
    assert_eq!(turn.outcome, Some(Outcome::Error), "{turn:?}");
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err(), "another port was reached");
}

#[tokio::test]
async fn contract_77_installed_packages_count_for_the_disk_limit() {
    let index = index();
    let Some(node) = node_with(&index).await else { return };
    let client = node.client().await.unwrap();
    let mut wanted = allowing();
    let mut policy = wanted.policy.unwrap_or_default();
    policy.limits = Limits { disk_bytes: Some(4 << 20), ..Limits::default() };
    wanted.policy = Some(policy);
    let session = create(&client, &wanted).await;
    let fill = "import os, time\n\
                with open(os.environ['VIRTUAL_ENV'] + '/big', 'wb') as file:\n\
                \x20   for _ in range(64):\n\
                \x20       file.write(b'1' * (1 << 20)); file.flush(); time.sleep(0.05)\n\
                time.sleep(60)";
    let turn = run(&client, &session.id, fill).await;
    let refusal = turn.refusal.clone().unwrap();
    assert_eq!(refusal.control, Control::Disk, "{turn:?}");
}

#[tokio::test]
async fn contract_77_only_python_sessions_of_a_user_may_be_allowed_to_install() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let shell = CreateSession { worker: Some("shell".into()), interpreter: None, ..allowing() };
    let refused = client.create_session(&shell).await.unwrap_err();
    assert_eq!(refused.api_code(), Some(ErrorCode::BadRequest), "{refused}");
    // A child would get more than its parent has.
    let parent = node.session(&client).await.unwrap();
    let child =
        CreateSession { parent: Some(parent.id), allow_packages: true, ..CreateSession::default() };
    let refused = client.create_session(&child).await.unwrap_err();
    assert_eq!(refused.api_code(), Some(ErrorCode::BadRequest), "{refused}");
}

#[tokio::test]
async fn contract_77_run_installs_packages_only_with_the_option() {
    let index = index();
    let Some(node) = node_with(&index).await else { return };
    let work = tempfile::tempdir().unwrap();
    let run = |options: &[&str]| {
        Command::new(PROGRAM)
            .arg("run")
            .args(options)
            .args(["-c", BY_INTERPRETER, "--python"])
            .arg(python())
            .env("WINDLASS_RUNTIME_DIR", &node.dirs().runtime)
            .env("WINDLASS_STATE_DIR", &node.dirs().state)
            .current_dir(work.path())
            .output()
            .unwrap()
    };
    let allowed = run(&["--allow-packages"]);
    assert_eq!(String::from_utf8_lossy(&allowed.stdout), "5\n", "{allowed:?}");
    let refused = run(&[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("`--with PACKAGES`") && said.contains("`--allow-packages`"), "{said}");
    assert_ne!(refused.status.code(), Some(0));
}

#[tokio::test]
async fn contract_77_a_model_hears_how_packages_get_into_its_session() {
    let index = index();
    let Some(node) = node_with(&index).await else { return };
    let python = python().display().to_string();
    for (option, says, installs) in [
        (None, "pip reaches no index", false),
        (Some("--allow-packages"), "`pip install` works", true),
    ] {
        let mut door = McpClient::builder(&node).arg("--interpreter").arg(&python);
        if let Some(option) = option {
            door = door.arg(option);
        }
        let mut door = door.start().await.unwrap();
        let reply = door.run(BY_INTERPRETER).await;
        assert!(reply.to_string().contains(says), "{reply}");
        assert_eq!(reply["isError"] != true, installs, "{reply}");
        if !installs {
            assert!(reply.to_string().contains("--allow-packages"), "{reply}");
        }
        door.close().await.unwrap();
    }
}
