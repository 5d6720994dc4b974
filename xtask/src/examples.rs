//! `cargo xtask examples`: runs the programs in `examples` against a node. Each program has cells, like a
//! notebook: `# %%` starts a code cell, `# %% [markdown]` a text cell. The page of a program in
//! `docs/examples` has its cells and the output of each. The run fails if a page differs. Output lines that
//! start with `# `, such as times, may differ.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use crate::RunVerdict;
use crate::packages::{Packages, PinnedPackage};
use crate::sdk::{PrivateNode, clean};
use crate::workspace;

/// For the example that plots. It is installed if no variable names a Python that has it.
const MATPLOTLIB: PinnedPackage = PinnedPackage::pip("matplotlib", "matplotlib", "3.11.2");

/// The directories of the programs and of their pages.
const PROGRAMS: &str = "examples";
const PAGES: &str = "docs/examples";

/// How long a program may take, in seconds. After that it is interrupted, and after the grace period killed.
const SECONDS_MAX: &str = "300";
const GRACE_SECONDS: &str = "20";

/// The first line of a cell, and the word after it in a text cell.
const CELL: &str = "# %%";
const MARKDOWN: &str = "[markdown]";

/// A line that the runner prints where a cell begins.
const BOUNDARY: &str = "\u{1e}cell";

/// Runs a changed copy of the program as if it were the original file: file name, line numbers and `__file__`
/// are those of the original.
const RUNNER: &str = "import os, sys; __file__ = sys.argv[1]; sys.path[0] = os.path.dirname(__file__)\n\
                      exec(compile(open(sys.argv.pop()).read(), __file__, 'exec'))";

/// The prefix of output lines that may differ.
const VOLATILE: &str = "# ";

/// The largest image beside a page.
const PICTURE_BYTES_MAX: u64 = 60 * 1024;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run only these examples, by name
    names: Vec<String>,
    /// Write the pages instead of only comparing them
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

/// Runs one program, and writes or compares its page.
fn check(args: &Args, node: &PrivateNode, python: &Path, program: &Path) -> Result<()> {
    let text = fs::read_to_string(program)?;
    let cells = cells(&text)?;
    let work = tempfile::tempdir()?;
    let printed = printed(node, python, program, &text, work.path())?;
    ensure!(
        printed.len() == cells.len(),
        "the program has {} cells, but {} began",
        cells.len(),
        printed.len()
    );
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
            "the program does not print what {PAGES}/{name}.md shows; if the program is right, \
             run `cargo xtask examples --write`\n{difference}"
        );
    }
    for picture in pictures(work.path())? {
        let beside = pages.join(picture.file_name().unwrap_or_default());
        if args.write {
            fs::copy(&picture, &beside)?;
        }
        ensure!(
            beside.is_file(),
            "{} is missing; run `cargo xtask examples --write`",
            beside.display()
        );
    }
    Ok(())
}

/// The named programs, or all.
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

/// Runs a program in a directory and returns the output of each cell.
fn printed(
    node: &PrivateNode,
    python: &Path,
    program: &Path,
    text: &str,
    work: &Path,
) -> Result<Vec<String>> {
    let marked = tempfile::NamedTempFile::new()?;
    fs::write(marked.path(), marking(text))?;
    // An interrupt lets a program that has started a node end it.
    let mut command = node.for_command(clean("timeout".into()));
    command
        .args(["--signal=INT", "--kill-after", GRACE_SECONDS, SECONDS_MAX])
        .arg(python)
        .args(["-c", RUNNER])
        .arg(program)
        .arg(marked.path())
        .env("PYTHONPATH", workspace::root().join("sdk/python/src"))
        .env("WINDLASS_MCP_CONFIG", "/dev/null")
        .current_dir(work)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command.output().context("cannot run timeout")?;
    let output_text =
        String::from_utf8(output.stdout).context("the program's output is not UTF-8")?;
    let boundary = format!("{BOUNDARY}\n");
    let said = output_text.replace(&boundary, "");
    ensure!(output.status.success(), "the program failed ({}) and printed\n{said}", output.status);
    let mut parts = output_text.split(&boundary).map(str::to_owned);
    let before = parts.next().unwrap_or_default();
    ensure!(before.is_empty(), "the program prints before its first cell");
    Ok(parts.collect())
}

/// The program with a statement in place of each cell's first line, which prints [`BOUNDARY`]. Line numbers
/// stay the same.
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
    ensure!(program.starts_with(CELL), "the program does not start with a cell (`# %%`)");
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
        let said =
            line.strip_prefix('#').context("a text cell has a line that is not a comment")?;
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

/// The first difference between two pages, except in lines that may differ. `None` if they are equal.
fn difference(kept: &str, made: &str) -> Option<String> {
    let (kept, made) = (steady(kept), steady(made));
    let lines = kept.len().max(made.len());
    let at = (0..lines).find(|line| kept.get(*line) != made.get(*line))?;
    let shown = |page: &[String]| page.get(at).map_or("(nothing)", String::as_str).to_owned();
    Some(format!("the page has: {}\nthe run has:  {}", shown(&kept), shown(&made)))
}

fn steady(page: &str) -> Vec<String> {
    let mut in_output = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        if line.starts_with("```") {
            in_output = line == "```text";
        }
        let may_differ = in_output && line.starts_with(VOLATILE);
        lines.push(if may_differ { VOLATILE.to_owned() } else { line.to_owned() });
    }
    lines
}

/// The images that a program has written into its directory. Its page shows them.
fn pictures(work: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(work)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "png") {
            let bytes = path.metadata()?.len();
            ensure!(
                bytes <= PICTURE_BYTES_MAX,
                "{} has {bytes} bytes; an image has at most {PICTURE_BYTES_MAX}",
                path.display()
            );
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
