//! The package for Debian and Ubuntu.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{Distribution, copy_next_program, succeed};

/// Makes the package from the archive's content, and one of a next version.
pub fn make(dist: &Distribution, tree: &Path) -> Result<()> {
    let root = dist.scratch.join("deb");
    fs::create_dir_all(root.join("DEBIAN"))?;
    succeed(Command::new("cp").arg("-a").arg(tree).arg(root.join("usr")))?;
    build(&root, dist.version, &dist.out)?;
    copy_next_program(&dist.program, &root.join("usr/bin/windlass"))?;
    build(&root, &format!("{}+next", dist.version), &dist.next)
}

fn build(root: &Path, version: &str, out: &Path) -> Result<()> {
    let control = format!(
        "Package: windlass\n\
         Version: {version}\n\
         Architecture: amd64\n\
         Maintainer: The Windlass project <windlass@example.com>\n\
         Depends: libc6 (>= {})\n\
         Recommends: python3\n\
         Section: devel\n\
         Priority: optional\n\
         Description: persistent, confined sessions of code for agents\n \
         Windlass is a daemon that runs code for AI agents in sessions of Python, shell,\n \
         R, Node.js and others, and the agents themselves.\n",
        super::GLIBC
    );
    fs::write(root.join("DEBIAN/control"), control)?;
    let mut build = Command::new("dpkg-deb");
    build.args(["--build", "--root-owner-group", "-Zgzip"]).arg(root).arg(out);
    succeed(&mut build)
}
