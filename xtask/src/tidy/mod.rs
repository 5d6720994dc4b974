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

/// The checks of the structure of code and docs. Each has its own severity: a check with findings that are
/// not fixed yet only warns.
fn check_structure(sources: &[SourceFile]) -> Result<Vec<Finding>> {
    let (files, mut findings) = rust::parse(sources);
    for (severity, found) in [
        (cycles::SEVERITY, cycles::check(&files)),
        (fields::SEVERITY, fields::check(&files)?),
        (impls::SEVERITY, impls::check(&files)),
        (type_names::SEVERITY, type_names::check(&files)?),
        (paragraphs::SEVERITY, paragraphs::check(sources)),
        (diagrams::SEVERITY, diagrams::check(sources, &files)),
    ] {
        findings.extend(found.into_iter().map(|finding| Finding { severity, ..finding }));
    }
    Ok(findings)
}
