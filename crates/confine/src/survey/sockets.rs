//! Finds the unix sockets of this machine that a session could reach by a path. A read-only mount does not
//! prevent connecting to a socket, so the view covers them.
//!
//! The kernel's socket diagnostics (`sock_diag`) list only sockets that accept connections or datagrams: a
//! node with many sessions has many others. Where `sock_diag` is not available, `/proc/net/unix` lists all
//! sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::{DirectoryEntry, real};
use crate::plan::PathKind;

/// Maximum number of sockets that are covered one by one.
const SOCKETS_MAX: usize = 128;

/// Maximum number of other users' directories that are covered as a whole, for the sockets beyond
/// [`SOCKETS_MAX`].
const DIRECTORIES_MAX: usize = 32;

/// Maximum number of sockets whose files are examined. Another user can have any number of sockets.
const EXAMINED_MAX: usize = 1024;

/// Maximum number of sockets that are read from the kernel.
const LISTED_MAX: usize = 64 * 1024;

/// Directories that are private in a view: the machine's sockets below them are not visible.
const PRIVATE: [&str; 4] = ["/run", "/tmp", "/var/tmp", "/dev"];

/// Buffer size for one part of the kernel's reply; the kernel sends no larger parts.
const PART_BYTES: usize = 64 * 1024;

// Constants that the libc and rustix crates lack, from the kernel's `netlink.h`, `sock_diag.h`, `unix_diag.h`
// and `tcp_states.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER_BYTES: usize = 16;
const FACTS_BYTES: usize = 16;
const UDIAG_SHOW_NAME: u32 = 0x01;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
const AF_UNIX: u8 = 1;

/// Socket states to list: listening sockets (`TCP_LISTEN`) and unconnected datagram sockets (`TCP_CLOSE`).
/// Only the peer can send to a connected socket.
const REACHABLE: u32 = 1 << 10 | 1 << 7;

/// The files that a session will see.
#[derive(Debug)]
pub(super) struct VisibleFiles<'a> {
    /// Paths that are visible even inside a hidden or private directory. They contain no symlink.
    pub shown: &'a [&'a Path],
    /// Directories and sockets that the policy names: the session may reach these sockets and the sockets
    /// directly in these directories.
    pub named: &'a [&'a Path],
    /// Directories whose entries are bound into the view one by one.
    pub opened: &'a BTreeMap<PathBuf, BTreeMap<PathBuf, DirectoryEntry>>,
    pub hidden: &'a BTreeMap<PathBuf, PathKind>,
}

impl VisibleFiles<'_> {
    /// Whether the session could reach a socket at this path and the policy does not allow it. Paths are
    /// compared as bytes, which is faster: most sockets of a machine with many sessions lie below the node's
    /// directories.
    fn exposes(&self, path: &Path) -> bool {
        let is_private = || PRIVATE.iter().any(|own| is_below(path, Path::new(own)));
        let is_shown = || {
            let mut by_name = self.shown.iter().filter(|root| **root != Path::new("/"));
            by_name.any(|root| is_below(path, root))
        };
        let is_hidden = || self.hidden.keys().any(|hidden| is_below(path, hidden));
        let is_named = |named: &&Path| path == *named || path.parent() == Some(*named);
        if self.named.iter().any(is_named) {
            return false;
        }
        is_shown() || !is_private() && !is_hidden()
    }

    /// Whether a directory can be covered: no path that must stay visible lies in it or above it.
    fn can_cover(&self, directory: &Path) -> bool {
        let by_name = self.shown.iter().copied().filter(|root| *root != Path::new("/"));
        let mut shown = by_name.chain(self.opened.keys().map(PathBuf::as_path));
        !shown.any(|root| is_below(root, directory) || is_below(directory, root))
    }
}

fn is_below(path: &Path, root: &Path) -> bool {
    let rest = path.as_os_str().as_bytes().strip_prefix(root.as_os_str().as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// The sockets that a view covers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketCovers {
    /// Sockets of other programs that the session could reach, and directories full of such sockets.
    pub covered: Vec<PathBuf>,
    /// How many reachable sockets are not covered, because there are too many.
    pub uncovered: usize,
}

/// The path that a socket is bound to, and its owner where the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SocketName {
    path: PathBuf,
    uid: Option<u32>,
}

/// The machine's sockets that the session could reach.
pub(super) fn reachable(visible: &VisibleFiles<'_>) -> SocketCovers {
    let in_file = |_| Ok(in_table(&std::fs::read("/proc/net/unix")?).take(LISTED_MAX).collect());
    let named: std::io::Result<BTreeSet<SocketName>> = from_sock_diag().or_else(in_file);
    // If the list is incomplete or unavailable, there may be more sockets: report one more as uncovered.
    let unlisted = usize::from(named.as_ref().map_or(true, |named| named.len() >= LISTED_MAX));
    let named = named.unwrap_or_default();
    let mut found = choose(named, visible, rustix::process::geteuid().as_raw());
    found.uncovered += unlisted;
    found
}

