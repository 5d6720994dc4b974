//! Attacks with more than one turn: two sessions, forks, files through the node, outside programs, and
//! commands that the user types.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use windlass_client::files::Expect;
use windlass_client::protocol::api::{CloseQuery, ForkSession, ForkedSession, Session};
use windlass_client::protocol::environments::{EnvironmentList, ZygoteState};
use windlass_client::protocol::policy::{Limits, PolicyRequest};
use windlass_client::protocol::{Outcome, SessionId};

use super::families;
use super::outsider::Outsider;
use super::program::{Attack, FirstSession, LookIn, OutsideUser, SecondSession, WorkspaceKind};
use super::scene::{
    AttackScene, AttackSession, Interpreter, PartResult, PlayResult, SessionSetup, StageFacts,
    create, run,
};
use super::verdict::{self, AttackVerdict};
use super::workspaces::{git, install_package};
use crate::processes;

/// Timeout for a fork.
const FORK_WAIT: Duration = Duration::from_secs(20);

/// How often the stage writes, reads and removes a file while a session races with the node.
const FILE_ROUNDS: usize = 150;

/// How long the processes of a twin may live after the twin is closed.
const TWIN_END_WAIT: Duration = Duration::from_secs(5);

/// Deadline of a typed command.
const TYPED_WAIT_S: &str = "30s";

/// Why a fork gave no twin.
#[derive(Debug, PartialEq, Eq)]
enum NoFork {
    Refused(String),
    Hangs,
}

