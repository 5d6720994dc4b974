//! Builds the container image from the recipe, on a Debian root instead of a downloaded base, and runs a session in it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Distribution, succeed, trial};
use crate::workspace;

const BASE: &str = "localhost/windlass-base";
const IMAGE: &str = "localhost/windlass";

pub fn check(dist: &Distribution) -> Result<()> {
    let storage = dist.scratch.join("containers");
    let buildah = || {
        let mut command = Command::new("buildah");
        command.arg("--root").arg(storage.join("root")).arg("--runroot").arg(storage.join("run"));
        command.args(["--storage-driver", "vfs"]);
        command
    };
    let context = dist.scratch.join("image");
    fs::create_dir_all(&context)?;
    let deb = super::with_ending(&dist.out, ".deb")?;
    fs::copy(&deb, context.join(deb.file_name().context("a file without a name")?))?;
    let base = trial::debian_root_archive()?;
    fs::copy(&base, context.join("base.tar"))?;
    fs::write(context.join("Base"), "FROM scratch\nADD base.tar /\n")?;
    let build = |file: &std::path::Path, tag: &str| {
        let mut build = buildah();
        build.args(["build", "--quiet", "--isolation", "chroot"]);
        build.args(["--build-arg", &format!("BASE={BASE}"), "--tag", tag, "--file"]);
        succeed(build.arg(file).arg(&context))
    };
    build(&context.join("Base"), BASE)?;
    build(&workspace::root().join("packaging/oci/Containerfile"), IMAGE)?;
    let container = workspace::output_of(buildah().args(["from", IMAGE]))?;
    let mut run = buildah();
    run.args(["run", "--isolation", "chroot", container.trim(), "--"]);
    run.args(["sh", "-c", "cd /tmp && windlass run -c 'print(6 * 7)' && windlass down >/dev/null"]);
    let answer = workspace::output_of(&mut run)?;
    ensure!(answer.trim() == "42", "a session in the image answers {answer:?}");
    println!("image: built; a session in it answers");
    Ok(())
}
