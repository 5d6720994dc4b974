//! The node's metrics, in the text format of Prometheus. Recording a value is an atomic add. What costs more, such as
//! the memory of sessions, is sampled when somebody scrapes (`http::scrape`).

mod table;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use windlass_audit::AuditStanding;
use windlass_protocol::api::SessionState;
use windlass_protocol::disk::DiskUse;
use windlass_protocol::event::{DropReason, StartFigures, StartedBy, Usage};
use windlass_protocol::{ErrorCode, Outcome, kinds};

use self::table::*;
pub use self::table::{METRICS, MetricInfo, MetricKind};
use crate::bounds::BoundLevel;

const SOURCE: Metadata<'static> = Metadata::new("windlass", metrics::Level::INFO, Some("windlass"));

/// Buckets of the histograms of turns, in seconds. The median turn is well below a millisecond, the longest take a day.
const TURN_SECONDS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 300.0,
    600.0, 3600.0,
];

/// Buckets of the histograms of starts, in seconds: from a pooled worker to an interpreter that loads packages.
const START_SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// The label of all kinds of worker of the configuration file together.
const CONFIGURED: &str = "configured";

/// The outcomes of turns, in the order of [`Outcome`].
const OUTCOMES: [&str; 5] = ["ok", "error", "interrupted", "timed_out", "lost"];

/// The outcomes of host tool calls.
const CALL_OUTCOMES: [&str; 5] = ["ok", "failed", "timed_out", "cancelled", "host_gone"];

/// The states that a session of this node can have in the metrics.
const STATES: [SessionState; 7] = [
    SessionState::Starting,
    SessionState::Idle,
    SessionState::Busy,
    SessionState::AwaitingInput,
    SessionState::Interrupting,
    SessionState::Restarting,
    SessionState::Ended,
];

/// Handles to every metric that is written often, looked up once.
pub(crate) struct Metrics {
    handle: PrometheusHandle,
    recorder: PrometheusRecorder,
    sessions: Gauge,
    created: Counter,
    /// For each kind of worker its metrics, once the node has had a session of it. The last is for the kinds of the
    /// configuration file.
    kinds: Vec<OnceLock<KindMetrics>>,
    traffic: TrafficMetrics,
    append_failures: Counter,
    tool_calls: [Counter; 5],
    late_tool_results: Counter,
}

/// The metrics of one kind of worker.
struct KindMetrics {
    turns: [Counter; 5],
    turn_seconds: Histogram,
    turn_cpu_ms: Counter,
}

/// What goes through the node.
struct TrafficMetrics {
    requests: Counter,
    connections: Gauge,
    output_bytes: Counter,
    dropped: DroppedOutput,
    egress: EgressMetrics,
}

/// Counts output that journals no longer have.
#[derive(Clone)]
pub(crate) struct DroppedOutput {
    quota: Counter,
    disk_full: Counter,
}

/// Counts decisions of the egress proxy.
#[derive(Clone)]
pub(crate) struct EgressMetrics {
    allowed: Counter,
    refused: Counter,
}

/// An open connection at the HTTP door; dropping it ends the count.
pub(crate) struct OpenConnection(Gauge);

/// What the sessions of one kind are and use now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct KindLoad {
    /// Number of sessions, in the order of `STATES`.
    states: [u64; STATES.len()],
    pub memory_bytes: u64,
    pub cpu_seconds: f64,
}

impl KindLoad {
    pub fn add_session(&mut self, state: SessionState) {
        // A live session is in none of the states that only a list of a whole fleet has.
        if let Some(at) = STATES.iter().position(|known| *known == state) {
            self.states[at] += 1;
        }
    }
}

/// The label of a kind of worker.
pub(crate) fn kind_label(name: &str) -> &'static str {
    kinds::find(name).map_or(CONFIGURED, |kind| kind.name)
}

fn start_label(start: StartedBy) -> &'static str {
    match start {
        StartedBy::Exec => "exec",
        StartedBy::Zygote => "zygote",
        StartedBy::Pool => "pool",
        StartedBy::Fork => "fork",
    }
}

