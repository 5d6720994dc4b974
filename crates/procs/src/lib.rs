//! Owns process trees. [`hold`] makes the calling process the owner of everything that is started below it, so
//! that nothing outlives a session. [`cgroup`] counts and limits what a session's processes use together.
//! [`nursery`] forks processes that go on as something else, and [`twin`] knows the processes of one session
//! among those of a family. [`memory`] and [`pages`] say what a forked process shares and what it pre-faults.
//!
//! This crate knows no policy: what a process may touch is the crate `confine`.
//!
//! `unsafe` is allowed here because forking has no safe form, and after a fork only system calls are safe.

pub mod cgroup;
pub mod hold;
pub mod memory;
pub mod nursery;
pub mod pace;
pub mod pages;
pub mod process_file;
pub mod tables;
pub mod twin;

mod guard;
mod namespace;
mod tree;

pub use hold::{Held, HoldError, Wanted};
pub use tree::{INIT_NAME, Reaped, reap_all};
