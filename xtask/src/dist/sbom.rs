//! The list of the crates in the program and in the files that it carries, as a CycloneDX document (version 1.5).

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Distribution, TARGET};
use crate::workspace;

/// The program, and what it carries.
const ROOTS: [&str; 3] = ["windlass", "windlass-workers", "windlass-confine"];

pub fn make(dist: &Distribution) -> Result<()> {
    let mut tree = workspace::cargo();
    tree.args(["tree", "--locked", "--edges", "normal", "--target", TARGET, "--prefix", "none"]);
    tree.args(["--no-dedupe", "--format", "{p}|{l}"]);
    tree.args(ROOTS.iter().flat_map(|root| ["--package", root]));
    let listed = workspace::output_of(&mut tree)?;
    let crates: BTreeSet<&str> = listed.lines().filter(|line| !line.is_empty()).collect();
    let components = crates.into_iter().filter_map(|line| component(line).transpose());
    let components = components.collect::<Result<Vec<Value>>>()?;
    ensure!(!components.is_empty(), "cargo lists no crates");
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application", "name": "windlass", "version": dist.version,
        }},
        "components": components,
    });
    let path = dist.out.join(format!("windlass-{}.cdx.json", dist.version));
    Ok(fs::write(path, format!("{document:#}\n"))?)
}

/// The component of a line such as `serde v1.0.0|MIT OR Apache-2.0`; none for a crate of this workspace, which has a
/// path behind its version.
fn component(line: &str) -> Result<Option<Value>> {
    let (package, licence) = line.split_once('|').context("a line without a licence")?;
    let mut words = package.split(' ');
    let name = words.next().context("a crate without a name")?;
    let version = words.next().and_then(|version| version.strip_prefix('v'));
    let version = version.with_context(|| format!("{package} has no version"))?;
    if words.any(|word| word.starts_with("(/")) {
        return Ok(None);
    }
    Ok(Some(json!({
        "type": "library",
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
        // Older crates write a slash for OR.
        "licenses": [{ "expression": licence.replace('/', " OR ") }],
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cargo_tree_is_a_component() {
        let found = component("serde v1.0.2|MIT/Apache-2.0").unwrap().unwrap();
        assert_eq!(found["purl"], "pkg:cargo/serde@1.0.2");
        assert_eq!(found["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(component("windlass v0.1.0 (/a/b)|MIT").unwrap(), None);
        assert!(component("nothing").is_err());
    }
}
