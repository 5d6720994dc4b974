//! `windlass policy explain`: explains a policy in plain sentences. Each sentence follows from the policy,
//! the surveyed files and the plan. A sentence whose control is not enforced here is marked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use windlass_confine::survey::FileSurvey;
use windlass_confine::{MachineSupport, ProtectedEntry};
use windlass_protocol::confinement::{Control, ControlReport, ControlState, Isolation};
use windlass_protocol::policy::expand_home;
use windlass_protocol::policy::{
    Limits, Network, Policy, SecretRule, UnixSockets, WorkspaceAccess,
};

use crate::outlook::{Outlook, site_here};
use crate::policy_options::PolicyOptions;
use crate::size;
use crate::terminal::{Terminal, Tone};

/// Explain in plain sentences what a session here may access
///
/// Uses the current directory as the workspace. Exits with 1 if a session with this policy would not start.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    policy: PolicyOptions,
}

/// Maximum number of list entries to name in a sentence.
const NAMED_MAX: usize = 6;

pub fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let policy = args.policy.resolve()?;
    let site = site_here()?;
    let outlook = Outlook::new(&policy, &MachineSupport::detect(), &site);
    let subject = Subject {
        policy: &policy,
        place: &outlook.place,
        home: site.home.as_deref(),
        isolation: outlook.plan.as_ref().map(|plan| plan.isolation),
    };
    let controls = outlook.plan.as_ref().map(|plan| plan.controls.as_slice()).unwrap_or_default();
    for line in subject.lines(controls) {
        terminal.say(&terminal.tone(line.tone, &line.text))?;
    }
    let Some(refused) = &outlook.refused else { return Ok(ExitCode::SUCCESS) };
    let line = format!("A session with this policy would not start here: {refused}.");
    terminal.say(&terminal.tone(Tone::Error, &line))?;
    Ok(ExitCode::FAILURE)
}

/// The policy to explain, and its surroundings.
struct Subject<'a> {
    policy: &'a Policy,
    place: &'a FileSurvey,
    home: Option<&'a Path>,
    /// `None` if the level is not available on this machine.
    isolation: Option<Isolation>,
}

/// A sentence, and the controls that make it true.
struct Sentence {
    text: String,
    rests_on: &'static [Control],
}

struct ExplainLine {
    tone: Tone,
    text: String,
}

