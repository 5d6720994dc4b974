//! The packages of a new session: options that name them, and the wait until the node has built an environment with them.
//! While it is built, the output of the installer is shown on standard error.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use windlass_client::Client;
use windlass_protocol::packages::{
    CreatePackageEnvironment, PackageEnvironment, PackageEnvironmentState,
};
use windlass_protocol::{EventKind, Seq, SessionId, Stream};

use crate::terminal::Terminal;

/// How long one request waits for the end of a build.
const WAIT_MS: u64 = 60_000;

/// Options that select the packages of a new session.
#[derive(Debug, clap::Args)]
pub struct PackageOptions {
    /// Packages to import, from the package index: pandas,matplotlib or 'numpy>=2,<3'; can be repeated
    #[arg(long, value_name = "PACKAGES", conflicts_with = "environment")]
    pub with: Vec<String>,
    /// The package environment to use, as `windlass env list` names it
    #[arg(long, visible_alias = "env", value_name = "NAME", conflicts_with = "interpreter")]
    pub environment: Option<String>,
    /// Let the code install packages itself: pip and uv reach the package index, and install into an environment that
    /// ends with the session
    #[arg(long)]
    pub allow_packages: bool,
}

impl PackageOptions {
    /// The environment for a new session, which is built first if it is not there. `interpreter` is the interpreter that
    /// the user named.
    pub async fn environment(
        &self,
        client: &Client,
        interpreter: Option<&Path>,
        terminal: &mut Terminal,
    ) -> anyhow::Result<Option<String>> {
        if self.with.is_empty() {
            return Ok(self.environment.clone());
        }
        let python = interpreter.map(|path| path.to_str().context("the interpreter is not UTF-8"));
        let request = CreatePackageEnvironment {
            python: python.transpose()?.map(str::to_owned),
            packages: split(&self.with),
            ..CreatePackageEnvironment::default()
        };
        Ok(Some(build(client, request, terminal).await?.name))
    }
}

/// Finds an environment or has the node build it, and shows the progress.
pub async fn build(
    client: &Client,
    mut request: CreatePackageEnvironment,
    terminal: &mut Terminal,
) -> anyhow::Result<PackageEnvironment> {
    let mut environment = client.create_package_environment(&request).await?;
    if environment.state == PackageEnvironmentState::Building {
        let what = match request.packages.is_empty() {
            true => "the packages of the lock file".to_owned(),
            false => request.packages.join(", "),
        };
        terminal.note(&format!("installing {what}; later sessions use the same environment"))?;
        if let Some(session) = &environment.build {
            show_output(client, session).await?;
        }
        request.wait_ms = WAIT_MS;
    }
    while environment.state == PackageEnvironmentState::Building {
        environment = client.create_package_environment(&request).await?;
    }
    match environment.state {
        PackageEnvironmentState::Failed => {
            let why = environment.error.unwrap_or_default();
            bail!("cannot install the packages: {why}");
        }
        _ => Ok(environment),
    }
}

/// Shows what the installer prints, until the session of the build has ended its turn.
async fn show_output(client: &Client, session: &SessionId) -> anyhow::Result<()> {
    let mut events = client.events(session, Seq(0));
    let mut stderr = std::io::stderr();
    while let Some(item) = events.next().await? {
        match item.event.kind {
            EventKind::Output { stream: Stream::Stdout | Stream::Stderr, .. } => {
                // Progress that cannot be shown does not stop the build.
                let _ = stderr.write_all(item.text.unwrap_or_default().as_bytes());
            }
            EventKind::TurnEnded { .. } => break,
            _ => {}
        }
    }
    Ok(())
}

/// Splits lists such as `pandas,numpy>=2,<3`: a comma before a letter or a digit separates packages, a comma before an
/// operator belongs to a version. Names each package once.
pub fn split(lists: &[String]) -> Vec<String> {
    let mut packages: Vec<String> = Vec::new();
    for list in lists {
        let first = packages.len();
        for part in list.split(',') {
            match packages.get_mut(first..).and_then(<[String]>::last_mut) {
                Some(last) if part.trim_start().starts_with(['<', '>', '=', '!', '~']) => {
                    last.push(',');
                    last.push_str(part.trim());
                }
                // A list of extras.
                Some(last) if last.contains('[') && !last.contains(']') => {
                    last.push(',');
                    last.push_str(part.trim());
                }
                _ => packages.push(part.trim().to_owned()),
            }
        }
    }
    let mut seen = HashSet::new();
    packages.retain(|package| !package.is_empty() && seen.insert(package.clone()));
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_separate_packages_but_not_versions_and_extras() {
        for (lists, packages) in [
            (&["pandas,matplotlib"][..], &["pandas", "matplotlib"][..]),
            (&["numpy>=2,<3", "six"], &["numpy>=2,<3", "six"]),
            (&["numpy>=2, <3, six"], &["numpy>=2,<3", "six"]),
            (&["requests[socks,security]==2.32,six"], &["requests[socks,security]==2.32", "six"]),
            (&["a", "<3"], &["a", "<3"]),
            (&["", ",a,"], &["a"]),
            (&["pandas,six", "pandas"], &["pandas", "six"]),
        ] {
            let lists: Vec<String> = lists.iter().map(|list| (*list).to_owned()).collect();
            assert_eq!(split(&lists), packages);
        }
    }
}