impl Metrics {
    pub fn new() -> Self {
        let starts = Matcher::Prefix("windlass_worker_".to_owned());
        let recorder = PrometheusBuilder::new()
            .set_buckets(&TURN_SECONDS)
            .and_then(|builder| builder.set_buckets_for_metric(starts, &START_SECONDS))
            .expect("the buckets are not empty")
            .build_recorder();
        describe(&recorder);
        let counter = |metric: MetricInfo, labels: &[(&'static str, &'static str)]| {
            recorder.register_counter(&key(metric, labels), &SOURCE)
        };
        let plain = |metric: MetricInfo| counter(metric, &[]);
        let dropped = |reason| counter(OUTPUT_DROPPED, &[("reason", reason)]);
        let egress = |decision| counter(EGRESS, &[("decision", decision)]);
        Self {
            handle: recorder.handle(),
            sessions: recorder.register_gauge(&key(SESSIONS, &[]), &SOURCE),
            created: plain(CREATED),
            kinds: (0..=kinds::ALL.len()).map(|_| OnceLock::new()).collect(),
            traffic: TrafficMetrics {
                requests: plain(REQUESTS),
                connections: recorder.register_gauge(&key(CONNECTIONS, &[]), &SOURCE),
                output_bytes: plain(OUTPUT),
                dropped: DroppedOutput { quota: dropped("quota"), disk_full: dropped("disk_full") },
                egress: EgressMetrics { allowed: egress("allowed"), refused: egress("refused") },
            },
            append_failures: plain(APPEND_FAILURES),
            tool_calls: CALL_OUTCOMES.map(|named| counter(TOOL_CALLS, &[("outcome", named)])),
            late_tool_results: plain(LATE_TOOL_RESULTS),
            recorder,
        }
    }

    pub fn sessions(&self, count: usize) {
        self.sessions.set(count as f64);
    }

    pub fn session_created(&self) {
        self.created.increment(1);
    }

    /// Counts how the first worker of a session is started.
    pub fn session_starts(&self, kind: &str, start: StartedBy) {
        let labels = [("worker", kind_label(kind)), ("start", start_label(start))];
        self.add(STARTS, &labels, 1);
    }

    /// Counts a new session of a node that keeps pooled workers.
    pub fn pool_claimed(&self, kind: &str, is_hit: bool) {
        let result = if is_hit { "hit" } else { "miss" };
        self.add(POOL_CLAIMS, &[("worker", kind_label(kind)), ("result", result)], 1);
    }

    /// Records how long a worker took to start. The labels are the kind and how the worker was started.
    pub fn worker_ready(&self, kind: &str, start: StartedBy, figures: &StartFigures) {
        self.record_start(STARTUP, kind, start, figures.startup_ms);
    }

    /// Records what was in the start of a worker.
    pub fn worker_started(&self, kind: &str, start: StartedBy, figures: &StartFigures) {
        let parts = [
            (PREWARM, figures.prewarm.ms),
            (RUNTIME_LOAD, figures.runtime_load_ms),
            (PACKAGE_LOAD, figures.package_load_ms),
        ];
        for (metric, ms) in parts {
            if let Some(ms) = ms {
                self.record_start(metric, kind, start, ms);
            }
        }
        let packages = u64::from(figures.package_count.unwrap_or_default());
        let labels = [("worker", kind_label(kind)), ("start", start_label(start))];
        self.add(PACKAGES, &labels, packages);
    }

    fn record_start(&self, metric: MetricInfo, kind: &str, start: StartedBy, ms: u32) {
        let labels = [("worker", kind_label(kind)), ("start", start_label(start))];
        let histogram = self.recorder.register_histogram(&key(metric, &labels), &SOURCE);
        histogram.record(f64::from(ms) / 1e3);
    }

