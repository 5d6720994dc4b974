//! The kernel's mount calls, by descriptor.

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

/// What a mount and all below it get.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes {
    set: u64,
    below: bool,
}

impl Attributes {
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

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

pub(super) fn set_attributes(mount: BorrowedFd<'_>, attributes: Attributes) -> Result<(), Errno> {
    let wanted = MountAttr { set: attributes.set, clear: 0, propagation: 0, user_namespace: 0 };
    const RECURSIVE: libc::c_int = 0x8000;
    let flags = libc::AT_EMPTY_PATH | if attributes.below { RECURSIVE } else { 0 };
    // SAFETY: the pointers are to a constant and to a live value of the given size.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const wanted,
            size_of::<MountAttr>(),
        )
    })
}

/// Nothing that is mounted here from now on shows outside, or the other way round.
pub(super) fn separate() -> Result<(), Errno> {
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
}

/// A path of the machine, with no link on the way.
pub(in crate::enter) fn source(path: &CStr) -> Result<OwnedFd, Errno> {
    open(CWD, path, OFlags::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS)
}

/// A path of the view, with no link on the way and no way out.
pub(super) fn target(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    open(root, path, OFlags::empty(), IN_VIEW)
}

/// The same, where the last name may be a link: then it is the link that is opened.
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
    /// The kernel asks again where a rename elsewhere made it unsure.
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

/// A copy of the mount at a descriptor, with all below it.
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

/// Puts a mask, or a read-only copy of itself, over a place.
pub(super) fn cover(with: BorrowedFd<'_>, at: BorrowedFd<'_>) -> Result<(), Errno> {
    let copy = clone_with(with, OpenTreeFlags::empty())?;
    set_attributes(copy.as_fd(), Attributes::MASK)?;
    attach(copy.as_fd(), at)
}

pub(super) fn make_tmpfs(size: &CStr, mode: &CStr) -> Result<OwnedFd, Errno> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    make_fs(c"tmpfs", &[(c"size", size), (c"mode", mode)], attributes)
}

/// A new file system, mounted nowhere yet.
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

/// Makes the view the root of this process and of all in its mount namespace; the old root goes.
pub(super) fn pivot(root: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)?;
    rustix::process::chdir(c"/")
}
