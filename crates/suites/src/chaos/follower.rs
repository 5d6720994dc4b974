//! Follows one session's events as a stream, over connections that it cuts at random, and goes on with
//! `Last-Event-ID`: numbers must follow each other without gap and without repetition.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::asker::Asker;
use super::http::{Request, Wire};
use super::random::Random;
use super::world::set;

/// Between two connections.
const PAUSE: Duration = Duration::from_millis(30);

/// A connection on which nothing comes is given up after this.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// How long the last events may take to come.
const REST_WAIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Follower {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    events: Mutex<Vec<Value>>,
    ended: AtomicBool,
    /// No more cuts: the end of the stream is waited for.
    hurry: AtomicBool,
}

impl Follower {
    pub fn start(asker: &Asker, session: &str, random: Random) -> Self {
        let shared = Arc::new(Shared::default());
        let follow = Follow {
            asker: asker.beside(),
            path: format!("/v1/sessions/{session}/events"),
            random,
            shared: Arc::clone(&shared),
        };
        Self { shared, task: tokio::spawn(follow.run()) }
    }

    /// What has come, once that is `count` events or the wait is over.
    pub async fn finish(self, count: usize) -> Vec<Value> {
        set(&self.shared.hurry);
        let until = Instant::now() + REST_WAIT;
        let have = || self.shared.events.lock().unwrap_or_else(PoisonError::into_inner).len();
        while have() < count && Instant::now() < until && !self.task.is_finished() {
            tokio::time::sleep(PAUSE).await;
        }
        self.task.abort();
        std::mem::take(&mut *self.shared.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Follow {
    asker: Asker,
    path: String,
    random: Random,
    shared: Arc<Shared>,
}

impl Follow {
    async fn run(mut self) {
        while !self.shared.ended.load(Ordering::Relaxed) {
            // A broken connection is what a follower expects; the next one goes on.
            let _ = self.connection().await;
            self.asker.world.ledger.count("follower connections");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn connection(&mut self) -> io::Result<()> {
        let hurried = self.shared.hurry.load(Ordering::Relaxed);
        let cut_after = match hurried {
            true => u64::MAX,
            false => *self.random.pick(&[u64::MAX, u64::MAX, 100, 1000, 5000, 50_000, 500_000]),
        };
        let until = Instant::now() + Duration::from_millis(self.random.within(500, 8000));
        let mut wire = Wire::open(&self.asker.door).await?;
        let request = Request::get(self.path.as_str())
            .header("accept", "text/event-stream")
            .header("last-event-id", self.last().to_string());
        wire.write(&request.bytes(&self.asker.door)).await?;
        let (status, _) = wire.head().await?;
        if status != 200 {
            self.asker.world.ledger.count(&format!("follower status {status}"));
            return Ok(());
        }
        let (mut text, mut bytes) = (Vec::new(), 0);
        while bytes < cut_after {
            let wait = match self.shared.hurry.load(Ordering::Relaxed) {
                true => SILENCE_MAX,
                false => until.saturating_duration_since(Instant::now()),
            };
            let Ok(chunk) = timeout(wait.min(SILENCE_MAX), wire.chunk()).await else {
                return Ok(());
            };
            let Some(chunk) = chunk? else { return Ok(()) };
            bytes += chunk.len() as u64;
            text.extend_from_slice(&chunk);
            while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
                let one: Vec<u8> = text.drain(..end + 2).collect();
                self.take(&String::from_utf8_lossy(&one));
            }
        }
        Ok(())
    }

    fn last(&self) -> usize {
        self.shared.events.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn take(&self, text: &str) {
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let Some(data) = field("data:") else { return };
        let event: Value = serde_json::from_str(data).unwrap_or_default();
        let (seq, wanted) = (event["seq"].as_u64(), self.last() as u64 + 1);
        let id = field("id:").and_then(|id| id.parse().ok());
        if seq != Some(wanted) || id != seq {
            let path = &self.path;
            let text = format!("{path}: event {wanted} is next, and {seq:?} came with id {id:?}");
            self.asker.violation("stream", text);
            // Going on would tell the same again for each event.
            set(&self.shared.ended);
            return;
        }
        if event["kind"] == "session_ended" {
            set(&self.shared.ended);
        }
        self.shared.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}
