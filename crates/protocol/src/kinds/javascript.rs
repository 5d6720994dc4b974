//! The worker kind for JavaScript and TypeScript on Node.js.

use super::{LanguageTerms, TypedInput, WorkerKind};
use crate::event::StartedBy;
use crate::worker::CONTEXTS;

pub const KIND: WorkerKind = WorkerKind {
    name: "node",
    language: "JavaScript or TypeScript",
    extensions: &["js", "mjs", "cjs", "ts", "mts", "cts"],
    shebangs: &["node", "nodejs"],
    interpreter: "node",
    version_arguments: VERSION_ARGUMENTS,
    capabilities: &["stdin", "interrupt", "display", "tools", CONTEXTS],
    has_variants: false,
    starts: &[StartedBy::Exec],
    typed: TypedInput::Brackets,
    terms: LanguageTerms {
        string: "string",
        integer: "number",
        number: "number",
        boolean: "boolean",
        object: "object",
        list: "Array",
        null: "null",
        yes: "true",
        no: "false",
        choice: "one of",
    },
};

/// Arguments with which Node.js prints its version and its path.
pub const VERSION_ARGUMENTS: &[&str] = &["-p", "process.versions.node + ' ' + process.execPath"];
