//! A finding of a check: a location in the repository, the problem, and the remedy.

use std::fmt;

/// One problem with its location and remedy.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    pub path: String,
    pub line: usize,
    pub what: String,
    pub remedy: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Warning,
    Error,
}

impl Finding {
    pub fn error(
        path: &str,
        line: usize,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
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
