//! Follows the event stream of one session. It cuts its connections at random and resumes with
//! `Last-Event-ID`. The event numbers must have no gap and no repetition.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::http_client::HttpClient;
use super::random::Random;
use super::raw_http::{RawConnection, RawRequest};
use super::world::set;

/// The time between two connections.
const PAUSE: Duration = Duration::from_millis(30);

/// A connection without data is closed after this time.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// How long the last events may take to arrive.
const REST_WAIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct EventFollower {
    shared: Arc<FollowerState>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct FollowerState {
    events: Mutex<Vec<Value>>,
    ended: AtomicBool,
    /// The follower cuts no more connections and waits for the end of the stream.
    finishing: AtomicBool,
}

impl EventFollower {
    pub fn start(http: &HttpClient, session: &str, random: Random) -> Self {
        let shared = Arc::new(FollowerState::default());
        let follow = FollowTask {
            http: http.another_connection(),
            path: format!("/v1/sessions/{session}/events"),
            random,
            shared: Arc::clone(&shared),
        };
        Self { shared, task: tokio::spawn(follow.run()) }
    }

    /// Waits for `count` events, or until [`REST_WAIT`] has passed, and returns the events that arrived.
    pub async fn finish(self, count: usize) -> Vec<Value> {
        set(&self.shared.finishing);
        let until = Instant::now() + REST_WAIT;
        let have = || self.shared.events.lock().unwrap_or_else(PoisonError::into_inner).len();
        while have() < count && Instant::now() < until && !self.task.is_finished() {
            tokio::time::sleep(PAUSE).await;
        }
        self.task.abort();
        std::mem::take(&mut *self.shared.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for EventFollower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct FollowTask {
    http: HttpClient,
    path: String,
    random: Random,
    shared: Arc<FollowerState>,
}

impl FollowTask {
    async fn run(mut self) {
        while !self.shared.ended.load(Ordering::Relaxed) {
            // A broken connection is expected. The next connection resumes.
            let _ = self.connection().await;
            self.http.world.ledger.count("follower connections");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn connection(&mut self) -> io::Result<()> {
        let finishing = self.shared.finishing.load(Ordering::Relaxed);
        let cut_after = match finishing {
            true => u64::MAX,
            false => *self.random.pick(&[u64::MAX, u64::MAX, 100, 1000, 5000, 50_000, 500_000]),
        };
        let until = Instant::now() + Duration::from_millis(self.random.within(500, 8000));
        let mut connection = RawConnection::open(&self.http.endpoint).await?;
        let request = RawRequest::get(self.path.as_str())
            .header("accept", "text/event-stream")
            .header("last-event-id", self.last().to_string());
        connection.write(&request.bytes(&self.http.endpoint)).await?;
        let (status, _) = connection.head().await?;
        if status != 200 {
            self.http.world.ledger.count(&format!("follower status {status}"));
            return Ok(());
        }
        let (mut text, mut bytes) = (Vec::new(), 0);
        while bytes < cut_after {
            let wait = match self.shared.finishing.load(Ordering::Relaxed) {
                true => SILENCE_MAX,
                false => until.saturating_duration_since(Instant::now()),
            };
            let Ok(chunk) = timeout(wait.min(SILENCE_MAX), connection.chunk()).await else {
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
            let text = format!("{path}: expected event {wanted}, got {seq:?} with id {id:?}");
            self.http.violation("stream", text);
            // Every later event would repeat the same violation.
            set(&self.shared.ended);
            return;
        }
        if event["kind"] == "session_ended" {
            set(&self.shared.ended);
        }
        self.shared.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}
