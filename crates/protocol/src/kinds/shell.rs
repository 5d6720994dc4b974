//! The shell worker kind: bash.

use super::{LanguageTerms, TypedInput, WorkerKind};
use crate::event::StartedBy;
use crate::worker::CONTEXTS;

pub const KIND: WorkerKind = WorkerKind {
    name: "shell",
    language: "shell",
    extensions: &["sh", "bash"],
    shebangs: &["sh", "bash", "dash"],
    interpreter: "bash",
    version_arguments: &["-c", "echo \"${BASH_VERSION%%(*} $BASH\""],
    capabilities: &["stdin", "interrupt", "tools", CONTEXTS],
    has_variants: false,
    starts: &[StartedBy::Exec],
    typed: TypedInput::Shell,
    terms: JSON_TERMS,
};

/// The words of JSON, for languages whose tools take JSON.
pub const JSON_TERMS: LanguageTerms = LanguageTerms {
    string: "string",
    integer: "integer",
    number: "number",
    boolean: "boolean",
    object: "object",
    list: "array",
    null: "null",
    yes: "true",
    no: "false",
    choice: "enum",
};