    pub fn turn_ended(&self, kind: &str, outcome: Outcome, usage: &Usage) {
        let of_kind = self.of_kind(kind_label(kind));
        of_kind.turns[outcome as usize].increment(1);
        of_kind.turn_seconds.record(usage.wall_ms / 1e3);
        of_kind.turn_cpu_ms.increment(usage.cpu_ms as u64);
    }

    /// The metrics of a kind. The first call for a kind registers them.
    fn of_kind(&self, label: &'static str) -> &KindMetrics {
        let known = kinds::ALL.iter().position(|kind| kind.name == label);
        self.kinds[known.unwrap_or(kinds::ALL.len())].get_or_init(|| {
            let worker = ("worker", label);
            let counter = |metric, labels: &[(&'static str, &'static str)]| {
                self.recorder.register_counter(&key(metric, labels), &SOURCE)
            };
            KindMetrics {
                turns: OUTCOMES.map(|named| counter(TURNS, &[worker, ("outcome", named)])),
                turn_seconds: self.recorder.register_histogram(&key(TURN_TIME, &[worker]), &SOURCE),
                turn_cpu_ms: counter(TURN_CPU, &[worker]),
            }
        })
    }

    /// Counts an ended turn of a tenant. `tenant` is its label: the number of labels is bounded.
    pub fn tenant_turn(&self, tenant: String, usage: &Usage) {
        let labels = vec![Label::new("tenant", tenant)];
        let add = |metric: MetricInfo, value: u64| {
            let key = Key::from_parts(metric.name, labels.clone());
            self.recorder.register_counter(&key, &SOURCE).increment(value);
        };
        add(TENANT_TURNS, 1);
        add(TENANT_CPU, usage.cpu_ms as u64);
        add(TENANT_OUTPUT, usage.output_bytes);
    }

    /// The memory that sessions of a tenant use now. `tenant` is its label, as in [`Self::tenant_turn`].
    pub fn tenant_memory(&self, tenant: String, bytes: u64) {
        let key = Key::from_parts(TENANT_MEMORY.name, vec![Label::new("tenant", tenant)]);
        self.recorder.register_gauge(&key, &SOURCE).set(bytes as f64);
    }

    pub fn output(&self, bytes: usize) {
        self.traffic.output_bytes.increment(bytes as u64);
    }

    /// For the journals of sessions.
    pub fn dropped_output(&self) -> DroppedOutput {
        self.traffic.dropped.clone()
    }

    /// For the egress ledgers of sessions.
    pub fn egress(&self) -> EgressMetrics {
        self.traffic.egress.clone()
    }

    pub fn append_failed(&self) {
        self.append_failures.increment(1);
    }

    pub fn request(&self) {
        self.traffic.requests.increment(1);
    }

    pub fn connection_opened(&self) -> OpenConnection {
        self.traffic.connections.increment(1.0);
        OpenConnection(self.traffic.connections.clone())
    }

    pub fn connection_slots(&self, count: usize) {
        self.set(CONNECTION_SLOTS, &[], count as f64);
    }

    /// Counts an ended host tool call; it failed if there is a code.
    pub fn tool_call(&self, code: Option<ErrorCode>) {
        let outcome = match code {
            None => 0,
            Some(ErrorCode::ToolDeadlinePassed) => 2,
            Some(ErrorCode::ToolCancelled) => 3,
            Some(ErrorCode::ToolHostGone) => 4,
            Some(_) => 1,
        };
        self.tool_calls[outcome].increment(1);
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

    fn add(&self, metric: MetricInfo, labels: &[(&'static str, &'static str)], value: u64) {
        self.recorder.register_counter(&key(metric, labels), &SOURCE).increment(value);
    }

    fn set(&self, metric: MetricInfo, labels: &[(&'static str, &'static str)], value: f64) {
        self.recorder.register_gauge(&key(metric, labels), &SOURCE).set(value);
    }
}

/// What is sampled when somebody scrapes.
impl Metrics {
    /// The sessions of a kind now.
    pub fn kind_load(&self, kind: &'static str, load: &KindLoad) {
        for (state, count) in STATES.iter().zip(load.states) {
            let labels = [("worker", kind), ("state", state.as_str())];
            self.set(SESSIONS_BY_STATE, &labels, count as f64);
        }
        // So a dashboard finds the kind's turns at 0 before the first one ends.
        self.of_kind(kind);
    }

