//! The node: performs what the lifecycle decides, keeps the journal, and serves the HTTP door. May
//! be killed or replaced at any moment; what must not be lost is in the journal or with a keeper.
//!
//! One thread serves everything. Each session has one owner task (`session::actor`), each
//! connection one task (`http::server`); what touches the disk for long goes to other threads.

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod bounds;
mod cgroups;
mod clock;
mod config;
mod context;
mod directory;
mod disk;
pub mod failure;
pub mod http;
mod instance;
mod keepers;
pub mod log;
mod metrics;
mod nursery;
mod passing;
mod pieces;
mod placeholders;
mod provision;
mod run;
mod session;
mod session_dirs;
mod trust;
mod workers;

/// What a door that is written elsewhere is made of.
pub use axum::Router;
pub use config::{Config, EnvironmentsConfig, Listen, Reach, StartBy};
pub use instance::ClaimError;
pub use run::{RunError, run};
/// For commands that look at a machine without a node.
pub use windlass_procs::Wanted;
