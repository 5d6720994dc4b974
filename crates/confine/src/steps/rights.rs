//! Landlock's rights over files, sockets and signals, with the Landlock version that added each.

pub const EXECUTE: u64 = 1 << 0;
pub const WRITE_FILE: u64 = 1 << 1;
pub const READ_FILE: u64 = 1 << 2;
pub const READ_DIR: u64 = 1 << 3;
/// Creating and removing directories, files, devices, sockets, pipes and symlinks: bits 4 to 12.
pub const CHANGE_TREE: u64 = 0b1_1111_1111 << 4;
/// Creating unix sockets with a path; part of [`CHANGE_TREE`].
pub const MAKE_SOCKET: u64 = 1 << 9;
/// Version 2: renaming and hard-linking between directories.
pub const REFER: u64 = 1 << 13;
/// Version 3.
pub const TRUNCATE: u64 = 1 << 14;
/// Version 5: `ioctl` on devices.
pub const IOCTL_DEV: u64 = 1 << 15;
/// Version 9: connecting or sending to a unix socket with a path, if a process outside the ruleset's domain
/// made it.
pub const RESOLVE_UNIX: u64 = 1 << 16;

/// Version 4: TCP.
pub const BIND_TCP: u64 = 1 << 0;
pub const CONNECT_TCP: u64 = 1 << 1;

/// Version 6: abstract unix sockets and signals of processes outside the ruleset's domain.
pub const SCOPE_ABSTRACT_UNIX: u64 = 1 << 0;
pub const SCOPE_SIGNAL: u64 = 1 << 1;

pub const READ: u64 = EXECUTE | READ_FILE | READ_DIR;
pub const CHANGE: u64 = WRITE_FILE | CHANGE_TREE | REFER | TRUNCATE;
/// The rights that apply to files other than directories.
pub const OF_FILE: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