impl Subject<'_> {
    fn lines(&self, controls: &[ControlReport]) -> Vec<ExplainLine> {
        let level = self.isolation.map_or_else(String::new, |level| format!(", at level {level}"));
        let workspace = self.place.workspace.display();
        let mut lines = vec![ExplainLine::strong(format!("A session in {workspace}{level}"))];
        let groups = [
            ("Files", self.files()),
            ("Network", self.network_and_sockets()),
            ("System", self.system()),
            ("Limits", self.limits()),
        ];
        for (name, sentences) in groups {
            lines.push(ExplainLine::strong(name.to_owned()));
            lines.extend(sentences.iter().map(|sentence| sentence.line(controls)));
        }
        lines.extend(not_enforced(controls));
        lines
    }

    fn files(&self) -> Vec<Sentence> {
        let mut sentences = vec![self.reading(), self.writing()];
        let (missing, there): (Vec<_>, Vec<_>) = self
            .place
            .names
            .protected
            .iter()
            .partition(|(_, found)| matches!(found, ProtectedEntry::Missing(_)));
        for (verb, names) in [("change", there), ("make", missing)] {
            let names: Vec<String> = names.iter().map(|(path, _)| self.short(path)).collect();
            if !names.is_empty() {
                sentences.push(Sentence {
                    text: format!("cannot {verb} {}", list(&names)),
                    rests_on: &[Control::Protected],
                });
            }
        }
        sentences
    }

    fn reading(&self) -> Sentence {
        let everything = self.place.readable.iter().any(|path| path == Path::new("/"));
        let hidden = list(&self.hidden());
        let (what, rests_on): (String, &[Control]) = match everything {
            true => ("the whole system".to_owned(), &[Control::Hidden]),
            false => {
                let roots = self.place.readable.iter().map(|path| self.short(path));
                let roots: Vec<String> = roots.collect();
                let roots = if roots.is_empty() { String::new() } else { list(&roots) + " and " };
                (format!("only {roots}the workspace"), &[Control::Read, Control::Hidden])
            }
        };
        let except = if hidden.is_empty() { String::new() } else { format!(", except {hidden}") };
        Sentence { text: format!("may read {what}{except}"), rests_on }
    }

    /// Existing hidden paths: first those of the policy, as written and in its order, then those of the node.
    fn hidden(&self) -> Vec<String> {
        let written: BTreeMap<PathBuf, usize> = self
            .policy
            .hidden
            .iter()
            .enumerate()
            .filter_map(|(place, path)| {
                Some((std::fs::canonicalize(expand_home(path, self.home)?).ok()?, place))
            })
            .collect();
        let place_of = |path: &&PathBuf| written.get(*path).copied().unwrap_or(usize::MAX);
        let mut paths: Vec<&PathBuf> = self.place.hidden.keys().collect();
        paths.sort_by_key(place_of);
        let shown = |path: &PathBuf| match written.get(path) {
            Some(place) => self.policy.hidden[*place].clone(),
            None => self.short(path),
        };
        paths.into_iter().map(shown).collect()
    }

    fn writing(&self) -> Sentence {
        let text = if self.place.writable.iter().any(|path| path == Path::new("/")) {
            "may write everything that this user can write".to_owned()
        } else {
            let workspace = match self.policy.workspace {
                WorkspaceAccess::Write => Some("the workspace".to_owned()),
                WorkspaceAccess::Read => None,
            };
            let named = self.place.writable.iter().map(|path| self.short(path));
            let places: Vec<String> =
                workspace.into_iter().chain(named).chain(self.temporary()).collect();
            match places.is_empty() {
                true => "may write nothing".to_owned(),
                false => format!("may write only {}", all(&places)),
            }
        };
        Sentence { text, rests_on: &[Control::Write] }
    }

    fn temporary(&self) -> Option<String> {
        match self.isolation? {
            Isolation::Full => {
                let most = self.policy.limits.tmp_bytes;
                let most = most.map_or_else(String::new, |most| format!(": {}", size::short(most)));
                Some(format!("private temporary directories (/tmp{most})"))
            }
            Isolation::Landlock => Some("a private temporary directory (TMPDIR)".to_owned()),
            Isolation::None => None,
        }
    }

    fn network(&self) -> Sentence {
        let text = match &self.policy.network {
            Network::None => "cannot reach any network".to_owned(),
            Network::Open => {
                "can reach everything that this machine can reach, including its local services"
                    .to_owned()
            }
            Network::Hosts(rules) if rules.0.is_empty() => "cannot reach any host".to_owned(),
            Network::Hosts(rules) => {
                let hosts: Vec<String> = rules.0.iter().map(ToString::to_string).collect();
                format!("can reach {} through the node's proxy, and no other host", all(&hosts))
            }
        };
        Sentence { text, rests_on: &[Control::Network] }
    }

    fn network_and_sockets(&self) -> Vec<Sentence> {
        let mut sentences = vec![self.network()];
        sentences.extend(self.secrets());
        sentences.push(self.sockets());
        sentences
    }

    /// Where secrets of the node go.
    fn secrets(&self) -> Vec<Sentence> {
        let sentence = |rule: &SecretRule| {
            let methods = if rule.methods.is_empty() {
                "all requests".to_owned()
            } else {
                format!("{} requests", rule.methods.join(" and "))
            };
            let (name, to) = (&rule.name, &rule.to);
            let text =
                format!("never has the secret {name}; the proxy puts it into {methods} to {to}");
            Sentence { text, rests_on: &[Control::Network] }
        };
        self.policy.secrets.iter().map(sentence).collect()
    }

    fn sockets(&self) -> Sentence {
        let local = self.policy.unix_sockets == UnixSockets::Local
            && self.isolation.is_none_or(|level| level == Isolation::Full);
        let create = match local {
            true => "may create its own unix sockets",
            false => "may create only connected pairs of unix sockets",
        };
        let text = format!(
            "{create}, and cannot reach unix sockets of the machine, the node or other sessions"
        );
        Sentence { text, rests_on: &[Control::Sockets] }
    }

    fn system(&self) -> Vec<Sentence> {
        let variables = match self.policy.environment.is_empty() {
            true => "gets the usual environment variables and no others of the node".to_owned(),
            false => format!(
                "gets the usual environment variables, {} and no others of the node",
                list(&self.policy.environment)
            ),
        };
        let sentence = |text: &str, rests_on| Sentence { text: text.to_owned(), rests_on };
        vec![
            sentence(
                "cannot signal, trace or read the memory of processes outside the session",
                &[Control::Processes],
            ),
            sentence(
                "cannot reach shared memory or message queues of other processes",
                &[Control::Ipc],
            ),
            sentence("has no capabilities and cannot gain any", &[Control::Privileges]),
            sentence("cannot make dangerous system calls (seccomp filter)", &[Control::Syscalls]),
            sentence("can use only harmless devices, such as /dev/null", &[Control::Devices]),
            Sentence { text: variables, rests_on: &[Control::Environment] },
        ]
    }

    fn limits(&self) -> Vec<Sentence> {
        let Limits {
            memory_bytes,
            cpu_percent,
            processes,
            open_files,
            file_bytes,
            disk_bytes,
            tmp_bytes: _,
            wall_s,
        } = self.policy.limits;
        let known: [(&str, Option<String>, &[Control]); 7] = [
            ("memory", memory_bytes.map(size::short), &[Control::Memory]),
            (
                "processor time",
                cpu_percent.map(|most| format!("{most} % of a core")),
                &[Control::Cpu],
            ),
            ("processes", processes.map(|most| most.to_string()), &[Control::ProcessCount]),
            ("open files", open_files.map(|most| most.to_string()), &[Control::OpenFiles]),
            ("size of a file", file_bytes.map(size::short), &[Control::FileSize]),
            ("growth of the workspace", disk_bytes.map(size::short), &[Control::Disk]),
            ("lifetime", wall_s.map(seconds), &[Control::WallTime]),
        ];
        let mut sentences = Vec::new();
        let mut free = Vec::new();
        for (name, most, rests_on) in known {
            match most {
                Some(most) => {
                    sentences.push(Sentence { text: format!("{name}: {most}"), rests_on })
                }
                None => free.push(name.to_owned()),
            }
        }
        if !free.is_empty() {
            sentences.push(Sentence { text: format!("no limit: {}", all(&free)), rests_on: &[] });
        }
        sentences
    }

    /// A path relative to the workspace or the home, as a person writes it.
    fn short(&self, path: &Path) -> String {
        let inside =
            |root: &Path| path.strip_prefix(root).ok().filter(|rest| *rest != Path::new(""));
        if let Some(rest) = inside(&self.place.workspace) {
            return rest.display().to_string();
        }
        match self.home.and_then(inside) {
            Some(rest) => format!("~/{}", rest.display()),
            None => path.display().to_string(),
        }
    }
}

