//! Reduces the memory of long-waiting processes. A node can have thousands of forked keepers and workers, so
//! each private page per process is multiplied by thousands.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The end of the heap when [`mark_heap`] was called; 0 before that.
static HEAP_FROM: AtomicUsize = AtomicUsize::new(0);

/// Records the current end of the heap: memory below it came with the fork and is shared.
pub(crate) fn mark_heap() {
    HEAP_FROM.store(heap_end(), Ordering::Relaxed);
}

/// Size and number of the blocks by which [`end_of_used`] finds the end of the used heap. Few gaps are as
/// large.
const END_BYTES: usize = 120 << 10;
const END_BLOCKS: usize = 16;

/// The block sizes that [`fill_gaps`] allocates: powers of two from large to small, so that the remainder of
/// a gap is filled by smaller blocks, and then each size for which the allocator has its own free list.
const LARGEST_GAP: u32 = 16;
const SMALLEST_GAP: u32 = 5;
const SIZE_CLASS_MAX: usize = 1032;
const ALIGNMENT: usize = 16;

/// Limits of [`fill_gaps`]: bytes and blocks. Gaps beyond them stay free.
const FILLED_MAX: usize = 64 << 20;
const BLOCKS_MAX: usize = 1 << 17;

/// Allocates the free gaps between allocated blocks, and never frees them. A process calls it before it
/// forks: its children then allocate in new, contiguous pages and not in gaps of many shared pages, each of
/// which the kernel would have to copy.
pub fn fill_gaps() {
    let powers = (SMALLEST_GAP..=LARGEST_GAP).rev().map(|power| 1 << power);
    let apart = (ALIGNMENT..=SIZE_CLASS_MAX).step_by(ALIGNMENT);
    let end = end_of_used();
    let (mut filled, mut blocks) = (0, 0);
    // The allocator puts a word before each block.
    for size in powers.chain(apart).map(|size: usize| size - size_of::<usize>()) {
        while filled < FILLED_MAX && blocks < BLOCKS_MAX {
            // SAFETY: allocating is always sound; the block is leaked on purpose.
            let block = unsafe { libc::malloc(size) };
            if block.is_null() || block as usize >= end {
                // SAFETY: the block was allocated just now, and nothing points to it.
                unsafe { libc::free(block) };
                break;
            }
            filled += size;
            blocks += 1;
        }
    }
}

/// The address above which the allocator has no allocated block: it places blocks there that fit no gap.
fn end_of_used() -> usize {
    // SAFETY: the blocks are freed below and never accessed.
    let mut asked = [(); END_BLOCKS].map(|()| unsafe { libc::malloc(END_BYTES) });
    // SAFETY: each block was allocated just now.
    asked.iter().for_each(|block| unsafe { libc::free(*block) });
    // A few blocks may be in gaps; the others are adjacent to each other at the end.
    asked.sort();
    let side_by_side = |low: usize, high: usize| high - low <= END_BYTES + 2 * ALIGNMENT;
    let addresses = asked.iter().rev().map(|block| *block as usize);
    addresses
        .reduce(|high, low| if side_by_side(low, high) { low } else { high })
        .unwrap_or_default()
}

/// Limits the allocator to two arenas for all threads. With one arena per thread, memory that a burst of
/// threads has freed stays in arenas that no thread uses again.
pub fn share_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call sets a number that the allocator reads when a thread first allocates.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Returns freed heap memory to the kernel.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call only touches memory that is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the heap memory above the mark of [`mark_heap`] to the kernel.
///
/// # Safety
/// The process never accesses heap memory again.
pub unsafe fn forget_heap() {
    let from = HEAP_FROM.load(Ordering::Relaxed);
    let page = rustix::param::page_size();
    let from = from.next_multiple_of(page);
    let Some(length) = heap_end().checked_sub(from) else { return };
    if from > 0 {
        // SAFETY: the range is part of the heap, and the caller promises that the heap is not used any more.
        unsafe { libc::madvise(from as *mut libc::c_void, length, libc::MADV_DONTNEED) };
    }
}

fn heap_end() -> usize {
    // SAFETY: with 0 the call only reads the end of the heap.
    unsafe { libc::sbrk(0) as usize }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// How many of 500 new blocks of different sizes the allocator places in gaps below `end`.
    fn into_gaps(end: usize) -> usize {
        let blocks: Vec<Vec<u8>> = (0..500).map(|i| Vec::with_capacity(24 + i * 5)).collect();
        blocks.iter().filter(|block| (block.as_ptr() as usize) < end).count()
    }

    #[test]
    fn gaps_between_blocks_are_filled_and_nothing_beyond() {
        // SAFETY: the child has one thread, calls the allocator and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let blocks: Vec<Vec<u8>> = (0..4000).map(|i| vec![1; 24 + i % 3000]).collect();
            let kept: Vec<_> = blocks.into_iter().enumerate().filter(|(i, _)| i % 3 == 0).collect();
            let end = end_of_used();
            let before = into_gaps(end);
            fill_gaps();
            let after = into_gaps(end);
            let good = before > 400 && after < 10 && end_of_used() < end + (1 << 20);
            std::mem::forget(kept);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = -1;
        // SAFETY: waits for that child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
