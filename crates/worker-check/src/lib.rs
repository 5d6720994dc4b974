//! The conformance suite of the worker protocol: starts any worker program, plays the keeper's half of
//! `docs/protocol.md`, and reports for each case whether the worker keeps the protocol.
//!
//! - [`suite`] runs the cases, each with a worker process of its own.
//! - [`snippets`] is the code that the cases send, per language.
//! - [`report`] is the result, as data; [`page`] renders it as text.
//!
//! This crate never prints and never needs a node. It makes the calling process a subreaper, so that every
//! process that a worker has started can be found and ended.

pub mod page;
pub mod report;
pub mod snippets;
pub mod suite;

mod cases;
mod driver;
mod failure;
mod observed_turn;
mod processes;
mod progress;
mod transcript;
mod wires;

pub use report::{CaseReport, CaseVerdict, CheckReport};
pub use snippets::SnippetSet;
pub use suite::{CheckError, CheckPlan, check};
