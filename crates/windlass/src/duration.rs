//! Parses and formats durations: `500ms`, `30s`, `1m30s`.

use std::time::Duration;

/// A timeout that can be disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    After(Duration),
    Never,
}

impl Timeout {
    pub fn duration(self) -> Option<Duration> {
        match self {
            Self::After(duration) => Some(duration),
            Self::Never => None,
        }
    }

    /// In whole seconds as the API takes them: rounded up, and 0 for `Never`.
    pub fn seconds(self) -> u64 {
        match self {
            Self::After(duration) => {
                duration.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
            }
            Self::Never => 0,
        }
    }
}

impl std::fmt::Display for Timeout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::After(duration) => write!(f, "{}ms", duration.as_millis()),
            Self::Never => f.write_str("never"),
        }
    }
}

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("a duration is a number and a unit (ms, s, m, h, d), for example 30s or 1m30s")]
    Form,
    #[error("the duration is too long")]
    TooLong,
    #[error("the duration must be longer than 0; use `never` for no timeout")]
    Zero,
}

pub fn parse(text: &str) -> Result<Duration, DurationError> {
    // The library knows more units, and reads `M` as a month.
    if !text.chars().all(|c| c.is_ascii_digit() || "mshd. ".contains(c)) {
        return Err(DurationError::Form);
    }
    match humantime::parse_duration(text) {
        Ok(duration) if u64::try_from(duration.as_millis()).is_ok() => Ok(duration),
        Ok(_) | Err(humantime::DurationError::NumberOverflow) => Err(DurationError::TooLong),
        Err(_) => Err(DurationError::Form),
    }
}

/// A duration, or `never`.
pub fn parse_timeout(text: &str) -> Result<Timeout, DurationError> {
    if text == "never" {
        return Ok(Timeout::Never);
    }
    // Below a millisecond is nothing: nodes count milliseconds.
    match parse(text)? {
        duration if duration.as_millis() == 0 => Err(DurationError::Zero),
        duration => Ok(Timeout::After(duration)),
    }
}

pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a duration in its two largest units.
pub fn show(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        let good = [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1m30s", 90_000),
            ("1m 30s", 90_000),
            ("1.5s", 1500),
            ("0s", 0),
        ];
        for (text, expected_ms) in good {
            assert_eq!(parse(text), Ok(Duration::from_millis(expected_ms)), "{text}");
        }
        for text in ["", "30", "s", "3x", "-1s", "5mm", "1m30", "1M", "5us", "1w", "2min"] {
            assert_eq!(parse(text), Err(DurationError::Form), "{text}");
        }
        for text in ["99999999999999999999s", "18446744073709551615s"] {
            assert_eq!(parse(text), Err(DurationError::TooLong), "{text}");
        }
    }

    #[test]
    fn a_timeout_is_a_positive_duration_or_never() {
        let after = |ms| Ok(Timeout::After(Duration::from_millis(ms)));
        assert_eq!(parse_timeout("90s"), after(90_000));
        assert_eq!(parse_timeout("never"), Ok(Timeout::Never));
        assert_eq!(parse_timeout("0s"), Err(DurationError::Zero));
        assert_eq!(parse_timeout("0.5ms"), Err(DurationError::Zero));
        assert_eq!(parse_timeout("0"), Err(DurationError::Zero));
        for (text, seconds) in [("1ms", 1), ("1s", 1), ("1001ms", 2), ("never", 0)] {
            let timeout = parse_timeout(text).unwrap();
            assert_eq!(timeout.seconds(), seconds, "{text}");
            assert_eq!(parse_timeout(&timeout.to_string()), Ok(timeout));
        }
    }

    #[test]
    fn durations_are_shown_in_two_units() {
        for (seconds, expected) in [(5, "5s"), (65, "1m5s"), (3661, "1h1m"), (90_000, "1d1h")] {
            assert_eq!(show(Duration::from_secs(seconds)), expected);
        }
    }
}
