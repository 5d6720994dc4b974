//! `cargo xtask sdk`: an SDK as its users get it. Its tests run against a real node; its package is
//! built, installed into an empty place, and the README's first example must print there what the
//! README says. Everything is made below `target/sdk`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use windlass_testkit::python;

use crate::RunVerdict;
use crate::packages::{Packages, PinnedPackage};
use crate::workspace;

/// Builds wheels and source archives.
const BUILD: PinnedPackage = PinnedPackage::pip("python-build", "build", "1.6.1");

/// Checks the Python SDK's types.
const MYPY: PinnedPackage = PinnedPackage::pip("mypy", "mypy", "2.4.1");

#[derive(Debug, clap::Args)]
pub struct Args {
    language: Language,
    /// Only the package and the README's example, not the SDK's tests
    #[arg(long)]
    package_only: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Language {
    Python,
    Typescript,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    let node = PrivateNode::prepare()?;
    let name = match args.language {
        Language::Python => "python",
        Language::Typescript => "typescript",
    };
    let place = workspace::target().join("sdk").join(name);
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot empty {}", place.display()))?;
    }
    fs::create_dir_all(&place)?;
    let place = place.canonicalize()?;
    let checked = match args.language {
        Language::Python => check_python(args, &node, &place),
        Language::Typescript => check_typescript(args, &node, &place),
    };
    node.stop()?;
    checked?;
    println!(
        "sdk {name}: the package installs, and the README's first example prints what it says"
    );
    Ok(RunVerdict::Good)
}

