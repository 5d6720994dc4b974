//! `cargo xtask console`: checks the web console. The files in `crates/console/dist` must be those that the sources in
//! `console` give, and small; the page must work and resist attacks in a real browser. Writes `console/node_modules`, and
//! everything else below `target/console`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::packages::Packages;
use crate::sdk::succeed;
use crate::{RunVerdict, workspace};

/// The built files that are in git and in the program.
const COMMITTED: &str = "crates/console/dist";

/// The most that all files may have together, each compressed by gzip.
const GZIPPED_BYTES_MAX: usize = 400_000;

/// Names the browser.
const CHROMIUM: &str = "WINDLASS_TEST_CHROMIUM";

/// Names the program for the tests in the browser.
const PROGRAM: &str = "WINDLASS_CONSOLE_PROGRAM";

/// Would replace the files in the program, which are the ones to test.
const OTHER_FILES: &str = "WINDLASS_TEST_CONSOLE_DIST";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Check only the files and what needs no browser
    #[arg(long)]
    no_browser: bool,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    // Before the work that takes time.
    let browser = if args.no_browser { None } else { Some(chromium()?) };
    let packages = Packages::with_node()?;
    let source = workspace::root().join("console");
    let npm = |arguments: &[&str]| {
        let mut npm = Command::new(packages.node_bin().join("npm"));
        npm.args(arguments).env("PATH", packages.path_with_node()).current_dir(&source);
        npm
    };
    succeed(&mut npm(&["ci", "--no-audit", "--no-fund", "--loglevel=error"]))?;
    let built = empty_directory(&workspace::target().join("console"))?;
    let build = ["run", "--silent", "build", "--", "--logLevel=warn", "--emptyOutDir", "--outDir"];
    succeed(npm(&build).arg(&built))?;
    check_current(&read_files(&built)?, &read_files(&workspace::root().join(COMMITTED))?)?;
    let bytes = gzipped_bytes(&built)?;
    ensure!(
        bytes <= GZIPPED_BYTES_MAX,
        "the console has {bytes} bytes gzipped, and may have {GZIPPED_BYTES_MAX}"
    );
    succeed(&mut npm(&["test", "--silent"]))?;
    println!("console: {COMMITTED} is current, {bytes} bytes gzipped");
    let Some(browser) = browser else {
        println!("console: the tests in a browser were not run (--no-browser)");
        return Ok(RunVerdict::Good);
    };
    let mut tests = npm(&["run", "--silent", "browser"]);
    tests.env(CHROMIUM, browser).env(PROGRAM, workspace::windlass()?).env_remove(OTHER_FILES);
    succeed(&mut tests)?;
    println!("console: the page works in the browser and resists the attacks");
    Ok(RunVerdict::Good)
}

/// The browser that the variable names, or the first `chromium` on `PATH`.
fn chromium() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(CHROMIUM).map(PathBuf::from) {
        ensure!(named.is_file(), "{CHROMIUM} names {}, which is missing", named.display());
        return Ok(named);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = std::env::split_paths(&path).map(|directory| directory.join("chromium"));
    programs.find(|program| program.is_file()).with_context(|| {
        format!(
            "no chromium is on PATH: install it (Debian: `apt install chromium`), name it in {CHROMIUM}, or pass \
             --no-browser"
        )
    })
}

/// Makes the directory, or makes it empty. Returns its absolute path.
fn empty_directory(directory: &Path) -> Result<PathBuf> {
    if directory.exists() {
        fs::remove_dir_all(directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory.canonicalize()?)
}

/// The contents of the files below a directory, by their paths in it.
type DirectoryFiles = BTreeMap<PathBuf, Vec<u8>>;

fn read_files(directory: &Path) -> Result<DirectoryFiles> {
    let mut files = DirectoryFiles::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(next) = left.pop() {
        let entries =
            fs::read_dir(&next).with_context(|| format!("cannot read {}", next.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                left.push(path);
            } else {
                files.insert(path.strip_prefix(directory)?.to_path_buf(), fs::read(&path)?);
            }
        }
    }
    Ok(files)
}

fn check_current(built: &DirectoryFiles, committed: &DirectoryFiles) -> Result<()> {
    let names: BTreeSet<&PathBuf> = built.keys().chain(committed.keys()).collect();
    let differ: Vec<String> = names
        .into_iter()
        .filter(|name| built.get(*name) != committed.get(*name))
        .map(|name| name.display().to_string())
        .collect();
    ensure!(
        differ.is_empty(),
        "{COMMITTED} is not what the sources give ({}): run `npm ci && npm run build` in `console`, and commit \
         {COMMITTED}",
        differ.join(", ")
    );
    Ok(())
}

/// What a server sends that compresses each file. The node does not, so this is a measure of size and no more.
fn gzipped_bytes(directory: &Path) -> Result<usize> {
    let mut total = 0;
    for name in read_files(directory)?.keys() {
        let file = directory.join(name);
        let gzip = Command::new("gzip").args(["--best", "--stdout"]).arg(&file).output();
        let gzip = gzip.context("cannot run gzip")?;
        ensure!(gzip.status.success(), "gzip cannot compress {}", file.display());
        total += gzip.stdout.len();
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[(&str, &str)]) -> DirectoryFiles {
        names.iter().map(|(name, text)| (PathBuf::from(name), text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn files_are_current_if_each_is_the_same() {
        let built = files(&[("index.html", "1"), ("assets/a-1.js", "2")]);
        assert!(check_current(&built, &built).is_ok());
        for (committed, named) in [
            (files(&[("index.html", "1")]), "(assets/a-1.js)"),
            (
                files(&[("index.html", "3"), ("assets/a-1.js", "2"), ("old.js", "4")]),
                "(index.html, old.js)",
            ),
        ] {
            let error = check_current(&built, &committed).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn files_of_directories_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let empty = empty_directory(&directory.path().join("dist")).unwrap();
        fs::create_dir(empty.join("assets")).unwrap();
        fs::write(empty.join("assets/a.js"), "2").unwrap();
        assert_eq!(read_files(&empty).unwrap(), files(&[("assets/a.js", "2")]));
        assert!(gzipped_bytes(&empty).unwrap() > 0);
        assert_eq!(read_files(&empty_directory(&empty).unwrap()).unwrap(), files(&[]));
    }
}
