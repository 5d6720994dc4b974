//! Lists: in order, in pages, and only of existing entries.

use windlass_client::protocol::ErrorCode;
use windlass_client::protocol::api::{FileKind, FilesQuery};
use windlass_testkit::run_ok;

use crate::{Place, code};

impl Place {
    /// All pages of a list, with this many entries each.
    async fn listed(&self, path: &str, recursive: bool, limit: usize) -> Vec<String> {
        let mut query =
            FilesQuery { path: path.to_owned(), recursive, after: None, limit: Some(limit) };
        let mut all = Vec::new();
        loop {
            let page = self.client.files(&self.session, &query).await.unwrap();
            assert!(page.entries.len() == limit || !page.more, "a page that is not full");
            all.extend(page.entries.into_iter().map(|entry| entry.path));
            if !page.more {
                return all;
            }
            query.after = all.last().cloned();
        }
    }
}

#[tokio::test]
async fn a_list_is_in_order_and_the_same_in_pages_of_any_size() {
    let place = Place::new().await;
    for path in ["b/x", "b/c/deep", "a.txt", "b.txt", "a/1", "a/2", "z"] {
        place.put(path, path).await.unwrap();
    }
    let flat = ["a", "a.txt", "b", "b.txt", "z"];
    let deep = ["a", "a/1", "a/2", "a.txt", "b", "b/c", "b/c/deep", "b/x", "b.txt", "z"]
        .map(str::to_owned);
    let below = ["b/c", "b/c/deep", "b/x"];
    for limit in 1..=11 {
        assert_eq!(place.listed("", false, limit).await, flat, "{limit}");
        assert_eq!(place.listed("", true, limit).await, deep, "{limit}");
        assert_eq!(place.listed("b", true, limit).await, below, "{limit}");
    }
    let query = FilesQuery { path: "b".into(), after: Some("a/1".into()), ..FilesQuery::default() };
    assert_eq!(code(place.client.files(&place.session, &query).await), ErrorCode::BadRequest);
    let query = FilesQuery { path: "none".into(), ..FilesQuery::default() };
    assert_eq!(code(place.client.files(&place.session, &query).await), ErrorCode::FileNotFound);
}

#[tokio::test]
async fn an_entry_has_its_kind_and_size() {
    let place = Place::new().await;
    let written = place.put("file", "12345").await.unwrap();
    let make = "import os; os.mkdir('dir'); os.symlink('file', 'link'); os.mkfifo('pipe')";
    run_ok(&place.client, &place.session, make).await;
    let listed = place.client.files(&place.session, &FilesQuery::default()).await.unwrap();
    let kinds: Vec<(&str, FileKind)> =
        listed.entries.iter().map(|entry| (entry.path.as_str(), entry.kind)).collect();
    let expected = [
        ("dir", FileKind::Directory),
        ("file", FileKind::File),
        ("link", FileKind::Link),
        ("pipe", FileKind::Other),
    ];
    assert_eq!(kinds, expected);
    let file = &listed.entries[1];
    assert_eq!((file.bytes, file.etag.as_deref()), (5, Some(written.etag.as_str())));
    assert!(listed.entries.iter().all(|entry| entry.etag.is_some() == (entry.path == "file")));
    let age_ms = file
        .modified_ms
        .abs_diff(u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap());
    assert!(age_ms < 60_000, "{age_ms}");
}

#[tokio::test]
async fn a_page_has_at_most_a_thousand_entries() {
    let place = Place::new().await;
    let make = "for n in range(2500): open(f'{n:04}', 'w').close()";
    run_ok(&place.client, &place.session, make).await;
    let all = FilesQuery { limit: Some(1_000_000), ..FilesQuery::default() };
    let first = place.client.files(&place.session, &all).await.unwrap();
    assert_eq!((first.entries.len(), first.more), (1000, true));
    let names: Vec<String> = (0..2500).map(|number| format!("{number:04}")).collect();
    assert_eq!(place.listed("", true, 1000).await, names);
}