fn check_python(args: &Args, node: &PrivateNode, place: &Path) -> Result<()> {
    let packages = Packages::prepare(&[BUILD, MYPY])?;
    let source = workspace::root().join("sdk/python");
    let tool = |package: &PinnedPackage| clean(packages.directory(package).join("bin/python"));
    if !args.package_only {
        succeed(tool(&MYPY).args(["-m", "mypy"]).current_dir(&source))?;
        let mut tests = node.known_to(clean(python()));
        tests.args(["-W", "error", "-m", "unittest", "discover", "--start-directory", "tests"]);
        succeed(tests.current_dir(&source))?;
    }
    let built = place.join("dist");
    succeed(tool(&BUILD).args(["-m", "build", "--outdir"]).arg(&built).arg(&source))?;
    let wheel = only_file(&built, ".whl")?;
    only_file(&built, ".tar.gz")?;
    let venv = place.join("venv");
    succeed(clean(python()).args(["-m", "venv"]).arg(&venv))?;
    let mut pip = clean(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
    succeed(pip.arg(wheel))?;
    let program = place.join("example.py");
    let example = Example::of(&source.join("README.md"))?;
    fs::write(&program, &example.code)?;
    example.check(node.known_to(clean(venv.join("bin/python"))).arg(&program).current_dir(place))
}

fn check_typescript(args: &Args, node: &PrivateNode, place: &Path) -> Result<()> {
    let packages = Packages::with_node()?;
    let source = workspace::root().join("sdk/typescript");
    let npm = |directory: &Path| {
        let mut npm = Command::new(packages.node_bin().join("npm"));
        npm.env("PATH", packages.path_with_node()).current_dir(directory);
        npm
    };
    const INSTALL: &[&str] = &["install", "--no-audit", "--no-fund", "--loglevel=error"];
    succeed(npm(&source).args(INSTALL))?;
    if !args.package_only {
        succeed(node.known_to(npm(&source)).arg("test"))?;
    }
    succeed(npm(&source).args(["pack", "--pack-destination"]).arg(place))?;
    let package = only_file(place, ".tgz")?;
    let project = place.join("project");
    fs::create_dir(&project)?;
    fs::write(project.join("package.json"), "{ \"private\": true, \"type\": \"module\" }\n")?;
    succeed(npm(&project).args(INSTALL).arg(package))?;
    let example = Example::of(&source.join("README.md"))?;
    fs::write(project.join("example.js"), &example.code)?;
    let mut program = node.known_to(Command::new(packages.node_bin().join("node")));
    example.check(program.arg("example.js").current_dir(&project))
}

/// A node of this command's own, which the SDK starts by itself.
pub struct PrivateNode {
    program: PathBuf,
    base: TempDir,
}

impl PrivateNode {
    pub fn prepare() -> Result<Self> {
        // With a short path: a socket lives there.
        let base = tempfile::Builder::new().prefix("wl-").rand_bytes(6).tempdir_in("/tmp")?;
        let program = match std::env::var_os("WINDLASS_BIN") {
            Some(named) => PathBuf::from(named).canonicalize()?,
            None => workspace::windlass()?,
        };
        Ok(Self { program, base })
    }

    /// A command that comes to this node and to no other.
    pub fn known_to(&self, mut command: Command) -> Command {
        command
            .env("WINDLASS_BIN", &self.program)
            .env("WINDLASS_RUNTIME_DIR", self.base.path().join("r"))
            .env("WINDLASS_STATE_DIR", self.base.path().join("s"))
            .env_remove("WINDLASS_URL")
            .env_remove("WINDLASS_TOKEN");
        command
    }

    pub fn stop(&self) -> Result<()> {
        let mut down = self.known_to(Command::new(&self.program));
        workspace::output_of(down.arg("down")).map(drop)
    }
}

/// The first example of a README: its first block of code, and the block after it, which shows what
/// the code prints.
#[derive(Debug, PartialEq, Eq)]
struct Example {
    code: String,
    output: String,
}

impl Example {
    fn of(readme: &Path) -> Result<Self> {
        let text = fs::read_to_string(readme)
            .with_context(|| format!("cannot read {}", readme.display()))?;
        Self::in_text(&text).with_context(|| format!("in {}", readme.display()))
    }

    fn in_text(text: &str) -> Result<Self> {
        let mut blocks = Vec::new();
        let mut open: Option<(bool, String)> = None;
        for line in text.lines() {
            match (&mut open, line.strip_prefix("```")) {
                (None, Some(language)) => {
                    let is_code = ["python", "js", "ts"].contains(&language.trim());
                    open = Some((is_code, String::new()));
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some((_, block)), None) => {
                    block.push_str(line);
                    block.push('\n');
                }
                (None, None) => {}
            }
        }
        let first = blocks.iter().position(|(is_code, _)| *is_code);
        let first = first.context("there is no block of code")?;
        match blocks.drain(first..).take(2).collect::<Vec<_>>().as_slice() {
            [(_, code), (false, output)] => Ok(Self { code: code.clone(), output: output.clone() }),
            _ => bail!("the first block of code is not followed by one with its output"),
        }
    }

    fn check(&self, command: &mut Command) -> Result<()> {
        let printed = workspace::output_of(command)?;
        ensure!(
            printed.trim_end() == self.output.trim_end(),
            "the README's first example prints\n{printed}\nand not\n{}",
            self.output
        );
        Ok(())
    }
}

/// A Python without the machine's settings for its own.
pub fn clean(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    command
        .env_remove("PYTHONPATH")
        .env_remove("PYTHONHOME")
        .env_remove("VIRTUAL_ENV")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Runs a command to its end; what it prints is shown.
fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}

/// The one file in a directory whose name ends so.
fn only_file(directory: &Path, ending: &str) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().map(OsString::from).unwrap_or_default();
        if name.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    ensure!(found.len() == 1, "{} {ending} files in {}", found.len(), directory.display());
    Ok(found.remove(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_example_is_the_first_code_with_what_it_prints() {
        let text =
            "# a\n```sh\npip install\n```\n```python\nprint(1)\n```\nsays\n\n```text\n1\n```\n";
        let example = Example::in_text(text).unwrap();
        assert_eq!(example, Example { code: "print(1)\n".into(), output: "1\n".into() });
    }

    #[test]
    fn an_example_without_its_output_is_none() {
        for text in ["```text\n1\n```\n", "```js\n1\n```\n", "```js\n1\n```\n```js\n2\n```\n"] {
            assert!(Example::in_text(text).is_err(), "{text:?}");
        }
    }
}
