//! Records which memory pages a forked process has written to, and prefaults the same pages in later forks.
//!
//! The first write to a page that is shared since a fork makes the kernel copy the page. In a short turn
//! these copies take longer than most other work. Prefaulting does them before the turn begins.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::OnceLock;

/// Maximum number of pages to prefault: 16 MiB of 4 KiB each. Further pages are copied on their first write.
const PAGES_MAX: usize = 4096;

/// Bytes of `/proc/self/pagemap` that one read takes.
const TABLE_BYTES: usize = 4096;

/// Bits of a `pagemap` entry: the page is in memory, mapped by this process only, and backed by a file.
const PRESENT: u64 = 1 << 63;
const EXCLUSIVE: u64 = 1 << 56;
const FILE_BACKED: u64 = 1 << 61;

/// Contiguous pages: the address of the first page, and the length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PageRange {
    start: u64,
    bytes: u64,
}

/// The pages that [`prefault`] touches in every process that is forked from this one.
static PREFAULT_RANGES: OnceLock<Vec<PageRange>> = OnceLock::new();

/// Writes to a file which pages belong to this process only: the pages that it has written to since its fork.
pub fn record_written(into: &mut File) -> io::Result<()> {
    let mut bytes = Vec::new();
    for run in written_ranges()? {
        bytes.extend(run.start.to_ne_bytes());
        bytes.extend(run.bytes.to_ne_bytes());
    }
    into.write_all(&bytes)
}

/// Loads the pages that [`record_written`] wrote, for the processes that this process forks.
pub fn load_recorded(from: &mut File) -> io::Result<()> {
    let mut bytes = Vec::new();
    from.seek(SeekFrom::Start(0))?;
    from.read_to_end(&mut bytes)?;
    let number = |at: &[u8]| u64::from_ne_bytes(at.try_into().unwrap_or_default());
    let runs = bytes.chunks_exact(16);
    let runs = runs.map(|run| PageRange { start: number(&run[..8]), bytes: number(&run[8..]) });
    PREFAULT_RANGES.get_or_init(|| runs.collect());
    Ok(())
}

/// Prefaults the recorded pages: this process gets its own copy of each.
pub fn prefault() {
    for run in PREFAULT_RANGES.get().into_iter().flatten() {
        let (Ok(start), Ok(bytes)) = (usize::try_from(run.start), usize::try_from(run.bytes))
        else {
            continue;
        };
        // SAFETY: the content of memory does not change: the kernel only makes the pages present and
        // writable. It refuses a range that is not mapped or not writable here. Such pages are copied on
        // their first write.
        unsafe {
            libc::madvise(std::ptr::without_provenance_mut(start), bytes, libc::MADV_POPULATE_WRITE)
        };
    }
}

fn written_ranges() -> io::Result<Vec<PageRange>> {
    let page = rustix::param::page_size() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut table = File::open("/proc/self/pagemap")?;
    let mut runs: Vec<PageRange> = Vec::new();
    let mut left = PAGES_MAX;
    for (start, end) in maps.lines().filter_map(private_writable) {
        for address in exclusive_pages(&mut table, start, end, page)? {
            if left == 0 {
                return Ok(runs);
            }
            left -= 1;
            match runs.last_mut() {
                Some(last) if last.start + last.bytes == address => last.bytes += page,
                _ => runs.push(PageRange { start: address, bytes: page }),
            }
        }
    }
    Ok(runs)
}

/// Start and end of the mapping that a line of `/proc/self/maps` describes, if it is private and writable.
fn private_writable(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?.as_bytes();
    let address = |text| u64::from_str_radix(text, 16).ok();
    (rights.get(1) == Some(&b'w') && rights.get(3) == Some(&b'p'))
        .then_some((address(start)?, address(end)?))
}

fn exclusive_pages(table: &mut File, start: u64, end: u64, page: u64) -> io::Result<Vec<u64>> {
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
            if entry & (PRESENT | EXCLUSIVE | FILE_BACKED) == PRESENT | EXCLUSIVE {
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
    fn only_private_writable_mappings_count() {
        let map = "7f00-7f10 rw-p 00000000 00:00 0 [heap]";
        assert_eq!(private_writable(map), Some((0x7f00, 0x7f10)));
        assert_eq!(private_writable("7f00-7f10 r--p 00000000 00:00 0"), None);
        assert_eq!(private_writable("7f00-7f10 rw-s 00000000 00:00 0"), None);
        assert_eq!(private_writable(""), None);
    }

    #[test]
    fn a_page_that_was_written_to_is_found() {
        let page = rustix::param::page_size();
        let mut memory = vec![0u8; 8 * page];
        let inside = memory.as_ptr().addr() + 4 * page;
        memory[4 * page] = 1;
        let has = |runs: &[PageRange]| {
            let holds =
                |run: &PageRange| (run.start..run.start + run.bytes).contains(&(inside as u64));
            runs.iter().any(holds)
        };
        assert!(has(&written_ranges().unwrap()));
        assert_eq!(memory[4 * page], 1);
    }
}
