//! Reads the list of exceptions of a rule: `name reason`, one per line. `#` starts a comment. The name is a
//! path in most lists and a type name in some.

use std::fs;

use anyhow::{Context, Result};

use super::finding::Finding;
use crate::workspace;

pub fn read(list: &str) -> Result<String> {
    let path = workspace::root().join(list);
    fs::read_to_string(path).with_context(|| format!("cannot read {list}"))
}

/// The entries of one list, and whether each is used.
#[derive(Debug)]
pub struct Exceptions<'a> {
    list: &'static str,
    entries: Vec<Entry<'a>>,
}

#[derive(Debug)]
struct Entry<'a> {
    name: &'a str,
    line: usize,
    is_used: bool,
}

impl<'a> Exceptions<'a> {
    /// An entry without a reason is a finding. `question` is the question that the reason must answer.
    pub fn parse(
        list: &'static str,
        text: &'a str,
        question: &str,
        findings: &mut Vec<Finding>,
    ) -> Self {
        let mut entries = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match line.split_once(' ') {
                Some((name, reason)) if !reason.trim().is_empty() => {
                    entries.push(Entry { name, line: index + 1, is_used: false });
                }
                _ => findings.push(Finding::error(
                    list,
                    index + 1,
                    "the entry has no reason",
                    format!("write `name reason`: {question}"),
                )),
            }
        }
        Self { list, entries }
    }

    /// Whether a file or type that breaks the rule is listed.
    pub fn allow(&mut self, name: &str) -> bool {
        let entry = self.entries.iter_mut().find(|entry| entry.name == name);
        entry.map(|entry| entry.is_used = true).is_some()
    }

    /// Reports entries that are not used: such an entry would silently allow the next violation. `what` says
    /// why the file or type needs no entry.
    pub fn report_unused(&self, what: &str, findings: &mut Vec<Finding>) {
        for entry in self.entries.iter().filter(|entry| !entry.is_used) {
            let what = format!("{} {what}", entry.name);
            findings.push(Finding::error(self.list, entry.line, what, "remove the entry"));
        }
    }
}
