//! The two versions of the suite: installs them, lists their scenarios, and runs rounds against a URL. A
//! round is one run of a suite at one revision of MCP.

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
use crate::packages::{Packages, PinnedPackage};
use crate::workspace;

const NAME: &str = "@modelcontextprotocol/conformance";
const STABLE: PinnedPackage = PinnedPackage::npm("conformance-stable", NAME, "0.1.16");
const ALPHA: PinnedPackage = PinnedPackage::npm("conformance-alpha", NAME, "0.2.0-alpha.12");

/// The revision whose scenarios also run at the older revision of [`RoundRevision::Forced`].
const FORCED_FROM: &str = "2025-06-18";

/// The time limits of a round and of one scenario.
const ROUND_WAIT: Duration = Duration::from_secs(300);
const SCENARIO_WAIT_MS: &str = "30000";

/// How many lines of a round's output an error message shows.
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

    fn package(self) -> &'static PinnedPackage {
        match self {
            Self::Stable => &STABLE,
            Self::Alpha => &ALPHA,
        }
    }

    pub fn rounds(self) -> &'static [SuiteRound] {
        match self {
            Self::Stable => &[SuiteRound { suite: Self::Stable, at: RoundRevision::OnlyOne }],
            Self::Alpha => &[
                SuiteRound { suite: Self::Alpha, at: RoundRevision::Revision("2026-07-28") },
                SuiteRound { suite: Self::Alpha, at: RoundRevision::Extensions },
                SuiteRound { suite: Self::Alpha, at: RoundRevision::Revision("2025-11-25") },
                SuiteRound { suite: Self::Alpha, at: RoundRevision::Revision("2025-06-18") },
                SuiteRound { suite: Self::Alpha, at: RoundRevision::Forced("2025-03-26") },
            ],
        }
    }
}

/// One run of a suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuiteRound {
    pub suite: Suite,
    at: RoundRevision,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RoundRevision {
    /// The suite has only one revision.
    OnlyOne,
    Revision(&'static str),
    /// A revision for which the suite has almost no scenarios. The applicable scenarios of [`FORCED_FROM`]
    /// run at this revision.
    Forced(&'static str),
    /// The scenarios of extensions, which belong to no revision. They run at the newest one.
    Extensions,
}

impl SuiteRound {
    pub fn label(self) -> String {
        match self.at {
            RoundRevision::OnlyOne => self.suite.as_str().to_owned(),
            RoundRevision::Revision(_) | RoundRevision::Forced(_) | RoundRevision::Extensions => {
                format!("{} {}", self.suite.as_str(), self.revision_name())
            }
        }
    }

    pub fn revision_name(self) -> &'static str {
        match self.at {
            RoundRevision::OnlyOne => "2025-11-25",
            RoundRevision::Revision(revision) | RoundRevision::Forced(revision) => revision,
            RoundRevision::Extensions => "extensions",
        }
    }

    pub fn has(self, scenario: &ListedScenario) -> bool {
        let is_at = |revision: &str| scenario.revisions.iter().any(|listed| listed == revision);
        match self.at {
            RoundRevision::OnlyOne => true,
            RoundRevision::Revision(revision) => is_at(revision),
            RoundRevision::Forced(_) => is_at(FORCED_FROM) && scenarios::applies(&scenario.name),
            RoundRevision::Extensions => is_at("extension"),
        }
    }
}

/// A scenario in the list of a suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedScenario {
    pub name: String,
    revisions: Vec<String>,
}

/// The installed suites.
#[derive(Debug)]
pub struct Suites {
    packages: Packages,
}

impl Suites {
    pub fn prepare(suites: &[Suite]) -> Result<Self> {
        let packages: Vec<PinnedPackage> = suites.iter().map(|suite| *suite.package()).collect();
        Ok(Self { packages: Packages::prepare(&packages)? })
    }

