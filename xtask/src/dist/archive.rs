//! The archive with the program, its manual pages and completions, and the checksums of all packages.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::{Distribution, copy_program, sorted, succeed};
use crate::workspace;

/// The completion scripts: the shell, and where its distributions look.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/windlass"),
    ("zsh", "share/zsh/site-functions/_windlass"),
    ("fish", "share/fish/vendor_completions.d/windlass.fish"),
];

/// The units of systemd, and where it looks for them.
const UNITS: [(&str, &str); 4] = [
    ("user/windlass.service", "lib/systemd/user/windlass.service"),
    ("user/windlass.socket", "lib/systemd/user/windlass.socket"),
    ("system/windlass.service", "lib/systemd/system/windlass.service"),
    ("sysusers.conf", "lib/sysusers.d/windlass.conf"),
];

/// Makes the archive. Returns the directory with its content, which is laid out as below `/usr`.
pub fn make(dist: &Distribution) -> Result<PathBuf> {
    let name = format!("windlass-{}-x86_64-linux", dist.version);
    let tree = dist.scratch.join(&name);
    let program = tree.join("bin/windlass");
    copy_program(&dist.program, &program)?;
    succeed(Command::new(&program).arg("man").arg(tree.join("share/man/man1")))?;
    for (shell, path) in COMPLETIONS {
        let script = workspace::output_of(Command::new(&program).args(["completions", shell]))?;
        let path = tree.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, script)?;
    }
    let doc = tree.join("share/doc/windlass");
    fs::create_dir_all(&doc)?;
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
        fs::copy(workspace::root().join(file), doc.join(file))?;
    }
    let units = workspace::root().join("packaging/systemd");
    for (from, to) in UNITS {
        let to = tree.join(to);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(units.join(from), to)?;
    }
    let archive = dist.out.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg("--file").arg(archive).arg("--directory").arg(&dist.scratch).arg(&name);
    succeed(&mut tar)?;
    Ok(tree)
}

/// Writes the checksums of all packages, as `sha256sum --check` reads them.
pub fn checksums(dist: &Distribution) -> Result<()> {
    let files = sorted(&dist.out)?;
    let names = files.iter().filter_map(|file| file.file_name());
    let sums = workspace::output_of(
        Command::new("sha256sum").current_dir(&dist.out).arg("--").args(names),
    )?;
    Ok(fs::write(dist.out.join("SHA256SUMS"), sums)?)
}
