//! What a process that waits for long need not keep in memory. There are thousands of them, each
//! forked from another, and each page that one of them alone has counts that often.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the heap ended when this process began to be what it is; 0 when nobody has noted it.
static HEAP_FROM: AtomicUsize = AtomicUsize::new(0);

/// Notes that what the heap has up to now came with the fork, and is shared.
pub(crate) fn note_heap() {
    HEAP_FROM.store(heap_end(), Ordering::Relaxed);
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
pub(crate) unsafe fn forget_heap() {
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
