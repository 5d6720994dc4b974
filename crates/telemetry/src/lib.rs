//! OpenTelemetry: makes spans of what sessions do, and sends them by OTLP over HTTP with protobuf. A node gives this
//! crate reports of journal records ([`SessionReport`]); the crate knows no session otherwise and never reads a journal.
//!
//! A node without telemetry has no [`Telemetry`]. With it, the thread that serves turns puts reports into a bounded queue
//! and never waits. A thread of its own makes the spans, encodes them and talks to the collector.
//!
//! The messages are encoded here ([`otlp`]), because Windlass writes seven message types and reads none. The crate
//! `opentelemetry-proto` would bring `opentelemetry_sdk`, `prost` and `tonic` for them, and `opentelemetry-otlp` an HTTP
//! client and a batch processor that knows nothing of the node's limits.

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod collector;
mod config;
mod exporter;
mod identity;
mod otlp;
mod report;
mod spans;
mod traceparent;

pub use config::{Endpoint, TelemetryConfig, TelemetryError, TelemetrySetting, parse_headers};
pub use exporter::{SpanCounts, Telemetry};
pub use identity::SessionIdentity;
pub use report::{Fact, FileDirection, FileTransfer, SessionReport};
pub use traceparent::{SpanId, TraceId, TraceParent};
