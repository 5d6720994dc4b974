//! Ways out of the workspace, and into what its policy hides: none succeeds.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use windlass_client::files::{Expect, WriteBackChange};
use windlass_client::protocol::ErrorCode;
use windlass_client::protocol::api::FilesQuery;
use windlass_testkit::{PATIENCE, run_ok, turn, turn_ended, within};

use crate::{Place, code, everything};

/// How long code and client race.
const RACE: Duration = Duration::from_secs(3);

impl Place {
    /// Every operation on the path is refused.
    async fn check_refused(&self, path: &str) {
        let before = self.on_disk();
        assert_eq!(code(self.get(path).await), ErrorCode::PathRefused, "get {path}");
        assert_eq!(code(self.put(path, "x").await), ErrorCode::PathRefused, "put {path}");
        let changes = vec![WriteBackChange::Put {
            path: path.to_owned(),
            content: "x".into(),
            expect: Expect::Anything,
        }];
        let back = self.client.write_back(&self.session, changes).await;
        assert_eq!(code(back), ErrorCode::PathRefused, "write back {path}");
        let query = FilesQuery { path: path.to_owned(), ..FilesQuery::default() };
        let listed = code(self.client.files(&self.session, &query).await);
        assert_eq!(listed, ErrorCode::PathRefused, "list {path}");
        let watched = code(self.client.watch_files(&self.session, path).await);
        assert_eq!(watched, ErrorCode::PathRefused, "watch {path}");
        assert_eq!(self.on_disk(), before, "{path}");
        assert_eq!(everything(&self.outside()), ["file"], "{path}");
        let outside = std::fs::read_to_string(self.outside().join("file")).unwrap();
        assert_eq!(outside, "outside", "{path}");
    }
}

#[tokio::test]
async fn no_path_leads_out_of_the_workspace() {
    let place = Place::new().await;
    std::fs::create_dir(place.work().join("sub")).unwrap();
    symlink(place.outside(), place.work().join("absolute")).unwrap();
    symlink("../outside", place.work().join("relative")).unwrap();
    symlink("../relative", place.work().join("sub/twice")).unwrap();
    symlink("/proc/self/root", place.work().join("magic")).unwrap();
    symlink("/proc/self/cwd", place.work().join("here")).unwrap();
    symlink("loop", place.work().join("loop")).unwrap();
    for path in [
        "../outside/file",
        "sub/../../outside/file",
        "..",
        "/etc/hostname",
        "//etc/hostname",
        "sub//file",
        "./sub",
        "absolute/file",
        "relative/file",
        "sub/twice/file",
        "magic/etc/hostname",
        "here/file",
        "loop/file",
        "loop",
    ] {
        place.check_refused(path).await;
    }
    // A symlink is never followed or written through. A delete removes only the symlink itself.
    for path in ["absolute", "relative"] {
        assert_eq!(code(place.get(path).await), ErrorCode::PathRefused);
        assert_eq!(code(place.put(path, "x").await), ErrorCode::PathRefused);
        let gone = place.client.delete_file(&place.session, path, &Expect::Anything).await;
        assert_eq!(gone.unwrap().path, path);
    }
    let gone = place.client.delete_file(&place.session, "sub/twice/file", &Expect::Anything).await;
    assert_eq!(code(gone), ErrorCode::FileNotFound, "its way is gone");
    assert_eq!(everything(&place.outside()), ["file"]);
    // A symlink that stays inside the workspace works like any other path.
    symlink("sub", place.work().join("inside")).unwrap();
    place.put("inside/f", "f").await.unwrap();
    assert_eq!(place.get("sub/f").await.unwrap(), "f");
}

