//! The private `/dev` of a view: harmless devices, terminals and shared memory.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::calls::{
    MountFlags, attach, clone_tree, make_fs, make_tmpfs, set_flags, source, target,
};

/// Harmless devices: the name in `/dev`, and the path on the machine.
const NODES: [(&CStr, &CStr); 6] = [
    (c"null", c"/dev/null"),
    (c"zero", c"/dev/zero"),
    (c"full", c"/dev/full"),
    (c"random", c"/dev/random"),
    (c"urandom", c"/dev/urandom"),
    (c"tty", c"/dev/tty"),
];

const LINKS: [(&CStr, &CStr); 5] = [
    (c"fd", c"/proc/self/fd"),
    (c"stdin", c"/proc/self/fd/0"),
    (c"stdout", c"/proc/self/fd/1"),
    (c"stderr", c"/proc/self/fd/2"),
    (c"ptmx", c"pts/ptmx"),
];

pub(super) fn make(root: BorrowedFd<'_>, shm_size: &CStr) -> Result<(), Errno> {
    let dev = make_tmpfs(c"65536", c"755")?;
    attach(dev.as_fd(), target(root, c"dev")?.as_fd())?;
    for (name, device) in NODES {
        let from = match source(device) {
            Err(Errno::NOENT) => continue,
            other => other?,
        };
        let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&dev, name, create, Mode::from(0o666))?;
        let tree = clone_tree(from.as_fd())?;
        attach(tree.as_fd(), target(dev.as_fd(), name)?.as_fd())?;
    }
    for (name, to) in LINKS {
        rustix::fs::symlinkat(to, &dev, name)?;
    }
    rustix::fs::mkdirat(&dev, c"shm", Mode::from(0o777))?;
    let shm = make_tmpfs(shm_size, c"1777")?;
    attach(shm.as_fd(), target(dev.as_fd(), c"shm")?.as_fd())?;
    rustix::fs::mkdirat(&dev, c"pts", Mode::from(0o755))?;
    let options = [(c"ptmxmode", c"666"), (c"mode", c"620")];
    // No `nodev` here: terminals are devices and must work.
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let terminals = make_fs(c"devpts", &options, attributes)?;
    attach(terminals.as_fd(), target(dev.as_fd(), c"pts")?.as_fd())?;
    set_flags(dev.as_fd(), MountFlags::READ_ONLY)
}
