//! The worker kind for Jupyter kernels. A session names the kernel: `jupyter:python3`.

use super::{TypedInput, WorkerKind, shell};
use crate::event::StartedBy;

pub const KIND: WorkerKind = WorkerKind {
    name: "jupyter",
    language: "any Jupyter kernel",
    extensions: &[],
    shebangs: &[],
    interpreter: "",
    version_arguments: &[],
    capabilities: &["stdin", "interrupt", "display"],
    has_variants: true,
    starts: &[StartedBy::Exec],
    typed: TypedInput::Lines,
    terms: shell::JSON_TERMS,
};
