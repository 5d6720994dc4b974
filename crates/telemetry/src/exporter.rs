//! The thread that makes spans and sends them. The node's thread only puts reports into a queue. The queue, the spans that
//! wait, the tries and the times are bounded; what does not fit is dropped and counted. The thread sleeps while nothing
//! is reported.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};
use windlass_protocol::SessionId;

use crate::collector::{Collector, ExportError};
use crate::otlp::{self, AttributeValue, FinishedSpan};
use crate::spans::SpanBuilder;
use crate::{SessionIdentity, SessionReport, TelemetryConfig, TraceParent};

/// Maximum number of reports that wait for the thread.
const REPORTS_MAX: usize = 8192;

/// Maximum number of spans that wait to be sent.
const SPANS_MAX: usize = 8192;

/// Maximum number of spans in a request.
const BATCH_SPANS_MAX: usize = 512;

/// How long spans are gathered. The node's thread wakes the thread at most once in this time, unless the queue fills.
const GATHER: Duration = Duration::from_secs(1);

/// How often the same spans are sent before they are dropped.
const ATTEMPTS_MAX: u32 = 4;

/// The first and the longest pause after a request that failed.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How often a failure is logged at most.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum time to send what is left when the node stops, and to wait for that.
const FLUSH: Duration = Duration::from_millis(1500);
const FLUSH_WAIT: Duration = Duration::from_secs(2);

/// How many spans were sent and dropped since the node started.
#[derive(Debug, Default)]
pub struct SpanCounts {
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl SpanCounts {
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn add_exported(&self, spans: usize) {
        self.exported.fetch_add(spans as u64, Ordering::Relaxed);
    }

    fn add_dropped(&self, spans: usize) {
        self.dropped.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

/// The telemetry of a node.
#[derive(Debug)]
pub struct Telemetry {
    reports: mpsc::Sender<SessionReport>,
    /// Notified when the queue fills.
    urgent: Arc<Notify>,
    counts: Arc<SpanCounts>,
    sample: f64,
    stop: watch::Sender<bool>,
    /// Closed when the thread has ended.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Telemetry {
    /// Starts the thread. `node` is the name of the node in its fleet.
    pub fn start(config: TelemetryConfig, node: Option<String>) -> io::Result<Self> {
        let (reports, queue) = mpsc::channel(REPORTS_MAX);
        let (stop, stopped) = watch::channel(false);
        let (ending, ended) = oneshot::channel();
        let (urgent, counts) = (Arc::new(Notify::new()), Arc::new(SpanCounts::default()));
        let sample = config.sample;
        let exporter = Exporter {
            reports: queue,
            urgent: urgent.clone(),
            stop: stopped,
            resource: resource(&config.service_name, node),
            collector: Collector::new(config),
            builder: SpanBuilder::default(),
            waiting: Vec::new(),
            counts: counts.clone(),
            failures: Failures::default(),
        };
        std::thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
            match runtime {
                Ok(runtime) => runtime.block_on(exporter.run()),
                Err(error) => tracing::error!(%error, "no spans are sent"),
            }
            drop(ending);
        })?;
        Ok(Self { reports, urgent, counts, sample, stop, ended: Mutex::new(Some(ended)) })
    }

    /// The identity of a session for its reports.
    pub fn session(
        &self,
        id: SessionId,
        kind: String,
        created_at_ms: u64,
        parent: Option<TraceParent>,
    ) -> SessionIdentity {
        SessionIdentity::new(id, kind, created_at_ms, parent, self.sample)
    }

    /// Hands a report over. Never waits: a report that finds no place is dropped and counted.
    pub fn report(&self, report: SessionReport) {
        if let Err(refused) = self.reports.try_send(report) {
            self.counts.add_dropped(refused.into_inner().facts.len());
        }
        if self.reports.capacity() < REPORTS_MAX / 2 {
            self.urgent.notify_one();
        }
    }

    pub fn counts(&self) -> &SpanCounts {
        &self.counts
    }

    /// Sends what waits, for two seconds at most, and ends the thread.
    pub async fn shut_down(&self) {
        self.stop.send_replace(true);
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            // The process ends next, and the thread with it.
            let _ = timeout(FLUSH_WAIT, ended).await;
        }
    }
}

/// What the spans say about their service.
fn resource(service_name: &str, node: Option<String>) -> Vec<(&'static str, AttributeValue)> {
    let mut resource: Vec<(&'static str, AttributeValue)> = vec![
        ("service.name", service_name.into()),
        ("service.version", env!("CARGO_PKG_VERSION").into()),
    ];
    resource.extend(node.map(|node| ("service.instance.id", AttributeValue::from(node))));
    resource
}

/// What the thread owns.
struct Exporter {
    reports: mpsc::Receiver<SessionReport>,
    urgent: Arc<Notify>,
    stop: watch::Receiver<bool>,
    resource: Vec<(&'static str, AttributeValue)>,
    collector: Collector,
    builder: SpanBuilder,
    /// Spans that are not sent yet, in order.
    waiting: Vec<FinishedSpan>,
    counts: Arc<SpanCounts>,
    failures: Failures,
}

/// What has failed since the last request that went well.
#[derive(Debug, Default)]
struct Failures {
    /// Of the same spans.
    attempts: u32,
    /// Of all requests.
    in_a_row: u32,
    /// When the next request may be sent.
    next_at: Option<Instant>,
    warned_at: Option<Instant>,
}

/// Whether the node goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeLife {
    GoesOn,
    Stops,
}

