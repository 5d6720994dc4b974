//! `cargo xtask tidy`: checks what compiler and clippy do not check. Most checks are pure functions over the
//! files of the workspace. No check changes a file.

mod cycles;
mod diagrams;
mod direction;
mod exceptions;
mod fields;
mod finding;
mod graph;
mod impls;
mod lengths;
mod markdown;
mod openings;
mod paragraphs;
mod paths;
mod python;
mod resolve;
mod rust;
mod sleeps;
mod type_names;
mod unsafety;
mod variables;
mod words;

use anyhow::Result;

use crate::RunVerdict;
use crate::workspace::{self, SourceFile};

use finding::{Finding, Severity};

pub fn run() -> Result<RunVerdict> {
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
    findings.extend(variables::check(&sources));
    findings.extend(check_structure(&sources)?);

    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    println!(
        "tidy: {} files, {errors} errors, {} warnings",
        sources.len(),
        findings.len() - errors
    );
    Ok(if errors == 0 { RunVerdict::Good } else { RunVerdict::Bad })
}

/// The checks of the structure of code and docs.
fn check_structure(sources: &[SourceFile]) -> Result<Vec<Finding>> {
    let (files, mut findings) = rust::parse(sources);
    findings.extend(cycles::check(&files));
    findings.extend(fields::check(&files)?);
    findings.extend(impls::check(&files));
    findings.extend(type_names::check(&files)?);
    findings.extend(paragraphs::check(sources));
    findings.extend(diagrams::check(sources, &files));
    Ok(findings)
}