impl AttackScene<'_> {
    /// Part `plant` in one session, part `look` in the next.
    pub(super) async fn again(
        &mut self,
        attack: &Attack,
        first: FirstSession,
        second: SecondSession,
    ) -> anyhow::Result<PlayResult> {
        let attacker = self.attacker_for(attack).await?;
        let mut sessions = vec![attacker.session.id.clone()];
        let planted = self.first_part(attack, &attacker).await?;
        if let PartResult::Ended(verdict) = planted {
            return Ok(PlayResult { verdict, sessions, attacker: None });
        }
        if first == FirstSession::Closed {
            self.close(&sessions).await;
        }
        let workspace = match second {
            SecondSession::SameWorkspace => attacker.workspace.clone(),
            SecondSession::Below => attacker.workspace.join("sub"),
            SecondSession::Elsewhere => self.stage.workspace(WorkspaceKind::Bare)?,
            SecondSession::Preloaded => {
                install_package(self.stage.place())?;
                self.stage.workspace(WorkspaceKind::Bare)?
            }
        };
        let kind = match second {
            SecondSession::SameWorkspace => attack.workspace,
            _ => WorkspaceKind::Bare,
        };
        let interpreter = match second {
            SecondSession::Preloaded => Interpreter::Preloading,
            _ => Interpreter::Found,
        };
        let limits = Limits::default();
        let verdict = match self.start(SessionSetup { limits, kind, workspace, interpreter }).await
        {
            Ok(next) => {
                sessions.push(next.session.id.clone());
                self.last_part(attack, &next, StageFacts::new()).await?
            }
            Err(error) => AttackVerdict::Refused(verdict::short(&format!("{error:#}"))),
        };
        let mut no_zygote = None;
        if self.stage.node_lives() {
            // The planted files may make the node restart zygotes: wait for them.
            let environments = self.stage.node.await_environments().await.ok();
            if second == SecondSession::Preloaded {
                no_zygote = environments.and_then(|list| no_preloading_zygote(&list));
            }
        }
        let verdict = no_zygote.map_or(verdict, AttackVerdict::NotClaimed);
        Ok(PlayResult { verdict, sessions, attacker: None })
    }

    /// Part `plant`, then forks by the stage, then part `look` in one of the twins.
    pub(super) async fn with_fork(
        &mut self,
        attack: &Attack,
        look: LookIn,
    ) -> anyhow::Result<PlayResult> {
        let attacker = self.attacker_for(attack).await?;
        let original = attacker.session.id.clone();
        let mut sessions = vec![original.clone()];
        if let PartResult::Ended(verdict) = self.first_part(attack, &attacker).await? {
            return Ok(PlayResult { verdict, sessions, attacker: None });
        }
        let keeper = attacker.session.keeper_pid.unwrap_or_default();
        let before = processes::descendants(keeper);
        let mut refused = None;
        let mut last = None;
        // Directories where the node may have put a copy.
        let mut places =
            vec![self.stage.node.dirs().state.join("families").join(original.as_str())];
        for _ in 0..attack.forks {
            match self.fork(&original).await {
                Ok(forked) => {
                    sessions.push(forked.session.id.clone());
                    places.push(PathBuf::from(&forked.session.workspace));
                    last = Some(forked);
                }
                Err(why) => {
                    let hangs = why == NoFork::Hangs;
                    refused = Some(why);
                    if hangs {
                        last = None;
                        break;
                    }
                }
            }
        }
        let verdict = match (last, refused) {
            (Some(forked), _) => {
                let new: Vec<u32> = processes::descendants(keeper)
                    .into_iter()
                    .filter(|pid| !before.contains(pid))
                    .collect();
                self.look_after_fork(attack, &attacker, look, (&forked, &new)).await?
            }
            (None, Some(NoFork::Refused(why))) => AttackVerdict::Refused(why),
            (None, Some(NoFork::Hangs)) => {
                AttackVerdict::Through("the fork does not end".to_owned())
            }
            (None, None) => AttackVerdict::NoVerdict("no fork was made".to_owned()),
        };
        let copied = places.iter().find_map(|place| families::holding(place, &self.stage.secret));
        let verdict = match copied {
            Some(path) => AttackVerdict::Through(format!(
                "the node copied a hidden file to {}; the attack reported {verdict}",
                path.display()
            )),
            None => verdict,
        };
        // Close the twins first: closing the last session of a family removes its directories.
        sessions.reverse();
        Ok(PlayResult { verdict, sessions, attacker: None })
    }

    async fn fork(&self, original: &SessionId) -> Result<ForkedSession, NoFork> {
        let wanted = ForkSession::default();
        let forked = self.stage.client.fork_session(original, &wanted);
        match tokio::time::timeout(FORK_WAIT, forked).await {
            Ok(Ok(forked)) => Ok(forked),
            Ok(Err(error)) => {
                Err(NoFork::Refused(verdict::short(&format!("the fork is refused: {error}"))))
            }
            Err(_) => Err(NoFork::Hangs),
        }
    }

    /// Gives the twin the secret, then runs the last part in one of the two sessions.
    async fn look_after_fork(
        &self,
        attack: &Attack,
        attacker: &AttackSession,
        look: LookIn,
        (forked, new): (&ForkedSession, &[u32]),
    ) -> anyhow::Result<AttackVerdict> {
        let twin = self.stage.client.session(&forked.session.id).await?;
        let held = format!("held = {:?}", self.stage.secret);
        if let Err(error) = run(self.stage, &twin.id, held).await {
            return Ok(AttackVerdict::NoVerdict(format!("the twin cannot run code: {error:#}")));
        }
        let numbers = |session: &Session| {
            let own = processes::workers(session.keeper_pid.unwrap_or_default());
            let seer = own.last().copied().unwrap_or_default();
            new.iter().map(|pid| processes::number_seen_by(seer, *pid).unwrap_or(*pid)).collect()
        };
        let twin_numbers: Vec<u32> = numbers(&attacker.session);
        let facts = vec![
            ("original_workspace", json!(attacker.workspace)),
            ("twin_session", json!(twin.id)),
            ("twin_workspace", json!(twin.workspace)),
            ("twin_numbers", json!(twin_numbers)),
        ];
        let verdict = match look {
            LookIn::Original => self.last_part(attack, attacker, facts).await?,
            LookIn::Twin => {
                let workspace = Path::new(&twin.workspace).to_owned();
                self.last_part(attack, &AttackSession { session: twin, workspace }, facts).await?
            }
        };
        Ok(match (verdict, attack.named.and_then(|what| named(forked, what))) {
            (AttackVerdict::Through(what), Some(named)) => {
                AttackVerdict::NotClaimed(format!("the fork's answer names {named}: {what}"))
            }
            (verdict, _) => verdict,
        })
    }

    /// Forks, runs part `plant` in the twin, and closes the twin: no process of the twin may survive.
    pub(super) async fn end_twin(&mut self, attack: &Attack) -> anyhow::Result<PlayResult> {
        let attacker = self.attacker_for(attack).await?;
        let mut sessions = vec![attacker.session.id.clone()];
        let verdict = match self.not_claimed(attack, &attacker.session) {
            Some(why) => AttackVerdict::NotClaimed(why),
            None => match self.fork(&attacker.session.id).await {
                Ok(forked) => {
                    sessions.insert(0, forked.session.id.clone());
                    self.start_and_end(attack, &forked.session.id).await?
                }
                Err(NoFork::Refused(why)) => AttackVerdict::Refused(why),
                Err(NoFork::Hangs) => AttackVerdict::Through("the fork does not end".to_owned()),
            },
        };
        Ok(PlayResult { verdict, sessions, attacker: None })
    }

    /// Runs the part in the twin and closes the twin. The processes that count have the stage's mark as an
    /// argument.
    async fn start_and_end(
        &self,
        attack: &Attack,
        twin: &SessionId,
    ) -> anyhow::Result<AttackVerdict> {
        let session = self.stage.client.session(twin).await?;
        let workspace = Path::new(&session.workspace).to_owned();
        let mark = format!("windlass-mark-{}-{twin}", std::process::id());
        let facts = vec![("mark", json!(mark))];
        if let PartResult::Ended(verdict) =
            self.part(attack, &AttackSession { session, workspace }, "plant", facts).await?
        {
            return Ok(verdict);
        }
        let started = marked(&mark);
        if started.is_empty() {
            return Ok(AttackVerdict::NoVerdict("the twin started no process".to_owned()));
        }
        // Close with the default grace period, as a user does.
        self.stage.client.close_session(twin, CloseQuery::default()).await?;
        let until = Instant::now() + TWIN_END_WAIT;
        for pid in started {
            processes::wait_gone(pid, until.saturating_duration_since(Instant::now()));
        }
        Ok(match marked(&mark).len() {
            0 => AttackVerdict::Refused("all processes of the twin have ended".to_owned()),
            left => AttackVerdict::Through(format!(
                "{left} of the twin's processes live {TWIN_END_WAIT:?} after its end"
            )),
        })
    }

    /// Part `plant`, then `git status` by the user, while the session runs and after its end. The stage
    /// observes what git executed.
    pub(super) async fn with_git(&mut self, attack: &Attack) -> anyhow::Result<PlayResult> {
        let attacker = self.attacker_for(attack).await?;
        let sessions = vec![attacker.session.id.clone()];
        let verdict = match self.first_part(attack, &attacker).await? {
            PartResult::Ended(verdict) => verdict,
            PartResult::Planted => {
                self.git_status(&attacker.workspace)?;
                self.close(&sessions).await;
                let said = self.git_status(&attacker.workspace)?;
                AttackVerdict::Refused(verdict::short(&format!(
                    "git executed nothing of it: {said}"
                )))
            }
        };
        Ok(PlayResult { verdict, sessions, attacker: None })
    }

    /// The output of git. A directory without a repository is not an error here.
    fn git_status(&self, workspace: &Path) -> anyhow::Result<String> {
        let mut command = git(workspace);
        let output = command.arg("status").env("HOME", &self.stage.home).output();
        let output = output.context("cannot run git")?;
        let said = if output.status.success() { output.stdout } else { output.stderr };
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Part `plant`, then a client that works with the session's files, then part `look`.
    pub(super) async fn with_files(&mut self, attack: &Attack) -> anyhow::Result<PlayResult> {
        let attacker = self.attacker_for(attack).await?;
        let sessions = vec![attacker.session.id.clone()];
        if let PartResult::Ended(verdict) = self.first_part(attack, &attacker).await? {
            return Ok(PlayResult { verdict, sessions, attacker: None });
        }
        let client = &self.stage.client;
        let mut read = None;
        for round in 0..FILE_ROUNDS {
            let session = &attacker.session.id;
            let made = format!("swap/made-{round}");
            let _ = client.put_file(session, &made, "x", &Expect::default()).await;
            let bytes = client.read_file(session, "swap/id_rsa").await.unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            if text.contains(&self.stage.secret) {
                read = Some("the node read a hidden file".to_owned());
            }
            let _ = client.delete_file(session, "swap/authorized_keys", &Expect::default()).await;
        }
        let verdict = self.last_part(attack, &attacker, StageFacts::new()).await?;
        let verdict = read.map_or(verdict, AttackVerdict::Through);
        Ok(PlayResult { verdict, sessions, attacker: None })
    }

    /// Runs an outside program, and checks that a session still starts.
    pub(super) async fn play_outside(
        &mut self,
        attack: &Attack,
        user: OutsideUser,
    ) -> anyhow::Result<PlayResult> {
        let workspace = self.stage.workspace(WorkspaceKind::Bare)?;
        let path = self.stage.install(attack, &workspace)?;
        let session = self.stage.client.session(self.victim_id()).await?;
        let attacker = AttackSession { session, workspace: workspace.clone() };
        let facts =
            vec![("part", "outside".into()), ("other", json!(self.stage.other_users_directory()?))];
        let places = self.places(&attacker, facts);
        fs::write(workspace.join("attack/stage.json"), places.to_string())?;
        let mut outsider = Outsider::start(&workspace.join(path), &workspace, user)?;
        let line = match outsider.result_line() {
            Ok(line) => line,
            Err(error) => format!("through: {error:#}"),
        };
        let (verdict, sessions) = match self.session_starts().await {
            Ok(session) => {
                let said = verdict::of_line(&line);
                (
                    said.unwrap_or_else(|| AttackVerdict::Refused("a session starts".to_owned())),
                    session,
                )
            }
            Err(error) => {
                let why = verdict::short(&format!("a session does not start: {error:#}"));
                (AttackVerdict::Through(why), None)
            }
        };
        drop(outsider);
        if self.stage.node_lives() {
            self.stage.restore()?;
        }
        Ok(PlayResult { verdict, sessions: sessions.into_iter().collect(), attacker: None })
    }

    /// Starts an ordinary session and runs a turn in it.
    async fn session_starts(&self) -> anyhow::Result<Option<SessionId>> {
        let isolation = Some(self.level);
        let policy = PolicyRequest { isolation, ..PolicyRequest::default() };
        let session = create(self.stage, policy, None, Interpreter::Named).await?;
        let turn = run(self.stage, &session.id, "None".to_owned()).await?;
        let said = turn.error.map(|error| error.message).unwrap_or_default();
        anyhow::ensure!(turn.outcome == Some(Outcome::Ok), "its turn fails: {said}");
        Ok(Some(session.id))
    }

    /// `windlass run FILE`, typed in the home.
    pub(super) async fn typed(&mut self, attack: &Attack) -> anyhow::Result<PlayResult> {
        let workspace = self.stage.workspace(WorkspaceKind::Bare)?;
        let path = workspace.join(self.stage.install(attack, &workspace)?);
        let dirs = self.stage.node.dirs();
        let output = Command::new(self.stage.node.program())
            .arg("run")
            .args(["--isolation", self.level.as_str(), "--deadline", TYPED_WAIT_S])
            .arg(&path)
            .env("HOME", &self.stage.home)
            .env("WINDLASS_RUNTIME_DIR", &dirs.runtime)
            .env("WINDLASS_STATE_DIR", &dirs.state)
            .current_dir(&self.stage.home)
            .stdin(Stdio::null())
            .output()
            .context("cannot run the command")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let said = text.lines().rev().find_map(|line| verdict::of_line(line.trim()));
        let complaint = String::from_utf8_lossy(&output.stderr);
        let verdict = match said {
            Some(verdict) => verdict,
            None if output.status.success() => AttackVerdict::NoVerdict(verdict::short(&text)),
            None => AttackVerdict::Refused(verdict::short(&complaint)),
        };
        Ok(PlayResult { verdict, sessions: Vec::new(), attacker: None })
    }

    async fn first_part(
        &self,
        attack: &Attack,
        attacker: &AttackSession,
    ) -> anyhow::Result<PartResult> {
        match self.not_claimed(attack, &attacker.session) {
            Some(why) => Ok(PartResult::Ended(AttackVerdict::NotClaimed(why))),
            None => self.part(attack, attacker, "plant", StageFacts::new()).await,
        }
    }

    async fn last_part(
        &self,
        attack: &Attack,
        attacker: &AttackSession,
        facts: StageFacts,
    ) -> anyhow::Result<AttackVerdict> {
        Ok(match self.part(attack, attacker, "look", facts).await? {
            PartResult::Ended(verdict) => verdict,
            PartResult::Planted => {
                AttackVerdict::NoVerdict("its last part printed no result".to_owned())
            }
        })
    }
}

/// Why the node has no zygote that preloads a module. Without one, no module is loaded that an attack could
/// have changed.
fn no_preloading_zygote(list: &EnvironmentList) -> Option<String> {
    let preloading = list.environments.iter().find(|one| !one.preload.is_empty())?;
    let why = preloading.zygote.error.as_deref().unwrap_or("workers are started without");
    let ready = preloading.zygote.state == ZygoteState::Ready;
    (!ready).then(|| verdict::short(&format!("the node has no zygote: {why}")))
}

/// The processes that have `mark` as an argument. Ignores process names, which need not be UTF-8.
fn marked(mark: &str) -> Vec<u32> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| processes::arguments(*pid).iter().any(|one| one == mark)).collect()
}

/// The first entry of this kind in the `can_reach` list of a fork's reply.
fn named(forked: &ForkedSession, what: &str) -> Option<String> {
    let answer = serde_json::to_value(forked).ok()?;
    let entries = answer.get("can_reach")?.as_array()?;
    let entry = entries.iter().find(|entry| entry["what"] == what)?;
    Some(format!("{what} {}", entry["name"].as_str().unwrap_or_default()))
}
