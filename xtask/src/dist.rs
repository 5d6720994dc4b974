//! `cargo xtask dist`: builds the packages with which people install Windlass without Rust, and tries each in an empty
//! place: installs it, runs a first session, upgrades and removes it. All files are written below `target/dist`.
//!
//! One program goes into all packages: a release build that needs an old C library only, or the program that
//! `--program` names.

mod archive;
mod deb;
mod glibc;
mod image;
mod npm;
mod sbom;
mod trial;
mod units;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::packages::{Packages, PinnedPackage};
use crate::{RunVerdict, workspace};

/// Builds for an old C library. `ziglang` brings the compiler that links.
const ZIGBUILD: PinnedPackage = PinnedPackage::pip("zigbuild", "cargo-zigbuild", "0.24.0");
const ZIG: PinnedPackage = PinnedPackage::pip("zig", "ziglang", "0.17.0");

/// The target of a release. Its C library is that of Debian 10 and of RHEL 8.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const GLIBC: &str = "2.28";

/// The platform of a wheel for [`GLIBC`], and of one for machines like this one.
const RELEASE_TAG: &str = "manylinux_2_28_x86_64";
const LOCAL_TAG: &str = "linux_x86_64";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Package this program instead of a release build. The packages are then for machines like this one
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Build the packages, and try none
    #[arg(long)]
    build_only: bool,
    /// Try the packages as this user too (needs root)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Also build the container image and run a session in it (needs root and buildah)
    #[arg(long)]
    image: bool,
}

/// What all packages have in common.
#[derive(Debug)]
struct Distribution {
    program: PathBuf,
    version: &'static str,
    /// The platform of the wheel.
    tag: &'static str,
    /// Where the packages are written.
    out: PathBuf,
    /// Packages of a next version, which the upgrades use. Their program differs by a few bytes.
    next: PathBuf,
    /// A directory for files that go into packages.
    scratch: PathBuf,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    let directory = workspace::target().join("dist");
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    let made = ["packages", "next", "scratch"].map(|name| directory.join(name));
    made.iter().try_for_each(fs::create_dir_all)?;
    let [out, next, scratch] = made.map(|made| std::path::absolute(&made).unwrap_or(made));
    let (program, tag) = match &args.program {
        Some(program) => (stripped(program, &scratch)?, LOCAL_TAG),
        None => (release()?, RELEASE_TAG),
    };
    let dist =
        Distribution { program, version: env!("CARGO_PKG_VERSION"), tag, out, next, scratch };
    let node = Packages::with_node()?;
    wheel::make(&dist)?;
    npm::make(&dist, &node)?;
    let tree = archive::make(&dist)?;
    deb::make(&dist, &tree)?;
    sbom::make(&dist)?;
    archive::checksums(&dist)?;
    for entry in sorted(&dist.out)? {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        println!("{:>11} bytes  {name}", fs::metadata(&entry)?.len());
    }
    units::check(&dist, &tree)?;
    if !args.build_only {
        trial::run(&dist, &node, args.user.as_deref())?;
    }
    if args.image {
        image::check(&dist)?;
    }
    Ok(RunVerdict::Good)
}

/// Builds the program of a release.
fn release() -> Result<PathBuf> {
    let packages = Packages::prepare(&[ZIGBUILD, ZIG])?;
    let bin = packages.directory(&ZIGBUILD).join("bin");
    let zig = packages.directory(&ZIG).join("bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = [bin, zig.clone()].into_iter().chain(std::env::split_paths(&path));
    let mut build = workspace::cargo();
    build
        .env("PATH", std::env::join_paths(dirs)?)
        .env("CARGO_ZIGBUILD_PYTHON_PATH", zig.join("python"))
        .args(["zigbuild", "--release", "--locked", "--package", "windlass", "--bin", "windlass"])
        .args(["--target", &format!("{TARGET}.{GLIBC}")]);
    succeed(&mut build)?;
    let target = workspace::target();
    let program = target.join(TARGET).join("release/windlass").canonicalize();
    let program = program.context("cargo built no program")?;
    // The program carries these two, so their needs are its needs.
    let carried = target.join(TARGET).join("embedded").join(TARGET).join("embedded");
    for file in
        [program.clone(), carried.join("windlass-worker"), carried.join("libwindlass_confine.so")]
    {
        glibc::check(&file, GLIBC)?;
    }
    Ok(program)
}

/// A copy of a program without the symbols that only debuggers read.
fn stripped(program: &Path, scratch: &Path) -> Result<PathBuf> {
    let copy = scratch.join("windlass");
    succeed(Command::new("strip").arg("-o").arg(&copy).arg(program))?;
    Ok(copy)
}

/// The files of a directory, by name.
fn sorted(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.path()));
    let mut paths = entries.collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The only file of a directory whose name has this ending.
fn with_ending(directory: &Path, ending: &str) -> Result<PathBuf> {
    let mut files = sorted(directory)?;
    files.retain(|file| file.to_string_lossy().ends_with(ending));
    ensure!(files.len() == 1, "{} files end in {ending}", files.len());
    Ok(files.remove(0))
}

/// Runs a command to its end and shows its output.
fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}

/// Copies a program, with the right to run it.
fn copy_program(from: &Path, to: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(0o755))?)
}

/// Copies a program as that of a next version: with a few bytes more, which the kernel ignores.
fn copy_next_program(from: &Path, to: &Path) -> Result<()> {
    use std::io::Write as _;
    copy_program(from, to)?;
    Ok(fs::OpenOptions::new().append(true).open(to)?.write_all(b"next")?)
}
