//! The Python worker kind.

use super::{LanguageTerms, TypedInput, WorkerKind};
use crate::event::StartedBy;
use crate::worker::{CONTEXTS, FORKS};

pub const KIND: WorkerKind = WorkerKind {
    name: "python",
    language: "Python",
    extensions: &["py"],
    shebangs: &["python"],
    interpreter: "python3",
    version_arguments: &["-c", "import sys; print(sys.version.split()[0], sys.executable)"],
    capabilities: &["stdin", "interrupt", "display", "tools", FORKS, CONTEXTS],
    has_variants: false,
    starts: &[StartedBy::Exec, StartedBy::Zygote, StartedBy::Pool],
    typed: TypedInput::IndentedBlocks,
    terms: TERMS,
};

/// Python's words for types and values.
pub const TERMS: LanguageTerms = LanguageTerms {
    string: "str",
    integer: "int",
    number: "float",
    boolean: "bool",
    object: "dict",
    list: "list",
    null: "None",
    yes: "True",
    no: "False",
    choice: "Literal",
};
