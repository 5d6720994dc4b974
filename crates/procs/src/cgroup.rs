//! Control groups: what the kernel counts and limits for a session's processes together. Finds out
//! what the machine allows (`support`), makes and removes a session's directories (`session`),
//! reads them (`gauge`) and says what they enforce (`report`). `joining` moves a process into them.

mod gauge;
pub mod joining;
mod kill;
mod report;
mod session;
mod support;

pub use gauge::Gauge;
pub(crate) use kill::Cgroup;
pub use report::controls;
pub use session::{Cgroups, dirs_by_name, name_of, prefix_of, remove_by_name, sweep};
pub use support::{CgroupSupport, Controller, Place};
