//! Owns process trees: starts, tracks, limits and kills them.
//!
//! - [`hold`] makes the calling process the owner of everything that is started below it, so that no process
//!   outlives its session.
//! - [`cgroup`] counts and limits what all processes of a session use together.
//! - [`nursery`] forks keepers and zygotes without running another program.
//! - [`twin`] forks keepers for twins and finds the processes of one session of a family.
//! - [`memory`] and [`pages`] reduce the pages that a forked process has to copy.
//! - [`sched_slice`] sets scheduler slices.
//! - [`signal`] sets what SIGINT does.
//! - [`inherited`] takes ownership of descriptors that a parent process passed on.
//! - [`process_file`] and [`fd_tables`] read facts about processes and threads.
//!
//! This crate knows no policy: the crate `confine` decides what a process may touch.
//!
//! `unsafe` is allowed here because forking has no safe form, and after a fork only system calls are safe.

pub mod cgroup;
pub mod fd_tables;
pub mod hold;
pub mod inherited;
pub mod memory;
pub mod nursery;
pub mod pages;
pub mod process_file;
pub mod sched_slice;
pub mod signal;
pub mod twin;

mod guard;
mod namespace;
pub mod tree;

pub use hold::{HeldTree, HoldError, HoldMode};
pub use tree::{INIT_NAME, Reaped, exit_code_of, reap_all};
