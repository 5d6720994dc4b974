//! The table of the node's metrics, from which `docs/reference/metrics.md` is written: name, type, labels and meaning of
//! each. No metric has a label whose number of values clients choose, with one exception: the names of tenants are
//! bounded by `tenant_usage`.

use MetricKind::{Counter as Count, Gauge as Level, Seconds};

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

pub(super) const SESSIONS: MetricInfo = metric("windlass_sessions", Level, "", "live sessions");
pub(super) const SESSIONS_BY_STATE: MetricInfo = metric(
    "windlass_sessions_by_state",
    Level,
    "worker state",
    "live sessions, by kind of worker and state",
);
pub(super) const CREATED: MetricInfo =
    metric("windlass_sessions_created_total", Count, "", "sessions created since the node started");
pub(super) const STARTS: MetricInfo = metric(
    "windlass_session_starts_total",
    Count,
    "worker start",
    "first workers of sessions, by kind and how they were started",
);
pub(super) const POOL_CLAIMS: MetricInfo = metric(
    "windlass_pool_claims_total",
    Count,
    "worker result",
    "new sessions of a node with pools, by whether a pooled worker was there",
);
pub(super) const POOL_READY: MetricInfo =
    metric("windlass_pool_ready_workers", Level, "worker", "pooled workers that wait for sessions");
pub(super) const SESSION_MEMORY: MetricInfo = metric(
    "windlass_session_memory_bytes",
    Level,
    "worker",
    "memory of the processes of live sessions, where cgroups count it",
);
pub(super) const SESSION_CPU: MetricInfo = metric(
    "windlass_session_cpu_seconds",
    Level,
    "worker",
    "CPU time that the processes of live sessions have used, where cgroups count it",
);

pub(super) const TURNS: MetricInfo = metric(
    "windlass_turns_total",
    Count,
    "worker outcome",
    "turns ended, by kind of worker and outcome",
);
pub(super) const TURN_TIME: MetricInfo =
    metric("windlass_turn_seconds", Seconds, "worker", "how long turns ran");
pub(super) const TURN_CPU: MetricInfo = metric(
    "windlass_turn_cpu_milliseconds_total",
    Count,
    "worker",
    "CPU time of turns, rounded down for each turn",
);
pub(super) const WAITING_TURNS: MetricInfo = metric(
    "windlass_waiting_turns",
    Level,
    "",
    "accepted turns that wait for the turn before them",
);
pub(super) const WAITING_REQUESTS: MetricInfo = metric(
    "windlass_waiting_requests",
    Level,
    "",
    "requests and events that wait for the owners of sessions",
);
pub(super) const OUTPUT: MetricInfo =
    metric("windlass_output_bytes_total", Count, "", "bytes that turns printed");
pub(super) const OUTPUT_DROPPED: MetricInfo = metric(
    "windlass_output_dropped_bytes_total",
    Count,
    "reason",
    "bytes of output that journals no longer have",
);
pub(super) const APPEND_FAILURES: MetricInfo =
    metric("windlass_journal_append_failures_total", Count, "", "journal writes that failed");

pub(super) const REQUESTS: MetricInfo =
    metric("windlass_http_requests_total", Count, "", "requests at the HTTP door");
pub(super) const CONNECTIONS: MetricInfo =
    metric("windlass_http_connections", Level, "", "open connections at the HTTP door");
pub(super) const CONNECTION_SLOTS: MetricInfo = metric(
    "windlass_http_connection_slots",
    Level,
    "",
    "maximum number of open connections at the HTTP door",
);
pub(super) const BOUND_USED: MetricInfo =
    metric("windlass_bound_used", Level, "bound", "what all clients hold of a bound of the node");
pub(super) const BOUND_LIMIT: MetricInfo =
    metric("windlass_bound_limit", Level, "bound", "what all clients can hold of a bound");

pub(super) const TOOL_CALLS: MetricInfo =
    metric("windlass_tool_calls_total", Count, "outcome", "host tool calls ended, by outcome");
