//! Builds what the node embeds and installs in its state directory:
//!
//! - the crate `confine` as a shared object, with which a forked interpreter confines itself;
//! - the program `windlass-worker`, which has the workers that are written in Rust;
//! - a list of the files of the workers that are written in JavaScript.
//!
//! Shared object and program are built once for all profiles, in their own directory of the target directory.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libwindlass_confine.so";
const PROGRAM: &str = "windlass-worker";

/// The crates of the shared object and of the program, in the directory above this crate's.
const CRATES: [&str; 8] =
    ["beneath", "confine", "kernelspecs", "procs", "protocol", "worker-kit", "worker-r", "workers"];

/// The directories with the files of the JavaScript workers, below `workers`. Pyodide loads modules of the
/// Python worker.
const JAVASCRIPT: [&str; 4] = ["js-kit", "node", "pyodide", "python/windlass_worker"];

/// Variables that the calling cargo sets for its own compiler; the two are built without them.
const FOREIGN: [&str; 5] = [
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for name in CRATES {
        for part in ["src", "r", "Cargo.toml"] {
            let source = Path::new("..").join(name).join(part);
            if source.exists() {
                println!("cargo::rerun-if-changed={}", source.display());
            }
        }
    }
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    let directory = beside_profiles(&out).unwrap_or(&out).join("embedded");
    let library = ["rustc", "--package", "windlass-confine", "--lib", "--crate-type", "cdylib"];
    build(&library, &directory, LIBRARY, &out)?;
    build(&["build", "--package", "windlass-workers"], &directory, PROGRAM, &out)?;
    list_javascript(&out)
}

/// Runs cargo, and copies the file that it makes.
fn build(
    arguments: &[&str],
    directory: &Path,
    name: &str,
    out: &Path,
) -> Result<(), Box<dyn Error>> {
    let triple = env::var("TARGET")?;
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo.args(arguments).args(["--profile", "embedded", "--target", &triple]);
    cargo.arg("--target-dir").arg(directory);
    for name in FOREIGN {
        cargo.env_remove(name);
    }
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("cannot build {name}: {status}").into());
    }
    std::fs::copy(directory.join(triple).join("embedded").join(name), out.join(name))?;
    Ok(())
}

/// Writes a Rust file with the name and the content of each file of the JavaScript workers.
fn list_javascript(out: &Path) -> Result<(), Box<dyn Error>> {
    let root = std::path::absolute("../../workers")?;
    let mut files = Vec::new();
    for name in JAVASCRIPT {
        println!("cargo::rerun-if-changed={}", root.join(name).display());
        collect(&root.join(name), &mut files)?;
    }
    files.sort();
    let mut text = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(&root)?.display().to_string();
        writeln!(
            text,
            "    ({name:?}, include_bytes!({:?}).as_slice()),",
            file.display().to_string()
        )?;
    }
    text.push_str("]\n");
    std::fs::write(out.join("javascript_files.rs"), text)?;
    Ok(())
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !["tests", "__pycache__"].contains(&name) {
            collect(&path, files)?;
        } else if [".js", ".mjs", ".py"].iter().any(|end| name.ends_with(end)) {
            files.push(path);
        }
    }
    Ok(())
}

/// The target directory, which has a subdirectory for each profile: above `PROFILE/build/PACKAGE/out`.
fn beside_profiles(out: &Path) -> Option<&Path> {
    out.ancestors().find(|above| above.ends_with("build"))?.parent()?.parent()
}
