//! `cargo xtask tidy`: what the compiler and clippy do not check. Each check is a pure function
//! over the workspace's files where it can be; none of them mends anything.

mod direction;
mod exceptions;
mod lengths;
mod openings;
mod paths;
mod python;
mod sleeps;
mod unsafety;
mod words;

use std::fmt;

use anyhow::Result;

use crate::Verdict;
use crate::workspace;

/// One thing that is wrong, where, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    severity: Severity,
    path: String,
    line: usize,
    what: String,
    remedy: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    Warning,
    Error,
}

impl Finding {
    fn error(path: &str, line: usize, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (path, what, remedy) = (path.to_owned(), what.into(), remedy.into());
        Self { severity: Severity::Error, path, line, what, remedy }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}:{}: {}", self.path, self.line, self.what)?;
        write!(f, "\n  remedy: {}", self.remedy)
    }
}

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
