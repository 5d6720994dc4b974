//! A stub node that fails on demand. It listens on the node's socket and answers each request as
//! the test's closure says.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use windlass_client::Dirs;

#[derive(Debug, Clone)]
pub struct Seen {
    pub path: String,
    pub body: String,
}

#[derive(Debug, Clone)]
pub enum Reply {
    /// A whole answer with this API version, status and body.
    Whole { api: Option<&'static str>, status: u16, body: String },
    /// An event stream that is cut in the middle of a chunk, or closed properly.
    Events { data: Vec<String>, then: Then },
    /// The connection closes without an answer.
    Cut,
    /// The connection stays silent.
    Hang,
}

#[derive(Debug, Clone, Copy)]
pub enum Then {
    Close,
    Cut,
}

pub fn json(status: u16, body: &str) -> Reply {
    Reply::Whole { api: Some("1.0"), status, body: body.to_owned() }
}

pub struct Stub {
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: watch::Receiver<Connections>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Connections {
    pub opened: usize,
    pub open: usize,
}

impl Stub {
    /// `answer` gets the request and how many came before it.
    pub fn start(
        dirs: &Dirs,
        answer: impl Fn(usize, &Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let _ = std::fs::remove_file(dirs.socket());
        let listener = UnixListener::bind(dirs.socket()).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (count, connections) = watch::channel(Connections::default());
        let answer: Arc<Answer> = Arc::new(answer);
        let log = seen.clone();
        let accepting = tokio::spawn(async move {
            let mut serving = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.send_modify(|now| {
                    now.opened += 1;
                    now.open += 1;
                });
                let (log, answer, count) = (log.clone(), answer.clone(), count.clone());
                serving.spawn(async move {
                    let _ = serve(stream, &log, &*answer).await;
                    count.send_modify(|now| now.open -= 1);
                });
            }
        });
        Self { seen, connections, accepting }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub async fn connections(&mut self, wanted: impl Fn(&Connections) -> bool) -> Connections {
        *self.connections.wait_for(|now| wanted(now)).await.unwrap()
    }

    /// Stops listening and closes every connection.
    pub async fn stop(self) {
        self.accepting.abort();
        let _ = self.accepting.await;
    }
}

type Answer = dyn Fn(usize, &Seen) -> Reply + Send + Sync;

async fn serve(
    mut stream: UnixStream,
    log: &Mutex<Vec<Seen>>,
    answer: &Answer,
) -> std::io::Result<()> {
    let mut pending = Vec::new();
    while let Some(request) = next_request(&mut stream, &mut pending).await? {
        let before = {
            let mut seen = log.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        match answer(before, &request) {
            Reply::Whole { api, status, body } => {
                let api = api.map_or(String::new(), |api| format!("windlass-api: {api}\r\n"));
                let length = body.len();
                let text =
                    format!("HTTP/1.1 {status} X\r\n{api}content-length: {length}\r\n\r\n{body}");
                stream.write_all(text.as_bytes()).await?;
            }
            Reply::Events { data, then } => return stream_events(stream, &data, then).await,
            Reply::Cut => return Ok(()),
            Reply::Hang => {
                let _ = stream.read(&mut [0; 1]).await;
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn stream_events(mut stream: UnixStream, data: &[String], then: Then) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nwindlass-api: 1.0\r\ncontent-type: text/event-stream\r\n\
                transfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    for item in data {
        let event = format!("id: 0\ndata: {item}\n\n");
        stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
    }
    let end: &[u8] = match then {
        Then::Close => b"0\r\n\r\n",
        Then::Cut => b"ff\r\ndata: {\"half",
    };
    stream.write_all(end).await
}

async fn next_request(
    stream: &mut UnixStream,
    pending: &mut Vec<u8>,
) -> std::io::Result<Option<Seen>> {
    let mut buffer = [0; 4096];
    loop {
        if let Some(request) = whole_request(pending) {
            return Ok(Some(request));
        }
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(None);
        }
        pending.extend_from_slice(&buffer[..count]);
    }
}

fn whole_request(pending: &mut Vec<u8>) -> Option<Seen> {
    let head_bytes = pending.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&pending[..head_bytes]).into_owned();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok())
        .unwrap_or(0);
    if pending.len() < head_bytes + length {
        return None;
    }
    assert!(head.contains("windlass-api: 1.0\r\n"), "every request names its version: {head}");
    let path = head.split(' ').nth(1)?.to_owned();
    let body = String::from_utf8_lossy(&pending[head_bytes..head_bytes + length]).into_owned();
    pending.drain(..head_bytes + length);
    Some(Seen { path, body })
}