    /// What the processes of a kind's sessions use now.
    pub fn kind_usage(&self, kind: &'static str, load: &KindLoad) {
        self.set(SESSION_MEMORY, &[("worker", kind)], load.memory_bytes as f64);
        self.set(SESSION_CPU, &[("worker", kind)], load.cpu_seconds);
    }

    /// The kinds that the node has had a session of. Their gauges go to 0 with their last session.
    pub fn known_kinds(&self) -> impl Iterator<Item = &'static str> {
        let labels = kinds::ALL.iter().map(|kind| kind.name).chain([CONFIGURED]);
        labels
            .zip(&self.kinds)
            .filter(|(_, of_kind)| of_kind.get().is_some())
            .map(|(label, _)| label)
    }

    pub fn pool_ready(&self, kind: &'static str, count: u64) {
        self.set(POOL_READY, &[("worker", kind)], count as f64);
    }

    pub fn waiting(&self, turns: usize, requests: usize) {
        self.set(WAITING_TURNS, &[], turns as f64);
        self.set(WAITING_REQUESTS, &[], requests as f64);
    }

    pub fn bound(&self, level: &BoundLevel) {
        let label = [("bound", level.name)];
        self.set(BOUND_USED, &label, level.used as f64);
        self.set(BOUND_LIMIT, &label, level.limit as f64);
    }

    pub fn disk(&self, used: &DiskUse) {
        for share in &used.kinds {
            self.set(DISK, &[("kind", share.kind.as_str())], share.bytes as f64);
        }
    }

    /// The spans since the node started.
    pub fn spans(&self, exported: u64, dropped: u64) {
        for (result, count) in [("exported", exported), ("dropped", dropped)] {
            let key = key(SPANS, &[("result", result)]);
            self.recorder.register_counter(&key, &SOURCE).absolute(count);
        }
    }

    pub fn disk_free(&self, bytes: u64) {
        self.set(DISK_FREE, &[], bytes as f64);
    }

    /// Takes over the counts of the audit log.
    pub fn audit(&self, standing: AuditStanding) {
        for (metric, value) in
            [(AUDIT_RECORDS, standing.written), (AUDIT_DROPPED, standing.dropped)]
        {
            self.recorder.register_counter(&key(metric, &[]), &SOURCE).absolute(value);
        }
    }
}

impl DroppedOutput {
    pub fn count(&self, bytes: u64, reason: DropReason) {
        match reason {
            DropReason::Quota => self.quota.increment(bytes),
            DropReason::DiskFull => self.disk_full.increment(bytes),
            // Only the fleet's copy lacks these bytes.
            DropReason::NotCopied => {}
        }
    }
}

impl std::fmt::Debug for DroppedOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DroppedOutput").finish_non_exhaustive()
    }
}

impl EgressMetrics {
    pub fn count(&self, allowed: bool) {
        let decided = if allowed { &self.allowed } else { &self.refused };
        decided.increment(1);
    }
}

impl std::fmt::Debug for EgressMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EgressMetrics").finish_non_exhaustive()
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

fn key(metric: MetricInfo, labels: &[(&'static str, &'static str)]) -> Key {
    let labels: Vec<Label> =
        labels.iter().map(|(name, value)| Label::from_static_parts(name, value)).collect();
    Key::from_parts(metric.name, labels)
}

fn describe(recorder: &PrometheusRecorder) {
    for metric in METRICS {
        let (name, help) = (KeyName::from_const_str(metric.name), metric.help.into());
        match metric.kind {
            MetricKind::Counter => recorder.describe_counter(name, None, help),
            MetricKind::Gauge => recorder.describe_gauge(name, None, help),
            MetricKind::Seconds => recorder.describe_histogram(name, Some(Unit::Seconds), help),
        }
    }
}
