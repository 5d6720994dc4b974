//! How a test says that it could not run on this machine.

use std::fmt::Display;

/// What starts the line that `cargo xtask contract` reads from a test's output.
const MARK: &str = "contract-skip: ";

/// Says that the calling test, or a part of it, could not run here, and why. The caller returns after
/// it. `cargo xtask contract` then counts the contract's line as skipped, never as passed.
pub fn skip(reason: impl Display) {
    println!("{MARK}{}", reason.to_string().replace('\n', " "));
}