#[tokio::test]
async fn a_symlink_that_is_swapped_in_repeatedly_is_never_followed() {
    let place = Place::new().await;
    let make = format!(
        "import ctypes, os; os.mkdir('real'); os.symlink({:?}, 'link')",
        place.outside().display().to_string()
    );
    run_ok(&place.client, &place.session, &make).await;
    // Twice AT_FDCWD, and RENAME_EXCHANGE: one of the two always exists.
    let swap = "exchange, rounds = ctypes.CDLL(None).renameat2, 0
while not os.path.exists('stop'):
    assert exchange(-100, b'real', -100, b'link', 2) == 0
    rounds += 1
print(rounds > 1000)";
    let running = place.client.submit_turn(&place.session, &turn(swap)).await.unwrap();
    let (began, mut written, mut refused) = (Instant::now(), 0u32, 0u32);
    while began.elapsed() < RACE {
        match place.put("real/file", "inside").await {
            Ok(_) => written += 1,
            Err(error) => {
                assert!(
                    matches!(
                        error.api_code(),
                        Some(
                            ErrorCode::PathRefused
                                | ErrorCode::FileNotFound
                                | ErrorCode::FileConflict
                        )
                    ),
                    "{error:?}"
                );
                refused += 1;
            }
        }
        if let Ok(text) = place.get("real/file").await {
            assert_eq!(text, "inside");
        }
    }
    println!("{written} written, {refused} refused");
    assert!(written > 0);
    place.put("stop", "").await.unwrap();
    let ended = turn_ended(&place.client, &place.session, &running.id, PATIENCE).await.unwrap();
    assert_eq!(ended.output.text, "True\n");
    assert_eq!(everything(&place.outside()), ["file"]);
    assert_eq!(std::fs::read_to_string(place.outside().join("file")).unwrap(), "outside");
    let left: Vec<String> =
        place.on_disk().into_iter().filter(|name| name.contains(".windlass")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn hidden_paths_do_not_exist_by_any_name() {
    let place = Place::with(|work, policy| {
        std::fs::create_dir_all(work.join("sub/secret")).unwrap();
        std::fs::write(work.join("sub/secret/key"), "hidden").unwrap();
        std::fs::write(work.join(".env"), "hidden").unwrap();
        std::fs::write(work.join("plain"), "shown").unwrap();
        for name in ["sub/secret", ".env", "later"] {
            policy.hidden.push(work.join(name).display().to_string());
        }
    })
    .await;
    symlink("sub/secret", place.work().join("alias")).unwrap();
    std::fs::hard_link(place.work().join(".env"), place.work().join("twin")).unwrap();
    std::fs::create_dir(place.work().join("later")).unwrap();
    for path in ["sub/secret", "sub/secret/key", ".env", "alias/key", "later/x"] {
        assert_eq!(code(place.get(path).await), ErrorCode::PathRefused, "{path}");
        assert_eq!(code(place.put(path, "x").await), ErrorCode::PathRefused, "{path}");
        let gone = place.client.delete_file(&place.session, path, &Expect::Anything).await;
        assert_eq!(code(gone), ErrorCode::PathRefused, "{path}");
    }
    assert_eq!(code(place.get("twin").await), ErrorCode::PathRefused);
    let all = FilesQuery { recursive: true, ..FilesQuery::default() };
    let listed = place.client.files(&place.session, &all).await.unwrap();
    let names: Vec<&str> = listed.entries.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(names, ["alias", "plain", "sub", "twin"]);
    assert_eq!(std::fs::read_to_string(place.work().join("sub/secret/key")).unwrap(), "hidden");
    assert_eq!(place.get("plain").await.unwrap(), "shown");
}

#[tokio::test]
async fn pipes_sockets_and_directories_are_never_opened() {
    let place = Place::new().await;
    run_ok(&place.client, &place.session, "import os; os.mkfifo('pipe'); os.mkdir('dir')").await;
    // The code itself cannot create a socket with a path in a workspace.
    let _socket = std::os::unix::net::UnixListener::bind(place.work().join("socket")).unwrap();
    for path in ["pipe", "socket", "dir"] {
        let read = within(PATIENCE, place.get(path)).await;
        assert_eq!(code(read), ErrorCode::PathRefused, "{path}");
        let written = within(PATIENCE, place.put(path, "x")).await;
        assert_eq!(code(written), ErrorCode::PathRefused, "{path}");
    }
    // Everything that can be listed can be removed.
    for path in ["pipe", "socket", "dir"] {
        place.client.delete_file(&place.session, path, &Expect::Anything).await.unwrap();
    }
    place.put("dir/full", "").await.unwrap();
    let gone = place.client.delete_file(&place.session, "dir", &Expect::Anything).await;
    assert_eq!(code(gone), ErrorCode::PathRefused, "it is not empty");
    assert_eq!(place.on_disk(), ["dir", "dir/full"]);
}
