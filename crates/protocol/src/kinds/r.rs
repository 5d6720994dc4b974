//! The R worker kind.

use super::{LanguageTerms, TypedInput, WorkerKind};
use crate::event::StartedBy;
use crate::worker::CONTEXTS;

pub const KIND: WorkerKind = WorkerKind {
    name: "r",
    language: "R",
    extensions: &["R", "r"],
    shebangs: &["Rscript", "R"],
    interpreter: "R",
    version_arguments: &[
        "--vanilla",
        "--slave",
        "-e",
        "cat(as.character(getRversion()), file.path(R.home('bin'), 'R'))",
    ],
    capabilities: &["stdin", "interrupt", "display", "tools", CONTEXTS],
    has_variants: false,
    starts: &[StartedBy::Exec, StartedBy::Zygote, StartedBy::Pool],
    typed: TypedInput::Brackets,
    terms: LanguageTerms {
        string: "character",
        integer: "integer",
        number: "numeric",
        boolean: "logical",
        object: "list",
        list: "list",
        null: "NULL",
        yes: "TRUE",
        no: "FALSE",
        choice: "one of",
    },
};