fn choose(named: BTreeSet<SocketName>, visible: &VisibleFiles<'_>, me: u32) -> SocketCovers {
    let mut named: Vec<SocketName> =
        named.into_iter().filter(|socket| visible.exposes(&socket.path)).collect();
    // Sockets of other ordinary users come last: such a user can have any number of them, and they must not
    // use up the limit.
    named.sort_by_key(|socket| !socket.uid.is_none_or(|uid| uid == me || uid == 0));
    let (examined, rest) = named.split_at(named.len().min(EXAMINED_MAX));
    let real = examined.iter().filter_map(|socket| socket_at(&socket.path));
    let real = real.filter(|path| visible.exposes(path));
    // Socket paths that are not UTF-8 are not covered one by one.
    let (real, odd): (Vec<PathBuf>, Vec<PathBuf>) = real.partition(|path| path.to_str().is_some());
    let (one_by_one, more) = real.split_at(real.len().min(SOCKETS_MAX));
    let mut directories = BTreeSet::new();
    for above in more.iter().chain(&odd).filter_map(|path| path.parent()) {
        if above.to_str().is_some()
            && directories.len() < DIRECTORIES_MAX
            && !directories.contains(above)
            && is_of_others(above, me)
            && visible.can_cover(above)
        {
            directories.insert(above.to_owned());
        }
    }
    let rest = more.iter().chain(&odd).chain(rest.iter().map(|socket| &socket.path));
    let is_uncovered =
        |path: &&PathBuf| !directories.iter().any(|directory| is_below(path, directory));
    let uncovered = rest.filter(is_uncovered).count();
    let covered: BTreeSet<PathBuf> = one_by_one.iter().cloned().chain(directories).collect();
    SocketCovers { covered: covered.into_iter().collect(), uncovered }
}

/// The real path of the socket that is bound to a path. The path may have got another file since: then
/// nothing.
fn socket_at(name: &Path) -> Option<PathBuf> {
    let path = real(name)?;
    path.symlink_metadata().ok()?.file_type().is_socket().then_some(path)
}

/// Whether the directory belongs to another user who is not root: sessions do not need such a directory.
fn is_of_others(directory: &Path, me: u32) -> bool {
    directory.symlink_metadata().is_ok_and(|it| it.is_dir() && it.uid() != me && it.uid() != 0)
}

/// The sockets that `sock_diag` lists. The kernel replies without delay.
fn from_sock_diag() -> Result<BTreeSet<SocketName>, Errno> {
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    send(&kernel, &dump_request(), SendFlags::empty())?;
    let mut part = vec![0; PART_BYTES];
    let mut found = BTreeSet::new();
    loop {
        let (_, bytes) = recv(&kernel, &mut part[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
        // A longer message was cut off.
        let part = part.get(..bytes).ok_or(Errno::MSGSIZE)?;
        if parse_part(part, &mut found)? == SocketDumpPart::Last || found.len() >= LISTED_MAX {
            return Ok(found);
        }
    }
}

fn dump_request() -> Vec<u8> {
    let mut query = vec![AF_UNIX, 0, 0, 0];
    // States, inode (any), what to show, cookie (any).
    for word in [REACHABLE, 0, UDIAG_SHOW_NAME | UDIAG_SHOW_UID, u32::MAX, u32::MAX] {
        query.extend(word.to_ne_bytes());
    }
    let bytes = u32::try_from(HEADER_BYTES + query.len()).expect("a request has a few bytes");
    let mut message = bytes.to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    // Sequence number and sender: there is one request, and the kernel knows its sender.
    message.extend([0; 8]);
    message.extend(query);
    message
}

#[derive(Debug, PartialEq, Eq)]
enum SocketDumpPart {
    More,
    Last,
}

/// Parses one part of the reply: messages, each with attributes.
fn parse_part(mut part: &[u8], found: &mut BTreeSet<SocketName>) -> Result<SocketDumpPart, Errno> {
    while let Some(bytes) = u32_at(part, 0) {
        let (message, rest) = cut(part, bytes)?;
        match u16_at(message, 4) {
            Some(NLMSG_DONE) => return Ok(SocketDumpPart::Last),
            Some(NLMSG_ERROR) => return Err(Errno::OPNOTSUPP),
            _ => {}
        }
        let (mut path, mut uid) = (None, None);
        let mut attributes = message.get(HEADER_BYTES + FACTS_BYTES..).unwrap_or_default();
        while let Some(bytes) = u16_at(attributes, 0) {
            let (attribute, rest) = cut(attributes, bytes.into())?;
            match u16_at(attribute, 2) {
                Some(UNIX_DIAG_NAME) => path = bound_path(&attribute[4..]),
                Some(UNIX_DIAG_UID) => uid = u32_at(attribute, 4),
                _ => {}
            }
            attributes = rest;
        }
        found.extend(path.map(|path| SocketName { path, uid }));
        part = rest;
    }
    Ok(SocketDumpPart::More)
}

/// Splits off the first item of `bytes` length. Each item is padded to a multiple of four bytes.
fn cut(items: &[u8], bytes: u32) -> Result<(&[u8], &[u8]), Errno> {
    let bytes = bytes as usize;
    let item = items.get(..bytes).filter(|_| bytes >= 4).ok_or(Errno::BADMSG)?;
    Ok((item, items.get(bytes.next_multiple_of(4)..).unwrap_or_default()))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_ne_bytes(*word))
}

/// The path of a socket name; an abstract name begins with a NUL byte and has none.
fn bound_path(name: &[u8]) -> Option<PathBuf> {
    let path = name.split(|byte| *byte == 0).next()?;
    path.starts_with(b"/").then(|| Path::new(OsStr::from_bytes(path)).to_owned())
}

/// The bound paths in `/proc/net/unix`; abstract names start with `@`. A path can contain a line break: such
/// a path is not found. Its second line may look like another path, which counts only if a socket exists
/// there.
fn in_table(table: &[u8]) -> impl Iterator<Item = SocketName> + '_ {
    table.split(|byte| *byte == b'\n').skip(1).filter_map(|line| {
        let at = line.windows(2).position(|pair| pair == b" /")?;
        Some(SocketName { path: PathBuf::from(OsStr::from_bytes(&line[at + 1..])), uid: None })
    })
}

#[cfg(test)]
mod tests;
