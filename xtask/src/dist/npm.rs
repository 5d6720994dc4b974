//! The npm packages: one with the program, which npm installs only on the platform that it is for, and the SDK, of which
//! it is an optional dependency.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::json;

use super::{Distribution, copy_program, succeed};
use crate::packages::Packages;
use crate::workspace;

/// The package with the program.
const PLATFORM: &str = "@windlass/linux-x64";

pub fn make(dist: &Distribution, node: &Packages) -> Result<()> {
    let platform = dist.scratch.join("npm");
    copy_program(&dist.program, &platform.join("bin/windlass"))?;
    let about = json!({
        "name": PLATFORM,
        "version": dist.version,
        "description": "The program of Windlass for Linux on x86-64",
        "license": "MIT OR Apache-2.0",
        "os": ["linux"],
        "cpu": ["x64"],
        "libc": ["glibc"],
        "files": ["bin"],
    });
    fs::write(platform.join("package.json"), format!("{about:#}\n"))?;
    pack(dist, node, &platform)?;
    let sdk = workspace::root().join("sdk/typescript");
    let install = ["install", "--no-audit", "--no-fund", "--loglevel=error"];
    succeed(npm(node, &sdk).args(install))?;
    pack(dist, node, &sdk)
}

fn pack(dist: &Distribution, node: &Packages, directory: &Path) -> Result<()> {
    let pack = ["pack", "--loglevel=error", "--pack-destination"];
    let packed = workspace::output_of(npm(node, directory).args(pack).arg(&dist.out));
    packed.map(drop)
}

/// npm in a directory.
fn npm(node: &Packages, directory: &Path) -> Command {
    let mut npm = Command::new(node.node_bin().join("npm"));
    npm.env("PATH", node.path_with_node()).current_dir(directory);
    npm
}
