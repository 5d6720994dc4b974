//! Resource limits of the calling process (`setrlimit`).

use rustix::io::Errno;

use super::rights::check;
use super::{ConfineStep, StepError};
use crate::plan::{Resource, Rlimit};

#[derive(Debug, Clone, Copy)]
pub(super) struct RlimitSetting {
    resource: u32,
    most: u64,
}

pub(super) fn of(limits: &[Rlimit]) -> Vec<RlimitSetting> {
    limits
        .iter()
        .map(|limit| RlimitSetting { resource: number(limit.resource), most: limit.most })
        .collect()
}

fn number(resource: Resource) -> u32 {
    match resource {
        Resource::Data => libc::RLIMIT_DATA,
        Resource::Processes => libc::RLIMIT_NPROC,
        Resource::OpenFiles => libc::RLIMIT_NOFILE,
        Resource::FileSize => libc::RLIMIT_FSIZE,
        Resource::CoreDump => libc::RLIMIT_CORE,
    }
}

/// The OOM score of a session's processes. When the machine runs out of memory, the kernel ends them before
/// the node and the keepers, which have 0.
const OOM_SCORE: &[u8] = b"300";

/// Lowers each limit; a limit that is already lower stays as it is.
pub(super) fn set(limits: &[RlimitSetting]) -> Result<(), StepError> {
    // Raising the score is always allowed. Without /proc the default score stays, which is harmless.
    let _ = super::rights::write_file(c"/proc/self/oom_score_adj", OOM_SCORE);
    limits.iter().try_for_each(lower).map_err(StepError::at(ConfineStep::Limits))
}

fn lower(limit: &RlimitSetting) -> Result<(), Errno> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live value.
    check(unsafe { libc::getrlimit(limit.resource, &raw mut now) })?;
    let most = limit.most.min(now.rlim_max);
    let wanted = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the pointer is to a live value.
    check(unsafe { libc::setrlimit(limit.resource, &raw const wanted) })
}
