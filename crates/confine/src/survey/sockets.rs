//! Sockets of this machine that a program could reach by a path. A read-only view does not keep anyone
//! from connecting to one.
//!
//! The kernel is asked for those alone that can be reached, since a node with many sessions has many
//! sockets that cannot. Where it does not answer, its table of all sockets tells.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::{Entry, real};
use crate::plan::Kind;

/// Sockets that are covered one by one.
const SOCKETS_MAX: usize = 128;

/// Directories of other users that are covered as a whole, for the sockets in them that are more.
const DIRECTORIES_MAX: usize = 32;

/// Sockets whose files are looked at. Another user can have any number.
const LOOKED_AT_MAX: usize = 1024;

/// Sockets that the kernel's answer is read for.
const HEARD_MAX: usize = 64 * 1024;

/// Places that a session has for itself.
const OWN: [&str; 4] = ["/run", "/tmp", "/var/tmp", "/dev"];

/// Bytes of the kernel's answer at once; it sends no larger parts.
const PART_BYTES: usize = 64 * 1024;

// What is not in the crates that we use, from the kernel's `netlink.h`, `sock_diag.h`, `unix_diag.h`
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

/// Those that listen, and those for datagrams that nobody is connected to (`TCP_LISTEN`, `TCP_CLOSE`).
/// To one that is connected only its peer can send.
const REACHABLE: u32 = 1 << 10 | 1 << 7;

/// What a session is to see of the files.
#[derive(Debug)]
pub(super) struct Sight<'a> {
    /// Seen wherever it lies, free of links.
    pub shown: &'a [&'a Path],
    /// Directories and sockets that the policy names: their sockets are meant to be reached.
    pub named: &'a [&'a Path],
    /// Directories whose entries are bound one by one.
    pub opened: &'a BTreeMap<PathBuf, BTreeMap<PathBuf, Entry>>,
    pub hidden: &'a BTreeMap<PathBuf, Kind>,
}

impl Sight<'_> {
    /// Whether the session could come to this path, as text. Text is sooner compared, and most sockets
    /// of a machine with many sessions are below the node's own directories.
    fn holds(&self, path: &Path) -> bool {
        let is_private = || OWN.iter().any(|own| is_below(path, Path::new(own)));
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

    /// Whether a directory can be covered: nothing in it, or around it, is to be seen by its name.
    fn can_lose(&self, directory: &Path) -> bool {
        let by_name = self.shown.iter().copied().filter(|root| *root != Path::new("/"));
        let mut kept = by_name.chain(self.opened.keys().map(PathBuf::as_path));
        !kept.any(|root| is_below(root, directory) || is_below(directory, root))
    }
}

fn is_below(path: &Path, root: &Path) -> bool {
    let rest = path.as_os_str().as_bytes().strip_prefix(root.as_os_str().as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// What is to be covered, and how many sockets are not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub covered: Vec<PathBuf>,
    pub left: usize,
}

/// A socket's name, and whose it is where the kernel says so.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    path: PathBuf,
    uid: Option<u32>,
}

/// Sockets of others that the session could come to.
pub(super) fn reachable(sight: &Sight<'_>) -> Found {
    let in_file = |_| Ok(in_table(&std::fs::read("/proc/net/unix")?).take(HEARD_MAX).collect());
    let named: std::io::Result<BTreeSet<Named>> = asked().or_else(in_file);
    // A kernel that says nothing may have any number of them: that counts as one more.
    let unheard = usize::from(named.as_ref().map_or(true, |named| named.len() >= HEARD_MAX));
    let named = named.unwrap_or_default();
    let mut found = choose(named, sight, rustix::process::geteuid().as_raw());
    found.left += unheard;
    found
}

fn choose(named: BTreeSet<Named>, sight: &Sight<'_>, me: u32) -> Found {
    let mut named: Vec<Named> =
        named.into_iter().filter(|socket| sight.holds(&socket.path)).collect();
    // Other users' come last: they can have any number, and must not crowd out the rest.
    named.sort_by_key(|socket| !socket.uid.is_none_or(|uid| uid == me || uid == 0));
    let (looked_at, unseen) = named.split_at(named.len().min(LOOKED_AT_MAX));
    let real = looked_at.iter().filter_map(|socket| socket_at(&socket.path));
    let real = real.filter(|path| sight.holds(path));
    // A plan is text: a path that is not cannot be in one.
    let (real, odd): (Vec<PathBuf>, Vec<PathBuf>) = real.partition(|path| path.to_str().is_some());
    let (one_by_one, more) = real.split_at(real.len().min(SOCKETS_MAX));
    let mut directories = BTreeSet::new();
    for above in more.iter().chain(&odd).filter_map(|path| path.parent()) {
        if above.to_str().is_some()
            && directories.len() < DIRECTORIES_MAX
            && !directories.contains(above)
            && is_of_others(above, me)
            && sight.can_lose(above)
        {
            directories.insert(above.to_owned());
        }
    }
    let rest = more.iter().chain(&odd).chain(unseen.iter().map(|socket| &socket.path));
    let left = |path: &&PathBuf| !directories.iter().any(|directory| is_below(path, directory));
    let left = rest.filter(left).count();
    let covered: BTreeSet<PathBuf> = one_by_one.iter().cloned().chain(directories).collect();
    Found { covered: covered.into_iter().collect(), left }
}

