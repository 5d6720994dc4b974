//! The `/proc` of a view. It shows the session's pid namespace. Files that concern the whole machine are
//! read-only or covered: if the node runs as root, file modes do not protect them from the session.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::calls::{attach, cover, make_fs, target};

/// Kernel settings, which a session can read and not change.
const READ_ONLY: [&CStr; 5] =
    [c"proc/sys", c"proc/sysrq-trigger", c"proc/irq", c"proc/bus", c"proc/fs"];

/// Files that show the machine's memory, keys, timers, log and kernel addresses.
const HIDDEN: [&CStr; 13] = [
    c"proc/kcore",
    c"proc/keys",
    c"proc/key-users",
    c"proc/timer_list",
    c"proc/kmsg",
    c"proc/sched_debug",
    c"proc/latency_stats",
    c"proc/kallsyms",
    c"proc/kpagecount",
    c"proc/kpageflags",
    c"proc/kpagecgroup",
    c"proc/scsi",
    c"proc/acpi",
];

pub(super) fn make(
    root: BorrowedFd<'_>,
    file_mask: BorrowedFd<'_>,
    directory_mask: BorrowedFd<'_>,
) -> Result<(), Errno> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let proc = make_fs(c"proc", &[], attributes)?;
    attach(proc.as_fd(), target(root, c"proc")?.as_fd())?;
    for path in READ_ONLY {
        match target(root, path) {
            Err(Errno::NOENT) => {}
            found => {
                let found = found?;
                cover(found.as_fd(), found.as_fd())?;
            }
        }
    }
    for path in HIDDEN {
        let found = match target(root, path) {
            Err(Errno::NOENT) => continue,
            found => found?,
        };
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
        let mask = if kind == FileType::Directory { directory_mask } else { file_mask };
        cover(mask, found.as_fd())?;
    }
    Ok(())
}
