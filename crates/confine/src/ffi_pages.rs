//! What a zygote's first child finds out for all that follow, with a C interface: see `ffi` for the
//! shared object. Each function returns 0, or the number of an error.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

use windlass_procs::pages;

/// Writes down, in an open file, which pages the calling process has written to since it was forked.
///
/// # Safety
/// `file` is an open descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_note_pages(file: i32) -> i32 {
    // SAFETY: the caller's promise; it stays the caller's.
    number(pages::record_written(&mut ManuallyDrop::new(unsafe { File::from_raw_fd(file) })))
}

/// Reads what was noted in an open file, for all that are forked from the calling process.
///
/// # Safety
/// `file` is an open descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn windlass_learn_pages(file: i32) -> i32 {
    // SAFETY: the caller's promise; it stays the caller's.
    number(pages::load_recorded(&mut ManuallyDrop::new(unsafe { File::from_raw_fd(file) })))
}

/// Has those pages now.
#[unsafe(no_mangle)]
pub extern "C" fn windlass_have_pages() -> i32 {
    pages::prefault();
    0
}

fn number(done: io::Result<()>) -> i32 {
    done.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0)
}