impl Sentence {
    fn line(&self, controls: &[ControlReport]) -> ExplainLine {
        let broken = |report: &ControlReport| {
            self.rests_on.contains(&report.control) && report.state == ControlState::NotEnforced
        };
        match controls.iter().any(broken) {
            true => ExplainLine {
                tone: Tone::Error,
                text: format!("  {}: NOT ENFORCED HERE", self.text),
            },
            false => ExplainLine { tone: Tone::Plain, text: format!("  {}", self.text) },
        }
    }
}

impl ExplainLine {
    fn strong(text: String) -> Self {
        Self { tone: Tone::Strong, text }
    }
}

/// Lines for the controls that are not enforced: one per reason, with its remedy.
fn not_enforced(controls: &[ControlReport]) -> Vec<ExplainLine> {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for report in controls.iter().filter(|report| report.state == ControlState::NotEnforced) {
        let help = report.remedy.as_ref().map_or_else(String::new, |help| format!("; {help}"));
        let reason = format!("{}{help}", report.mechanism);
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(report.control.to_string()),
            None => reasons.push((reason, vec![report.control.to_string()])),
        }
    }
    if reasons.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![ExplainLine::strong("Not enforced here".to_owned())];
    lines.extend(reasons.into_iter().map(|(reason, names)| ExplainLine {
        tone: Tone::Error,
        text: format!("  {}: {reason}", all(&names)),
    }));
    lines
}

fn seconds(seconds: u64) -> String {
    crate::duration::show(std::time::Duration::from_secs(seconds))
}

