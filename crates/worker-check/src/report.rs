//! The result of a check, as data.

use serde::Serialize;

use crate::cases::CaseClass;

/// The result of one run of the suite.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    pub command: Vec<String>,
    /// The name that the worker gave itself, if it became ready.
    pub worker: Option<String>,
    pub capabilities: Vec<String>,
    /// Time until the first worker was ready.
    pub ready_ms: Option<u64>,
    /// The language of the snippets, if there are any.
    pub language: Option<String>,
    pub cases: Vec<CaseReport>,
}

/// The result of one case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    pub name: &'static str,
    /// What the case demands, in one sentence.
    pub sentence: &'static str,
    pub class: CaseClass,
    #[serde(flatten)]
    pub verdict: CaseVerdict,
    pub ms: u64,
    /// Frames, output and signals of a failed case, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transcript: Vec<String>,
    /// The last bytes of the worker's standard error in a failed case.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stderr: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", content = "why", rename_all = "snake_case")]
pub enum CaseVerdict {
    Passed,
    Failed(String),
    NotApplicable(String),
}

impl CheckReport {
    /// Whether no required case and no case of a declared capability failed.
    pub fn conforms(&self) -> bool {
        self.failed().all(|case| case.class == CaseClass::Advisory)
    }

    pub fn failed(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|case| matches!(case.verdict, CaseVerdict::Failed(_)))
    }

    pub fn case(&self, name: &str) -> Option<&CaseReport> {
        self.cases.iter().find(|case| case.name == name)
    }

    /// Number of cases that passed, failed, and were not applicable.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |is: fn(&CaseVerdict) -> bool| {
            self.cases.iter().filter(|case| is(&case.verdict)).count()
        };
        (
            count(|verdict| *verdict == CaseVerdict::Passed),
            count(|verdict| matches!(verdict, CaseVerdict::Failed(_))),
            count(|verdict| matches!(verdict, CaseVerdict::NotApplicable(_))),
        )
    }
}
