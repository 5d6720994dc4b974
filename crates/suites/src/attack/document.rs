//! The table of attacks in `docs/security.md`, between two marker comments. `cargo xtask attack --document`
//! writes it. A test fails if the document has another table.

use std::fs;

use anyhow::{Context, Result};
use windlass_testkit::attacks;

use crate::workspace;

const DOCUMENT: &str = "docs/security.md";
const BEGIN: &str = "<!-- attacks: written by `cargo xtask attack --document` -->\n";
const END: &str = "<!-- end of attacks -->\n";

pub fn write() -> Result<()> {
    let path = workspace::root().join(DOCUMENT);
    let text = fs::read_to_string(&path)?;
    fs::write(&path, with_table(&text)?)?;
    Ok(())
}

/// The document with the current table.
fn with_table(text: &str) -> Result<String> {
    let (before, rest) = text
        .split_once(BEGIN)
        .context("docs/security.md has no comment that starts the table of attacks")?;
    let (_, after) = rest
        .split_once(END)
        .context("docs/security.md has no comment that ends the table of attacks")?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", attacks::document_table()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_every_attack_as_its_file_describes_it() {
        let text = fs::read_to_string(workspace::root().join(DOCUMENT)).unwrap();
        assert!(
            with_table(&text).unwrap() == text,
            "{DOCUMENT} is out of date: run `cargo xtask attack --document`"
        );
    }
}
