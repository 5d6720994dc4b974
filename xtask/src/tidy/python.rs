//! Checks Python files: the length of functions, and a docstring at the top of every worker file. One
//! `python3` process parses all files with the module `ast`.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::finding::Finding;
use crate::workspace::{self, SourceFile};

/// The same limit as clippy's `too-many-lines-threshold`.
const FUNCTION_LINES_MAX: usize = 70;

/// The script reads paths from standard input and prints one JSON object for each file.
const READER: &str = include_str!("functions.py");

#[derive(Debug, Deserialize)]
struct Read {
    path: String,
    #[serde(default)]
    docstring: bool,
    #[serde(default)]
    functions: Vec<(String, usize, usize)>,
    /// The line and message of a syntax error.
    broken: Option<(usize, String)>,
}

pub fn check(sources: &[SourceFile]) -> Result<Vec<Finding>> {
    let python = sources.iter().filter(|source| source.is_python());
    let paths: Vec<&str> = python.map(|source| source.path.as_str()).collect();
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let read = read(&paths)?;
    Ok(read.iter().flat_map(judge).collect())
}

fn read(paths: &[&str]) -> Result<Vec<Read>> {
    let mut child = Command::new("python3")
        .args(["-I", "-c", READER])
        .current_dir(workspace::root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run python3, which reads the Python files")?;
    let mut stdin = child.stdin.take().context("python3 has no standard input")?;
    // The script reads all its input before it prints, so this write cannot deadlock.
    stdin.write_all(paths.join("\n").as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("python3 could not read the Python files ({})", output.status);
    }
    let text = String::from_utf8(output.stdout)?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn judge(file: &Read) -> Vec<Finding> {
    if let Some((line, why)) = &file.broken {
        let what = format!("is not Python: {why}");
        return vec![Finding::error(&file.path, *line, what, "mend the syntax")];
    }
    let mut findings = Vec::new();
    if file.path.starts_with("workers/") && !file.docstring {
        findings.push(Finding::error(
            &file.path,
            1,
            "does not open with a docstring",
            "say in its first lines what the file owns and what it never does",
        ));
    }
    for (name, line, lines) in &file.functions {
        if *lines > FUNCTION_LINES_MAX {
            let what = format!("{name} has {lines} lines, over {FUNCTION_LINES_MAX}");
            findings.push(Finding::error(&file.path, *line, what, "split it by what it does"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_file_needs_a_docstring_and_short_functions() {
        let file = |path: &str, docstring, lines| Read {
            path: path.to_owned(),
            docstring,
            functions: vec![("f".to_owned(), 3, lines)],
            broken: None,
        };
        assert_eq!(judge(&file("workers/python/a.py", true, 70)).len(), 0);
        assert_eq!(judge(&file("workers/python/a.py", false, 71)).len(), 2);
        assert_eq!(judge(&file("docs/a.py", false, 70)).len(), 0);
    }
}