impl Exporter {
    async fn run(mut self) {
        let mut stop = self.stop.clone();
        loop {
            let life = self.gather().await;
            self.drain();
            if life == NodeLife::Stops {
                break;
            }
            if self.waiting.is_empty() || !self.failures.allow(Instant::now()) {
                continue;
            }
            tokio::select! {
                biased;
                () = until_stopped(&mut stop) => break,
                _ = self.send() => {}
            }
        }
        // Spans that came during the last request.
        self.drain();
        let _ = timeout(FLUSH, self.flush()).await;
        self.drop_first(self.waiting.len());
    }

    /// Waits for reports, and then for more of them.
    async fn gather(&mut self) -> NodeLife {
        if self.waiting.is_empty() {
            tokio::select! {
                biased;
                () = until_stopped(&mut self.stop) => return NodeLife::Stops,
                first = self.reports.recv() => match first {
                    Some(report) => self.builder.take(report, &mut self.waiting),
                    None => return NodeLife::Stops,
                },
            }
        }
        let gathered = Instant::now() + GATHER;
        let until = match self.failures.next_at {
            Some(at) => at,
            // More spans wait than one request takes.
            None if self.waiting.len() >= BATCH_SPANS_MAX => return NodeLife::GoesOn,
            None => gathered,
        };
        let more = async {
            tokio::select! {
                () = until_stopped(&mut self.stop) => NodeLife::Stops,
                () = self.urgent.notified() => NodeLife::GoesOn,
            }
        };
        timeout_at(until, more).await.unwrap_or(NodeLife::GoesOn)
    }

    /// Makes spans of all reports that are there.
    fn drain(&mut self) {
        for _ in 0..REPORTS_MAX {
            let Ok(report) = self.reports.try_recv() else { break };
            self.builder.take(report, &mut self.waiting);
            if self.waiting.len() > SPANS_MAX {
                self.drop_first(self.waiting.len() - SPANS_MAX);
                // These are other spans than those that were tried.
                self.failures.attempts = 0;
            }
        }
    }

    /// Sends the first spans. They wait until they are taken, so nothing is lost if the call is dropped.
    async fn send(&mut self) -> Result<(), ExportError> {
        let count = self.waiting.len().min(BATCH_SPANS_MAX);
        let batch = self.waiting.get(..count).unwrap_or_default();
        let body = otlp::request(&self.resource, env!("CARGO_PKG_VERSION"), batch);
        let sent = self.collector.send(body).await;
        match &sent {
            Ok(()) => {
                self.waiting.drain(..count);
                self.counts.add_exported(count);
                let warned_at = self.failures.warned_at;
                self.failures = Failures { warned_at, ..Failures::default() };
            }
            Err(error) => {
                if self.failures.note(error, Instant::now()) {
                    self.drop_first(count);
                }
                if self.failures.may_warn(Instant::now()) {
                    let dropped = self.counts.dropped();
                    tracing::warn!(%error, dropped, "cannot send spans; turns are not affected");
                }
            }
        }
        sent
    }

    /// Sends everything that waits, until a request fails.
    async fn flush(&mut self) {
        while !self.waiting.is_empty() && self.send().await.is_ok() {}
    }

    fn drop_first(&mut self, count: usize) {
        self.waiting.drain(..count);
        self.counts.add_dropped(count);
    }
}

impl Failures {
    /// Whether a request may be sent now.
    fn allow(&self, now: Instant) -> bool {
        self.next_at.is_none_or(|at| at <= now)
    }

    /// Notes a failed request. Returns whether its spans are given up.
    fn note(&mut self, error: &ExportError, now: Instant) -> bool {
        let pause = PAUSE.saturating_mul(1 << self.in_a_row.min(10)).min(PAUSE_MAX);
        self.next_at = Some(now + pause);
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.attempts += 1;
        let gives_up = !error.is_passing() || self.attempts >= ATTEMPTS_MAX;
        if gives_up {
            self.attempts = 0;
        }
        gives_up
    }

    fn may_warn(&mut self, now: Instant) -> bool {
        let is_due = self.warned_at.is_none_or(|at| now.duration_since(at) >= WARN_INTERVAL);
        if is_due {
            self.warned_at = Some(now);
        }
        is_due
    }
}

/// Returns when the node stops.
async fn until_stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the node has dropped its telemetry.
    let _ = stop.wait_for(|stops| *stops).await;
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    #[test]
    fn spans_are_given_up_after_some_tries_and_the_pauses_grow() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let down = ExportError::Unreachable("refused".to_owned());
        let mut rows = Vec::new();
        for _ in 0..8 {
            let gives_up = failures.note(&down, now);
            let pause = failures.next_at.map(|at| (at - now).as_secs());
            rows.push((gives_up, pause));
        }
        let pauses = [1, 2, 4, 8, 16, 30, 30, 30];
        let expected: Vec<_> =
            (1..).zip(pauses).map(|(at, pause)| (at % 4 == 0, Some(pause))).collect();
        assert_eq!(rows, expected);
        assert!(!failures.allow(now) && failures.allow(now + PAUSE_MAX));
    }

    #[test]
    fn refused_spans_are_given_up_at_once() {
        let now = Instant::now();
        assert!(Failures::default().note(&ExportError::Refused(StatusCode::BAD_REQUEST), now));
        let busy = ExportError::Busy(StatusCode::SERVICE_UNAVAILABLE);
        assert!(!Failures::default().note(&busy, now));
    }

    #[test]
    fn a_failure_is_logged_once_a_minute() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        assert!(failures.may_warn(now));
        assert!(!failures.may_warn(now + WARN_INTERVAL / 2));
        assert!(failures.may_warn(now + WARN_INTERVAL));
    }
}
