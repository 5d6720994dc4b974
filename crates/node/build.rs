//! Builds the crate `confine` as a shared object. The node embeds it and installs it beside the worker's
//! program: an interpreter that was forked from a zygote confines itself with it.
//!
//! The shared object is built once for all profiles, in its own directory of the target directory.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = "libwindlass_confine.so";

/// The sources of the shared object, relative to this crate's directory.
const SOURCES: [&str; 9] = [
    "../beneath/src",
    "../beneath/Cargo.toml",
    "../confine/src",
    "../confine/Cargo.toml",
    "../procs/src",
    "../procs/Cargo.toml",
    "../protocol/src",
    "../protocol/Cargo.toml",
    "../../Cargo.lock",
];

/// Variables that the calling cargo sets for its own compiler; the shared object is built without them.
const FOREIGN: [&str; 5] = [
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
];

fn main() -> Result<(), Box<dyn Error>> {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let directory = beside_profiles(&out).unwrap_or(&out).join("embedded");
    let triple = env::var("TARGET")?;
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .args(["rustc", "--package", "windlass-confine", "--lib", "--crate-type", "cdylib"])
        .args(["--profile", "embedded", "--target", &triple])
        .arg("--target-dir")
        .arg(&directory);
    for name in FOREIGN {
        cargo.env_remove(name);
    }
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("cannot build the shared object {NAME}: {status}").into());
    }
    std::fs::copy(directory.join(triple).join("embedded").join(NAME), out.join(NAME))?;
    Ok(())
}

/// The target directory, which has a subdirectory for each profile: above `PROFILE/build/PACKAGE/out`.
fn beside_profiles(out: &Path) -> Option<&Path> {
    out.ancestors().find(|above| above.ends_with("build"))?.parent()?.parent()
}
