//! Watching: changes by code and clients are reported, hidden paths are not.

use windlass_client::files::{Expect, FileWatch};
use windlass_client::protocol::ErrorCode;
use windlass_client::protocol::api::{CloseQuery, FileEventKind};
use windlass_testkit::{PATIENCE, run_ok, within};

use crate::{Place, code};

/// Every event up to the one that reports that `path` exists or not.
async fn until(
    watch: &mut FileWatch,
    kind: FileEventKind,
    path: &str,
) -> Vec<(FileEventKind, String)> {
    let mut heard = Vec::new();
    loop {
        let event = within(PATIENCE, watch.next()).await.unwrap();
        let event = event.unwrap_or_else(|| panic!("it ended after {heard:?}"));
        heard.push((event.kind, event.path.clone()));
        if event.kind == kind && event.path == path {
            return heard;
        }
    }
}

fn is(heard: &[(FileEventKind, String)], expected: &[(FileEventKind, &str)]) {
    let heard: Vec<(FileEventKind, &str)> =
        heard.iter().map(|(kind, path)| (*kind, path.as_str())).collect();
    assert_eq!(heard, expected);
}

#[tokio::test]
async fn a_watch_reports_changes_by_code_and_clients() {
    use FileEventKind::{Changed, Made, Removed};
    let place = Place::new().await;
    let mut watch = place.client.watch_files(&place.session, "").await.unwrap();
    run_ok(&place.client, &place.session, "open('a', 'w').write('1')").await;
    is(&until(&mut watch, Changed, "a").await, &[(Made, "a"), (Changed, "a")]);
    let written = place.put("b", "2").await.unwrap();
    is(&until(&mut watch, Made, "b").await, &[(Made, "b")]);
    place.put_if("b", "3", &Expect::Etag(written.etag)).await.unwrap();
    is(&until(&mut watch, Made, "b").await, &[(Made, "b")]);
    run_ok(&place.client, &place.session, "import os; os.rename('a', 'c')").await;
    is(&until(&mut watch, Made, "c").await, &[(Removed, "a"), (Made, "c")]);
    place.client.delete_file(&place.session, "b", &Expect::Anything).await.unwrap();
    is(&until(&mut watch, Removed, "b").await, &[(Removed, "b")]);
}

#[tokio::test]
async fn directories_that_come_later_are_watched_too() {
    use FileEventKind::{Made, Removed};
    let place = Place::new().await;
    let mut watch = place.client.watch_files(&place.session, "").await.unwrap();
    let make = "import os; os.makedirs('x/y/z'); open('x/y/z/first', 'w').close()";
    run_ok(&place.client, &place.session, make).await;
    let heard = until(&mut watch, Made, "x/y/z/first").await;
    for path in ["x", "x/y", "x/y/z"] {
        assert!(heard.contains(&(Made, path.to_owned())), "{path}: {heard:?}");
    }
    run_ok(&place.client, &place.session, "open('x/y/z/second', 'w').close()").await;
    until(&mut watch, Made, "x/y/z/second").await;
    // After a move they have their new names.
    run_ok(&place.client, &place.session, "os.rename('x', 'moved')").await;
    let heard = until(&mut watch, Made, "moved/y/z/second").await;
    assert!(heard.contains(&(Removed, "x".to_owned())), "{heard:?}");
    run_ok(&place.client, &place.session, "open('moved/y/z/third', 'w').close()").await;
    let heard = until(&mut watch, Made, "moved/y/z/third").await;
    assert!(heard.iter().all(|(_, path)| !path.starts_with('x')), "{heard:?}");
}

#[tokio::test]
async fn a_watch_leaves_out_what_is_hidden_and_what_is_elsewhere() {
    let place = Place::with(|work, policy| {
        std::fs::create_dir_all(work.join("sub/secret")).unwrap();
        std::fs::create_dir_all(work.join("beside")).unwrap();
        policy.hidden.push(work.join("sub/secret").display().to_string());
    })
    .await;
    let mut watch = place.client.watch_files(&place.session, "sub").await.unwrap();
    std::fs::write(place.work().join("sub/secret/key"), "").unwrap();
    std::fs::write(place.work().join("beside/f"), "").unwrap();
    std::fs::create_dir(place.work().join("sub/last")).unwrap();
    is(
        &until(&mut watch, FileEventKind::Made, "sub/last").await,
        &[(FileEventKind::Made, "sub/last")],
    );
    std::fs::remove_dir_all(place.work().join("sub")).unwrap();
    until(&mut watch, FileEventKind::Removed, "sub").await;
    assert_eq!(within(PATIENCE, watch.next()).await.unwrap(), None, "nothing is left to watch");
    let watch = place.client.watch_files(&place.session, "sub").await;
    assert_eq!(code(watch), ErrorCode::FileNotFound);
}

#[tokio::test]
async fn too_many_directories_to_watch_are_reported() {
    let place = Place::new().await;
    for number in 0..4200 {
        std::fs::create_dir(place.work().join(number.to_string())).unwrap();
    }
    let mut watch = place.client.watch_files(&place.session, "").await.unwrap();
    let event = within(PATIENCE, watch.next()).await.unwrap().unwrap();
    assert_eq!(event.kind, FileEventKind::Overflow);
    // The first directories are still watched.
    place.put("new", "").await.unwrap();
    until(&mut watch, FileEventKind::Made, "new").await;
}

#[tokio::test]
async fn a_watch_ends_with_its_session() {
    let place = Place::new().await;
    let mut watch = place.client.watch_files(&place.session, "").await.unwrap();
    place.client.close_session(&place.session, CloseQuery::default()).await.unwrap();
    assert_eq!(within(PATIENCE, watch.next()).await.unwrap(), None);
}
