//! The kernel's mount system calls. All of them work on descriptors.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    mount_change, move_mount, open_tree, unmount,
};

use super::super::rights::check;

/// Flags to set on a mount.
#[derive(Debug, Clone, Copy)]
pub(super) struct MountFlags {
    set: u64,
    /// Also set them on all mounts below.
    below: bool,
}

impl MountFlags {
    const RDONLY: u64 = 1;
    const NOSUID: u64 = 2;
    const NODEV: u64 = 4;

    pub const READ_ONLY: Self = Self { set: Self::RDONLY | Self::NOSUID, below: false };
    pub const NO_SUID: Self = Self { set: Self::NOSUID, below: false };
    pub const MASK: Self = Self { set: Self::RDONLY | Self::NOSUID | Self::NODEV, below: false };

    pub fn with_all_below(self) -> Self {
        Self { below: true, ..self }
    }
}

/// The kernel's `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Applies `mount_setattr` also to all mounts below.
const RECURSIVE: libc::c_int = 0x8000;

pub(super) fn set_flags(mount: BorrowedFd<'_>, mount_flags: MountFlags) -> Result<(), Errno> {
    let wanted = MountAttr { set: mount_flags.set, clear: 0, propagation: 0, user_namespace: 0 };
    set_attributes(mount, if mount_flags.below { RECURSIVE } else { 0 }, &wanted)
}

/// Makes this mount, which is not attached yet, and all mounts below it id-mapped by a user namespace. Fails with
/// EINVAL if one of the file systems has no id-mapped mounts.
pub(super) fn map_owner(
    mount: BorrowedFd<'_>,
    user_namespace: BorrowedFd<'_>,
) -> Result<(), Errno> {
    const ID_MAPPED: u64 = 0x10_0000;
    let namespace = u64::try_from(user_namespace.as_raw_fd()).map_err(|_| Errno::BADF)?;
    let wanted = MountAttr { set: ID_MAPPED, clear: 0, propagation: 0, user_namespace: namespace };
    set_attributes(mount, RECURSIVE, &wanted)
}

fn set_attributes(
    mount: BorrowedFd<'_>,
    flags: libc::c_int,
    wanted: &MountAttr,
) -> Result<(), Errno> {
    // SAFETY: the pointers are to a constant and to a live value of the given size.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            std::ptr::from_ref(wanted),
            size_of::<MountAttr>(),
        )
    })
}

/// Stops mount propagation: mounts in this namespace do not appear outside, and outside mounts do not appear
/// here.
pub(super) fn stop_propagation() -> Result<(), Errno> {
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
}

/// Opens a path of the machine. Fails if the path contains a symlink.
pub(in crate::enter) fn source(path: &CStr) -> Result<OwnedFd, Errno> {
    open(CWD, path, OFlags::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS)
}

/// Opens a path of the view. Fails if the path contains a symlink or leaves the view.
pub(super) fn target(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    open(root, path, OFlags::empty(), IN_VIEW)
}

/// The same, but the last component may be a symlink; then it opens the symlink itself.
pub(super) fn target_or_link(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    open(root, path, OFlags::NOFOLLOW, IN_VIEW)
}

const IN_VIEW: ResolveFlags =
    ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::BENEATH);

fn open(
    from: BorrowedFd<'_>,
    path: &CStr,
    more: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    /// `openat2` returns EAGAIN if a concurrent rename could have moved the path.
    const ATTEMPTS: usize = 16;
    let mut answer = Err(Errno::AGAIN);
    for _ in 0..ATTEMPTS {
        let flags = OFlags::PATH | OFlags::CLOEXEC | more;
        answer = rustix::fs::openat2(from, path, flags, Mode::empty(), resolve);
        if !matches!(answer, Err(Errno::AGAIN)) {
            break;
        }
    }
    answer
}

/// Copies the mount at a descriptor and all mounts below it.
pub(super) fn clone_tree(of: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    clone_with(of, OpenTreeFlags::AT_RECURSIVE)
}

fn clone_with(of: BorrowedFd<'_>, more: OpenTreeFlags) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(of, c"", flags | more)
}

pub(super) fn attach(tree: BorrowedFd<'_>, at: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, c"", at, c"", flags)
}

/// Mounts a read-only copy of `with` at `at`: a mask, or `at` itself.
pub(super) fn cover(with: BorrowedFd<'_>, at: BorrowedFd<'_>) -> Result<(), Errno> {
    let copy = clone_with(with, OpenTreeFlags::empty())?;
    set_flags(copy.as_fd(), MountFlags::MASK)?;
    attach(copy.as_fd(), at)
}

pub(super) fn make_tmpfs(size: &CStr, mode: &CStr) -> Result<OwnedFd, Errno> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    make_fs(c"tmpfs", &[(c"size", size), (c"mode", mode)], attributes)
}

/// Makes a new file system that is not mounted yet.
pub(super) fn make_fs(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        fsconfig_set_string(context.as_fd(), *name, *value)?;
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Makes the view the root of this mount namespace and unmounts the old root.
pub(super) fn pivot(root: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)?;
    rustix::process::chdir(c"/")
}
