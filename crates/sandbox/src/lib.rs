//! Confines: what stands between a session's processes and the rest of the machine.
//!
//! Theory of operation. A policy ([`windlass_protocol::policy`]) says what a session may touch.
//! [`Machine`] says what can be enforced here and [`survey()`] what the files around the session are
//! like; from the three [`plan()`] decides, touching nothing, by which steps a process will be
//! confined and what each control amounts to. [`enter`] performs the steps in a forked child, and
//! tries what is forbidden; [`spawn()`] is the fork, the steps and the program in one, and
//! [`from_zygote`] the same for a process that is an interpreter already.
//!
//! Apart from that, [`hold`] makes the calling process the owner of everything that will be started
//! below it, so that nothing outlives a session, and [`cgroup`] counts and limits what a session's
//! processes use together. [`nursery`] forks processes that go on as something else. [`beneath`] is how
//! node and keeper touch files that a session can write.
//!
//! The one crate that may use `unsafe`: forking has no safe form, and after a fork only system calls
//! are safe.

pub mod beneath;
pub mod cgroup;
pub mod enter;
pub mod hold;
pub mod machine;
pub mod memory;
pub mod nursery;
pub mod pace;
pub mod plan;
pub mod process_file;
pub mod spawn;
pub mod survey;
pub mod tables;
pub mod twin;

mod ffi;
mod ffi_apart;
mod ffi_pages;
mod guard;
mod mounted;
mod namespace;
mod other_threads;
mod pages;
mod rehearsal;
mod seccomp;
mod tree;
mod which;

pub use hold::{Held, HoldError, Wanted};
pub use machine::{Machine, Support};
pub use plan::{Plan, PlanError, plan};
pub use spawn::zygote::{Ends, Job, Shape, Waiting, from_zygote};
pub use spawn::{Command, SpawnError, Started, spawn};
pub use survey::around::{Around, Kept};
pub use survey::names::{Names, Placeholder, Protected};
pub use survey::{Depth, Place, Site, Unreadable, names_at, survey, survey_with};
pub use tree::{Reaped, reap_all};
