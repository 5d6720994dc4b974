//! Chooses the kind of worker for a file of code: the kind that the user names, else the one of its `#!` line,
//! else the one of its extension.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::bail;
use windlass_client::Client;
use windlass_protocol::api::{TerminalSize, WorkerList};
use windlass_protocol::{ErrorCode, kinds};

/// Options that select the worker of a new session.
#[derive(Debug, clap::Args)]
pub struct WorkerOptions {
    /// The kind of worker, as `windlass workers` lists it [default: by `#!` line or extension, else python]
    #[arg(long, value_name = "NAME")]
    pub worker: Option<String>,
    /// Run a shell without a terminal, even if this command has one
    #[arg(long)]
    pub no_terminal: bool,
}

impl WorkerOptions {
    /// The worker to request for this code. `None`: the node's default.
    pub async fn choose(
        &self,
        client: &Client,
        file: Option<&Path>,
        code: &str,
    ) -> anyhow::Result<Option<String>> {
        if let Some(named) = &self.worker {
            return Ok(Some(named.clone()));
        }
        let program = shebang(code);
        let extension = file.and_then(Path::extension).and_then(|extension| extension.to_str());
        match built_in(program, extension) {
            Some(name) => return Ok(Some(name.to_owned())),
            None if program.is_none() && extension.is_none() => return Ok(None),
            None => {}
        }
        match client.workers().await {
            Ok(workers) => {
                if let Some(name) = configured(&workers, program, extension) {
                    return Ok(Some(name));
                }
            }
            // The sessions of a tenant have built-in kinds of worker only, and its clients do not see the list.
            Err(error) if error.api_code() == Some(ErrorCode::Forbidden) => {}
            Err(error) => return Err(error.into()),
        }
        match program {
            Some(program) => bail!(
                "no worker runs {program:?}, which the `#!` line names; name a worker with --worker \
                 (`windlass workers` lists them)"
            ),
            None => Ok(None),
        }
    }

    /// The terminal to request: one as large as this command's, for a shell.
    pub fn terminal(&self, worker: Option<&str>) -> Option<TerminalSize> {
        let is_shell = worker == Some(kinds::shell::KIND.name);
        if !is_shell || self.no_terminal || !std::io::stdin().is_terminal() {
            return None;
        }
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        let usable = size.ws_col > 0 && size.ws_row > 0;
        usable.then_some(TerminalSize { columns: size.ws_col, rows: size.ws_row })
    }
}

fn built_in(program: Option<&str>, extension: Option<&str>) -> Option<&'static str> {
    let of_program = |program: &str| {
        kinds::ALL.iter().find(|kind| kind.shebangs.contains(&program)).map(|kind| kind.name)
    };
    program.and_then(of_program).or_else(|| Some(kinds::by_extension(extension?)?.name))
}

fn configured(
    workers: &WorkerList,
    program: Option<&str>,
    extension: Option<&str>,
) -> Option<String> {
    let list = &workers.workers;
    let by_name = list.iter().find(|worker| program == Some(&worker.name));
    let has = |name: &str| list.iter().find(|one| one.extensions.iter().any(|known| known == name));
    Some(by_name.or_else(|| has(extension?))?.name.clone())
}

/// The program of a `#!` line, without its directory and a version number at its end.
fn shebang(code: &str) -> Option<&str> {
    let line = code.strip_prefix("#!")?.lines().next()?;
    let mut words = line.split_whitespace();
    let mut program = base(words.next()?);
    if program == "env" {
        program = base(words.find(|word| !word.starts_with('-') && !word.contains('='))?);
    }
    let bare = program.trim_end_matches(|last: char| last.is_ascii_digit() || last == '.');
    (!bare.is_empty()).then_some(bare)
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shebang_names_its_program() {
        for (code, program) in [
            ("#!/usr/bin/python3.11\n1", Some("python")),
            ("#!/usr/bin/env python3\n", Some("python")),
            ("#!/usr/bin/env -S A=b perl -w", Some("perl")),
            ("#! /bin/sh -e\n", Some("sh")),
            ("#!\n", None),
            ("#!/usr/bin/env\n", None),
            ("1 #!/bin/sh", None),
            ("", None),
        ] {
            assert_eq!(shebang(code), program, "{code:?}");
        }
    }

    #[test]
    fn a_shebang_wins_over_an_extension() {
        assert_eq!(built_in(Some("python"), Some("txt")), Some("python"));
        assert_eq!(built_in(None, Some("py")), Some("python"));
        assert_eq!(built_in(Some("perl"), Some("pl")), None);
    }
}
