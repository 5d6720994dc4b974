//! The node's metrics, in the text format of Prometheus. Recording a value is an atomic add.

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use windlass_protocol::event::{StartFigures, StartedBy};
use windlass_protocol::{ErrorCode, Outcome, kinds};

const SOURCE: Metadata<'static> = Metadata::new("windlass", metrics::Level::INFO, Some("windlass"));

/// Buckets of the histogram of turn durations, in seconds.
const TURN_SECONDS: [f64; 9] = [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0];

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
        let counter =
            |name: &'static str| recorder.register_counter(&Key::from_name(name), &SOURCE);
        let turns = ["ok", "error", "interrupted", "timed_out", "lost"].map(|outcome| {
            let labels = vec![Label::new("outcome", outcome)];
            recorder.register_counter(&Key::from_parts("windlass_turns_total", labels), &SOURCE)
        });
        let tool_calls = ["ok", "failed"].map(|outcome| {
            let labels = vec![Label::new("outcome", outcome)];
            let key = Key::from_parts("windlass_tool_calls_total", labels);
            recorder.register_counter(&key, &SOURCE)
        });
        Self {
            handle: recorder.handle(),
            sessions: recorder.register_gauge(&Key::from_name("windlass_sessions"), &SOURCE),
            created: counter("windlass_sessions_created_total"),
            turns,
            turn_seconds: recorder
                .register_histogram(&Key::from_name("windlass_turn_seconds"), &SOURCE),
            output_bytes: counter("windlass_output_bytes_total"),
            append_failures: counter("windlass_journal_append_failures_total"),
            requests: counter("windlass_http_requests_total"),
            tool_calls,
            late_tool_results: counter("windlass_late_tool_results_total"),
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
        let record = |name: &'static str, ms: Option<u32>| {
            let Some(ms) = ms else { return };
            let key = Key::from_parts(name, labels());
            self.recorder.register_histogram(&key, &SOURCE).record(f64::from(ms) / 1e3);
        };
        record("windlass_worker_startup_seconds", Some(figures.startup_ms));
        record("windlass_worker_prewarm_seconds", figures.prewarm.ms);
        record("windlass_worker_runtime_load_seconds", figures.runtime_load_ms);
        record("windlass_worker_package_load_seconds", figures.package_load_ms);
        let packages = u64::from(figures.package_count.unwrap_or_default());
        let key = Key::from_parts("windlass_worker_packages_total", labels());
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
    let counters: [(&'static str, &'static str); 8] = [
        ("windlass_sessions_created_total", "sessions created since the node started"),
        ("windlass_turns_total", "turns ended, by outcome"),
        ("windlass_output_bytes_total", "bytes that turns printed"),
        ("windlass_journal_append_failures_total", "journal writes that failed"),
        ("windlass_http_requests_total", "requests at the HTTP door"),
        ("windlass_tool_calls_total", "host tool calls ended, by outcome"),
        ("windlass_late_tool_results_total", "results of tool calls that had already ended"),
        ("windlass_worker_packages_total", "packages that workers loaded ahead, by kind and start"),
    ];
    for (name, text) in counters {
        recorder.describe_counter(KeyName::from_const_str(name), None, text.into());
    }
    recorder.describe_gauge(
        KeyName::from_const_str("windlass_sessions"),
        None,
        "live sessions".into(),
    );
    let histograms: [(&'static str, &'static str); 5] = [
        ("windlass_turn_seconds", "how long turns ran"),
        ("windlass_worker_startup_seconds", "time until a worker was ready, by kind and start"),
        ("windlass_worker_prewarm_seconds", "preparation of the interpreter, whenever it was done"),
        ("windlass_worker_runtime_load_seconds", "time until the interpreter could run code"),
        ("windlass_worker_package_load_seconds", "time to load packages ahead"),
    ];
    for (name, text) in histograms {
        let unit = Some(Unit::Seconds);
        recorder.describe_histogram(KeyName::from_const_str(name), unit, text.into());
    }
}
