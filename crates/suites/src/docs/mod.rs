//! `cargo xtask docs`: runs the code blocks of pages as they are printed, each page in an empty home with a
//! private node, and compares the output that a page shows. Writes only below `/tmp`, or `/srv` for root.

mod blocks;
mod compare;
mod pages;
mod part;

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use self::blocks::Block;
use crate::{RunVerdict, workspace};

/// Pages whose blocks need what a variable names.
const NEEDS: [(&str, &str); 4] = [
    ("docs/packages.md", INDEX_VARIABLE),
    ("docs/workers/jupyter.md", JUPYTER_VARIABLE),
    ("docs/workers/node.md", NODE_VARIABLE),
    ("docs/workers/pyodide.md", PYODIDE_VARIABLE),
];

/// Set if the public package index can be reached.
const INDEX_VARIABLE: &str = "WINDLASS_TEST_INDEX";
const JUPYTER_VARIABLE: &str = "WINDLASS_TEST_JUPYTER_PYTHON";
const NODE_VARIABLE: &str = "WINDLASS_TEST_NODE";
const PYODIDE_VARIABLE: &str = "WINDLASS_TEST_PYODIDE";

/// How long the blocks of a page may take, in seconds.
const SECONDS_MAX: &str = "90";

/// The first line of a script. The node ends with the script, also when that takes too long.
const START: &str = "trap 'windlass down >/dev/null 2>&1 || true' EXIT; trap 'exit 1' TERM\n";

/// Pages whose blocks reach other machines. For root, every other page has a network of its own, because pages name ports.
const REACHES_OUT: [&str; 1] = ["docs/packages.md"];

/// Runs a command with another directory at /tmp and nothing in /run/user, where nodes put their sockets.
const OWN_TMP: &str = r#"mount --bind "$0" /tmp; if [ -d /run/user ]; then mount -t tmpfs none /run/user; fi; exec "$@""#;

/// Before [`OWN_TMP`], in a new network namespace.
const LOOPBACK_UP: &str = "ip link set lo up; ";

/// Begins a line that the script prints before a block. The number of the block follows.
const BOUNDARY: char = '\u{1e}';

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run only these pages
    pages: Vec<String>,
    /// Run them as this user too; needs root
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    ensure!(args.user.is_none() || is_root(), "--user needs root");
    let program = workspace::windlass()?;
    let mut users = vec![None];
    users.extend(args.user.as_deref().map(Some));
    let mut verdict = RunVerdict::Good;
    for user in users {
        for (page, result) in check_pages(&program, &args.pages, user)? {
            match result {
                Ok(report) => print!("{}", report.text(&page)),
                Err(error) => {
                    println!("{page}: {error:#}");
                    verdict = RunVerdict::Bad;
                }
            }
        }
    }
    pages::print_elsewhere();
    Ok(verdict)
}

/// What was done with a page.
#[derive(Debug)]
pub enum PageReport {
    Ran {
        count: usize,
        /// Blocks that were not run, with their lines and reasons.
        skipped: Vec<String>,
        seconds: f64,
    },
    /// The page could not be run here.
    Skipped { reason: String },
}

impl PageReport {
    /// One line about the page, and one for each block that was not run.
    pub fn text(&self, page: &str) -> String {
        match self {
            Self::Skipped { reason } => format!("{page}: skipped: {reason}\n"),
            Self::Ran { count, skipped, seconds } => {
                let mut text = format!(
                    "{page}: {count} blocks ran, {} skipped, {seconds:.1} s\n",
                    skipped.len()
                );
                skipped.iter().for_each(|line| text += &format!("    {line}\n"));
                text
            }
        }
    }
}

