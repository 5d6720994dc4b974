//! `cargo xtask tidy`: what the compiler and clippy do not check. Each check is a pure function
//! over the workspace's files where it can be; none of them mends anything.

mod direction;
mod exceptions;
mod finding;
mod lengths;
mod openings;
mod paths;
mod python;
mod sleeps;
mod unsafety;
mod words;

use anyhow::Result;

use crate::Verdict;
use crate::workspace;

use finding::Severity;

pub fn run() -> Result<Verdict> {
    let sources = workspace::sources()?;
    let mut findings = direction::check(&workspace::metadata()?)?;
    findings.extend(direction::check_purity(&sources)?);
    findings.extend(lengths::check(&sources));
    findings.extend(openings::check(&sources));
    findings.extend(paths::check(&sources)?);
    findings.extend(python::check(&sources)?);
    findings.extend(words::check(&sources));
    findings.extend(sleeps::check(&sources)?);
    findings.extend(unsafety::check(&sources));

    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    println!(
        "tidy: {} files, {errors} errors, {} warnings",
        sources.len(),
        findings.len() - errors
    );
    Ok(if errors == 0 { Verdict::Good } else { Verdict::Bad })
}
