//! The kinds of worker that a release has, as data. Node, MCP door and CLI ask a kind for what they need
//! to know of its language; what a session's own worker can do, the worker says itself.

pub mod python;

use crate::event::StartedBy;

/// One kind of worker.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkerKind {
    /// By which clients ask for it.
    pub name: &'static str,
    /// What its language is called.
    pub language: &'static str,
    /// How names of its files end.
    pub extensions: &'static [&'static str],
    /// The program on PATH that runs it where a session names no other.
    pub interpreter: &'static str,
    /// Arguments with which the interpreter prints its version and where it really is, with a space
    /// between the two.
    pub version_arguments: &'static [&'static str],
    /// What its workers can do ([`crate::worker`]).
    pub capabilities: &'static [&'static str],
    /// The ways in which its workers can start.
    pub starts: &'static [StartedBy],
    /// When what somebody types is complete.
    pub typed: TypedInput,
    pub terms: LanguageTerms,
}

/// When what somebody types is a whole piece of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypedInput {
    /// When brackets and quotes are closed, and an indented block ends with an empty line.
    IndentedBlocks,
}

/// How types and values are written in a language.
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
    /// One of several values, which follow in brackets.
    pub choice: &'static str,
}

/// All kinds. The first is that of sessions whose clients ask for none.
pub const ALL: &[WorkerKind] = &[python::KIND];

/// The kind of sessions whose clients ask for none.
pub const DEFAULT: &WorkerKind = &ALL[0];

/// The kind of this name.
pub fn find(name: &str) -> Option<&'static WorkerKind> {
    ALL.iter().find(|kind| kind.name == name)
}

/// The words of a session's language, by the name of its kind.
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
        for (place, kind) in ALL.iter().enumerate() {
            assert_eq!(find(kind.name), Some(kind));
            assert!(kind.starts_by(StartedBy::Exec), "{}", kind.name);
            let same = |other: &WorkerKind| {
                other.extensions.iter().any(|extension| kind.extensions.contains(extension))
            };
            assert!(!ALL[..place].iter().any(same), "{}: an extension has two kinds", kind.name);
        }
        assert_eq!(find("none"), None);
    }
}
