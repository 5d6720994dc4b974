//! The node's metrics, in the text format of Prometheus. Recording a value is an atomic add.

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use windlass_protocol::event::{StartFigures, StartedBy};
use windlass_protocol::{ErrorCode, Outcome, kinds};

use MetricKind::{Counter as Count, Gauge as Level, Seconds};

const SOURCE: Metadata<'static> = Metadata::new("windlass", metrics::Level::INFO, Some("windlass"));

/// Buckets of the histogram of turn durations, in seconds.
const TURN_SECONDS: [f64; 9] = [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0];

/// A metric: its name, and what the exporter and `docs/reference/metrics.md` say about it.
#[derive(Debug, Clone, Copy)]
pub struct MetricInfo {
    pub name: &'static str,
    pub kind: MetricKind,
    /// The labels, separated by spaces; empty for none.
    pub labels: &'static str,
    pub help: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    /// A histogram of seconds.
    Seconds,
}

impl MetricKind {
    /// As the text format of Prometheus names the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Seconds => "histogram",
        }
    }
}

const fn metric(
    name: &'static str,
    kind: MetricKind,
    labels: &'static str,
    help: &'static str,
) -> MetricInfo {
    MetricInfo { name, kind, labels, help }
}

const SESSIONS: MetricInfo = metric("windlass_sessions", Level, "", "live sessions");
const CREATED: MetricInfo =
    metric("windlass_sessions_created_total", Count, "", "sessions created since the node started");
const TURNS: MetricInfo =
    metric("windlass_turns_total", Count, "outcome", "turns ended, by outcome");
const TURN_TIME: MetricInfo = metric("windlass_turn_seconds", Seconds, "", "how long turns ran");
const OUTPUT: MetricInfo =
    metric("windlass_output_bytes_total", Count, "", "bytes that turns printed");
const APPEND_FAILURES: MetricInfo =
    metric("windlass_journal_append_failures_total", Count, "", "journal writes that failed");
const REQUESTS: MetricInfo =
    metric("windlass_http_requests_total", Count, "", "requests at the HTTP door");
const TOOL_CALLS: MetricInfo =
    metric("windlass_tool_calls_total", Count, "outcome", "host tool calls ended, by outcome");
const LATE_TOOL_RESULTS: MetricInfo = metric(
    "windlass_late_tool_results_total",
    Count,
    "",
    "results of tool calls that had already ended",
);
const STARTUP: MetricInfo = metric(
    "windlass_worker_startup_seconds",
    Seconds,
    "worker start",
    "time until a worker was ready, by kind and start",
);
const PREWARM: MetricInfo = metric(
    "windlass_worker_prewarm_seconds",
    Seconds,
    "worker start",
    "preparation of the interpreter, whenever it was done",
);
const RUNTIME_LOAD: MetricInfo = metric(
    "windlass_worker_runtime_load_seconds",
    Seconds,
    "worker start",
    "time until the interpreter could run code",
);
const PACKAGE_LOAD: MetricInfo = metric(
    "windlass_worker_package_load_seconds",
    Seconds,
    "worker start",
    "time to load packages ahead",
);
const PACKAGES: MetricInfo = metric(
    "windlass_worker_packages_total",
    Count,
    "worker start",
    "packages that workers loaded ahead, by kind and start",
);

/// Every metric.
pub const METRICS: [MetricInfo; 14] = [
    SESSIONS,
    CREATED,
    TURNS,
    TURN_TIME,
    OUTPUT,
    APPEND_FAILURES,
    REQUESTS,
    TOOL_CALLS,
    LATE_TOOL_RESULTS,
    STARTUP,
    PREWARM,
    RUNTIME_LOAD,
    PACKAGE_LOAD,
    PACKAGES,
];

/// Handles to every metric, looked up once.
pub(crate) struct Metrics {
    handle: PrometheusHandle,
    recorder: PrometheusRecorder,
    sessions: Gauge,
    created: Counter,
    turns: [Counter; 5],
    turn_seconds: Histogram,
    output_bytes: Counter,
    append_failures: Counter,
    requests: Counter,
    tool_calls: [Counter; 2],
    late_tool_results: Counter,
}

