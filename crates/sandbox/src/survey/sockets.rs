//! Sockets of this machine that a program could reach by a path. A read-only view does not keep anyone
//! from connecting to one.
//!
//! The kernel is asked for those alone that can be reached, since a node with many sessions has many
//! sockets that cannot. Where it does not answer, its table of all sockets tells.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::real;

/// Sockets that are hidden one by one.
const SOCKETS_MAX: usize = 1024;

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
const UDIAG_SHOW_NAME: u32 = 1;
const UNIX_DIAG_NAME: u16 = 0;
const AF_UNIX: u8 = 1;

/// Those that listen, and those for datagrams that nobody is connected to (`TCP_LISTEN`, `TCP_CLOSE`).
/// To one that is connected only its peer can send.
const REACHABLE: u32 = 1 << 10 | 1 << 7;

/// Sockets of others, outside of the places that a session has for itself.
pub(super) fn reachable() -> BTreeSet<PathBuf> {
    let found = asked().unwrap_or_else(|_| {
        let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        in_table(&table).collect()
    });
    found
        .into_iter()
        .filter(|path| !OWN.iter().any(|own| path.starts_with(own)))
        .filter_map(|path| real(&path))
        .take(SOCKETS_MAX)
        .collect()
}

/// What the kernel says, which answers at once.
fn asked() -> Result<BTreeSet<PathBuf>, Errno> {
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
        if in_part(part, &mut found)? == Part::Last {
            return Ok(found);
        }
    }
}

fn question() -> Vec<u8> {
    let mut asked = vec![AF_UNIX, 0, 0, 0];
    // States, inode (any), what to show, cookie (any).
    for word in [REACHABLE, 0, UDIAG_SHOW_NAME, u32::MAX, u32::MAX] {
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
fn in_part(mut part: &[u8], found: &mut BTreeSet<PathBuf>) -> Result<Part, Errno> {
    while let Some(bytes) = u32_at(part, 0) {
        let (message, rest) = cut(part, bytes)?;
        match u16_at(message, 4) {
            Some(NLMSG_DONE) => return Ok(Part::Last),
            Some(NLMSG_ERROR) => return Err(Errno::OPNOTSUPP),
            _ => {}
        }
        let mut attributes = message.get(HEADER_BYTES + FACTS_BYTES..).unwrap_or_default();
        while let Some(bytes) = u16_at(attributes, 0) {
            let (attribute, rest) = cut(attributes, bytes.into())?;
            if u16_at(attribute, 2) == Some(UNIX_DIAG_NAME) {
                found.extend(named(&attribute[4..]));
            }
            attributes = rest;
        }
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

/// The bound paths in `/proc/net/unix`; abstract names start with `@`.
fn in_table(table: &str) -> impl Iterator<Item = PathBuf> + '_ {
    table.lines().skip(1).filter_map(|line| {
        let at = line.find(" /")?;
        Some(PathBuf::from(&line[at + 1..]))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use super::*;

    #[test]
    fn sockets_are_found_by_path_and_abstract_ones_are_not() {
        let table = "Num RefCount Protocol Flags Type St Inode Path\n\
            0000: 00000002 00000000 00010000 0001 01 123 /srv/agent socket\n\
            0000: 00000002 00000000 00010000 0001 01 124 @/tmp/.X11-unix/X0\n\
            0000: 00000003 00000000 00000000 0001 03 125\n";
        let found: Vec<_> = in_table(table).collect();
        assert_eq!(found, [PathBuf::from("/srv/agent socket")]);
    }

    #[test]
    fn the_kernel_tells_of_each_that_can_be_reached() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let _listener = UnixListener::bind(at("listens")).unwrap();
        let _datagrams = UnixDatagram::bind(at("takes datagrams")).unwrap();
        let _connected = UnixStream::connect(at("listens")).unwrap();
        let _many: Vec<_> = (0..500)
            .map(|number| UnixListener::bind(at(&format!("listens-{number}"))).unwrap())
            .collect();
        let ours = |found: BTreeSet<PathBuf>| -> BTreeSet<PathBuf> {
            found.into_iter().filter(|path| path.starts_with(dir.path())).collect()
        };
        let found = ours(asked().unwrap());
        assert!(found.contains(&at("listens")) && found.contains(&at("takes datagrams")));
        assert_eq!(found.len(), 502);
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        assert_eq!(found, ours(in_table(&table).collect()));
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_none() {
        let mut found = BTreeSet::new();
        for bytes in [&[255, 255, 255, 255, 0, 0][..], &[1, 0, 0, 0], &[0; 16]] {
            assert_eq!(in_part(bytes, &mut found), Err(Errno::BADMSG));
        }
        assert_eq!(in_part(&[], &mut found), Ok(Part::More));
        assert!(found.is_empty());
    }
}
