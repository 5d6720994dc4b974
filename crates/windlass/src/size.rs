//! Sizes as people type them and read them: `512M`, `4GiB`. All units are powers of 1024.
//!
//! Not the crate `bytesize`: it reads `512M` as 512,000,000 bytes. Docker and systemd, whose limits people know, read
//! powers of 1024.

const UNITS: [&str; 5] = ["K", "M", "G", "T", "P"];

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error("a size is a number of bytes, or a number and a unit (K, M, G, T), for example 512M")]
    Form,
    #[error("the size is too large")]
    TooLarge,
}

/// Parses `1073741824`, `1024M`, `1G`, `1GiB` or `1GB` into bytes.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(SizeError::Form);
    }
    let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
    let unit = unit.trim_start().to_ascii_uppercase();
    let letter = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    let power = match (letter, UNITS.iter().position(|one| *one == letter)) {
        ("", _) if unit != "IB" => 0,
        (_, Some(place)) => u32::try_from(place).map_err(|_| SizeError::Form)? + 1,
        _ => return Err(SizeError::Form),
    };
    1024u64
        .checked_pow(power)
        .and_then(|factor| number.checked_mul(factor))
        .ok_or(SizeError::TooLarge)
}

/// Formats a size in the largest fitting unit with one decimal: `1.5 KiB`.
pub fn show(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    let mut tenths = u128::from(count) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}iB", tenths / 10, tenths % 10, UNITS[unit])
}

/// The same without a decimal that is zero: `4 GiB`.
pub fn short(count: u64) -> String {
    show(count).replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_the_unit_that_fits() {
        for (count, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (1_048_576, "1.0 MiB"),
            (5_368_709_120, "5.0 GiB"),
        ] {
            assert_eq!(show(count), expected);
        }
        assert_eq!(short(4 << 30), "4 GiB");
        assert_eq!(short(1536), "1.5 KiB");
    }

    #[test]
    fn sizes_are_numbers_with_or_without_a_unit() {
        let good = [
            ("0", 0),
            ("77", 77),
            ("77B", 77),
            ("2K", 2048),
            ("2KiB", 2048),
            ("2kb", 2048),
            ("512 M", 512 << 20),
            ("4G", 4 << 30),
        ];
        for (text, expected) in good {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "1X", "1iB", "1GiBB"] {
            assert_eq!(parse(text), Err(SizeError::Form), "{text}");
        }
        for text in ["99999999999999999999", "99999999P"] {
            assert_eq!(parse(text), Err(SizeError::TooLarge), "{text}");
        }
    }
}
