//! The worker kind for Python in WebAssembly (Pyodide, which runs on Node.js).

use super::{TypedInput, WorkerKind, javascript, python};
use crate::event::StartedBy;

pub const KIND: WorkerKind = WorkerKind {
    name: "pyodide",
    language: "Python in WebAssembly",
    extensions: &[],
    shebangs: &[],
    interpreter: "node",
    version_arguments: javascript::VERSION_ARGUMENTS,
    capabilities: &["stdin", "interrupt", "display", "tools"],
    has_variants: false,
    starts: &[StartedBy::Exec],
    typed: TypedInput::IndentedBlocks,
    terms: python::TERMS,
};
