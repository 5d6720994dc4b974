//! A file that is not as the client expects is left unchanged, for one file and for many.

use windlass_client::files::{Expect, WriteBackChange};
use windlass_client::protocol::ErrorCode;
use windlass_testkit::run_ok;

use crate::{Place, code};

fn put(path: &str, content: impl Into<Vec<u8>>, expect: Expect) -> WriteBackChange {
    WriteBackChange::Put { path: path.to_owned(), content: content.into().into(), expect }
}

fn delete(path: &str, expect: Expect) -> WriteBackChange {
    WriteBackChange::Delete { path: path.to_owned(), expect }
}

#[tokio::test]
async fn a_put_with_a_condition_that_does_not_hold_writes_nothing() {
    let place = Place::new().await;
    let first = place.put_if("f", "one", &Expect::Absent).await.unwrap();
    assert_eq!(code(place.put_if("f", "two", &Expect::Absent).await), ErrorCode::FileConflict);
    assert_eq!(place.get("f").await.unwrap(), "one");
    let expect = Expect::Etag(first.etag);
    let second = place.put_if("f", "two", &expect).await.unwrap();
    assert_eq!(code(place.put_if("f", "lost", &expect).await), ErrorCode::FileConflict);
    // Changes by the code count too, also those that keep the length.
    run_ok(&place.client, &place.session, "open('f', 'w').write('owt')").await;
    let expect = Expect::Etag(second.etag);
    assert_eq!(code(place.put_if("f", "lost", &expect).await), ErrorCode::FileConflict);
    let gone = place.client.delete_file(&place.session, "f", &expect).await;
    assert_eq!(code(gone), ErrorCode::FileConflict);
    assert_eq!(code(place.put_if("new/g", "x", &expect).await), ErrorCode::FileConflict);
    assert_eq!(place.get("f").await.unwrap(), "owt");
    assert_eq!(place.on_disk(), ["f"]);
}

#[tokio::test]
async fn a_write_back_writes_all_or_nothing() {
    let place = Place::new().await;
    let large = vec![3u8; 1_000_000];
    let a = place.put("a", "old a").await.unwrap().etag;
    let b = place.put("sub/b", "old b").await.unwrap().etag;
    place.put("gone", "soon").await.unwrap();
    let changes = vec![
        put("a", large.clone(), Expect::Etag(a.clone())),
        put("sub/b", "new b", Expect::Etag(b)),
        put("fresh/c/d", "", Expect::Absent),
        delete("gone", Expect::Anything),
    ];
    let back = place.client.write_back(&place.session, changes).await.unwrap();
    let written: Vec<(&str, u64)> =
        back.written.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
    assert_eq!(written, [("a", 1_000_000), ("sub/b", 5), ("fresh/c/d", 0)]);
    assert_eq!(back.deleted[0].path, "gone");
    let now = ["a", "fresh", "fresh/c", "fresh/c/d", "sub", "sub/b"];
    assert_eq!(place.on_disk(), now);
    assert_eq!(std::fs::read(place.work().join("a")).unwrap(), large);

    // The reply for each file has what the next write-back needs.
    let b = back.written[1].etag.clone();
    let changes = vec![
        put("sub/b", "newest b", Expect::Etag(b)),
        put("more/e", "e", Expect::Absent),
        delete("fresh/c/d", Expect::Anything),
        put("a", "lost", Expect::Etag(a)),
        put("fresh", "lost", Expect::Anything),
    ];
    let refused = place.client.write_back(&place.session, changes).await;
    assert_eq!(code(refused), ErrorCode::PathRefused, "a directory is no file");
    let changes = vec![
        put("more/e", "e", Expect::Absent),
        put("sub/b", "lost", Expect::Absent),
        delete("fresh/c/d", Expect::Anything),
        delete("a", Expect::Etag("other".to_owned())),
    ];
    let refused = place.client.write_back(&place.session, changes).await.unwrap_err();
    assert_eq!(refused.api_code(), Some(ErrorCode::FileConflict));
    assert!(refused.to_string().ends_with("sub/b, a"), "{refused}");
    assert_eq!(place.on_disk(), now);
    assert_eq!(place.get("sub/b").await.unwrap(), "new b");
}

#[tokio::test]
async fn a_write_back_that_fails_in_the_middle_is_undone() {
    let place = Place::new().await;
    place.put("a", "old a").await.unwrap();
    place.put("gone", "soon").await.unwrap();
    // Each change is valid alone. Together, the last one has no directory.
    let changes = vec![
        put("a", "new a", Expect::Anything),
        delete("gone", Expect::Anything),
        put("made/b", "b", Expect::Anything),
        put("x", "a file", Expect::Absent),
        put("x/y", "below it", Expect::Absent),
    ];
    let refused = place.client.write_back(&place.session, changes).await;
    assert_eq!(code(refused), ErrorCode::PathRefused);
    assert_eq!(place.on_disk(), ["a", "gone"]);
    assert_eq!(place.get("a").await.unwrap(), "old a");
    assert_eq!(place.get("gone").await.unwrap(), "soon");
}

#[tokio::test]
async fn many_clients_never_lose_each_others_changes() {
    let place = Place::new().await;
    place.put("count", "0").await.unwrap();
    let add = async || {
        let mut conflicts = 0;
        for _ in 0..10 {
            loop {
                let whole = windlass_client::files::FileRange::Whole;
                let mut now = place.client.download(&place.session, "count", whole).await.unwrap();
                let text = now.next().await.unwrap().unwrap();
                let number: u64 = std::str::from_utf8(&text).unwrap().parse().unwrap();
                let expect = Expect::Etag(now.etag.clone());
                match place.put_if("count", &(number + 1).to_string(), &expect).await {
                    Ok(_) => break,
                    Err(error) => {
                        assert_eq!(error.api_code(), Some(ErrorCode::FileConflict), "{error}");
                        conflicts += 1;
                    }
                }
            }
        }
        conflicts
    };
    let (a, b, c, d) = tokio::join!(add(), add(), add(), add());
    println!("{} conflicts", a + b + c + d);
    assert_eq!(place.get("count").await.unwrap(), "40");
    assert_eq!(place.on_disk(), ["count"]);
}
