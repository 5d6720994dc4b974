//! The table of the attacks in `docs/security.md`, between two marks. It is written by
//! `cargo xtask attack --document`; a test fails when the document is not what would be written.

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

/// The document with today's table.
fn with_table(text: &str) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).context("the document has no mark to begin at")?;
    let (_, after) = rest.split_once(END).context("the document has no mark to end at")?;
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
