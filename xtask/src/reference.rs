//! `cargo xtask reference`: writes the pages of `docs/reference` with the hidden command `windlass reference`,
//! which makes each page from one table of the code. It writes only these pages.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::RunVerdict;
use crate::workspace;

const DIRECTORY: &str = "docs/reference";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write nothing; fail if a page is out of date
    #[arg(long)]
    check: bool,
}

pub fn run(args: &Args) -> Result<RunVerdict> {
    let program = workspace::windlass()?;
    let print =
        |page: &[&str]| workspace::output_of(Command::new(&program).arg("reference").args(page));
    let directory = workspace::root().join(DIRECTORY);
    let mut verdict = RunVerdict::Good;
    for page in print(&[])?.lines() {
        let (path, text) = (directory.join(format!("{page}.md")), print(&[page])?);
        if fs::read_to_string(&path).is_ok_and(|kept| kept == text) {
            continue;
        }
        if args.check {
            println!(
                "{DIRECTORY}/{page}.md does not match the code\n  remedy: run `cargo xtask reference`"
            );
            verdict = RunVerdict::Bad;
        } else {
            fs::create_dir_all(&directory)?;
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            println!("wrote {DIRECTORY}/{page}.md");
        }
    }
    Ok(verdict)
}
