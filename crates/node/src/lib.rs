//! The node performs what the lifecycle decides, writes the journal and serves the HTTP door. It may be
//! killed or replaced at any moment: everything that must survive is in the journal or with a keeper.
//!
//! One thread serves everything. Each session has one owner task (`session::actor`), and each
//! connection has one task (`http::server`). Long disk work runs on other threads.

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod agents;
mod bounds;
mod cgroups;
mod clock;
mod config;
mod context;
mod directory;
mod disk;
mod doors;
mod explain;
pub mod failure;
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
mod run;
mod secrets;
mod session;
mod session_dirs;
mod trust;
mod worker_config;
mod workers;

/// Other crates build their doors from this type.
pub use axum::Router;
pub use config::{Config, EnvironmentsConfig, Listen, Reach, StartBy};
pub use doors::{AgentDoor, Doors};
pub use instance::ClaimError;
pub use metrics::{METRICS, MetricInfo, MetricKind};
pub use run::{RunError, run};
/// For commands that inspect a machine without a node.
pub use windlass_procs::HoldMode;
pub use worker_config::{WORKER_KEYS, WorkerConfigError, WorkerEntry, WorkerKey, WorkersConfig};
