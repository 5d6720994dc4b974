//! A `/proc` of the session's own pid namespace. What in it speaks of the whole machine is made
//! read-only, or covered: for user 0 of a node that runs as root, file modes protect nothing.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::calls::{attach, cover, make_fs, target};

/// Knobs of the kernel.
const READ_ONLY: [&CStr; 5] =
    [c"proc/sys", c"proc/sysrq-trigger", c"proc/irq", c"proc/bus", c"proc/fs"];

/// The machine's memory, keys, timers, log and addresses.
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
            place => {
                let place = place?;
                cover(place.as_fd(), place.as_fd())?;
            }
        }
    }
    for path in HIDDEN {
        let place = match target(root, path) {
            Err(Errno::NOENT) => continue,
            place => place?,
        };
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode);
        let mask = if kind == FileType::Directory { directory_mask } else { file_mask };
        cover(mask, place.as_fd())?;
    }
    Ok(())
}
