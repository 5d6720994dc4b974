//! The result of a suite or a check that could do its work.

/// Whether a suite found what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Good,
    Bad,
}
