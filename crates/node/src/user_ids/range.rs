//! The range of user ids that a node of root gives to its sessions, as the user writes it.

use std::fmt;
use std::ops::RangeInclusive;

/// The least user id of a range. Smaller ids belong to users, services and the kernel's overflow user.
const FIRST_MIN: u32 = 65_536;

/// The greatest user id of a range. The last two numbers have other meanings in system calls.
const LAST_MAX: u32 = u32::MAX - 2;

/// A range of user ids, which are used as group ids too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UidRange {
    first: u32,
    last: u32,
}

/// Why a text is no range of user ids for sessions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UidRangeError {
    #[error("a range of user ids is FIRST-LAST, for example 200000-265535")]
    Form,
    #[error(
        "the first user id is {0}, and the least one for sessions is {FIRST_MIN}: users have smaller ones"
    )]
    TooSmall(u32),
    #[error("the last user id is {0}, and the greatest one is {LAST_MAX}")]
    TooGreat(u32),
    #[error("the last user id is less than the first")]
    Empty,
}

impl UidRange {
    /// Parses `FIRST-LAST`.
    pub fn parse(text: &str) -> Result<Self, UidRangeError> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| UidRangeError::Form);
        let (first, last) = text.split_once('-').ok_or(UidRangeError::Form)?;
        let (first, last) = (number(first)?, number(last)?);
        if first < FIRST_MIN {
            return Err(UidRangeError::TooSmall(first));
        }
        if last > LAST_MAX {
            return Err(UidRangeError::TooGreat(last));
        }
        if last < first {
            return Err(UidRangeError::Empty);
        }
        Ok(Self { first, last })
    }

    /// All ids of the range.
    pub fn ids(self) -> RangeInclusive<u32> {
        self.first..=self.last
    }

    /// The number of ids.
    pub fn count(self) -> u32 {
        self.last - self.first + 1
    }
}

impl fmt::Display for UidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_user_ids_that_no_user_of_the_machine_has() {
        for (text, parsed) in [
            ("200000-265535", Ok("200000-265535 65536")),
            ("65536-65536", Ok("65536-65536 1")),
            ("200000", Err(UidRangeError::Form)),
            ("200000-", Err(UidRangeError::Form)),
            ("1000-2000", Err(UidRangeError::TooSmall(1000))),
            ("200000-4294967294", Err(UidRangeError::TooGreat(4_294_967_294))),
            ("200001-200000", Err(UidRangeError::Empty)),
        ] {
            let range = UidRange::parse(text).map(|range| format!("{range} {}", range.count()));
            assert_eq!(range, parsed.map(str::to_owned), "{text}");
        }
    }
}
