//! Checks which version of the C library a program needs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Fails if the file needs a version of the C library newer than `limit`.
pub fn check(file: &Path, limit: &str) -> Result<()> {
    let symbols = workspace::output_of(Command::new("objdump").arg("-T").arg(file))?;
    let needed =
        newest(&symbols).with_context(|| format!("{} names no version", file.display()))?;
    let limit_is = version(limit).context("the limit is no version")?;
    ensure!(
        needed <= limit_is,
        "{} needs version {}.{} of the C library; the packages promise {limit}",
        file.display(),
        needed.0,
        needed.1
    );
    Ok(())
}

/// The newest version that the symbols name as `GLIBC_X.Y`.
fn newest(symbols: &str) -> Option<(u32, u32)> {
    let named = symbols.split("GLIBC_").skip(1);
    named.filter_map(|after| version(after.split([')', ' ', '\n']).next()?)).max()
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_found_by_number() {
        let symbols = "0 DF *UND* 0 (GLIBC_2.9) a\n0 DF *UND* 0 (GLIBC_2.28) b\n0 GLIBC_2.2.5  c\n";
        assert_eq!(newest(symbols), Some((2, 28)));
        assert_eq!(newest("nothing"), None);
    }
}
