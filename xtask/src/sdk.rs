//! `cargo xtask sdk`: tests an SDK as users get it. It runs the SDK's tests against a real node, builds the
//! package, installs it into an empty directory, and runs the README's first example there. The example must
//! print what the README shows. All files are written below `target/sdk`.

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
pub const BUILD: PinnedPackage = PinnedPackage::pip("python-build", "build", "1.6.1");

/// Checks the Python SDK's types.
const MYPY: PinnedPackage = PinnedPackage::pip("mypy", "mypy", "2.4.1");

#[derive(Debug, clap::Args)]
pub struct Args {
    language: Language,
    /// Check only the package and the README's example; skip the SDK's tests
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
    let directory = workspace::target().join("sdk").join(name);
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    fs::create_dir_all(&directory)?;
    let directory = directory.canonicalize()?;
    let checked = match args.language {
        Language::Python => check_python(args, &node, &directory),
        Language::Typescript => check_typescript(args, &node, &directory),
    };
    node.stop()?;
    checked?;
    println!(
        "sdk {name}: the package installs, and the README's first example prints what the README shows"
    );
    Ok(RunVerdict::Good)
}

fn check_python(args: &Args, node: &PrivateNode, directory: &Path) -> Result<()> {
    let packages = Packages::prepare(&[BUILD, MYPY])?;
    let source = workspace::root().join("sdk/python");
    let tool = |package: &PinnedPackage| clean(packages.directory(package).join("bin/python"));
    if !args.package_only {
        succeed(tool(&MYPY).args(["-m", "mypy"]).current_dir(&source))?;
        let mut tests = node.for_command(clean(python()));
        tests.args(["-W", "error", "-m", "unittest", "discover", "--start-directory", "tests"]);
        succeed(tests.current_dir(&source))?;
    }
    let built = directory.join("dist");
    succeed(tool(&BUILD).args(["-m", "build", "--outdir"]).arg(&built).arg(&source))?;
    let wheel = only_file(&built, ".whl")?;
    only_file(&built, ".tar.gz")?;
    let venv = directory.join("venv");
    succeed(clean(python()).args(["-m", "venv"]).arg(&venv))?;
    let mut pip = clean(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
    // The program is the one that was built here, and not that of the package `windlass-bin`.
    succeed(pip.arg("--no-deps").arg(wheel))?;
    let program = directory.join("example.py");
    let example = Example::of(&source.join("README.md"))?;
    fs::write(&program, &example.code)?;
    example.check(
        node.for_command(clean(venv.join("bin/python"))).arg(&program).current_dir(directory),
    )
}

fn check_typescript(args: &Args, node: &PrivateNode, directory: &Path) -> Result<()> {
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
        succeed(node.for_command(npm(&source)).arg("test"))?;
    }
    succeed(npm(&source).args(["pack", "--pack-destination"]).arg(directory))?;
    let package = only_file(directory, ".tgz")?;
    let project = directory.join("project");
    fs::create_dir(&project)?;
    fs::write(project.join("package.json"), "{ \"private\": true, \"type\": \"module\" }\n")?;
    succeed(npm(&project).args(INSTALL).arg(package))?;
    let example = Example::of(&source.join("README.md"))?;
    fs::write(project.join("example.js"), &example.code)?;
    let mut program = node.for_command(Command::new(packages.node_bin().join("node")));
    example.check(program.arg("example.js").current_dir(&project))
}

/// The directories of a node that only this command uses. The SDK starts the node.
pub struct PrivateNode {
    program: PathBuf,
    base: TempDir,
}

impl PrivateNode {
    pub fn prepare() -> Result<Self> {
        // A short path, because the path of a socket has a length limit.
        let base = tempfile::Builder::new().prefix("wl-").rand_bytes(6).tempdir_in("/tmp")?;
        let program = match std::env::var_os("WINDLASS_BIN") {
            Some(named) => PathBuf::from(named).canonicalize()?,
            None => workspace::windlass()?,
        };
        Ok(Self { program, base })
    }

    /// Sets the variables of a command so that it uses this node and no other.
    pub fn for_command(&self, mut command: Command) -> Command {
        command
            .env("WINDLASS_BIN", &self.program)
            .env("WINDLASS_RUNTIME_DIR", self.base.path().join("r"))
            .env("WINDLASS_STATE_DIR", self.base.path().join("s"))
            .env_remove("WINDLASS_URL")
            .env_remove("WINDLASS_TOKEN")
            .env_remove("WINDLASS_CA");
        command
    }

    pub fn stop(&self) -> Result<()> {
        let mut down = self.for_command(Command::new(&self.program));
        workspace::output_of(down.arg("down")).map(drop)
    }
}

/// The first example of a README: its first code block, and the next block, which shows the output.
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
        let first = first.context("the README has no code block")?;
        match blocks.drain(first..).take(2).collect::<Vec<_>>().as_slice() {
            [(_, code), (false, output)] => Ok(Self { code: code.clone(), output: output.clone() }),
            _ => bail!("the block after the first code block must show its output"),
        }
    }

    fn check(&self, command: &mut Command) -> Result<()> {
        let printed = workspace::output_of(command)?;
        ensure!(
            printed.trim_end() == self.output.trim_end(),
            "the README's first example prints\n{printed}\ninstead of\n{}",
            self.output
        );
        Ok(())
    }
}

/// A Python command without the Python settings of the machine.
pub fn clean(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    command
        .env_remove("PYTHONPATH")
        .env_remove("PYTHONHOME")
        .env_remove("VIRTUAL_ENV")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Runs a command to its end and shows its output.
pub fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}

/// The only file in a directory whose name has this ending.
fn only_file(directory: &Path, ending: &str) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().map(OsString::from).unwrap_or_default();
        if name.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    ensure!(
        found.len() == 1,
        "expected one {ending} file, found {} in {}",
        found.len(),
        directory.display()
    );
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
