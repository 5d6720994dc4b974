//! Control groups (cgroups): the kernel counts and limits what all processes of a session use together.
//!
//! | module | task |
//! |---|---|
//! | `support` | finds out which cgroups this machine allows |
//! | `session` | makes and removes a session's cgroup directories |
//! | `joining` | moves a process into the cgroups |
//! | `gauge` | reads usage and limits, for the keeper |
//! | `usage` | reads memory and CPU time, for the node |
//! | `report` | says which limits are enforced |
//! | `kill` | a cgroup that only serves to kill a process tree at once |

mod gauge;
pub mod joining;
mod kill;
mod report;
mod session;
mod support;
mod usage;

pub use gauge::Gauge;
pub(crate) use kill::KillCgroup;
pub use report::controls;
pub use session::{Cgroups, dirs_by_name, prefix_of, remove_by_name, sweep};
pub use support::{CgroupSupport, Controller, V1Hierarchy};
pub use usage::CgroupUsage;
