//! The two suites: which version of each, what it lists, and one round of it against a URL. A round
//! is one call of the suite, at one revision of the protocol.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use windlass_testkit::processes;

use super::results::{self, Check};
use super::scenarios;
use crate::packages::{Package, Packages};
use crate::workspace;

const NAME: &str = "@modelcontextprotocol/conformance";
const STABLE: Package = Package::npm("conformance-stable", NAME, "0.1.16");
const ALPHA: Package = Package::npm("conformance-alpha", NAME, "0.2.0-alpha.12");

/// The revision whose scenarios are played at an older one.
const AFTER_FORCED: &str = "2025-06-18";

/// How long a round may take, and one scenario of it.
const ROUND_WAIT: Duration = Duration::from_secs(300);
const SCENARIO_WAIT_MS: &str = "30000";

/// The end of what a round printed, for a complaint.
const LAST_LINES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Suite {
    Stable,
    Alpha,
}

impl Suite {
    pub const ALL: [Self; 2] = [Self::Stable, Self::Alpha];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Alpha => "alpha",
        }
    }

    pub fn version(self) -> &'static str {
        self.package().version
    }

    fn package(self) -> &'static Package {
        match self {
            Self::Stable => &STABLE,
            Self::Alpha => &ALPHA,
        }
    }

    pub fn rounds(self) -> &'static [Round] {
        match self {
            Self::Stable => &[Round { suite: Self::Stable, at: At::ItsOwn }],
            Self::Alpha => &[
                Round { suite: Self::Alpha, at: At::Revision("2026-07-28") },
                Round { suite: Self::Alpha, at: At::Extensions },
                Round { suite: Self::Alpha, at: At::Revision("2025-11-25") },
                Round { suite: Self::Alpha, at: At::Revision("2025-06-18") },
                Round { suite: Self::Alpha, at: At::Forced("2025-03-26") },
            ],
        }
    }
}

/// One call of a suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    pub suite: Suite,
    at: At,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// The suite has no choice of revisions.
    ItsOwn,
    Revision(&'static str),
    /// A revision for which the suite has next to nothing: what it has for the next one is played
    /// there all the same, as far as it applies.
    Forced(&'static str),
    /// What belongs to no revision, at the newest one.
    Extensions,
}

impl Round {
    pub fn label(self) -> String {
        match self.at {
            At::ItsOwn => self.suite.as_str().to_owned(),
            At::Revision(_) | At::Forced(_) | At::Extensions => {
                format!("{} {}", self.suite.as_str(), self.at_words())
            }
        }
    }

    pub fn at_words(self) -> &'static str {
        match self.at {
            At::ItsOwn => "2025-11-25",
            At::Revision(revision) | At::Forced(revision) => revision,
            At::Extensions => "extensions",
        }
    }

    pub fn has(self, scenario: &Listed) -> bool {
        let is_at = |revision: &str| scenario.revisions.iter().any(|listed| listed == revision);
        match self.at {
            At::ItsOwn => true,
            At::Revision(revision) => is_at(revision),
            At::Forced(_) => is_at(AFTER_FORCED) && scenarios::applies(&scenario.name),
            At::Extensions => is_at("extension"),
        }
    }
}

/// A scenario as its suite lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    revisions: Vec<String>,
}

/// The suites, installed.
#[derive(Debug)]
pub struct Suites {
    packages: Packages,
}

impl Suites {
    pub fn prepare(suites: &[Suite]) -> Result<Self> {
        let packages: Vec<Package> = suites.iter().map(|suite| *suite.package()).collect();
        Ok(Self { packages: Packages::prepare(&packages)? })
    }

    /// All server scenarios that the suite has.
    pub fn list(&self, suite: Suite) -> Result<Vec<Listed>> {
        let text = workspace::output_of(self.command(suite).args(["list", "--server"]))?;
        let listed: Vec<Listed> = text.lines().filter_map(listed).collect();
        ensure!(!listed.is_empty(), "the {} suite lists no scenario", suite.as_str());
        Ok(listed)
    }

