//! `cargo xtask docs`: runs the code blocks of pages as they are printed, each page in an empty home with a
//! private node, and compares the output that a page shows. Writes only below `/tmp`.

mod blocks;
mod compare;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use self::blocks::Block;
use crate::RunVerdict;
use crate::workspace;

/// The pages whose blocks are run.
const PAGES: [&str; 13] = [
    "README.md",
    "docs/debugging.md",
    "docs/disk.md",
    "docs/environments.md",
    "docs/files.md",
    "docs/first-change.md",
    "docs/fork.md",
    "docs/install.md",
    "docs/reference/configuration.md",
    "docs/secrets.md",
    "docs/servers.md",
    "docs/workers.md",
    "SECURITY.md",
];

/// How long the blocks of a page may take, in seconds.
const SECONDS_MAX: &str = "90";

/// The first line of a script. The node ends with the script, also when that takes too long.
const START: &str = "trap 'windlass down >/dev/null 2>&1 || true' EXIT; trap 'exit 1' TERM\n";

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
    let is_root = rustix::process::geteuid().is_root();
    ensure!(args.user.is_none() || is_root, "--user needs root");
    let program = workspace::windlass()?;
    let place = Place::make(&program)?;
    let mut users = vec![None];
    users.extend(args.user.as_deref().map(Some));
    let mut verdict = RunVerdict::Good;
    for user in users {
        for page in PAGES {
            if !args.pages.is_empty() && !args.pages.iter().any(|named| named == page) {
                continue;
            }
            if let Err(error) = check_page(&place, page, user) {
                println!("{page}: {error:#}");
                verdict = RunVerdict::Bad;
            }
        }
    }
    Ok(verdict)
}

/// What all pages use: the program and the Python SDK, readable for every user.
struct Place {
    base: TempDir,
}

impl Place {
    fn make(program: &Path) -> Result<Self> {
        let base = tempfile::Builder::new().prefix("wl-").rand_bytes(6).tempdir_in("/tmp")?;
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755))?;
        fs::create_dir(base.path().join("bin"))?;
        fs::copy(program, base.path().join("bin/windlass"))?;
        let sdk = workspace::root().join("sdk/python/src");
        let to = base.path().join("sdk");
        workspace::output_of(Command::new("cp").arg("-r").arg(sdk).arg(to))?;
        workspace::output_of(Command::new("chmod").args(["-R", "a+rX"]).arg(base.path()))?;
        Ok(Self { base })
    }

    /// A command as the user, in an empty project of an empty home. The variables are those of a new account.
    fn command(&self, user: Option<&str>) -> Result<Command> {
        let home =
            tempfile::Builder::new().prefix("h").rand_bytes(4).tempdir_in(self.base.path())?.keep();
        for name in ["run", "project"] {
            fs::create_dir(home.join(name))?;
            fs::set_permissions(home.join(name), fs::Permissions::from_mode(0o700))?;
        }
        let mut command = Command::new(if user.is_some() { "setpriv" } else { "env" });
        if let Some(name) = user {
            workspace::output_of(Command::new("chown").args(["-R", name]).arg(&home))?;
            let group = workspace::output_of(Command::new("id").args(["--group", name]))?;
            command.args(["--reuid", name, "--regid", group.trim(), "--clear-groups"]);
        }
        let bin = self.base.path().join("bin");
        command
            .args(["timeout", SECONDS_MAX, "sh", "-e"])
            .env_clear()
            .env("HOME", &home)
            .env("XDG_RUNTIME_DIR", home.join("run"))
            .env(
                "PATH",
                std::env::join_paths([bin.as_path(), Path::new("/usr/bin"), Path::new("/bin")])?,
            )
            .env("LANG", "C.UTF-8")
            .env("PYTHONPATH", self.base.path().join("sdk"))
            .current_dir(home.join("project"));
        Ok(command)
    }
}

fn check_page(place: &Place, page: &str, user: Option<&str>) -> Result<()> {
    let began = Instant::now();
    let text = fs::read_to_string(workspace::root().join(page))?;
    let blocks = blocks::of_page(&text)?;
    let mut script = String::from(START);
    let (mut count, mut skipped, mut parts) = (0, Vec::new(), Vec::new());
    for (at, block) in blocks.iter().enumerate() {
        if let Some(reason) = &block.not_run {
            skipped.push(format!("    line {}: {reason}", block.line));
            continue;
        }
        let Some(part) = part_of(block).with_context(|| format!("line {}", block.line))? else {
            continue;
        };
        parts.push((at, part));
        count += 1;
    }
    for (at, part) in &parts {
        let before = &blocks[*at].before;
        script += &format!("{{\n{before}}} >/dev/null 2>&1\nprintf '\\036{at}\\n'\n{part}\n");
    }
    script = script.replace("{\n} >/dev/null 2>&1\n", "");
    if !parts.is_empty() {
        let printed = run_script(place.command(user)?, &script, &blocks)?;
        for (at, output) in printed {
            compare_block(&blocks[at], &output)?;
        }
    }
    let name = user.unwrap_or("this user");
    let seconds = began.elapsed().as_secs_f64();
    println!("{page}: as {name}: {count} blocks ran, {} skipped, {seconds:.1} s", skipped.len());
    for line in skipped.iter().filter(|_| user.is_none()) {
        println!("{line}");
    }
    Ok(())
}

/// The shell commands that run a block; `None` if the block is no code.
fn part_of(block: &Block) -> Result<Option<String>> {
    let here = |command: &str| {
        let text = &block.text;
        Some(format!("{command} <<'END-OF-BLOCK'\n{text}END-OF-BLOCK"))
    };
    Ok(match block.language.as_str() {
        "sh" | "bash" => Some(block.commands()),
        "" | "console" if block.is_transcript() => Some(block.commands()),
        "python" => here("python3 -"),
        "toml" => {
            let write = here("cat >block.toml").unwrap_or_default();
            Some(format!("{write}\nwindlass config check block.toml >/dev/null"))
        }
        "json" => {
            serde_json::from_str::<serde_json::Value>(&block.text)?;
            None
        }
        "" | "text" | "mermaid" => None,
        other => bail!(
            "there is no way to run {other:?}; add `<!-- not run: REASON -->` before the block"
        ),
    })
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
