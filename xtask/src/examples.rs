//! `cargo xtask examples`: the programs in `examples`, run against a node of their own. Each is written
//! in cells, as notebooks are: `# %%` begins one of code, `# %% [markdown]` one of text. A program with
//! what each of its cells printed is its page in `docs/examples`; a page that says anything else fails
//! the run. Lines that begin with `# ` in what was printed, such as times, may differ.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use crate::RunVerdict;
use crate::packages::{Packages, PinnedPackage};
use crate::sdk::{PrivateNode, clean};
use crate::workspace;

/// For the example that plots, where CI has not made a Python that has it.
const MATPLOTLIB: PinnedPackage = PinnedPackage::pip("matplotlib", "matplotlib", "3.11.2");

/// Where the programs are, and their pages.
const PROGRAMS: &str = "examples";
const PAGES: &str = "docs/examples";

/// How long a program may take, in seconds. Then it is interrupted, and killed if that does not help.
const SECONDS_MAX: &str = "300";
const GRACE_SECONDS: &str = "20";

/// How a cell begins, and what follows in one of text.
const CELL: &str = "# %%";
const MARKDOWN: &str = "[markdown]";

/// Printed where a cell begins, on a line of its own.
const BOUNDARY: &str = "\u{1e}cell";

/// Runs a text as if it were the file: names, line numbers and `__file__` are the file's.
const RUNNER: &str = "import os, sys; __file__ = sys.argv[1]; sys.path[0] = os.path.dirname(__file__)\n\
                      exec(compile(open(sys.argv.pop()).read(), __file__, 'exec'))";

/// What lines that may differ begin with.
const OWN: &str = "# ";

/// The largest picture that is kept beside a page.
const PICTURE_BYTES_MAX: u64 = 60 * 1024;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these, by name
    names: Vec<String>,
    /// Write the pages
    #[arg(long)]
    write: bool,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    let programs = programs(&args.names)?;
    let python = python_with_matplotlib()?;
    let node = PrivateNode::prepare()?;
    let mut verdict = RunVerdict::Good;
    for program in &programs {
        match check(args, &node, &python, program) {
            Ok(()) => println!("example {}: ok", name_of(program)),
            Err(error) => {
                println!("example {}: {error:#}", name_of(program));
                verdict = RunVerdict::Bad;
            }
        }
    }
    node.stop()?;
    Ok(verdict)
}

/// Runs one, and compares or writes its page.
fn check(args: &Args, node: &PrivateNode, python: &Path, program: &Path) -> Result<()> {
    let text = fs::read_to_string(program)?;
    let cells = cells(&text)?;
    let place = tempfile::tempdir()?;
    let printed = printed(node, python, program, &text, place.path())?;
    ensure!(printed.len() == cells.len(), "{} cells, {} began", cells.len(), printed.len());
    let name = name_of(program);
    let made = page(&name, &cells, &printed);
    let pages = workspace::root().join(PAGES);
    let path = pages.join(format!("{name}.md"));
    if args.write {
        fs::create_dir_all(&pages)?;
        fs::write(&path, &made)?;
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    if let Some(difference) = difference(&kept, &made) {
        bail!(
            "{PAGES}/{name}.md is not what it prints; if the program is right, \
             `cargo xtask examples --write` makes it so\n{difference}"
        );
    }
    for picture in pictures(place.path())? {
        let beside = pages.join(picture.file_name().unwrap_or_default());
        if args.write {
            fs::copy(&picture, &beside)?;
        }
        ensure!(beside.is_file(), "{} is not there", beside.display());
    }
    Ok(())
}

/// Those that are named, or all.
fn programs(names: &[String]) -> Result<Vec<PathBuf>> {
    let directory = workspace::root().join(PROGRAMS).canonicalize()?;
    if !names.is_empty() {
        return Ok(names.iter().map(|name| directory.join(format!("{name}.py"))).collect());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            found.push(path);
        }
    }
    ensure!(!found.is_empty(), "there are no programs in {PROGRAMS}");
    found.sort();
    Ok(found)
}

fn name_of(program: &Path) -> String {
    program.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn python_with_matplotlib() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("WINDLASS_TEST_MATPLOTLIB_PYTHON") {
        return Ok(PathBuf::from(named));
    }
    Ok(Packages::prepare(&[MATPLOTLIB])?.directory(&MATPLOTLIB).join("bin/python"))
}

/// Runs a program in a directory; what each of its cells printed.
fn printed(
    node: &PrivateNode,
    python: &Path,
    program: &Path,
    text: &str,
    place: &Path,
) -> Result<Vec<String>> {
    let marked = tempfile::NamedTempFile::new()?;
    fs::write(marked.path(), marking(text))?;
    // An interrupt, so that a program which has a node of its own can still end it.
    let mut command = node.known_to(clean("timeout".into()));
    command
        .args(["--signal=INT", "--kill-after", GRACE_SECONDS, SECONDS_MAX])
        .arg(python)
        .args(["-c", RUNNER])
        .arg(program)
        .arg(marked.path())
        .env("PYTHONPATH", workspace::root().join("sdk/python/src"))
        .env("WINDLASS_MCP_CONFIG", "/dev/null")
        .current_dir(place)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command.output().context("cannot run timeout")?;
    let output_text = String::from_utf8(output.stdout).context("it did not print UTF-8")?;
    let boundary = format!("{BOUNDARY}\n");
    let said = output_text.replace(&boundary, "");
    ensure!(output.status.success(), "failed ({}), and printed\n{said}", output.status);
    let mut parts = output_text.split(&boundary).map(str::to_owned);
    let before = parts.next().unwrap_or_default();
    ensure!(before.is_empty(), "it prints before its first cell");
    Ok(parts.collect())
}

