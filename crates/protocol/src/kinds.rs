//! The kinds of worker of this release, as data. Node, MCP door and CLI take facts about a language from its
//! kind. The worker of a session declares its own capabilities.

pub mod agent;
pub mod javascript;
pub mod jupyter;
pub mod pyodide;
pub mod python;
pub mod r;
pub mod shell;

use crate::event::StartedBy;
use crate::worker::CONTEXTS;

/// One kind of worker.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkerKind {
    /// The name by which clients request this kind.
    pub name: &'static str,
    /// The name of the language.
    pub language: &'static str,
    /// The file name extensions of the language.
    pub extensions: &'static [&'static str],
    /// The programs of a `#!` line that mean this kind, without a version number at their end.
    pub shebangs: &'static [&'static str],
    /// The program on PATH that runs the worker if a session names no other interpreter.
    pub interpreter: &'static str,
    /// Arguments with which the interpreter prints its version and its real path, separated by a space.
    pub version_arguments: &'static [&'static str],
    /// The capabilities of its workers ([`crate::worker`]).
    pub capabilities: &'static [&'static str],
    /// Whether a session names a variant after the kind's name, as in `jupyter:ir`.
    pub has_variants: bool,
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
    /// All brackets and quotes are closed, and the last line does not end in an operator.
    Brackets,
    /// All quotes, here-documents and compound commands are closed.
    Shell,
    /// Every line is complete.
    Lines,
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
pub const ALL: &[WorkerKind] = &[
    python::KIND,
    shell::KIND,
    r::KIND,
    javascript::KIND,
    pyodide::KIND,
    jupyter::KIND,
    agent::KIND,
    agent::ACP_KIND,
];

/// The kind of a session whose client requests none.
pub const DEFAULT: &WorkerKind = &ALL[0];

/// Separates the name of a kind from the name of one of its variants: `jupyter:ir`.
pub const VARIANT_SEPARATOR: char = ':';

/// The kind of this name. A name with a variant (`jupyter:ir`) finds the kind before the separator.
pub fn find(name: &str) -> Option<&'static WorkerKind> {
    let (base, has_variant) = match name.split_once(VARIANT_SEPARATOR) {
        Some((base, _)) => (base, true),
        None => (name, false),
    };
    ALL.iter().find(|kind| kind.name == base && (kind.has_variants || !has_variant))
}

/// The built-in kind whose files have this extension.
pub fn by_extension(extension: &str) -> Option<&'static WorkerKind> {
    ALL.iter().find(|kind| kind.extensions.contains(&extension))
}

/// The terms of a session's language, by the name of its kind. A worker of the configuration file takes JSON.
pub fn terms_of(name: &str) -> &'static LanguageTerms {
    find(name).map_or(&shell::JSON_TERMS, |kind| &kind.terms)
}

impl WorkerKind {
    /// Whether its workers take the context of a turn.
    pub fn takes_context(&self) -> bool {
        self.capabilities.contains(&CONTEXTS)
    }

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
        assert_eq!(find("jupyter:ir"), Some(&jupyter::KIND));
        assert_eq!(find("python:3"), None);
        assert_eq!(by_extension("R").map(|kind| kind.name), Some("r"));
    }
}
