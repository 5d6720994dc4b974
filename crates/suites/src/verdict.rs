//! The result of a command that ran to its end. A command that cannot run returns an error instead.

/// Whether everything that the command checked is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunVerdict {
    Good,
    Bad,
}