    /// Plays these scenarios of a round, and gives the checks of each. The suite may play others,
    /// too: it is quicker with all of them than with each by itself.
    pub fn run(
        &self,
        round: Round,
        scenarios: &[String],
        url: &str,
        place: &Path,
    ) -> Result<BTreeMap<String, Vec<Check>>> {
        let label = round.label();
        let directory = place.join(label.replace(' ', "-"));
        fs::create_dir(&directory)?;
        let log = place.join(format!("{}.log", label.replace(' ', "-")));
        // By force, or alone, a scenario is played by its name.
        if matches!(round.at, At::Forced(_)) || scenarios.len() == 1 {
            for scenario in scenarios {
                let mut server = self.server(round, url, &directory);
                to_the_end(server.args(["--scenario", scenario]), &label, &log)?;
            }
        } else {
            let mut server = self.server(round, url, &directory);
            to_the_end(server.args(["--suite", "all"]), &label, &log)?;
        }
        results::read(&directory)
    }

    fn server(&self, round: Round, url: &str, directory: &Path) -> Command {
        let mut command = self.command(round.suite);
        command.args(["server", "--url", url, "--output-dir"]).arg(directory);
        if round.suite == Suite::Alpha {
            command.args(["--timeout", SCENARIO_WAIT_MS]);
        }
        match round.at {
            At::ItsOwn | At::Extensions => &mut command,
            At::Revision(revision) => command.args(["--spec-version", revision]),
            At::Forced(revision) => command.args(["--spec-version", revision, "--force"]),
        };
        command
    }

    fn command(&self, suite: Suite) -> Command {
        let program = self.packages.directory(suite.package());
        let program = program.join("node_modules").join(NAME).join("dist/index.js");
        let mut command = Command::new(self.packages.node_bin().join("node"));
        // What the machine sets for its own Node.js slows every start.
        command.arg(program).env_remove("NODE_EXTRA_CA_CERTS").env_remove("NODE_OPTIONS");
        command
    }
}

/// Runs a suite to its end. It ends with an error when a check fails, which is ours to judge.
fn to_the_end(command: &mut Command, label: &str, log: &Path) -> Result<()> {
    let printed = File::options().create(true).append(true).open(log);
    let printed = printed.with_context(|| format!("cannot open {}", log.display()))?;
    let command = command.stdin(Stdio::null()).stdout(printed.try_clone()?).stderr(printed);
    let mut child = command.spawn().context("cannot run the suite")?;
    let ended = processes::wait_gone(child.id(), ROUND_WAIT);
    if !ended {
        processes::kill(child.id());
    }
    child.wait()?;
    ensure!(ended, "round {label:?} took too long: {}", last_lines(log));
    Ok(())
}

fn last_lines(printed: &Path) -> String {
    let text = fs::read_to_string(printed).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join(" | ")
}

/// `  - ping [2025-06-18,2025-11-25]`
fn listed(line: &str) -> Option<Listed> {
    let rest = line.trim_start().strip_prefix("- ")?;
    let (name, revisions) = rest.strip_suffix(']')?.split_once(" [")?;
    let revisions = revisions.split(',').map(|revision| revision.trim().to_owned()).collect();
    Some(Listed { name: name.to_owned(), revisions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_scenario_has_a_name_and_its_revisions() {
        let ping = listed("  - ping [2025-06-18,2025-11-25]").unwrap();
        assert_eq!(ping.name, "ping");
        let tasks = listed("  - tasks-lifecycle [extension]").unwrap();
        assert_eq!(listed("Server scenarios (test against a server):"), None);
        let rounds = |scenario: &Listed| -> Vec<String> {
            let all = Suite::ALL.iter().flat_map(|suite| suite.rounds());
            all.filter(|round| round.has(scenario)).map(|round| round.label()).collect()
        };
        let all = ["stable", "alpha 2025-11-25", "alpha 2025-06-18", "alpha 2025-03-26"];
        assert_eq!(rounds(&ping), all);
        let completion = listed("- completion-complete [2025-06-18]").unwrap();
        assert_eq!(rounds(&completion), ["stable", "alpha 2025-06-18"]);
        assert_eq!(rounds(&tasks), ["stable", "alpha extensions"]);
    }
}
