//! The cases: what each demands of a worker, which snippets it needs, and to which workers it applies.

mod displays;
mod endings;
mod frames;
mod input;
mod interrupts;
mod processes;
mod tools;
mod turns;

use std::fmt;

use serde::{Serialize, Serializer};

use crate::driver::{ReadyFacts, WorkerDriver};
use crate::failure::Step;
use crate::snippets::SnippetSet;

/// How much a case counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaseClass {
    /// Every worker must pass.
    Required,
    /// A worker that declares this capability must pass.
    Capability(&'static str),
    /// A worker should pass. A failure does not change the exit status.
    Advisory,
}

impl fmt::Display for CaseClass {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Required => "required",
            Self::Capability(name) => name,
            Self::Advisory => "advisory",
        })
    }
}

impl Serialize for CaseClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One case of the suite.
#[derive(Debug)]
pub(crate) struct ConformanceCase {
    pub name: &'static str,
    pub sentence: &'static str,
    pub class: CaseClass,
    /// The snippets without which the case is not applicable.
    pub needs: &'static [&'static str],
    pub run: fn(&mut CaseRun<'_>) -> Step,
}

/// A running case: its worker is ready.
#[derive(Debug)]
pub(crate) struct CaseRun<'a> {
    pub worker: &'a mut WorkerDriver,
    pub ready: &'a ReadyFacts,
    pub snippets: Option<&'a SnippetSet>,
}

impl CaseRun<'_> {
    /// The code of a snippet that the case needs.
    pub fn code(&self, name: &str) -> String {
        self.optional(name).unwrap_or_default()
    }

    /// The code of a snippet, if there is one.
    pub fn optional(&self, name: &str) -> Option<String> {
        self.snippets.and_then(|set| set.get(name)).map(str::to_owned)
    }

    /// Runs the snippet `print`, which must work as ever.
    pub fn still_works(&mut self) -> Step {
        turns::print(self)
    }
}

pub(crate) const STDIN: CaseClass = CaseClass::Capability("stdin");
pub(crate) const INTERRUPT: CaseClass = CaseClass::Capability("interrupt");
pub(crate) const DISPLAY: CaseClass = CaseClass::Capability("display");
pub(crate) const TOOLS: CaseClass = CaseClass::Capability("tools");

/// All cases, in the order in which they run.
pub(crate) fn all() -> impl Iterator<Item = &'static ConformanceCase> {
    [
        turns::CASES,
        frames::CASES,
        interrupts::CASES,
        input::CASES,
        displays::CASES,
        tools::CASES,
        processes::CASES,
        endings::CASES,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::snippets::SNIPPETS;

    #[test]
    fn every_case_has_a_name_of_its_own_a_sentence_and_known_snippets() {
        let mut names = BTreeSet::new();
        for case in all() {
            assert!(names.insert(case.name), "{} is there twice", case.name);
            assert!(case.sentence.ends_with('.'), "{}", case.name);
            for need in case.needs {
                assert!(SNIPPETS.iter().any(|(name, _)| name == need), "{}: {need}", case.name);
            }
        }
    }

    #[test]
    fn every_snippet_is_used() {
        let used: BTreeSet<&str> = all().flat_map(|case| case.needs.iter().copied()).collect();
        for (name, _) in SNIPPETS {
            assert!(used.contains(name), "{name}");
        }
    }
}