/// The socket that a name leads to. The name may be an old one, and another file may have it now.
fn socket_at(name: &Path) -> Option<PathBuf> {
    let path = real(name)?;
    path.symlink_metadata().ok()?.file_type().is_socket().then_some(path)
}

/// Whether the directory belongs to another ordinary user, so that a session can do without it.
fn is_of_others(directory: &Path, me: u32) -> bool {
    directory.symlink_metadata().is_ok_and(|it| it.is_dir() && it.uid() != me && it.uid() != 0)
}

/// What the kernel says, which answers at once.
fn asked() -> Result<BTreeSet<Named>, Errno> {
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    send(&kernel, &question(), SendFlags::empty())?;
    let mut part = vec![0; PART_BYTES];
    let mut found = BTreeSet::new();
    loop {
        let (_, bytes) = recv(&kernel, &mut part[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
        // More than there is room for was cut off.
        let part = part.get(..bytes).ok_or(Errno::MSGSIZE)?;
        if in_part(part, &mut found)? == Part::Last || found.len() >= HEARD_MAX {
            return Ok(found);
        }
    }
}

fn question() -> Vec<u8> {
    let mut asked = vec![AF_UNIX, 0, 0, 0];
    // States, inode (any), what to show, cookie (any).
    for word in [REACHABLE, 0, UDIAG_SHOW_NAME | UDIAG_SHOW_UID, u32::MAX, u32::MAX] {
        asked.extend(word.to_ne_bytes());
    }
    let bytes = u32::try_from(HEADER_BYTES + asked.len()).expect("a question is short");
    let mut message = bytes.to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    // Number and sender: there is one question, and the kernel knows who asks.
    message.extend([0; 8]);
    message.extend(asked);
    message
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    More,
    Last,
}

/// The paths in one part of the answer: messages, each with attributes.
fn in_part(mut part: &[u8], found: &mut BTreeSet<Named>) -> Result<Part, Errno> {
    while let Some(bytes) = u32_at(part, 0) {
        let (message, rest) = cut(part, bytes)?;
        match u16_at(message, 4) {
            Some(NLMSG_DONE) => return Ok(Part::Last),
            Some(NLMSG_ERROR) => return Err(Errno::OPNOTSUPP),
            _ => {}
        }
        let (mut path, mut uid) = (None, None);
        let mut attributes = message.get(HEADER_BYTES + FACTS_BYTES..).unwrap_or_default();
        while let Some(bytes) = u16_at(attributes, 0) {
            let (attribute, rest) = cut(attributes, bytes.into())?;
            match u16_at(attribute, 2) {
                Some(UNIX_DIAG_NAME) => path = named(&attribute[4..]),
                Some(UNIX_DIAG_UID) => uid = u32_at(attribute, 4),
                _ => {}
            }
            attributes = rest;
        }
        found.extend(path.map(|path| Named { path, uid }));
        part = rest;
    }
    Ok(Part::More)
}

/// The first of several items, each of which begins with its length and ends at a multiple of four.
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

/// The path that a name is; abstract names begin with a zero.
fn named(name: &[u8]) -> Option<PathBuf> {
    let path = name.split(|byte| *byte == 0).next()?;
    path.starts_with(b"/").then(|| Path::new(OsStr::from_bytes(path)).to_owned())
}

/// The bound paths in `/proc/net/unix`; abstract names start with `@`. A name can hold any byte but
/// zero: one with a line break is not found, and what its second line looks like is believed to be a
/// name only if there is a socket.
fn in_table(table: &[u8]) -> impl Iterator<Item = Named> + '_ {
    table.split(|byte| *byte == b'\n').skip(1).filter_map(|line| {
        let at = line.windows(2).position(|pair| pair == b" /")?;
        Some(Named { path: PathBuf::from(OsStr::from_bytes(&line[at + 1..])), uid: None })
    })
}

#[cfg(test)]
mod tests;
