//! The list of attacks: their embedded texts and the properties from their header lines.

use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::policy::Limits;

use super::listed::{self, IN_C, IN_PYTHON, Text};
use super::network::NetworkSetting;

/// One program that tries something forbidden.
#[derive(Debug, Clone)]
pub struct Attack {
    /// The file's name without its ending.
    pub program: &'static str,
    /// A description of what it tries.
    pub name: &'static str,
    /// The line of the contract that it tests.
    pub line: u32,
    /// The number of the security finding that it reproduces, if any.
    pub finding: Option<u32>,
    pub needs: Needs,
    /// The levels that claim to refuse it.
    pub levels: Vec<Isolation>,
    /// The network settings with which the levels claim to refuse it.
    pub networks: Vec<NetworkSetting>,
    /// The name of the control that the claim depends on. If the node does not report that control, the claim
    /// depends on the level alone.
    pub control: Option<&'static str>,
    pub limits: Limits,
    pub(super) language: Language,
    pub(super) session: SessionKind,
    pub(super) workspace: WorkspaceKind,
    pub(super) play: Play,
    /// How often the stage forks the session. Each fork is another chance to win a race.
    pub(super) forks: u32,
    /// The `what` of an entry of `can_reach` in a fork's reply. If the reply has such an entry, the attack is
    /// not claimed to be refused.
    pub(super) named: Option<&'static str>,
    pub(super) judged: Judged,
    pub(super) text: &'static str,
}

/// Which user an attack needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Anyone,
    /// The kernel always refuses it to an ordinary user.
    Root,
    /// It gains nothing for root.
    User,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    /// In a subprocess of the worker.
    Python,
    /// In the worker itself.
    PythonInWorker,
    C,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionKind {
    /// Shared with the other attacks of its level.
    Shared,
    Own,
}

/// The workspace that an attack runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkspaceKind {
    /// A project with some of the trusted names.
    Project,
    /// An empty directory.
    Bare,
    /// Every trusted name exists.
    AllNames,
    /// Every trusted name is a symlink to a file in the workspace.
    Links,
    /// The user's home.
    Home,
    /// A project whose virtual environment is first on the node's PATH.
    OnPath,
    /// A hidden directory and a socket of the host, each below a directory of the workspace.
    Nested,
    /// `.git` is a file that names the repository, which is another directory of the workspace.
    GitFile,
    /// One file is a hard link to a module that a zygote preloads.
    HardLink,
}

/// The sequence of steps around an attack. A program with several parts runs once for each part; `stage.json`
/// names the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Play {
    /// One turn of one session.
    Once,
    /// Part `plant`, then part `look` in a second session, for which the node finds the interpreter.
    Again { first: FirstSession, second: SecondSession },
    /// Part `plant`, then the stage forks the session, then part `look`.
    Fork { look: LookIn },
    /// Part `plant`, then the stage reads and writes files through the node, then part `look`.
    Files,
    /// The program runs outside of every sandbox. A session must still start.
    Outside { user: OutsideUser },
    /// The user types `windlass run` in the home.
    Typed,
    /// Part `plant`, then the user types `git status` in the workspace, before and after the session
    /// is closed.
    Git,
    /// The stage forks the session, part `plant` runs in the twin, and the stage closes the twin.
    EndTwin,
}

/// The state of the first session when the second starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstSession {
    Closed,
    Running,
}

/// The workspace of the second session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SecondSession {
    SameWorkspace,
    /// `sub`, which the first session created in its workspace.
    Below,
    Elsewhere,
    /// Elsewhere, with the interpreter whose zygote preloads a module, after the user has installed a package
    /// for it.
    Preloaded,
}

/// Which session of the two runs the part `look`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LookIn {
    Original,
    Twin,
}

/// The user that runs an outside program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutsideUser {
    Same,
    Another,
}

/// How to decide whether an attack succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    ByItself,
    /// Only effects outside count: the attack may have changed a private copy.
    Outside,
    /// By the end of the session: a lost keeper counts as a success.
    ByItsEnd,
}

