//! Contract line 66, forks: nothing that a session can write influences what the node copies, links, creates
//! or removes when it makes a twin, closes a session or removes old sessions.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use windlass_client::protocol::api::{
    CloseQuery, CreateSession, ForkSession, ForkedSession, StopSessions,
};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::{ErrorCode, SessionId};
use windlass_client::{Client, ClientError};
use windlass_testkit::{PATIENCE, TestNode, python, run_ok, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Number of forks in each race: enough that vulnerable code fails nearly always.
const ROUNDS: usize = 6;

/// A node with a session, and a directory that the session cannot write.
struct Stage {
    node: TestNode,
    client: Client,
    session: SessionId,
    outside: PathBuf,
}

impl Stage {
    async fn new(isolation: Isolation) -> Self {
        let node = TestNode::start(PROGRAM).await.unwrap();
        let outside = node.base().join("outside");
        std::fs::create_dir_all(outside.join("t")).unwrap();
        std::fs::write(outside.join("t/keep"), "keep").unwrap();
        std::fs::write(outside.join("secret"), "secret").unwrap();
        let client = node.client().await.unwrap();
        let mut create = TestNode::create();
        create.policy.get_or_insert_default().isolation = Some(isolation);
        let session = client.create_session(&create).await.unwrap().session.id;
        let stage = Self { node, client, session, outside };
        let (outside, family) = (stage.outside.display(), stage.family());
        let code = format!(
            "import os, threading, ctypes\nOUT = '{outside}'; FAMILY = '{}'\n\
             libc = ctypes.CDLL(None)\n\
             def exchange(a, b): libc.renameat2(-100, a.encode(), -100, b.encode(), 2)\n\
             def attempt(act, *arguments):\n\
             \x20   try: act(*arguments); return True\n\
             \x20   except OSError: return False\n\
             attempt(open, OUT + '/new', 'w')",
            family.display()
        );
        let seen = stage.run(&code).await;
        assert_eq!(seen, "False\n", "the session must not be able to write what it attacks");
        stage
    }

    fn family(&self) -> PathBuf {
        self.node.dirs().state.join("families").join(self.session.as_str())
    }

    async fn run(&self, code: &str) -> String {
        run_ok(&self.client, &self.session, code).await
    }

    async fn fork(&self) -> Result<ForkedSession, ClientError> {
        let wanted = ForkSession::default();
        within(PATIENCE, self.client.fork_session(&self.session, &wanted)).await
    }

    async fn close(&self, session: &SessionId) {
        let close = CloseQuery { grace_ms: Some(0) };
        within(PATIENCE, self.client.close_session(session, close)).await.unwrap();
    }

    /// Nothing outside was created, removed, changed or linked.
    fn check_outside(&self) {
        assert_eq!(tree(&self.outside), ["secret", "t", "t/keep"]);
        for (file, text) in [("secret", "secret"), ("t/keep", "keep")] {
            let path = self.outside.join(file);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(path.metadata().unwrap().nlink(), 1, "{file} has one more name");
        }
    }
}

/// Every path below a directory, in order. Symlinks are not followed.
fn tree(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            found.push(entry.path().strip_prefix(root).unwrap().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

fn refusal(error: ClientError) -> (ErrorCode, String) {
    match error {
        ClientError::Api(error) => (error.code, error.message),
        other => panic!("{other}"),
    }
}

/// No file of a copy has the content that the session cannot read.
fn check_copy(forked: &ForkedSession) {
    let copy = PathBuf::from(&forked.session.workspace);
    for path in tree(&copy) {
        let path = copy.join(path);
        assert_ne!(path.file_name().unwrap(), "secret", "{}", path.display());
        if path.symlink_metadata().unwrap().is_file() {
            assert_ne!(std::fs::read_to_string(&path).unwrap(), "secret", "{}", path.display());
        }
    }
}

#[tokio::test]
async fn contract_66_names_planted_where_a_twin_is_created_do_not_redirect_its_fork() {
    for isolation in [Isolation::Full, Isolation::Landlock] {
        for plant in [
            "os.symlink(OUT, FAMILY + '/o')",
            "os.symlink(OUT, FAMILY + '/t')",
            "os.mkdir(FAMILY + '/t'); os.symlink(OUT, FAMILY + '/t/w')",
            "open(FAMILY + '/o', 'w').close(); os.makedirs(FAMILY + '/t/w/planted')",
            "os.mkfifo(FAMILY + '/o'); os.symlink('o', FAMILY + '/t')",
        ] {
            let stage = Stage::new(isolation).await;
            stage.run(&format!("open('file', 'w').write('x'); {plant}")).await;
            let forked = stage.fork().await;
            stage.check_outside();
            let forked = forked.unwrap();
            let copy = Path::new(&forked.session.workspace);
            assert_eq!(tree(copy), ["file"], "{isolation}: {plant}");
            let said = run_ok(&stage.client, &forked.session.id, "open('file').read()").await;
            assert_eq!(said, "'x'\n", "{isolation}: {plant}");
        }
    }
}

/// A thread from before the first fork can still write in all directories of the family.
#[tokio::test]
async fn contract_66_a_symlink_in_place_of_a_later_directory_refuses_the_fork() {
    let stage = Stage::new(Isolation::Full).await;
    let code = "begin, done, planted = threading.Event(), threading.Event(), []\n\
        def plant():\n\
        \x20   begin.wait()\n\
        \x20   planted.append(attempt(os.rename, FAMILY + '/o', FAMILY + '/old')\n\
        \x20       and attempt(os.symlink, OUT, FAMILY + '/o'))\n\
        \x20   done.set()\n\
        threading.Thread(target=plant, daemon=True).start()";
    stage.run(code).await;
    stage.fork().await.unwrap();
    let planted = stage.run("begin.set(); done.wait(); planted").await;
    let second = stage.fork().await;
    stage.check_outside();
    match &*planted {
        "[True]\n" => {
            let (code, message) = refusal(second.unwrap_err());
            let room = stage.family().join("o");
            assert_eq!(code, ErrorCode::ForkRefused);
            assert!(message.contains(&room.display().to_string()), "{message}");
        }
        _ => drop(second.unwrap()),
    }
    // A fresh worker gets no access to the target of the symlink, at either level.
    stage.client.reset_session(&stage.session).await.unwrap();
    let outside = stage.outside.display();
    let look =
        format!("import os\ntry: print(os.listdir('{outside}'))\nexcept OSError: print('no')");
    let said = windlass_testkit::run(&stage.client, &stage.session, &look).await;
    assert!(!said.output.text.contains("secret"), "{}", said.output.text);
    stage.check_outside();
}

#[tokio::test]
async fn contract_66_directories_swapped_for_links_during_a_fork_are_not_followed() {
    let stage = Stage::new(Isolation::Full).await;
    let code = "for d in range(20):\n\
        \x20   os.makedirs(f'd{d}/sub')\n\
        \x20   os.symlink(OUT, f'd{d}/link')\n\
        \x20   os.symlink(OUT + '/secret', f'd{d}/leaf')\n\
        \x20   for f in range(20): open(f'd{d}/sub/f{f}', 'w').write('x')\n\
        \x20   open(f'd{d}/file', 'w').write('x')\n\
        def swap():\n\
        \x20   while True:\n\
        \x20       for d in range(20):\n\
        \x20           exchange(f'd{d}/sub', f'd{d}/link')\n\
        \x20           exchange(f'd{d}/file', f'd{d}/leaf')\n\
        threading.Thread(target=swap, daemon=True).start()";
    stage.run(code).await;
    for _ in 0..ROUNDS {
        let forked = stage.fork().await.unwrap();
        check_copy(&forked);
        stage.close(&forked.session.id).await;
    }
    stage.check_outside();
}

/// The files have several names, so that a fork creates hard links. Whatever the session plants, nothing
/// outside gets a new name, a new file or another mode.
#[tokio::test]
async fn contract_66_a_destination_that_is_replaced_repeatedly_does_not_redirect_the_fork() {
    let stage = Stage::new(Isolation::Full).await;
    let code = "for n in range(200):\n\
        \x20   open(f'a{n}', 'w').write('x'); os.link(f'a{n}', f'b{n}')\n\
        rooms = [FAMILY + '/o' * n for n in range(10)]\n\
        def plant():\n\
        \x20   while True:\n\
        \x20       for room in rooms:\n\
        \x20           attempt(os.mkdir, room + '/t'); attempt(os.symlink, OUT, room + '/t/w')\n\
        \x20           attempt(os.symlink, OUT, room + '/o')\n\
        \x20           attempt(os.symlink, OUT + '/secret', room + '/t/w/a1')\n\
        threading.Thread(target=plant, daemon=True).start()";
    stage.run(code).await;
    for _ in 0..ROUNDS {
        match stage.fork().await {
            Ok(forked) => stage.close(&forked.session.id).await,
            Err(error) => assert_eq!(refusal(error).0, ErrorCode::ForkRefused),
        }
        stage.check_outside();
    }
}

#[tokio::test]
async fn contract_66_pipes_in_a_workspace_do_not_block_a_fork() {
    let stage = Stage::new(Isolation::Full).await;
    let code = "os.mkfifo('pipe')\n\
        for n in range(200): open(f'f{n}', 'w').write('x')\n\
        os.mkfifo('other')\n\
        def swap():\n\
        \x20   while True:\n\
        \x20       for n in range(200): exchange(f'f{n}', 'other')\n\
        threading.Thread(target=swap, daemon=True).start()";
    stage.run(code).await;
    for _ in 0..ROUNDS {
        let forked = stage.fork().await.unwrap();
        let copy = PathBuf::from(&forked.session.workspace);
        let kinds = |name: &String| copy.join(name).symlink_metadata().unwrap().is_file();
        assert!(tree(&copy).iter().all(kinds), "a copy has no pipes");
        stage.close(&forked.session.id).await;
    }
}

#[tokio::test]
async fn contract_66_a_fork_hands_over_no_file_that_its_session_cannot_read() {
    let stage = Stage::new(Isolation::Full).await;
    let workspace = PathBuf::from(stage.client.session(&stage.session).await.unwrap().workspace);
    let write = |name: &str, mode| {
        let path = workspace.join(name);
        std::fs::write(&path, "secret").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    };
    write("closed", 0);
    let mut expected = vec!["closed"];
    if rustix::process::geteuid().is_root() {
        // Root could read it. A session of root has no capabilities and cannot.
        let theirs = write("theirs", 0o600);
        std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).unwrap();
        expected.push("theirs");
    }
    std::fs::write(workspace.join("special"), "x").unwrap();
    std::fs::set_permissions(workspace.join("special"), PermissionsExt::from_mode(0o6755)).unwrap();
    let forked = stage.fork().await.unwrap();
    let copy = PathBuf::from(&forked.session.workspace);
    assert_eq!(tree(&copy), ["special"]);
    assert_eq!(copy.join("special").metadata().unwrap().mode() & 0o7777, 0o755);
    let files = forked.not_carried.iter().filter(|one| one.what == "file");
    let mut named: Vec<_> = files.map(|one| one.name.split(':').next().unwrap()).collect();
    named.sort_unstable();
    assert_eq!(named, expected);
}

#[tokio::test]
async fn contract_66_what_a_session_plants_does_not_influence_its_end_or_its_removal() {
    let mut stage = Stage::new(Isolation::Full).await;
    let forked = stage.fork().await.unwrap();
    let code = "os.makedirs('deep/closed'); os.symlink(OUT, 'deep/link'); os.chmod('deep/closed', 0)\n\
        attempt(os.symlink, OUT, FAMILY + '/o/o'), attempt(os.symlink, OUT, FAMILY + '/o/t')";
    stage.run(code).await;
    let plant = format!(
        "import os\nos.symlink('{0}', 'link')\n\
         os.symlink('{0}', '../r/o'); os.makedirs('../r/left/over')",
        stage.outside.display()
    );
    run_ok(&stage.client, &forked.session.id, &plant).await;
    let twin_dir = PathBuf::from(&forked.session.workspace);
    // A thread of the original could have done this.
    let place = twin_dir.parent().unwrap();
    std::fs::rename(place, place.with_file_name("away")).unwrap();
    std::os::unix::fs::symlink(&stage.outside, place).unwrap();
    std::fs::create_dir(stage.outside.join("w")).unwrap();
    std::fs::write(stage.outside.join("w/precious"), "").unwrap();
    stage.close(&forked.session.id).await;
    assert!(stage.outside.join("w/precious").exists());
    stage.close(&stage.session).await;
    let families = stage.node.dirs().state.join("families");
    assert_eq!(tree(&families), Vec::<String>::new());
    // A node that is stopped has written its index.
    stage.node.stop(StopSessions::Keep).await.unwrap();
    age(&stage.node.dirs().state);
    stage.node.restart().await.unwrap();
    stage.client = stage.node.client().await.unwrap();
    let state = stage.node.dirs().state.clone();
    let gone = async {
        let left = |name: &str| tree(&state.join(name)).len();
        while left("families") + left("workspaces") > 0 {
            stage.client.node_status().await.unwrap();
        }
    };
    within(PATIENCE, gone).await;
    assert!(stage.outside.join("w/precious").exists());
    std::fs::remove_dir_all(stage.outside.join("w")).unwrap();
    stage.check_outside();
}

/// Sets the end time of every ended session in the journal to long ago.
fn age(state: &Path) {
    let code = "import sqlite3, sys, glob\n\
        for path in glob.glob(sys.argv[1] + '/**/index*', recursive=True):\n\
        \x20   if path.endswith(('-wal', '-shm')): continue\n\
        \x20   index = sqlite3.connect(path)\n\
        \x20   index.execute('UPDATE sessions SET ended_at_ms = 1 WHERE ended_at_ms IS NOT NULL')\n\
        \x20   index.commit()";
    let aged = Command::new(python()).args(["-c", code]).arg(state).status().unwrap();
    assert!(aged.success());
}

/// Another session that can write to the workspace may replace it with a symlink before the fork.
#[tokio::test]
async fn contract_66_a_workspace_that_another_session_replaced_is_not_copied() {
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let work = windlass_testkit::outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let root = work.path().canonicalize().unwrap();
    std::fs::create_dir(root.join("inner")).unwrap();
    let secrets = windlass_testkit::outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(secrets.path().join("secret"), "secret").unwrap();
    let create = |path: &Path| CreateSession {
        workspace: Some(path.display().to_string()),
        ..TestNode::create()
    };
    let inner = client.create_session(&create(&root.join("inner"))).await.unwrap().session.id;
    run_ok(&client, &inner, "1").await;
    let outer = client.create_session(&create(&root)).await.unwrap().session.id;
    let secrets = secrets.path().display();
    let code = format!("import os; os.rename('inner', 'was'); os.symlink('{secrets}', 'inner')");
    run_ok(&client, &outer, &code).await;
    let refused = client.fork_session(&inner, &ForkSession::default()).await.unwrap_err();
    assert_eq!(refusal(refused).0, ErrorCode::ForkRefused);
    let read = client.read_file(&inner, "secret").await;
    assert!(read.is_err(), "a client is not led out of the workspace either");
}