    /// All server scenarios of the suite.
    pub fn list(&self, suite: Suite) -> Result<Vec<ListedScenario>> {
        let text = workspace::output_of(self.command(suite).args(["list", "--server"]))?;
        let listed: Vec<ListedScenario> = text.lines().filter_map(listed).collect();
        ensure!(!listed.is_empty(), "the {} suite lists no scenario", suite.as_str());
        Ok(listed)
    }

    /// Runs these scenarios of a round and returns the checks of each. The suite may run other scenarios too,
    /// because one run of all scenarios is faster than one run per scenario.
    pub fn run(
        &self,
        round: SuiteRound,
        scenarios: &[String],
        url: &str,
        parent: &Path,
    ) -> Result<BTreeMap<String, Vec<Check>>> {
        let label = round.label();
        let directory = parent.join(label.replace(' ', "-"));
        fs::create_dir(&directory)?;
        let log = parent.join(format!("{}.log", label.replace(' ', "-")));
        // With `--force`, or if there is only one, a scenario runs by its name.
        if matches!(round.at, RoundRevision::Forced(_)) || scenarios.len() == 1 {
            for scenario in scenarios {
                let mut server = self.server(round, url, &directory);
                run_to_end(server.args(["--scenario", scenario]), &label, &log)?;
            }
        } else {
            let mut server = self.server(round, url, &directory);
            run_to_end(server.args(["--suite", "all"]), &label, &log)?;
        }
        results::read(&directory)
    }

    fn server(&self, round: SuiteRound, url: &str, directory: &Path) -> Command {
        let mut command = self.command(round.suite);
        command.args(["server", "--url", url, "--output-dir"]).arg(directory);
        if round.suite == Suite::Alpha {
            command.args(["--timeout", SCENARIO_WAIT_MS]);
        }
        match round.at {
            RoundRevision::OnlyOne | RoundRevision::Extensions => &mut command,
            RoundRevision::Revision(revision) => command.args(["--spec-version", revision]),
            RoundRevision::Forced(revision) => {
                command.args(["--spec-version", revision, "--force"])
            }
        };
        command
    }

    fn command(&self, suite: Suite) -> Command {
        let program = self.packages.directory(suite.package());
        let program = program.join("node_modules").join(NAME).join("dist/index.js");
        let mut command = Command::new(self.packages.node_bin().join("node"));
        // These settings of the machine slow down every start of Node.js.
        command.arg(program).env_remove("NODE_EXTRA_CA_CERTS").env_remove("NODE_OPTIONS");
        command
    }
}

/// Runs a suite to its end. The exit code is ignored: it is an error if any check fails, and `judge` decides
/// about checks.
fn run_to_end(command: &mut Command, label: &str, log: &Path) -> Result<()> {
    let printed = File::options().create(true).append(true).open(log);
    let printed = printed.with_context(|| format!("cannot open {}", log.display()))?;
    let command = command.stdin(Stdio::null()).stdout(printed.try_clone()?).stderr(printed);
    let mut child = command.spawn().context("cannot run the suite")?;
    let ended = processes::wait_gone(child.id(), ROUND_WAIT);
    if !ended {
        processes::kill(child.id());
    }
    child.wait()?;
    ensure!(
        ended,
        "round {label:?} took longer than {ROUND_WAIT:?}; its last output: {}",
        last_lines(log)
    );
    Ok(())
}

fn last_lines(printed: &Path) -> String {
    let text = fs::read_to_string(printed).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join(" | ")
}

/// `  - ping [2025-06-18,2025-11-25]`
fn listed(line: &str) -> Option<ListedScenario> {
    let rest = line.trim_start().strip_prefix("- ")?;
    let (name, revisions) = rest.strip_suffix(']')?.split_once(" [")?;
    let revisions = revisions.split(',').map(|revision| revision.trim().to_owned()).collect();
    Some(ListedScenario { name: name.to_owned(), revisions })
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
        let rounds = |scenario: &ListedScenario| -> Vec<String> {
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