pub(super) const LATE_TOOL_RESULTS: MetricInfo = metric(
    "windlass_late_tool_results_total",
    Count,
    "",
    "results of tool calls that had already ended",
);
pub(super) const EGRESS: MetricInfo = metric(
    "windlass_egress_connections_total",
    Count,
    "decision",
    "connections through the egress proxy, by decision",
);

pub(super) const DISK: MetricInfo = metric(
    "windlass_disk_bytes",
    Level,
    "kind",
    "disk space in the state directory, measured every five minutes at most",
);
pub(super) const DISK_FREE: MetricInfo = metric(
    "windlass_disk_free_bytes",
    Level,
    "",
    "free space of the file system of the state directory",
);

pub(super) const STARTUP: MetricInfo = metric(
    "windlass_worker_startup_seconds",
    Seconds,
    "worker start",
    "time until a worker was ready, by kind and start",
);
pub(super) const PREWARM: MetricInfo = metric(
    "windlass_worker_prewarm_seconds",
    Seconds,
    "worker start",
    "preparation of the interpreter, whenever it was done",
);
pub(super) const RUNTIME_LOAD: MetricInfo = metric(
    "windlass_worker_runtime_load_seconds",
    Seconds,
    "worker start",
    "time until the interpreter could run code",
);
pub(super) const PACKAGE_LOAD: MetricInfo = metric(
    "windlass_worker_package_load_seconds",
    Seconds,
    "worker start",
    "time to load packages ahead",
);
pub(super) const PACKAGES: MetricInfo = metric(
    "windlass_worker_packages_total",
    Count,
    "worker start",
    "packages that workers loaded ahead, by kind and start",
);

pub(super) const TENANT_TURNS: MetricInfo =
    metric("windlass_tenant_turns_total", Count, "tenant", "turns ended, by tenant");
pub(super) const TENANT_CPU: MetricInfo = metric(
    "windlass_tenant_cpu_milliseconds_total",
    Count,
    "tenant",
    "CPU time of turns, by tenant, rounded down for each turn",
);
pub(super) const TENANT_OUTPUT: MetricInfo = metric(
    "windlass_tenant_output_bytes_total",
    Count,
    "tenant",
    "bytes that turns printed, by tenant",
);
pub(super) const TENANT_MEMORY: MetricInfo = metric(
    "windlass_tenant_memory_bytes",
    Level,
    "tenant",
    "memory of the processes of live sessions, by tenant, where cgroups count it",
);

pub(super) const AUDIT_RECORDS: MetricInfo =
    metric("windlass_audit_records_total", Count, "", "records written to the audit log");
pub(super) const AUDIT_DROPPED: MetricInfo = metric(
    "windlass_audit_records_dropped_total",
    Count,
    "",
    "records of the audit log that were lost because the disk was full or slow",
);

pub(super) const SPANS: MetricInfo = metric(
    "windlass_telemetry_spans_total",
    Count,
    "result",
    "spans that were sent or dropped, on a node with telemetry",
);

/// Every metric.
pub const METRICS: [MetricInfo; 38] = [
    SESSIONS,
    SESSIONS_BY_STATE,
    CREATED,
    STARTS,
    POOL_CLAIMS,
    POOL_READY,
    SESSION_MEMORY,
    SESSION_CPU,
    TURNS,
    TURN_TIME,
    TURN_CPU,
    WAITING_TURNS,
    WAITING_REQUESTS,
    OUTPUT,
    OUTPUT_DROPPED,
    APPEND_FAILURES,
    REQUESTS,
    CONNECTIONS,
    CONNECTION_SLOTS,
    BOUND_USED,
    BOUND_LIMIT,
    TOOL_CALLS,
    LATE_TOOL_RESULTS,
    EGRESS,
    DISK,
    DISK_FREE,
    STARTUP,
    PREWARM,
    RUNTIME_LOAD,
    PACKAGE_LOAD,
    PACKAGES,
    TENANT_TURNS,
    TENANT_CPU,
    TENANT_OUTPUT,
    TENANT_MEMORY,
    AUDIT_RECORDS,
    AUDIT_DROPPED,
    SPANS,
];
