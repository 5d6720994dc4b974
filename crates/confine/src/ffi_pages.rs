//! C functions that record which pages a forked child writes to, so that later children can prefault them.
//! `ffi` describes the shared object. Each function returns 0 or an error number.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

use windlass_procs::pages;

/// Writes to an open file which pages the calling process has dirtied since it was forked.
///
/// # Safety
/// `file` is an open descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_note_pages(file: i32) -> i32 {
    // SAFETY: the caller's promise; `ManuallyDrop` leaves the descriptor open for the caller.
    number(pages::record_written(&mut ManuallyDrop::new(unsafe { File::from_raw_fd(file) })))
}

/// Reads the recorded pages from an open file, for all later children of the calling process.
///
/// # Safety
/// `file` is an open descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_learn_pages(file: i32) -> i32 {
    // SAFETY: the caller's promise; `ManuallyDrop` leaves the descriptor open for the caller.
    number(pages::load_recorded(&mut ManuallyDrop::new(unsafe { File::from_raw_fd(file) })))
}

/// Prefaults the recorded pages.
#[unsafe(no_mangle)]
pub extern "C" fn windlass_have_pages() -> i32 {
    pages::prefault();
    0
}

fn number(done: io::Result<()>) -> i32 {
    done.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0)
}
