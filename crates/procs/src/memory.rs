//! What a process that waits for long need not keep in memory. There are thousands of them, each
//! forked from another, and each page that one of them alone has counts that often.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the heap ended when this process began to be what it is; 0 when nobody has noted it.
static HEAP_FROM: AtomicUsize = AtomicUsize::new(0);

/// Notes that what the heap has up to now came with the fork, and is shared.
pub(crate) fn note_heap() {
    HEAP_FROM.store(heap_end(), Ordering::Relaxed);
}

/// What [`fill_gaps`] asks for first, which hardly any gap has room for, and how often.
const END_BYTES: usize = 120 << 10;
const END_ASKED: usize = 16;

/// The sizes of gaps that are filled: powers of two, which fit into what larger gaps leave, and then
/// each size that the allocator keeps apart when it is freed.
const LARGEST_GAP: u32 = 16;
const SMALLEST_GAP: u32 = 5;
const KEPT_APART_MAX: usize = 1032;
const ALIGNMENT: usize = 16;

/// What is filled at most. What gaps there are beyond it stay.
const FILLED_MAX: usize = 64 << 20;
const BLOCKS_MAX: usize = 1 << 17;

/// Takes what lies free here and there between what this process has allocated, for good. It is for a process
/// that forks: its children then write to new pages, one after the other, and not to a few bytes of
/// many pages that are shared.
pub fn fill_gaps() {
    let powers = (SMALLEST_GAP..=LARGEST_GAP).rev().map(|power| 1 << power);
    let apart = (ALIGNMENT..=KEPT_APART_MAX).step_by(ALIGNMENT);
    let end = end_of_used();
    let (mut filled, mut blocks) = (0, 0);
    // The allocator puts a word before each block.
    for size in powers.chain(apart).map(|size: usize| size - size_of::<usize>()) {
        while filled < FILLED_MAX && blocks < BLOCKS_MAX {
            // SAFETY: nobody has the block yet, and who gets it never gives it back.
            let block = unsafe { libc::malloc(size) };
            if block.is_null() || block as usize >= end {
                // SAFETY: it was allocated just now.
                unsafe { libc::free(block) };
                break;
            }
            filled += size;
            blocks += 1;
        }
    }
}

/// The address from which on the allocator has given nothing away: where it puts what no gap has room for.
fn end_of_used() -> usize {
    // SAFETY: nothing is done with what is allocated.
    let mut asked = [(); END_ASKED].map(|()| unsafe { libc::malloc(END_BYTES) });
    // SAFETY: each was allocated just now.
    asked.iter().for_each(|block| unsafe { libc::free(*block) });
    // A few may have found a gap; the others are at the end, side by side.
    asked.sort();
    let side_by_side = |low: usize, high: usize| high - low <= END_BYTES + 2 * ALIGNMENT;
    let addresses = asked.iter().rev().map(|block| *block as usize);
    addresses
        .reduce(|high, low| if side_by_side(low, high) { low } else { high })
        .unwrap_or_default()
}

/// Has all threads share two heaps. With one for each, what a burst of threads has freed stays with heaps that
/// nobody uses again.
pub fn share_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number that the allocator reads when a thread first allocates.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Gives back what this process allocated and freed.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it only touches memory that is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives back the heap that came after [`note_heap`].
///
/// # Safety
/// The process never again touches anything that was allocated.
pub unsafe fn forget_heap() {
    let from = HEAP_FROM.load(Ordering::Relaxed);
    let page = rustix::param::page_size();
    let from = from.next_multiple_of(page);
    let Some(length) = heap_end().checked_sub(from) else { return };
    if from > 0 {
        // SAFETY: the range is the heap's, and nobody needs what is in it.
        unsafe { libc::madvise(from as *mut libc::c_void, length, libc::MADV_DONTNEED) };
    }
}

fn heap_end() -> usize {
    // SAFETY: it moves nothing.
    unsafe { libc::sbrk(0) as usize }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Of blocks of many sizes, how many would be put into gaps below `end`.
    fn into_gaps(end: usize) -> usize {
        let blocks: Vec<Vec<u8>> = (0..500).map(|i| Vec::with_capacity(24 + i * 5)).collect();
        blocks.iter().filter(|block| (block.as_ptr() as usize) < end).count()
    }

    #[test]
    fn what_lies_free_between_blocks_is_taken_and_nothing_beyond() {
        // SAFETY: the child calls the allocator, which no other thread of it uses, and ends.
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
