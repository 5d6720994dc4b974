//! Test suites that run a real node from outside, as its clients, neighbours and attackers do. `cargo xtask`
//! has a command for each of them. Nothing that ships depends on this crate.
//!
//! The suites are [`agents`], [`attack`], [`chaos`], [`conformance`], [`docs`], [`fleet`] and [`soak`]. The suites and the
//! measurements of `cargo xtask bench` share four modules:
//!
//! - [`machine`] reads counters of the machine;
//! - [`packages`] installs third-party packages;
//! - [`start`] starts a node to measure;
//! - [`workspace`] finds the files and packages of this workspace.

pub mod agents;
pub mod attack;
pub mod chaos;
pub mod conformance;
pub mod docs;
pub mod fleet;
pub mod machine;
pub mod packages;
pub mod soak;
pub mod start;
pub mod workspace;

mod verdict;

pub use verdict::RunVerdict;