impl Metrics {
    pub fn new() -> Self {
        let recorder = PrometheusBuilder::new()
            .set_buckets(&TURN_SECONDS)
            .expect("the buckets are not empty")
            .build_recorder();
        describe(&recorder);
        let counter = |metric: MetricInfo, labels: Vec<Label>| {
            recorder.register_counter(&Key::from_parts(metric.name, labels), &SOURCE)
        };
        let outcome = |outcome: &'static str| vec![Label::new("outcome", outcome)];
        let turns = ["ok", "error", "interrupted", "timed_out", "lost"];
        Self {
            handle: recorder.handle(),
            sessions: recorder.register_gauge(&Key::from_name(SESSIONS.name), &SOURCE),
            created: counter(CREATED, Vec::new()),
            turns: turns.map(|named| counter(TURNS, outcome(named))),
            turn_seconds: recorder.register_histogram(&Key::from_name(TURN_TIME.name), &SOURCE),
            output_bytes: counter(OUTPUT, Vec::new()),
            append_failures: counter(APPEND_FAILURES, Vec::new()),
            requests: counter(REQUESTS, Vec::new()),
            tool_calls: ["ok", "failed"].map(|named| counter(TOOL_CALLS, outcome(named))),
            late_tool_results: counter(LATE_TOOL_RESULTS, Vec::new()),
            recorder,
        }
    }

    pub fn sessions(&self, count: usize) {
        self.sessions.set(count as f64);
    }

    pub fn session_created(&self) {
        self.created.increment(1);
    }

    /// Records what the start of a worker cost. The labels are the kind and how the worker was started.
    pub fn worker_started(&self, kind: &str, start: StartedBy, figures: &StartFigures) {
        let kind = kinds::find(kind).map_or("configured", |kind| kind.name);
        let start = match start {
            StartedBy::Exec => "exec",
            StartedBy::Zygote => "zygote",
            StartedBy::Pool => "pool",
            StartedBy::Fork => "fork",
        };
        let labels = || vec![Label::new("worker", kind), Label::new("start", start)];
        let record = |metric: MetricInfo, ms: Option<u32>| {
            let Some(ms) = ms else { return };
            let key = Key::from_parts(metric.name, labels());
            self.recorder.register_histogram(&key, &SOURCE).record(f64::from(ms) / 1e3);
        };
        record(STARTUP, Some(figures.startup_ms));
        record(PREWARM, figures.prewarm.ms);
        record(RUNTIME_LOAD, figures.runtime_load_ms);
        record(PACKAGE_LOAD, figures.package_load_ms);
        let packages = u64::from(figures.package_count.unwrap_or_default());
        let key = Key::from_parts(PACKAGES.name, labels());
        self.recorder.register_counter(&key, &SOURCE).increment(packages);
    }

    pub fn turn_ended(&self, outcome: Outcome, wall_ms: f64) {
        self.turns[outcome as usize].increment(1);
        self.turn_seconds.record(wall_ms / 1e3);
    }

    pub fn output(&self, bytes: usize) {
        self.output_bytes.increment(bytes as u64);
    }

    pub fn append_failed(&self) {
        self.append_failures.increment(1);
    }

    pub fn request(&self) {
        self.requests.increment(1);
    }

    /// Counts an ended host tool call; it failed if there is a code.
    pub fn tool_call(&self, code: Option<ErrorCode>) {
        self.tool_calls[usize::from(code.is_some())].increment(1);
    }

    /// Counts a result of a tool call that has ended already.
    pub fn late_tool_result(&self) {
        self.late_tool_results.increment(1);
    }

    /// All metrics as text for Prometheus. Also merges the histogram's samples.
    pub fn render(&self) -> String {
        self.handle.run_upkeep();
        self.handle.render()
    }

    /// Merges collected samples, so that they do not pile up if nobody scrapes.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

fn describe(recorder: &PrometheusRecorder) {
    for metric in METRICS {
        let (name, help) = (KeyName::from_const_str(metric.name), metric.help.into());
        match metric.kind {
            Count => recorder.describe_counter(name, None, help),
            Level => recorder.describe_gauge(name, None, help),
            Seconds => recorder.describe_histogram(name, Some(Unit::Seconds), help),
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::event::{Prewarm, PrewarmSource};

    use super::*;

    /// Every metric that the node exports is in the table, and the other way round.
    #[test]
    fn the_exported_metrics_are_those_of_the_table() {
        let metrics = Metrics::new();
        metrics.turn_ended(Outcome::Ok, 1.0);
        let figures = StartFigures {
            startup_ms: 1,
            prewarm: Prewarm { how: PrewarmSource::Executed, ms: Some(1) },
            runtime_load_ms: Some(1),
            package_load_ms: Some(1),
            package_count: Some(1),
        };
        metrics.worker_started("python", StartedBy::Exec, &figures);
        let text = metrics.render();
        let mut exported: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        exported.sort_unstable();
        let named = METRICS.map(|metric| format!("{} {}", metric.name, metric.kind.name()));
        let mut named: Vec<&str> = named.iter().map(String::as_str).collect();
        named.sort_unstable();
        assert_eq!(exported, named, "{text}");
    }
}
