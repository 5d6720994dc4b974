//! The kinds of worker of this release, as data. Node, MCP door and CLI take facts about a language from its
//! kind. The worker of a session declares its own capabilities.

pub mod python;

use crate::event::StartedBy;

/// One kind of worker.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkerKind {
    /// The name by which clients request this kind.
    pub name: &'static str,
    /// The name of the language.
    pub language: &'static str,
    /// The file name extensions of the language.
    pub extensions: &'static [&'static str],
    /// The program on PATH that runs the worker if a session names no other interpreter.
    pub interpreter: &'static str,
    /// Arguments with which the interpreter prints its version and its real path, separated by a space.
    pub version_arguments: &'static [&'static str],
    /// The capabilities of its workers ([`crate::worker`]).
    pub capabilities: &'static [&'static str],
    /// How its workers can be started.
    pub starts: &'static [StartedBy],
    /// How the REPL decides that typed code is complete.
    pub typed: TypedInput,
    pub terms: LanguageTerms,
}

/// The rule by which typed code is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypedInput {
    /// All brackets and quotes are closed, and an indented block ends with an empty line.
    IndentedBlocks,
}

/// The words of a language for types and values, used in tool signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LanguageTerms {
    pub string: &'static str,
    pub integer: &'static str,
    pub number: &'static str,
    pub boolean: &'static str,
    pub object: &'static str,
    pub list: &'static str,
    pub null: &'static str,
    pub yes: &'static str,
    pub no: &'static str,
    /// The type that is one of several values. The values follow in brackets.
    pub choice: &'static str,
}

/// All kinds. The first one is the default.
pub const ALL: &[WorkerKind] = &[python::KIND];

/// The kind of a session whose client requests none.
pub const DEFAULT: &WorkerKind = &ALL[0];

/// The kind of this name.
pub fn find(name: &str) -> Option<&'static WorkerKind> {
    ALL.iter().find(|kind| kind.name == name)
}

/// The terms of a session's language, by the name of its kind.
pub fn terms_of(name: &str) -> &'static LanguageTerms {
    &find(name).unwrap_or(DEFAULT).terms
}

/// The names of all kinds, for people.
pub fn names() -> String {
    ALL.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

/// The languages of all kinds, for people.
pub fn languages() -> String {
    ALL.iter().map(|kind| kind.language).collect::<Vec<_>>().join(" or ")
}

impl WorkerKind {
    pub fn starts_by(&self, way: StartedBy) -> bool {
        self.starts.contains(&way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own_and_can_be_run() {
        for (index, kind) in ALL.iter().enumerate() {
            assert_eq!(find(kind.name), Some(kind));
            assert!(kind.starts_by(StartedBy::Exec), "{}", kind.name);
            let same = |other: &WorkerKind| {
                other.extensions.iter().any(|extension| kind.extensions.contains(extension))
            };
            assert!(!ALL[..index].iter().any(same), "{}: an extension has two kinds", kind.name);
        }
        assert_eq!(find("none"), None);
    }
}