/// Names the first entries, and the number of the others.
fn list(items: &[String]) -> String {
    if items.len() <= NAMED_MAX {
        return all(items);
    }
    let rest = items.len() - NAMED_MAX;
    format!("{} and {rest} more", items[..NAMED_MAX].join(", "))
}

fn all(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use windlass_confine::ProtectedNames;
    use windlass_confine::plan::PathKind;
    use windlass_protocol::policy::PolicyRequest;

    use super::*;

    fn explained(request: &str, isolation: Isolation, controls: &[ControlReport]) -> String {
        let request: PolicyRequest = serde_json::from_str(request).unwrap();
        let policy = request.resolve().unwrap();
        let work = PathBuf::from("/people/u/work");
        let place = FileSurvey {
            readable: policy.readable.iter().map(PathBuf::from).collect(),
            writable: policy.writable.iter().map(PathBuf::from).collect(),
            hidden: BTreeMap::from([(PathBuf::from("/people/u/keys"), PathKind::Directory)]),
            names: ProtectedNames {
                protected: BTreeMap::from([(
                    work.join(".git"),
                    ProtectedEntry::Real(PathKind::Directory),
                )]),
                unheld: None,
            },
            workspace: work,
            ..FileSurvey::default()
        };
        let home = Some(Path::new("/people/u"));
        let subject = Subject { policy: &policy, place: &place, home, isolation: Some(isolation) };
        let lines = subject.lines(controls).into_iter().map(|line| line.text);
        lines.collect::<Vec<_>>().join("\n")
    }

    #[track_caller]
    fn check(text: &str, holds: &[&str], lacks: &[&str]) {
        for part in holds {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        for part in lacks {
            assert!(!text.contains(part), "{part:?} in:\n{text}");
        }
    }

    #[test]
    fn the_sentences_follow_the_policy() {
        let text = explained("{}", Isolation::Full, &[]);
        check(
            &text,
            &[
                "may read the whole system, except ~/keys\n",
                "may write only the workspace and private temporary directories (/tmp: 1 GiB)\n",
                "cannot change .git\n",
                "cannot reach any network\n",
                "may create its own unix sockets, and cannot reach unix sockets of the machine",
                "memory: 4 GiB\n",
                "no limit: processor time and lifetime",
            ],
            &["NOT ENFORCED", "Not enforced"],
        );
        let request = r#"{"preset": "read-only", "readable": ["/usr"], "writable": ["/srv/out"],
            "network": {"hosts": ["a.test", "*.b.test:443"]}, "environment": ["CI"],
            "secrets": [{"name": "KEY", "to": "https://c.test/v1", "methods": ["GET"]}],
            "limits": {"cpu_percent": 150, "wall_s": 90}}"#;
        check(
            &explained(request, Isolation::Full, &[]),
            &[
                "may read only /usr and the workspace, except ~/keys\n",
                "may write only /srv/out and private",
                "can reach a.test, *.b.test:443 and c.test:443 through the node's proxy, and no other host\n",
                "never has the secret KEY; the proxy puts it into GET requests to https://c.test/v1\n",
                "gets the usual environment variables, CI and no others",
                "processor time: 150 % of a core\n",
                "lifetime: 1m30s",
            ],
            &["the workspace and private", "no limit"],
        );
        check(
            &explained(r#"{"preset": "open"}"#, Isolation::Full, &[]),
            &[
                "may write everything that this user can write\n",
                "can reach everything that this machine can reach",
            ],
            &["may write only"],
        );
    }

    #[test]
    fn a_sentence_that_is_not_enforced_is_marked_and_its_reason_is_listed_once() {
        let report = |control| ControlReport {
            control,
            state: ControlState::NotEnforced,
            mechanism: "there is no wall".to_owned(),
            tested: false,
            remedy: Some("build one".to_owned()),
        };
        let controls = [report(Control::Network), report(Control::Protected)];
        check(
            &explained("{}", Isolation::Landlock, &controls),
            &[
                "cannot reach any network: NOT ENFORCED HERE\n",
                "cannot change .git: NOT ENFORCED HERE\n",
                "a private temporary directory (TMPDIR)\n",
                "may create only connected pairs of unix sockets, and cannot reach unix sockets",
                "network and protected: there is no wall; build one",
            ],
            &["private temporary directories"],
        );
    }
}
