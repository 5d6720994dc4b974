//! `windlass worker check`: drives a worker program through the conformance suite and prints a table. Never
//! starts a node.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use windlass_worker_check::page::{self, PageTone};
use windlass_worker_check::{CheckPlan, SnippetSet, check};

use crate::terminal::{Terminal, Tone};

/// Drive a worker program through the conformance suite
///
/// Starts the program once for each case and plays the keeper's half of the worker protocol
/// (docs/protocol.md). Prints each case with its class, its time and its result, and the frames of each
/// failed case. Exits with 0 only if no required case and no case of a declared capability failed.
///
/// The program gets a clean environment and an empty directory. An argument that is the relative path of an
/// existing file is made absolute.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Run only this case; may be repeated
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// The worker's language, for the built-in snippets of code
    #[arg(long, value_name = "NAME", conflicts_with = "snippets")]
    language: Option<String>,
    /// A TOML file with snippets of code in the worker's language
    #[arg(long, value_name = "FILE")]
    snippets: Option<PathBuf>,
    /// A variable of the worker's environment; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    environment: Vec<(String, String)>,
    /// Seconds that one step of a case may take
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
    /// The worker program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let plan = CheckPlan {
        snippets: snippets(&args)?,
        command: args.command.into_iter().map(absolute).collect(),
        environment: args.environment,
        cases: args.cases,
        step_time: Duration::from_secs(args.timeout),
    };
    let report = check(&plan, |_| {})?;
    if args.json {
        terminal.say(&serde_json::to_string_pretty(&report)?)?;
    } else {
        let text = page::render(&report, &|tone, text| terminal.tone(colour(tone), text));
        terminal.out(text.as_bytes())?;
    }
    Ok(if report.conforms() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn snippets(args: &Args) -> anyhow::Result<Option<SnippetSet>> {
    if let Some(path) = &args.snippets {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let set = SnippetSet::parse(&text).with_context(|| format!("in {}", path.display()))?;
        return Ok(Some(set));
    }
    let Some(name) = &args.language else { return Ok(None) };
    let set = SnippetSet::built_in(name).with_context(|| {
        let names = SnippetSet::built_in_names();
        format!("no built-in snippets for `{name}`; there are {names}; or give --snippets FILE")
    })?;
    Ok(Some(set))
}

/// The worker runs in a directory of its own, where a relative path of the user would be wrong.
fn absolute(argument: String) -> String {
    let path = Path::new(&argument);
    if path.is_absolute() || !path.is_file() {
        return argument;
    }
    std::path::absolute(path).map_or(argument, |path| path.display().to_string())
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    if name.is_empty() {
        return Err("the name is empty".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn colour(tone: PageTone) -> Tone {
    match tone {
        PageTone::Passed => Tone::Good,
        PageTone::Failed => Tone::Error,
        PageTone::NotApplicable | PageTone::Detail => Tone::Faint,
    }
}
