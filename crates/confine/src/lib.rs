//! Confines: what stands between a session's processes and the rest of the machine.
//!
//! Theory of operation. A policy ([`windlass_protocol::policy`]) says what a session may touch.
//! [`Machine`] says what can be enforced here and [`survey()`] what the files around the session are
//! like; from the three [`plan()`] decides, touching nothing, by which steps a process will be
//! confined and what each control amounts to. [`enter`] performs the steps in a forked child, and
//! tries what is forbidden; [`spawn()`] is the fork, the steps and the program in one, and
//! [`from_zygote`] the same for a process that is an interpreter already.
//!
//! The process tree around a confined process is the crate `procs`. This crate is also built as a shared
//! object, with which an interpreter confines itself (`ffi`).
//!
//! `unsafe` is allowed here because forking has no safe form, and after a fork only system calls are safe.

pub mod enter;
pub mod machine;
pub mod plan;
pub mod spawn;
pub mod steps;
pub mod survey;

mod ffi;
mod ffi_apart;
mod ffi_pages;
mod mounted;
mod other_threads;
mod rehearsal;
mod seccomp;
mod which;

pub use machine::{Machine, Support};
pub use plan::{Plan, PlanError, plan};
pub use spawn::zygote::{Ends, Job, Shape, Waiting, from_zygote};
pub use spawn::{Command, SpawnError, Started, spawn};
pub use survey::around::{Around, Kept};
pub use survey::names::{Names, Placeholder, Protected};
pub use survey::{Depth, Place, Site, Unreadable, names_at, survey, survey_with};
