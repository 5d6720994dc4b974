//! Rights over files, sockets and signals, as Landlock numbers them, with the Landlock version that added each.

pub const EXECUTE: u64 = 1 << 0;
pub const WRITE_FILE: u64 = 1 << 1;
pub const READ_FILE: u64 = 1 << 2;
pub const READ_DIR: u64 = 1 << 3;
/// Removing and making directories, files, devices, sockets, pipes and links: bits 4 to 12.
pub const CHANGE_TREE: u64 = 0b1_1111_1111 << 4;
/// One of these: making unix sockets with a path.
pub const MAKE_SOCKET: u64 = 1 << 9;
/// Version 2: renaming and linking between directories.
pub const REFER: u64 = 1 << 13;
/// Version 3.
pub const TRUNCATE: u64 = 1 << 14;
/// Version 5: asking devices for more than reading and writing.
pub const IOCTL_DEV: u64 = 1 << 15;
/// Version 9: connecting or sending to a unix socket with a path that a process outside of the
/// ruleset has made.
pub const RESOLVE_UNIX: u64 = 1 << 16;

/// Version 4: TCP.
pub const BIND_TCP: u64 = 1 << 0;
pub const CONNECT_TCP: u64 = 1 << 1;

/// Version 6: what lies outside of the ruleset's own processes.
pub const SCOPE_ABSTRACT_UNIX: u64 = 1 << 0;
pub const SCOPE_SIGNAL: u64 = 1 << 1;

pub const READ: u64 = EXECUTE | READ_FILE | READ_DIR;
pub const CHANGE: u64 = WRITE_FILE | CHANGE_TREE | REFER | TRUNCATE;
/// What makes sense on a file that is no directory.
pub const OF_FILE: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