/// Runs the blocks of the named pages, or of all pages; root runs two at a time. The result of each page, in order.
pub fn check_pages(
    program: &Path,
    named: &[String],
    user: Option<&str>,
) -> Result<Vec<(String, Result<PageReport>)>> {
    let place = Place::make(program)?;
    let mut pages = pages::all()?;
    if let Some(unknown) = named.iter().find(|name| !pages.contains(name)) {
        bail!("there is no page {unknown}, or another check runs it");
    }
    pages.retain(|page| named.is_empty() || named.contains(page));
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(page) = pages.get(at) else { break done };
            done.push((page.clone(), check_page(&place, page, user)));
        }
    };
    let mut results = std::thread::scope(|scope| {
        // Pages that share the network may name the same port.
        let second = is_root().then(|| scope.spawn(work));
        let mut results = work();
        results.extend(second.and_then(|second| second.join().ok()).unwrap_or_default());
        results
    });
    ensure!(results.len() == pages.len(), "a thread that ran pages panicked");
    results.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(results)
}

/// What all pages use: the program and the Python SDK, readable for every user.
struct Place {
    base: TempDir,
}

impl Place {
    fn make(program: &Path) -> Result<Self> {
        // Root puts an empty directory in the place of /tmp, so the files must be elsewhere.
        let parent = if is_root() { "/srv" } else { "/tmp" };
        let base = tempfile::Builder::new().prefix("wl-").rand_bytes(6).tempdir_in(parent)?;
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755))?;
        fs::create_dir(base.path().join("bin"))?;
        fs::copy(program, base.path().join("bin/windlass"))?;
        let sdk = workspace::root().join("sdk/python/src");
        let to = base.path().join("sdk");
        workspace::output_of(Command::new("cp").arg("-r").arg(sdk).arg(to))?;
        workspace::output_of(Command::new("chmod").args(["-R", "a+rX"]).arg(base.path()))?;
        Ok(Self { base })
    }

    /// A command as the user, in an empty project of an empty home. The variables are those of a new account. Run by
    /// root, there is no XDG_RUNTIME_DIR, and /tmp is empty; others cannot make that, and get the variable.
    fn command(&self, page: &str, user: Option<&str>) -> Result<Command> {
        let home =
            tempfile::Builder::new().prefix("h").rand_bytes(4).tempdir_in(self.base.path())?.keep();
        for (name, mode) in [("run", 0o700), ("project", 0o700), ("tmp", 0o1777)] {
            fs::create_dir(home.join(name))?;
            fs::set_permissions(home.join(name), fs::Permissions::from_mode(mode))?;
        }
        fs::create_dir_all(home.join(".config/windlass"))?;
        fs::write(home.join(".config/windlass/config.toml"), interpreters()?)?;
        let mut path = vec![self.base.path().join("bin"), "/usr/bin".into(), "/bin".into()];
        if let Some(node) = variable(NODE_VARIABLE) {
            path.insert(1, node.parent().context("the Node.js has no directory")?.to_owned());
        }
        let mut command = Command::new(if is_root() { "unshare" } else { "env" });
        command
            .env_clear()
            .env("HOME", &home)
            .env("PATH", std::env::join_paths(path)?)
            .env("LANG", "C.UTF-8")
            .env("PYTHONPATH", self.base.path().join("sdk"))
            .current_dir(home.join("project"));
        if let Some(python) = variable(JUPYTER_VARIABLE) {
            let venv = python.ancestors().nth(2).context("the Python is in no environment")?;
            command.env("JUPYTER_PATH", venv.join("share/jupyter"));
        }
        if is_root() {
            match REACHES_OUT.contains(&page) {
                true => command.args(["--mount", "sh", "-ec", OWN_TMP]),
                false => command
                    .args(["--mount", "--net", "sh", "-ec"])
                    .arg([LOOPBACK_UP, OWN_TMP].concat()),
            };
            command.arg(home.join("tmp"));
        } else {
            command.env("XDG_RUNTIME_DIR", home.join("run"));
        }
        if let Some(name) = user {
            workspace::output_of(Command::new("chown").args(["-R", name]).arg(&home))?;
            let group = workspace::output_of(Command::new("id").args(["--group", name]))?;
            let group = group.trim();
            command.args(["setpriv", "--reuid", name, "--regid", group, "--clear-groups"]);
        }
        command.args(["timeout", SECONDS_MAX, "sh", "-e"]);
        Ok(command)
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The file `config.toml` of each page: the interpreters that the variables name.
fn interpreters() -> Result<String> {
    let mut text =
        String::from("[workers.jupyter]\nenvironment = { IPYTHONDIR = \"/tmp/ipython\" }\n");
    if let Some(node) = variable(NODE_VARIABLE) {
        writeln!(text, "[workers.node]\ninterpreter = {node:?}")?;
        if let Some(package) = variable(PYODIDE_VARIABLE) {
            writeln!(text, "[workers.pyodide]\ninterpreter = {node:?}\npackage = {package:?}")?;
        }
    }
    Ok(text)
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn check_page(place: &Place, page: &str, user: Option<&str>) -> Result<PageReport> {
    let began = Instant::now();
    if let Some((_, needed)) = NEEDS.iter().find(|(name, _)| *name == page)
        && variable(needed).is_none()
    {
        return Ok(PageReport::Skipped { reason: format!("{needed} is not set") });
    }
    let text = fs::read_to_string(workspace::root().join(page))?;
    let blocks = blocks::of_page(&text)?;
    let (mut skipped, mut parts) = (Vec::new(), Vec::new());
    for (at, block) in blocks.iter().enumerate() {
        match &block.not_run {
            Some(reason) => skipped.push(format!("line {}: {reason}", block.line)),
            None => {
                let part = part::of_block(block);
                let part = part.with_context(|| format!("line {}", block.line))?;
                parts.extend(part.map(|part| (at, part)));
            }
        }
    }
    let mut script = String::from(START);
    for (at, part) in &parts {
        match blocks[*at].before.as_str() {
            "" => {}
            before => writeln!(script, "{{\n{before}}} >/dev/null 2>&1")?,
        }
        writeln!(script, "printf '\\036{at}\\n'\n{part}")?;
    }
    if !parts.is_empty() {
        for (at, output) in run_script(place.command(page, user)?, &script, &blocks)? {
            compare_block(&blocks[at], &output)?;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(PageReport::Ran { count: parts.len(), skipped, seconds })
}

/// Runs a script and returns the output of each block by its number.
fn run_script(
    mut command: Command,
    script: &str,
    blocks: &[Block],
) -> Result<Vec<(usize, String)>> {
    // One pipe for both, so that the order of output and messages stays.
    let (mut reader, writer) = std::io::pipe()?;
    command.arg("-c").arg(script).stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().context("cannot run the page")?;
    // The command holds the writing ends.
    drop(command);
    let mut printed = Vec::new();
    reader.read_to_end(&mut printed)?;
    let status = child.wait()?;
    let printed = String::from_utf8_lossy(&printed).replace('\r', "");
    let mut parts = Vec::new();
    for part in printed.split(BOUNDARY).skip(1) {
        let (at, output) = part.split_once('\n').context("a boundary has no number")?;
        parts.push((at.parse()?, output.to_owned()));
    }
    if !status.success() {
        let line =
            parts.last().and_then(|(at, _)| blocks.get(*at)).map_or(0, |block: &Block| block.line);
        let output = parts.last().map_or(printed.as_str(), |(_, output)| output.as_str());
        bail!(
            "the block at line {line} failed ({status}), or what comes before the next one:\n{output}"
        );
    }
    Ok(parts)
}

/// Compares the output of a block with the page. Of Python, the comments of `print` lines are the output.
fn compare_block(block: &Block, output: &str) -> Result<()> {
    let line = block.line;
    if let Some(shown) = block.shown()
        && let Some(difference) = compare::difference(&shown, output)
    {
        bail!("the block at line {line} prints something else\n{difference}\nall of it:\n{output}");
    }
    if block.language == "python" {
        let prints = block.text.lines().filter(|line| line.trim().starts_with("print("));
        for (_, comment) in prints.filter_map(|line| line.split_once("   # ")) {
            let is_printed = output.lines().any(|line| line == comment.trim());
            ensure!(
                is_printed,
                "the block at line {line} does not print {comment:?}, but\n{output}"
            );
        }
    }
    Ok(())
}
