//! Which pages of its memory a forked process has written to, and having them before they are needed:
//! the first write to a page that is shared since a fork copies it, and that takes longer than most of
//! what a turn does.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::OnceLock;

/// Pages that are had ahead: 16 MiB of 4 KiB each. What more was written to is left to whoever needs it.
const PAGES_MAX: usize = 4096;

/// Bytes of the kernel's table that are read at once.
const TABLE_BYTES: usize = 4096;

/// What the table says of a page: it is in memory, this process's alone, and of a file.
const PRESENT: u64 = 1 << 63;
const OWN: u64 = 1 << 56;
const OF_FILE: u64 = 1 << 61;

/// Pages one after the other: the address of the first, and how many bytes they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    start: u64,
    bytes: u64,
}

/// What one process has noted for those that are forked from where it was.
static LEARNED: OnceLock<Vec<Run>> = OnceLock::new();

/// Writes down which pages this process alone has: those it has written to since it was forked.
pub fn note(into: &mut File) -> io::Result<()> {
    let mut bytes = Vec::new();
    for run in written()? {
        bytes.extend(run.start.to_ne_bytes());
        bytes.extend(run.bytes.to_ne_bytes());
    }
    into.write_all(&bytes)
}

/// Remembers what was noted, for the processes that this one forks.
pub fn learn(from: &mut File) -> io::Result<()> {
    let mut bytes = Vec::new();
    from.seek(SeekFrom::Start(0))?;
    from.read_to_end(&mut bytes)?;
    let number = |at: &[u8]| u64::from_ne_bytes(at.try_into().unwrap_or_default());
    let runs = bytes.chunks_exact(16);
    let runs = runs.map(|run| Run { start: number(&run[..8]), bytes: number(&run[8..]) });
    LEARNED.get_or_init(|| runs.collect());
    Ok(())
}

/// Has the pages that were learned, each a copy of this process's own.
pub fn have() {
    for run in LEARNED.get().into_iter().flatten() {
        let (Ok(start), Ok(bytes)) = (usize::try_from(run.start), usize::try_from(run.bytes))
        else {
            continue;
        };
        // SAFETY: nothing in memory changes: what is mapped is read and written back by the kernel. What is
        // not mapped here, or may not be written, is refused, and is then had when it is needed.
        unsafe {
            libc::madvise(std::ptr::without_provenance_mut(start), bytes, libc::MADV_POPULATE_WRITE)
        };
    }
}

fn written() -> io::Result<Vec<Run>> {
    let page = rustix::param::page_size() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut table = File::open("/proc/self/pagemap")?;
    let mut runs: Vec<Run> = Vec::new();
    let mut left = PAGES_MAX;
    for (start, end) in maps.lines().filter_map(writable) {
        for address in own_pages(&mut table, start, end, page)? {
            if left == 0 {
                return Ok(runs);
            }
            left -= 1;
            match runs.last_mut() {
                Some(last) if last.start + last.bytes == address => last.bytes += page,
                _ => runs.push(Run { start: address, bytes: page }),
            }
        }
    }
    Ok(runs)
}

/// Where a mapping begins and ends, if this process can write to it for itself.
fn writable(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?.as_bytes();
    let address = |text| u64::from_str_radix(text, 16).ok();
    (rights.get(1) == Some(&b'w') && rights.get(3) == Some(&b'p'))
        .then_some((address(start)?, address(end)?))
}

fn own_pages(table: &mut File, start: u64, end: u64, page: u64) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    table.seek(SeekFrom::Start(start / page * 8))?;
    let mut left = usize::try_from((end - start) / page * 8).map_err(io::Error::other)?;
    let mut address = start;
    let mut bytes = [0; TABLE_BYTES];
    while left > 0 {
        let part = &mut bytes[..left.min(TABLE_BYTES)];
        table.read_exact(part)?;
        left -= part.len();
        for entry in part.chunks_exact(8) {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
            if entry & (PRESENT | OWN | OF_FILE) == PRESENT | OWN {
                found.push(address);
            }
            address += page;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_process_writes_for_itself_counts() {
        let map = "7f00-7f10 rw-p 00000000 00:00 0 [heap]";
        assert_eq!(writable(map), Some((0x7f00, 0x7f10)));
        assert_eq!(writable("7f00-7f10 r--p 00000000 00:00 0"), None);
        assert_eq!(writable("7f00-7f10 rw-s 00000000 00:00 0"), None);
        assert_eq!(writable(""), None);
    }

    #[test]
    fn a_page_that_was_written_to_is_found() {
        let page = rustix::param::page_size();
        let mut memory = vec![0u8; 8 * page];
        let inside = memory.as_ptr().addr() + 4 * page;
        memory[4 * page] = 1;
        let has = |runs: &[Run]| {
            let holds = |run: &Run| (run.start..run.start + run.bytes).contains(&(inside as u64));
            runs.iter().any(holds)
        };
        assert!(has(&written().unwrap()));
        assert_eq!(memory[4 * page], 1);
    }
}
