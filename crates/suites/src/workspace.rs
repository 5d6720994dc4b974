//! The workspace as git and cargo see it: its root, its files and its packages. Writes nothing but what
//! `cargo build` writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// The root of the workspace that this process runs in. This may differ from the workspace it was built in,
/// because several checkouts may share a target directory.
pub fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        let here = std::env::current_dir().unwrap_or_default();
        let root = here.ancestors().find(|directory| directory.join("xtask/Cargo.toml").is_file());
        root.map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), Path::to_path_buf)
    });
    &ROOT
}

/// A `cargo` command in the root. It is the cargo that started this process, if one did.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Cargo's target directory. Suites and measurements keep files there between runs.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The environment variable with the path of a program that is built already. `cargo build --package
/// windlass` and `cargo build --workspace` enable different features, so each would overwrite the program of
/// the other.
pub const BUILT: &str = "WINDLASS_XTASK_PROGRAM";

/// The program that [`BUILT`] names, if the variable is set.
pub fn built() -> Result<Option<PathBuf>> {
    let Some(program) = std::env::var_os(BUILT).map(PathBuf::from) else { return Ok(None) };
    let found = program.canonicalize();
    found
        .map(Some)
        .with_context(|| format!("{BUILT} names {}, which is missing", program.display()))
}

/// Builds the debug program, if [`BUILT`] names none, and returns its path.
pub fn windlass() -> Result<PathBuf> {
    if let Some(program) = built()? {
        return Ok(program);
    }
    let built = cargo()
        .args(["build", "--quiet", "--package", "windlass", "--bin", "windlass"])
        .status()
        .context("cannot run cargo")?;
    ensure!(built.success(), "cargo build failed");
    let program = target().join("debug/windlass");
    program.canonicalize().with_context(|| format!("cargo built no {}", program.display()))
}

/// Runs a command to its end and returns its standard output as text.
pub fn output_of(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| format!("cannot run {shown}"))?;
    if !output.status.success() {
        bail!("{shown} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{shown} did not print UTF-8"))
}

/// One text file of the repository.
#[derive(Debug)]
pub struct SourceFile {
    /// Relative to the root of the workspace, with `/` as separator.
    pub path: String,
    pub text: String,
}

impl SourceFile {
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub fn is_python(&self) -> bool {
        self.path.ends_with(".py")
    }

    /// Lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// Every text file that is in git or that `git add --all` would add. Binary files are left out.
pub fn sources() -> Result<Vec<SourceFile>> {
    let listed = output_of(
        Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root()),
    )?;
    let mut sources = Vec::new();
    for path in listed.split('\0').filter(|path| !path.is_empty()) {
        let whole = root().join(path);
        // git lists a file that is deleted in the working tree. A symlink is left out: its target may be
        // anywhere.
        if !whole.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
            continue;
        }
        let bytes = fs::read(&whole).with_context(|| format!("cannot read {path}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            sources.push(SourceFile { path: path.to_owned(), text });
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources.dedup_by(|a, b| a.path == b.path);
    Ok(sources)
}

/// The part of `cargo metadata --no-deps` that is used here.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    pub packages: Vec<CargoPackage>,
}

#[derive(Debug, Deserialize)]
pub struct CargoPackage {
    pub name: String,
    pub dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
pub struct Dependency {
    pub name: String,
    /// `None` for an ordinary dependency; otherwise `dev` or `build`.
    pub kind: Option<String>,
    /// Set for a crate of this workspace.
    pub path: Option<PathBuf>,
}

pub fn metadata() -> Result<Metadata> {
    let text = output_of(cargo().args(["metadata", "--no-deps", "--format-version=1"]))?;
    serde_json::from_str(&text).context("cannot parse the output of cargo metadata")
}
