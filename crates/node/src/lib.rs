//! The node performs what the lifecycle decides, writes the journal and serves the HTTP door. It may be
//! killed or replaced at any moment: everything that must survive is in the journal or with a keeper.
//!
//! One thread serves everything. Each session has one owner task (`session::actor`), and each
//! connection has one task (`http::server`). Long disk work runs on other threads.

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod agents;
mod audit;
mod bounds;
mod cgroups;
mod clock;
mod config;
mod console;
mod context;
mod directory;
mod disk;
mod doors;
mod event_stream;
mod explain;
pub mod failure;
mod fleet;
pub mod http;
mod instance;
mod keepers;
pub mod log;
mod metrics;
mod nursery;
mod packages;
mod passing;
mod pieces;
mod placeholders;
mod provision;
mod quotas;
mod run;
mod scrape_turns;
mod secrets;
mod session;
mod session_dirs;
mod session_figures;
mod session_rows;
mod tenancy;
mod tenant_usage;
mod trust;
mod user_ids;
mod worker_config;
mod workers;

/// Other crates build their doors from this type.
pub use axum::Router;
pub use config::{Config, EnvironmentsConfig, FleetConfig, Listen, Reach, StartBy, TlsFiles};
pub use doors::{AgentDoor, Doors};
pub use http::DoorCertificateError;
pub use instance::ClaimError;
pub use metrics::{METRICS, MetricInfo, MetricKind};
pub use quotas::{OTHER_TENANTS, TenantQuota, TenantQuotas};
pub use run::{RunError, run};
pub use user_ids::{UidRange, UidRangeError};
/// For the configuration of a fleet.
pub use windlass_lifecycle::fleet::LeaseTiming;
/// For commands that inspect a machine without a node.
pub use windlass_procs::HoldMode;
/// For the configuration of telemetry.
pub use windlass_telemetry::{TelemetryConfig, TelemetryError, TelemetrySetting, parse_headers};
pub use worker_config::{WORKER_KEYS, WorkerConfigError, WorkerEntry, WorkerKey, WorkersConfig};
