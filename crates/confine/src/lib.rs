//! Confines the processes of a session: limits which files, sockets, processes and system calls they can
//! reach.
//!
//! How it works:
//!
//! 1. A policy ([`windlass_protocol::policy`]) says what a session may touch.
//! 2. [`MachineSupport`] says what this machine can enforce. [`survey()`] reads the state of the files that
//!    the policy names.
//! 3. [`plan()`] turns these three into a [`Plan`]: the steps that confine a process, and how each control is
//!    enforced. Planning touches no file and starts no process.
//! 4. [`enter`] performs the steps in a forked child and then runs the canaries.
//! 5. [`spawn()`] forks, enters the plan and runs a program. [`from_zygote`] does the same for a process that
//!    is already an interpreter.
//!
//! The crate `procs` owns the process tree around a confined process. This crate is also built as a shared
//! object, so that an interpreter can confine itself (`ffi`).
//!
//! `unsafe` is allowed here because forking has no safe form. After a fork, only system calls are safe.

pub mod enter;
pub mod machine;
pub mod plan;
pub mod spawn;
pub mod steps;
pub mod survey;
pub mod zygote_side;

mod ffi;
mod ffi_pages;
mod ffi_twins;
mod file_fingerprint;
mod mount_table;
mod other_threads;
mod rehearsal;
mod seccomp;

pub use machine::{MachineSupport, Support};
pub use plan::{Plan, PlanError, plan};
pub use spawn::zygote::{Job, UnassignedWorker, WorkerShape, WorkerStdio, from_zygote};
pub use spawn::{SpawnCommand, SpawnError, StartedProcess, spawn};
pub use survey::names::{Placeholder, ProtectedEntry, ProtectedNames};
pub use survey::shared::{SharedSurvey, SurveyCache};
pub use survey::{Depth, FileSurvey, SurveyInput, Unreadable, names_at, survey, survey_with};
