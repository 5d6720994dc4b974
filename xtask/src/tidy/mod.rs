//! `cargo xtask tidy`: what the compiler and clippy do not check. Each check is a pure function
//! over the workspace's files where it can be; none of them mends anything.

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

use crate::Verdict;
use crate::workspace::{self, Source};

use finding::{Finding, Severity};

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
    Ok(if errors == 0 { Verdict::Good } else { Verdict::Bad })
}

/// The checks of the shape of code and docs. Each has a severity of its own: a check whose findings
/// are not all mended yet warns.
fn check_structure(sources: &[Source]) -> Result<Vec<Finding>> {
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