/// The program, with a sign in its output where a cell begins. Lines stay where they are.
fn marking(text: &str) -> String {
    let sign = format!("print({BOUNDARY:?}, flush=True)").replace("\\u{1e}", "\\x1e");
    let lines = text.lines().map(|line| if line.starts_with(CELL) { &sign } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

#[derive(Debug, PartialEq, Eq)]
enum Cell {
    Text(String),
    Code(String),
}

fn cells(program: &str) -> Result<Vec<Cell>> {
    ensure!(program.starts_with(CELL), "does not begin with a cell");
    let mut cells: Vec<(bool, Vec<&str>)> = Vec::new();
    for line in program.lines() {
        match (line.strip_prefix(CELL), cells.last_mut()) {
            (Some(head), _) => cells.push((head.trim() == MARKDOWN, Vec::new())),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => {}
        }
    }
    cells
        .into_iter()
        .map(|(is_text, lines)| {
            let body = lines.join("\n").trim().to_owned();
            Ok(if is_text { Cell::Text(uncommented(&body)?) } else { Cell::Code(body) })
        })
        .collect()
}

fn uncommented(body: &str) -> Result<String> {
    let lines = body.lines().map(|line| {
        let said = line.strip_prefix('#').context("a line of text that is no comment")?;
        Ok(said.strip_prefix(' ').unwrap_or(said))
    });
    Ok(lines.collect::<Result<Vec<_>>>()?.join("\n"))
}

fn page(name: &str, cells: &[Cell], printed: &[String]) -> String {
    let mut page = format!(
        "<!-- Written by `cargo xtask examples --write` from {PROGRAMS}/{name}.py; change that. -->\n"
    );
    for (cell, printed) in cells.iter().zip(printed) {
        match cell {
            Cell::Text(text) => page.push_str(&format!("\n{text}\n")),
            Cell::Code(code) => page.push_str(&format!("\n```python\n{code}\n```\n")),
        }
        let printed: Vec<&str> = printed.trim_end().lines().map(str::trim_end).collect();
        if !printed.is_empty() {
            page.push_str(&format!("\n```text\n{}\n```\n", printed.join("\n")));
        }
    }
    page
}

/// Where two pages differ first, apart from the lines that may; none if they do not.
fn difference(kept: &str, made: &str) -> Option<String> {
    let (kept, made) = (steady(kept), steady(made));
    let lines = kept.len().max(made.len());
    let at = (0..lines).find(|line| kept.get(*line) != made.get(*line))?;
    let shown = |page: &[String]| page.get(at).map_or("(its end)", String::as_str).to_owned();
    Some(format!("the page: {}\nnow:      {}", shown(&kept), shown(&made)))
}

fn steady(page: &str) -> Vec<String> {
    let mut in_output = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        if line.starts_with("```") {
            in_output = line == "```text";
        }
        let own = in_output && line.starts_with(OWN);
        lines.push(if own { OWN.to_owned() } else { line.to_owned() });
    }
    lines
}

/// The pictures that a program has left in its directory, which its page shows.
fn pictures(place: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(place)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "png") {
            let bytes = path.metadata()?.len();
            ensure!(bytes <= PICTURE_BYTES_MAX, "{} has {bytes} bytes, too many", path.display());
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str =
        "# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nprint(1)\n\n# %%\nx = 2\n";

    #[test]
    fn a_page_has_text_code_and_what_the_code_printed() {
        let cells = cells(PROGRAM).unwrap();
        let printed = ["", "1 \n# took 2 s\n", ""].map(str::to_owned);
        let page = page("a", &cells, &printed);
        let (_, page) = page.split_once('\n').unwrap();
        assert_eq!(
            page,
            "\n# Title\n\nText.\n\n```python\nprint(1)\n```\n\n```text\n1\n# took 2 s\n```\n\n\
             ```python\nx = 2\n```\n"
        );
    }

    #[test]
    fn signs_stand_where_cells_begin_and_move_no_line() {
        let marked = marking(PROGRAM);
        let lines: Vec<&str> = marked.lines().collect();
        assert_eq!(lines.len(), PROGRAM.lines().count());
        assert_eq!(lines[5], r#"print("\x1ecell", flush=True)"#);
        assert_eq!(lines[6], "print(1)");
    }

    #[test]
    fn text_that_is_no_comment_is_refused() {
        assert!(cells("# %% [markdown]\n# a\nb = 1\n").is_err());
        assert!(cells("import os\n# %%\n").is_err());
    }

    #[test]
    fn times_may_differ_and_nothing_else() {
        let page =
            |code: &str, output: &str| format!("```python\n{code}\n```\n```text\n{output}\n```\n");
        let kept = page("# a\nb()", "1\n# took 2 s");
        assert_eq!(difference(&kept, &page("# a\nb()", "1\n# took 3 s")), None);
        assert!(difference(&kept, &page("# a\nb()", "2\n# took 2 s")).is_some());
        assert!(difference(&kept, &page("# b\nb()", "1\n# took 2 s")).is_some());
        assert!(difference(&kept, &page("# a\nb()", "1")).is_some());
        assert!(difference("", &kept).is_some());
    }
}
