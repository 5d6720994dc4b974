//! Requests over a limit are refused by name, and leave nothing behind.

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use windlass_client::files::{Expect, FileContent, WriteBackChange};
use windlass_client::protocol::ErrorCode;
use windlass_testkit::{PATIENCE, TestNode, within};

use crate::{PROGRAM, Place, code, everything, start};

#[tokio::test]
async fn a_file_over_the_policys_limit_is_refused() {
    let place = Place::with(|_, policy| policy.limits.file_bytes = Some(100_000)).await;
    place.put("fits", &"x".repeat(100_000)).await.unwrap();
    // Once with an announced length, once with a length that is only found while reading.
    let large = "x".repeat(5_000_000);
    assert_eq!(code(place.put("large", &large).await), ErrorCode::MessageTooLarge);
    let content = FileContent::reader(std::io::Cursor::new(large.clone().into_bytes()));
    let sent = place.client.put_file(&place.session, "large", content, &Expect::Anything).await;
    assert_eq!(code(sent), ErrorCode::MessageTooLarge);
    let changes = vec![WriteBackChange::Put {
        path: "large".to_owned(),
        content: large.into(),
        expect: Expect::Anything,
    }];
    let back = place.client.write_back(&place.session, changes).await;
    assert_eq!(code(back), ErrorCode::MessageTooLarge);
    assert_eq!(place.on_disk(), ["fits"]);
}

#[tokio::test]
async fn a_write_back_has_at_most_ten_thousand_changes() {
    let place = Place::new().await;
    let changes = |count: u32| -> Vec<WriteBackChange> {
        let put = |number: u32| WriteBackChange::Put {
            path: format!("{}/{number}", number % 100),
            content: number.to_string().into(),
            expect: Expect::Absent,
        };
        (0..count).map(put).collect()
    };
    let back = within(PATIENCE, place.client.write_back(&place.session, changes(10_001))).await;
    assert_eq!(code(back), ErrorCode::BadRequest);
    assert!(place.on_disk().is_empty());
    let began = std::time::Instant::now();
    let back = within(PATIENCE, place.client.write_back(&place.session, changes(10_000))).await;
    println!("10,000 files took {:?}", began.elapsed());
    assert_eq!(back.unwrap().written.len(), 10_000);
    assert_eq!(place.on_disk().len(), 10_100);
    assert_eq!(place.get("77/4277").await.unwrap(), "4277");
    let twice = [changes(1), changes(1)].concat();
    let back = place.client.write_back(&place.session, twice).await;
    assert_eq!(code(back), ErrorCode::BadRequest);
}

#[tokio::test]
async fn a_full_disk_is_reported_by_name_and_nothing_is_left_on_it() {
    let home = tempfile::tempdir().unwrap();
    let disk = home.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    // Without the right to mount there is no small disk to fill.
    let options = Some(c"size=4m");
    if mount("windlass-files", &disk, "tmpfs", MountFlags::empty(), options).is_err() {
        windlass_testkit::skip("this user cannot mount a small disk");
        return;
    }
    let node = TestNode::start(PROGRAM).await.unwrap();
    let client = node.client().await.unwrap();
    let mut create = TestNode::create();
    create.workspace = Some(disk.display().to_string());
    let session = start(&client, &create).await;
    let anything = Expect::Anything;
    client.put_file(&session, "old", "as it was", &anything).await.unwrap();
    let sent = client.put_file(&session, "old", vec![b'x'; 8_000_000], &anything).await;
    let files = vec![
        WriteBackChange::Put {
            path: "a/b".into(),
            content: vec![1; 1_000_000].into(),
            expect: anything.clone(),
        },
        WriteBackChange::Put {
            path: "old".into(),
            content: vec![1; 5_000_000].into(),
            expect: anything,
        },
    ];
    let back = client.write_back(&session, files).await;
    let (left, old) = (everything(&disk), client.read_file(&session, "old").await);
    drop(node);
    unmount(&disk, UnmountFlags::DETACH).unwrap();
    assert_eq!((code(sent), code(back)), (ErrorCode::DiskFull, ErrorCode::DiskFull));
    assert_eq!((left, &old.unwrap()[..]), (vec!["old".to_owned()], &b"as it was"[..]));
}
