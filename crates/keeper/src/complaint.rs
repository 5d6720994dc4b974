//! Log lines of keepers and the nursery. They go to standard error, which the node has redirected to its log.
//! The log may be on a full disk: a line that cannot be written is dropped. `eprintln!` would panic and end
//! the session.

use std::fmt::Arguments;
use std::io::Write as _;

/// Writes one line to standard error, if it can be written.
macro_rules! complain {
    ($($format:tt)*) => {
        $crate::complaint::write(format_args!($($format)*))
    };
}

pub(crate) use complain;

pub(crate) fn write(line: Arguments<'_>) {
    let mut bytes = Vec::with_capacity(128);
    let _ = writeln!(bytes, "{line}");
    let _ = rustix::io::write(rustix::stdio::stderr(), &bytes);
}
