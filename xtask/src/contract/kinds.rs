//! How each line of the contract holds for each kind of worker (line 80), and the table of the kinds in
//! `docs/workers.md`. The lines that the tests of a kind check have results. For every other line, this module
//! says where it is checked, or why it does not apply.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};
use windlass_protocol::event::StartedBy;
use windlass_protocol::kinds::{self, WorkerKind};

use super::lines::{self, ContractLine};
use super::{CONTRACT, Tally};
use crate::workspace;

const DOCUMENT: &str = "docs/workers.md";
const BEGIN: &str = "<!-- kinds: written by `cargo xtask contract --document` -->\n";
const END: &str = "<!-- end of kinds -->\n";

/// Where a line is checked for a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineBasis {
    /// By a test of the same line with this kind.
    Tested,
    /// In the node, the keeper or a client. The worker has no part in it, so the tests with Python hold for all.
    Outside,
    /// By the tests of this line, with this kind.
    ByLine(u8),
    /// By cases of `windlass worker check`, which CI runs for this kind.
    ByCheck,
    /// By a test of `cargo xtask contract` that belongs to no kind.
    ByOther,
    /// By the tests of the worker itself.
    ByWorker,
    /// Not at all: the reason.
    NotApplying(&'static str),
}

/// Where a line is checked for a kind other than Python.
pub fn basis(kind: &WorkerKind, number: u8) -> LineBasis {
    let can = |capability: &str| kind.capabilities.contains(&capability);
    match (number, kind.name) {
        (80 | 82 | 83 | 87 | 89, _) => LineBasis::Tested,
        // Messages and their order, as a worker reads and writes them.
        (7 | 12 | 13 | 14 | 17 | 35 | 40, _) => LineBasis::ByCheck,
        (15 | 60..=64, _) if can("tools") || kind.name == "jupyter" => LineBasis::ByCheck,
        (16, "node" | "pyodide") => LineBasis::ByWorker,
        (16, "shell") => LineBasis::NotApplying("what a turn leaves running is a job of the shell"),
        (16, "r") => LineBasis::NotApplying("R has no tasks that outlive a turn"),
        (16, _) => LineBasis::NotApplying("the kernel owns its tasks"),
        (20 | 27 | 28 | 45, _) => LineBasis::ByLine(80),
        (21 | 22 | 65, _) => LineBasis::ByLine(83),
        (23, _) => LineBasis::NotApplying("only CPython has a GIL"),
        (33, "shell") => LineBasis::ByLine(84),
        (33, _) => LineBasis::ByLine(83),
        (34, _) => LineBasis::NotApplying("it is about `os.read` of Python"),
        (36 | 42, _) => LineBasis::ByLine(82),
        (41, _) if can("display") => LineBasis::ByLine(82),
        (41, _) => LineBasis::NotApplying("the kind has no displays"),
        (71, _) if !can("fork") => LineBasis::NotApplying("sessions of the kind cannot be forked"),
        (75, "shell" | "r" | "node") => LineBasis::ByOther,
        (75, _) if !can("context") => {
            LineBasis::NotApplying("the kind runs a file as a cell, without arguments")
        }
        (81, "shell" | "r" | "node") | (84, "shell") | (86, "pyodide") | (88, "jupyter") => {
            LineBasis::ByOther
        }
        (81, _) => LineBasis::NotApplying("the kind has no startup file"),
        (84, _) => LineBasis::NotApplying("it is about the kind `shell`"),
        (85, _) => LineBasis::NotApplying("it is about workers of the configuration file"),
        (86, _) => LineBasis::NotApplying("it is about the kind `pyodide`"),
        (88, _) => LineBasis::NotApplying("it is about the kind `jupyter`"),
        _ => LineBasis::Outside,
    }
}