/// Every attack, by contract line and name.
///
/// # Panics
/// When the header of an attack is invalid.
pub fn all() -> Vec<Attack> {
    let texts = IN_PYTHON.iter().chain(IN_C).map(|text| listed::current(*text));
    let read = |text: Text| {
        read(text).unwrap_or_else(|why| panic!("the attack {}.{}: {why}", text.0, text.1))
    };
    let mut attacks: Vec<Attack> = texts.map(read).collect();
    attacks.sort_by_key(|attack| (attack.line, attack.program));
    attacks
}

impl Attack {
    /// Whether a session of this level promises to refuse it.
    pub fn claimed_by(&self, level: Isolation) -> bool {
        self.levels.contains(&level)
    }

    /// The same with a network setting.
    pub fn claimed_with(&self, level: Isolation, network: NetworkSetting) -> bool {
        self.claimed_by(level) && self.networks.contains(&network)
    }

    /// Whether it does not depend on the network setting and so runs with only one: attacks on limits, and
    /// attacks that set no network for a session.
    pub fn is_played_once(&self) -> bool {
        !self.limits.is_empty() || matches!(self.play, Play::Outside { .. } | Play::Typed)
    }

    /// Whether it applies to the user of this process.
    pub fn is_for_this_user(&self) -> bool {
        let root = rustix::process::geteuid().is_root();
        match self.needs {
            Needs::Anyone => true,
            Needs::Root => root,
            Needs::User => !root,
        }
    }
}

/// Reads the header lines `# key: value` of a program.
fn read((program, ending, text): Text) -> Result<Attack, String> {
    let mark = if ending == "py" { "# " } else { "// " };
    let mut attack = Attack {
        program,
        name: "",
        line: 0,
        finding: None,
        needs: Needs::Anyone,
        levels: vec![Isolation::Full, Isolation::Landlock],
        networks: NetworkSetting::ALL.to_vec(),
        control: None,
        limits: Limits::default(),
        language: if ending == "py" { Language::Python } else { Language::C },
        session: SessionKind::Shared,
        workspace: WorkspaceKind::Project,
        play: Play::Once,
        forks: 1,
        named: None,
        judged: Judged::ByItself,
        text,
    };
    let header = text.lines().map_while(|line| line.strip_prefix(mark)?.split_once(": "));
    for (key, value) in header {
        match (key, value) {
            ("name", name) => attack.name = name,
            ("line", line) => attack.line = line.parse().map_err(|_| "a line is a number")?,
            ("finding", number) => {
                attack.finding = Some(number.parse().map_err(|_| "a finding is a number")?);
            }
            ("needs", "root") => attack.needs = Needs::Root,
            ("needs", "user") => attack.needs = Needs::User,
            ("session", "own") => attack.session = SessionKind::Own,
            ("workspace", workspace) => attack.workspace = read_workspace(workspace)?,
            ("play", play) => attack.play = read_play(play)?,
            ("forks", forks) => attack.forks = forks.parse().map_err(|_| "forks is a number")?,
            ("named", what) => attack.named = Some(what),
            ("judged", "outside") => attack.judged = Judged::Outside,
            ("judged", "by its end") => attack.judged = Judged::ByItsEnd,
            ("runs", "in the worker") => attack.language = Language::PythonInWorker,
            // A known gap (`docs/security.md`): it runs, but no level claims to refuse it.
            ("levels", "nowhere") => attack.levels = Vec::new(),
            ("levels", levels) => attack.levels = words(levels)?,
            ("networks", networks) => attack.networks = read_networks(networks)?,
            ("control", control) => attack.control = Some(control),
            ("limits", limits) => attack.limits = read_limits(limits)?,
            _ => return Err(format!("unknown header {key}: {value:?}")),
        }
    }
    if attack.name.is_empty() || attack.line == 0 {
        return Err("it has no name or no line".to_owned());
    }
    Ok(attack)
}

