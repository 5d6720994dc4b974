//! How a test reports that it cannot run on this machine.

use std::fmt::Display;

/// Prefix of the line that `cargo xtask contract` reads from the output of a test.
const MARK: &str = "contract-skip: ";

/// Reports that the calling test, or a part of it, cannot run here, and why. The caller returns afterwards.
/// `cargo xtask contract` then counts the line of the contract as skipped, never as passed.
pub fn skip(reason: impl Display) {
    println!("{MARK}{}", reason.to_string().replace('\n', " "));
}