/// The lines without a test of this kind: where each is checked. Ends with the counts.
pub fn render(kind: &WorkerKind, lines: &[ContractLine], tallies: &BTreeMap<u8, Tally>) -> String {
    let mut text = String::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lines.iter().filter(|line| !tallies.contains_key(&line.number)) {
        let (group, words) = match basis(kind, line.number) {
            LineBasis::Tested => ("missing", "missing".to_owned()),
            LineBasis::Outside => ("outside of the worker", "outside of the worker".to_owned()),
            LineBasis::ByLine(other) => ("by another line", format!("by line {other:02}")),
            LineBasis::ByCheck => ("by worker check", "by worker check".to_owned()),
            LineBasis::ByOther => ("by the whole contract", "by the whole contract".to_owned()),
            LineBasis::ByWorker => ("by the worker's tests", "by the worker's tests".to_owned()),
            LineBasis::NotApplying(why) => ("does not apply", format!("does not apply: {why}")),
        };
        *counts.entry(group).or_default() += 1;
        let _ = writeln!(text, "{:02}  {words}", line.number);
    }
    let counts: Vec<String> =
        counts.iter().map(|(group, count)| format!("{count} {group}")).collect();
    let _ = writeln!(text, "worker {}: {}", kind.name, counts.join(", "));
    text
}

/// Writes the table of the kinds into the document.
pub fn write() -> Result<()> {
    let path = workspace::root().join(DOCUMENT);
    let text = fs::read_to_string(&path)?;
    Ok(fs::write(&path, with_table(&text)?)?)
}

/// The document with the current table.
fn with_table(text: &str) -> Result<String> {
    let missing =
        || format!("{DOCUMENT} has no comment that starts or ends the table of the kinds");
    let (before, rest) = text.split_once(BEGIN).with_context(missing)?;
    let (_, after) = rest.split_once(END).with_context(missing)?;
    let contract = fs::read_to_string(workspace::root().join(CONTRACT))?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", table(&lines::parse(&contract)?)))
}

fn table(lines: &[ContractLine]) -> String {
    let mut text = row("", |kind| format!("`{}`", kind.name));
    text.push_str(&row("---", |_| "---".to_owned()));
    for capability in kinds::DEFAULT.capabilities {
        let has = |kind: &WorkerKind| {
            let is_its_own = kind.capabilities.contains(capability);
            if is_its_own { "yes" } else { "no" }.to_owned()
        };
        text.push_str(&row(&format!("capability `{capability}`"), has));
    }
    for (way, name) in
        [(StartedBy::Exec, "exec"), (StartedBy::Zygote, "zygote"), (StartedBy::Pool, "pool")]
    {
        let has = |kind: &WorkerKind| if kind.starts_by(way) { "yes" } else { "no" }.to_owned();
        text.push_str(&row(&format!("start by {name}"), has));
    }
    let checked = |kind: &WorkerKind| {
        let applies = lines.iter().filter(|line| not_applying(kind, line.number).is_none());
        applies.count().to_string()
    };
    text.push_str(&row("lines of the contract that hold", checked));
    let without = |kind: &WorkerKind| {
        let not = lines.iter().filter(|line| not_applying(kind, line.number).is_some());
        let numbers: Vec<String> = not.map(|line| format!("{:02}", line.number)).collect();
        if numbers.is_empty() { "none".to_owned() } else { numbers.join(" ") }
    };
    text.push_str(&row("lines that do not apply", without));
    text
}

/// The kinds that run code. Agents take prompts, and lines 90 to 96 are about them.
fn languages() -> impl Iterator<Item = &'static WorkerKind> {
    kinds::ALL.iter().filter(|kind| !kinds::agent::is_agent(kind.name))
}

fn row(name: &str, cell: impl Fn(&WorkerKind) -> String) -> String {
    let cells: Vec<String> = languages().map(cell).collect();
    format!("| {name} | {} |\n", cells.join(" | "))
}

/// Why a line does not apply to a kind, if so.
fn not_applying(kind: &WorkerKind, number: u8) -> Option<&'static str> {
    match basis(kind, number) {
        LineBasis::NotApplying(why) if kind != kinds::DEFAULT => Some(why),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_current_table() {
        let text = fs::read_to_string(workspace::root().join(DOCUMENT)).unwrap();
        assert!(
            with_table(&text).unwrap() == text,
            "{DOCUMENT} is out of date: run `cargo xtask contract --document`"
        );
    }

    #[test]
    fn a_line_by_which_another_is_checked_has_tests() {
        for kind in languages() {
            for number in 1..=89 {
                let LineBasis::ByLine(other) = basis(kind, number) else { continue };
                let by = basis(kind, other);
                assert!(matches!(by, LineBasis::Tested | LineBasis::ByOther), "{number} {by:?}");
            }
        }
    }
}
