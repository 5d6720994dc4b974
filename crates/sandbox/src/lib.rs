//! Confines: what stands between a session's processes and the rest of the machine.
//!
//! Today it holds them together: [`hold`] makes the calling process the owner of everything that
//! will be started below it, so that nothing outlives a session. The one crate that may use
//! `unsafe`, since forking has no safe form.

pub mod hold;

mod cgroup;
mod guard;
mod namespace;
mod tree;

pub use hold::{Held, HoldError, Wanted};
pub use tree::{Reaped, reap_all};
