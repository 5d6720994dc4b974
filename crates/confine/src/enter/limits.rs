//! Limits that a process carries itself.

use rustix::io::Errno;

use super::rights::check;
use super::{Failed, Step};
use crate::plan::{Resource, Rlimit};

#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    resource: u32,
    most: u64,
}

pub(super) fn of(limits: &[Rlimit]) -> Vec<Limit> {
    limits
        .iter()
        .map(|limit| Limit { resource: number(limit.resource), most: limit.most })
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

/// How eager the kernel is to end a session's process when the whole machine runs out of memory:
/// before the node and the keepers, which are at 0.
const OOM_SCORE: &[u8] = b"300";

/// Lowers each limit; one that is lower already stays.
pub(super) fn set(limits: &[Limit]) -> Result<(), Failed> {
    // Raising it is always allowed; where /proc is not there, nothing is lost.
    let _ = super::rights::write_file(c"/proc/self/oom_score_adj", OOM_SCORE);
    limits.iter().try_for_each(lower).map_err(Failed::at(Step::Limits))
}

fn lower(limit: &Limit) -> Result<(), Errno> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live value.
    check(unsafe { libc::getrlimit(limit.resource, &raw mut now) })?;
    let most = limit.most.min(now.rlim_max);
    let wanted = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the pointer is to a live value.
    check(unsafe { libc::setrlimit(limit.resource, &raw const wanted) })
}