fn read_workspace(text: &str) -> Result<WorkspaceKind, String> {
    Ok(match text {
        "bare" => WorkspaceKind::Bare,
        "all names" => WorkspaceKind::AllNames,
        "links" => WorkspaceKind::Links,
        "home" => WorkspaceKind::Home,
        "on the path" => WorkspaceKind::OnPath,
        "nested" => WorkspaceKind::Nested,
        "git file" => WorkspaceKind::GitFile,
        "hard link" => WorkspaceKind::HardLink,
        _ => return Err(format!("{text:?} is no workspace")),
    })
}

fn read_play(text: &str) -> Result<Play, String> {
    let again = |second| Play::Again { first: FirstSession::Closed, second };
    Ok(match text {
        "again" => again(SecondSession::SameWorkspace),
        "again below" => again(SecondSession::Below),
        "again elsewhere" => again(SecondSession::Elsewhere),
        "again, preloaded" => again(SecondSession::Preloaded),
        "beside" => Play::Again { first: FirstSession::Running, second: SecondSession::Elsewhere },
        "fork" => Play::Fork { look: LookIn::Original },
        "fork, look in the twin" => Play::Fork { look: LookIn::Twin },
        "files" => Play::Files,
        "outside" => Play::Outside { user: OutsideUser::Same },
        "outside, as another user" => Play::Outside { user: OutsideUser::Another },
        "typed in the home" => Play::Typed,
        "git status outside" => Play::Git,
        "end the twin" => Play::EndTwin,
        _ => return Err(format!("{text:?} is no play")),
    })
}

fn read_networks(text: &str) -> Result<Vec<NetworkSetting>, String> {
    let one = |word: &str| {
        NetworkSetting::parse(word).ok_or_else(|| format!("{word:?} is no network setting"))
    };
    text.split_ascii_whitespace().map(one).collect()
}

fn words<T: serde::de::DeserializeOwned>(text: &str) -> Result<Vec<T>, String> {
    let one = |word: &str| serde_json::from_value(word.into()).map_err(|error| error.to_string());
    text.split_ascii_whitespace().map(one).collect()
}

/// `processes=40 file_bytes=1000`.
fn read_limits(text: &str) -> Result<Limits, String> {
    let mut object = serde_json::Map::new();
    for limit in text.split_ascii_whitespace() {
        let (name, number) = limit.split_once('=').ok_or("a limit is name=number")?;
        let number: u64 = number.parse().map_err(|_| "a limit is a number")?;
        object.insert(name.to_owned(), number.into());
    }
    serde_json::from_value(object.into()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Minimum number of attacks, and of attacks in C.
    const ATTACKS_MIN: usize = 220;
    const IN_C_MIN: usize = 15;

    #[test]
    fn every_program_in_the_directory_is_listed_and_can_be_read() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("attacks");
        let files: BTreeSet<String> = std::fs::read_dir(directory)
            .expect("the attacks")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains('.'))
            .collect();
        let listed = IN_PYTHON.iter().chain(IN_C);
        let listed = listed.map(|(name, ending, _)| format!("{name}.{ending}")).collect();
        assert_eq!(files, listed);
        assert!(all().len() >= ATTACKS_MIN && IN_C.len() >= IN_C_MIN);
        let names: BTreeSet<&str> = all().iter().map(|attack| attack.program).collect();
        assert_eq!(names.len(), all().len(), "two attacks of one name");
    }

    #[test]
    fn the_lines_of_confinement_have_attacks() {
        let lines: BTreeSet<u32> = all().iter().map(|attack| attack.line).collect();
        assert_eq!(
            lines,
            BTreeSet::from([45, 50, 51, 52, 53, 54, 55, 57, 58, 66, 67, 68, 69, 70, 71, 72])
        );
    }

    #[test]
    fn an_unknown_header_is_refused() {
        let refused = |text| read(("x", "py", text)).expect_err("no attack");
        assert!(refused("# name: x\n# lines: 50\n").contains("lines"));
        assert!(refused("# line: 50\n").contains("no name"));
        let good = read(("x", "c", "// name: a: b\n// line: 53\n// limits: processes=4\n"));
        let good = good.expect("an attack");
        assert_eq!((good.name, good.limits.processes), ("a: b", Some(4)));
    }
}
