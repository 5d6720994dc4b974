//! The wall clock for time stamps, and durations as text. Waiting uses monotonic instants instead.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Names a file with milliseconds to add to the clock, for tests of clock jumps. The variable is read
/// once; without it, no file is read.
const OFFSET_FILE: &str = "WINDLASS_TEST_CLOCK_OFFSET_FILE";

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    now.saturating_add_signed(offset_ms())
}

fn offset_ms() -> i64 {
    static FILE: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os(OFFSET_FILE).map(PathBuf::from));
    let Some(file) = FILE.as_ref() else { return 0 };
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // A file that cannot be read counts as 0: it may be on a full disk.
    text.trim().parse().unwrap_or_default()
}

/// A duration as text, in the largest unit that gives a whole number.
pub(crate) fn in_words(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)];
    // One day is written as 24 h, because users set it so; several days are written as days.
    let fits = |(name, unit_ms): &(&str, u128)| {
        ms > 0 && ms.is_multiple_of(*unit_ms) && (*name != "d" || ms > *unit_ms)
    };
    match units.into_iter().find(fits) {
        Some((name, unit_ms)) => format!("{} {name}", ms / unit_ms),
        None => format!("{ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_written_in_its_largest_whole_unit() {
        for (ms, expected) in [
            (0, "0 ms"),
            (1500, "1500 ms"),
            (2000, "2 s"),
            (90_000, "90 s"),
            (120_000, "2 min"),
            (86_400_000, "24 h"),
            (172_800_000, "2 d"),
        ] {
            assert_eq!(in_words(Duration::from_millis(ms)), expected);
        }
    }
}
