//! Which pages the runner covers: all Markdown pages of the repository but those in [`ELSEWHERE`].

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Pages whose blocks another check runs, with that check. A directory ends with `/`.
const ELSEWHERE: [(&str, &str); 4] = [
    ("docs/examples/", "`cargo xtask examples` runs the programs and compares the pages"),
    ("docs/protocol.md", "crates/worker-check/tests/workers.rs runs the worker on the page"),
    ("docs/write-a-worker.md", "crates/worker-check/tests/workers.rs compares code and output"),
    ("sdk/typescript/README.md", "sdk/typescript/test/readme.test.ts runs each example"),
];

/// Directories without pages for readers.
const PASSED_OVER: [&str; 2] = ["node_modules", "target"];

/// The pages, relative to the root, in order.
pub fn all() -> Result<Vec<String>> {
    let mut found = Vec::new();
    collect(workspace::root(), "", &mut found)?;
    for (page, _) in ELSEWHERE {
        let is_there = found.iter().any(|name| name.starts_with(page));
        ensure!(is_there, "{page} is missing, but is listed as checked elsewhere");
    }
    found.retain(|name| !ELSEWHERE.iter().any(|(page, _)| is_below(name, page)));
    found.sort();
    Ok(found)
}

/// Prints which pages other checks run.
pub fn print_elsewhere() {
    for (page, check) in ELSEWHERE {
        println!("{page}: {check}");
    }
}

fn is_below(name: &str, page: &str) -> bool {
    if page.ends_with('/') { name.starts_with(page) } else { name == page }
}

fn collect(directory: &Path, prefix: &str, found: &mut Vec<String>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        let is_passed_over = name.starts_with('.')
            || PASSED_OVER.contains(&name.as_str())
            || name.starts_with("target-");
        if kind.is_dir() && !is_passed_over {
            collect(&entry.path(), &format!("{prefix}{name}/"), found)?;
        } else if kind.is_file() && name.ends_with(".md") {
            found.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_covered_here_or_elsewhere() {
        let pages = all().unwrap();
        for page in ["README.md", "docs/mcp.md", "docs/workers/r.md", "sdk/python/README.md"] {
            assert!(pages.iter().any(|name| name == page), "{page}");
        }
        assert!(!pages.iter().any(|name| name.contains("examples/") || name.contains("target/")));
    }
}
