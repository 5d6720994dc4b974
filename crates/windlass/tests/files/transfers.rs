//! Transfers of whole files and of ranges, in both directions.

use std::os::unix::fs::PermissionsExt;

use tokio::io::AsyncReadExt;
use windlass_client::files::{Expect, FileContent, FileRange};
use windlass_client::protocol::ErrorCode;
use windlass_client::protocol::api::CloseQuery;
use windlass_client::protocol::policy::Preset;
use windlass_testkit::{PATIENCE, processes, run_ok, within};

use crate::{Place, code};

const LARGE_BYTES: u64 = 64 * 1024 * 1024;

/// Memory that the node may need for a file of any size.
const GROWTH_MAX: u64 = 16 * 1024 * 1024;

#[tokio::test]
async fn a_large_file_goes_there_and_back_in_little_memory() {
    let place = Place::new().await;
    let node = place.node.pid();
    // The first transfer in each direction warms up what every transfer needs.
    place.put("warm", "up").await.unwrap();
    place.get("warm").await.unwrap();
    let before = processes::peak_rss_bytes(node).unwrap();
    let content = FileContent::reader(tokio::io::repeat(7).take(LARGE_BYTES));
    let sent = place.client.put_file(&place.session, "a/large", content, &Expect::Anything);
    let written = within(PATIENCE, sent).await.unwrap();
    assert_eq!((written.path.as_str(), written.bytes), ("a/large", LARGE_BYTES));
    let said = run_ok(&place.client, &place.session, SUM).await;
    assert_eq!(said, format!("({LARGE_BYTES}, {})\n", LARGE_BYTES * 7));
    let coming = place.client.download(&place.session, "a/large", FileRange::Whole);
    let mut coming = within(PATIENCE, coming).await.unwrap();
    assert_eq!((coming.bytes, &coming.etag), (LARGE_BYTES, &written.etag));
    let mut bytes = 0;
    while let Some(piece) = within(PATIENCE, coming.next()).await.unwrap() {
        assert!(piece.iter().all(|byte| *byte == 7));
        bytes += piece.len() as u64;
    }
    assert_eq!(bytes, LARGE_BYTES);
    let grown = processes::peak_rss_bytes(node).unwrap().saturating_sub(before);
    println!("the node grew by {} KiB", grown / 1024);
    assert!(grown < GROWTH_MAX, "the node grew by {grown} bytes");
}

const SUM: &str = "with open('a/large', 'rb') as f:
    length = total = 0
    while piece := f.read(1 << 20):
        length, total = length + len(piece), total + sum(piece)
length, total";

#[tokio::test]
async fn a_range_is_that_part_of_the_file_and_no_more() {
    let place = Place::new().await;
    place.put("digits", "0123456789").await.unwrap();
    let part = async |range| {
        let mut download = place.client.download(&place.session, "digits", range).await?;
        let mut text = String::new();
        while let Some(piece) = download.next().await? {
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
        assert_eq!(text.len() as u64, download.bytes);
        Ok(text)
    };
    assert_eq!(part(FileRange::Part(2, 5)).await.unwrap(), "234");
    assert_eq!(part(FileRange::From(7)).await.unwrap(), "789");
    assert_eq!(part(FileRange::Last(3)).await.unwrap(), "789");
    assert_eq!(part(FileRange::Part(8, 99)).await.unwrap(), "89");
    assert_eq!(code(part(FileRange::From(10)).await), ErrorCode::BadRequest);
    place.put("empty", "").await.unwrap();
    assert_eq!(place.get("empty").await.unwrap(), "");
}

#[tokio::test]
async fn code_and_client_see_each_others_files_at_once() {
    let place = Place::new().await;
    place.put("sub/dir/in.txt", "from the client").await.unwrap();
    let code = "t = open('sub/dir/in.txt').read(); open('out ü.txt', 'w').write(t.upper()); t";
    assert_eq!(run_ok(&place.client, &place.session, code).await, "'from the client'\n");
    assert_eq!(place.get("out ü.txt").await.unwrap(), "FROM THE CLIENT");
    // Only a file name, although it has another meaning in the URL.
    place.put("watch", "a file").await.unwrap();
    assert_eq!(place.get("watch").await.unwrap(), "a file");
    let deleted = place.client.delete_file(&place.session, "watch", &Expect::Anything).await;
    assert_eq!(deleted.unwrap().path, "watch");
    assert_eq!(code_of_get(&place, "watch").await, ErrorCode::FileNotFound);
    assert_eq!(code_of_get(&place, "no/such/file").await, ErrorCode::FileNotFound);
    assert_eq!(place.on_disk(), ["out ü.txt", "sub", "sub/dir", "sub/dir/in.txt"]);
}

async fn code_of_get(place: &Place, path: &str) -> ErrorCode {
    code(place.get(path).await)
}

#[tokio::test]
async fn a_file_that_is_replaced_keeps_its_mode() {
    let place = Place::new().await;
    place.put("script", "old").await.unwrap();
    let path = place.work().join("script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o751)).unwrap();
    let before = place.put("script", "new").await.unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o751);
    let expect = Expect::Etag(before.etag);
    place.put_if("script", "newer", &expect).await.unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o751);
    assert_eq!(place.on_disk(), ["script"]);
}

#[tokio::test]
async fn an_ended_session_can_be_read_and_no_longer_written() {
    let place = Place::new().await;
    place.put("kept", "still here").await.unwrap();
    place.client.close_session(&place.session, CloseQuery::default()).await.unwrap();
    assert_eq!(place.get("kept").await.unwrap(), "still here");
    let listed = place.client.files(&place.session, &Default::default()).await.unwrap();
    assert_eq!(listed.entries.len(), 1);
    assert_eq!(code(place.put("kept", "changed").await), ErrorCode::SessionEnded);
    let deleted = place.client.delete_file(&place.session, "kept", &Expect::Anything).await;
    assert_eq!(code(deleted), ErrorCode::SessionEnded);
    let watched = place.client.watch_files(&place.session, "").await;
    assert_eq!(code(watched), ErrorCode::SessionEnded);
    std::fs::remove_dir_all(place.work()).unwrap();
    assert_eq!(code_of_get(&place, "kept").await, ErrorCode::FileNotFound);
}

#[tokio::test]
async fn the_policy_binds_the_code_and_not_the_client() {
    let place = Place::with(|_, policy| policy.preset = Some(Preset::ReadOnly)).await;
    place.put("data", "for the code").await.unwrap();
    let code = "
try: open('data', 'w')
except OSError as e: print(type(e).__name__)
open('data').read()";
    let said = run_ok(&place.client, &place.session, code).await;
    assert!(said.ends_with("'for the code'\n") && said.contains("Error"), "{said}");
    place.put("data", "changed").await.unwrap();
    assert_eq!(place.get("data").await.unwrap(), "changed");
}
