//! Clients that disconnect in the middle of a request.

use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use windlass_client::protocol::frame;
use windlass_testkit::{PATIENCE, processes, within};

use crate::Place;

impl Place {
    /// Starts an upload and waits until the node accepts its content.
    async fn begin_upload(&self, method: &str, path: &str) -> UnixStream {
        let mut stream = UnixStream::connect(self.node.dirs().socket()).await.unwrap();
        let head = format!(
            "{method} /v1/sessions/{}/files{path} HTTP/1.1\r\nhost: node\r\n\
             content-length: 1000000\r\nexpect: 100-continue\r\n\r\n",
            self.session
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 25];
        within(PATIENCE, stream.read_exact(&mut answer)).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 100 Continue"), "{answer:?}");
        stream
    }

    /// Waits until the workspace contains only these files, and the node has no more descriptors than before.
    async fn comes_to(&self, expected: &[&str], descriptors: usize) {
        let began = Instant::now();
        loop {
            // A separate request: the node has processed everything that started before it.
            self.client.node_status().await.unwrap();
            let open = processes::descriptors(self.node.pid()).unwrap();
            let there = self.on_disk();
            if there == expected && open <= descriptors {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{there:?}, {open} descriptors");
        }
    }
}

#[tokio::test]
async fn a_put_that_breaks_off_leaves_nothing() {
    let place = Place::new().await;
    place.put("old", "as it was").await.unwrap();
    let descriptors = processes::descriptors(place.node.pid()).unwrap();
    for path in ["/old", "/new", "/deep/er/new"] {
        let mut stream = place.begin_upload("PUT", path).await;
        let staged = processes::descriptors(place.node.pid()).unwrap() - descriptors;
        assert!(staged >= 2, "a connection, a file and its directory: {staged}");
        // A node that is killed now leaves nothing.
        assert_eq!(place.on_disk(), ["old"]);
        stream.write_all(&[b'x'; 600_000]).await.unwrap();
        drop(stream);
        place.comes_to(&["old"], descriptors).await;
    }
    assert_eq!(place.get("old").await.unwrap(), "as it was");
}

#[tokio::test]
async fn a_write_back_that_breaks_off_leaves_nothing() {
    let place = Place::new().await;
    place.put("old", "as it was").await.unwrap();
    let descriptors = processes::descriptors(place.node.pid()).unwrap();
    let mut stream = place.begin_upload("POST", "").await;
    let mut frames = Vec::new();
    for number in 0..100 {
        let header = serde_json::json!({"kind": "put", "path": format!("d/{number}")});
        frame::encode(&mut frames, &header, &[b'x'; 5000]).unwrap();
    }
    stream.write_all(&frames).await.unwrap();
    drop(stream);
    place.comes_to(&["old"], descriptors).await;
}

#[tokio::test]
async fn a_download_or_a_watch_that_breaks_off_holds_nothing() {
    let place = Place::new().await;
    place.put("large", &"x".repeat(10_000_000)).await.unwrap();
    let descriptors = processes::descriptors(place.node.pid()).unwrap();
    for _ in 0..3 {
        let whole = windlass_client::files::FileRange::Whole;
        let mut download = place.client.download(&place.session, "large", whole).await.unwrap();
        download.next().await.unwrap().unwrap();
        let watch = place.client.watch_files(&place.session, "").await.unwrap();
        assert!(processes::descriptors(place.node.pid()).unwrap() > descriptors);
        drop((download, watch));
        place.comes_to(&["large"], descriptors).await;
    }
}
