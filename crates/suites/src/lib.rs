//! Test suites that run a real node from outside, as its clients, neighbours and attackers do. `cargo xtask` has a
//! command for each of them. Nothing that ships depends on this crate.
//!
//! [`agents`], [`attack`], [`chaos`], [`conformance`] and [`soak`] are the suites. [`machine`], [`packages`], [`start`]
//! and [`workspace`] are what suites and measurements share: counters of the machine, packages of other people, nodes
//! to measure, and the files of this workspace.

pub mod agents;
pub mod attack;
pub mod chaos;
pub mod conformance;
pub mod machine;
pub mod packages;
pub mod soak;
pub mod start;
pub mod workspace;

mod verdict;

pub use verdict::Verdict;
