//! Plays of more than one turn: two sessions, forks, files through the node, programs outside, and
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
use super::scene::{Ground, Interpreter, Part, Played, Scene, Told, Wanted, create, run};
use super::verdict::{self, Verdict};
use super::workspaces::{git, install_package};
use crate::processes;

/// How long a fork may take before the attack is given up.
const FORK_WAIT: Duration = Duration::from_secs(20);

/// How often the stage writes, reads and removes a file while a session races with the node.
const FILE_ROUNDS: usize = 150;

/// How long the processes of a twin may live after its end.
const TWIN_END_WAIT: Duration = Duration::from_secs(5);

/// How long a typed command may take.
const TYPED_WAIT_S: &str = "30s";

/// Why a fork gave no twin.
#[derive(Debug, PartialEq, Eq)]
enum NoFork {
    Refused(String),
    Hangs,
}

impl Scene<'_> {
    /// Part `plant` in one session, part `look` in the next.
    pub(super) async fn again(
        &mut self,
        attack: &Attack,
        first: FirstSession,
        second: SecondSession,
    ) -> anyhow::Result<Played> {
        let ground = self.ground_of(attack).await?;
        let mut sessions = vec![ground.session.id.clone()];
        let planted = self.first_part(attack, &ground).await?;
        if let Part::Ended(verdict) = planted {
            return Ok(Played { verdict, sessions, ground: None });
        }
        if first == FirstSession::Closed {
            self.close(&sessions).await;
        }
        let workspace = match second {
            SecondSession::SameWorkspace => ground.workspace.clone(),
            SecondSession::Below => ground.workspace.join("sub"),
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
        let verdict = match self.start(Wanted { limits, kind, workspace, interpreter }).await {
            Ok(next) => {
                sessions.push(next.session.id.clone());
                self.last_part(attack, &next, Told::new()).await?
            }
            Err(error) => Verdict::Refused(verdict::short(&format!("{error:#}"))),
        };
        let mut no_zygote = None;
        if self.stage.node_lives() {
            // What the node starts anew because of what was planted may still be on its way.
            let environments = self.stage.node.await_environments().await.ok();
            if second == SecondSession::Preloaded {
                no_zygote = environments.and_then(|list| no_preloading_zygote(&list));
            }
        }
        let verdict = no_zygote.map_or(verdict, Verdict::NotClaimed);
        Ok(Played { verdict, sessions, ground: None })
    }

    /// Part `plant`, forks by the stage, part `look` in one of the twins.
    pub(super) async fn with_fork(
        &mut self,
        attack: &Attack,
        look: LookIn,
    ) -> anyhow::Result<Played> {
        let ground = self.ground_of(attack).await?;
        let original = ground.session.id.clone();
        let mut sessions = vec![original.clone()];
        if let Part::Ended(verdict) = self.first_part(attack, &ground).await? {
            return Ok(Played { verdict, sessions, ground: None });
        }
        let keeper = ground.session.keeper_pid.unwrap_or_default();
        let before = processes::below(keeper);
        let mut refused = None;
        let mut last = None;
        // Where the node may have put a copy.
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
                let new: Vec<u32> = processes::below(keeper)
                    .into_iter()
                    .filter(|pid| !before.contains(pid))
                    .collect();
                self.look_after_fork(attack, &ground, look, (&forked, &new)).await?
            }
            (None, Some(NoFork::Refused(why))) => Verdict::Refused(why),
            (None, Some(NoFork::Hangs)) => Verdict::Through("the fork does not end".to_owned()),
            (None, None) => Verdict::NoVerdict("no fork was made".to_owned()),
        };
        let copied = places.iter().find_map(|place| families::holding(place, &self.stage.secret));
        let verdict = match copied {
            Some(path) => Verdict::Through(format!(
                "the node copied a hidden file to {}; it said {verdict}",
                path.display()
            )),
            None => verdict,
        };
        // Twins first: the last of a family takes its directories away.
        sessions.reverse();
        Ok(Played { verdict, sessions, ground: None })
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

    /// The last part, in a family of two: the twin holds the secret by then.
    async fn look_after_fork(
        &self,
        attack: &Attack,
        ground: &Ground,
        look: LookIn,
        (forked, new): (&ForkedSession, &[u32]),
    ) -> anyhow::Result<Verdict> {
        let twin = self.stage.client.session(&forked.session.id).await?;
        let held = format!("held = {:?}", self.stage.secret);
        if let Err(error) = run(self.stage, &twin.id, held).await {
            return Ok(Verdict::NoVerdict(format!("the twin runs nothing: {error:#}")));
        }
        let numbers = |session: &Session| {
            let own = processes::workers(session.keeper_pid.unwrap_or_default());
            let seer = own.last().copied().unwrap_or_default();
            new.iter().map(|pid| processes::number_seen_by(seer, *pid).unwrap_or(*pid)).collect()
        };
        let twin_numbers: Vec<u32> = numbers(&ground.session);
        let told = vec![
            ("original_workspace", json!(ground.workspace)),
            ("twin_session", json!(twin.id)),
            ("twin_workspace", json!(twin.workspace)),
            ("twin_numbers", json!(twin_numbers)),
        ];
        let verdict = match look {
            LookIn::Original => self.last_part(attack, ground, told).await?,
            LookIn::Twin => {
                let workspace = Path::new(&twin.workspace).to_owned();
                self.last_part(attack, &Ground { session: twin, workspace }, told).await?
            }
        };
        Ok(match (verdict, attack.named.and_then(|what| named(forked, what))) {
            (Verdict::Through(what), Some(named)) => {
                Verdict::NotClaimed(format!("the fork's answer names {named}: {what}"))
            }
            (verdict, _) => verdict,
        })
    }

    /// A fork, part `plant` in the twin, the end of the twin: no process that the twin started may
    /// live on.
    pub(super) async fn end_twin(&mut self, attack: &Attack) -> anyhow::Result<Played> {
        let ground = self.ground_of(attack).await?;
        let mut sessions = vec![ground.session.id.clone()];
        let verdict = match self.not_claimed(attack, &ground.session) {
            Some(why) => Verdict::NotClaimed(why),
            None => match self.fork(&ground.session.id).await {
                Ok(forked) => {
                    sessions.insert(0, forked.session.id.clone());
                    self.start_and_end(attack, &forked.session.id).await?
                }
                Err(NoFork::Refused(why)) => Verdict::Refused(why),
                Err(NoFork::Hangs) => Verdict::Through("the fork does not end".to_owned()),
            },
        };
        Ok(Played { verdict, sessions, ground: None })
    }

    /// The twin's part and its end. The processes that count have the stage's mark as an argument.
    async fn start_and_end(&self, attack: &Attack, twin: &SessionId) -> anyhow::Result<Verdict> {
        let session = self.stage.client.session(twin).await?;
        let workspace = Path::new(&session.workspace).to_owned();
        let mark = format!("windlass-mark-{}-{twin}", std::process::id());
        let told = vec![("mark", json!(mark))];
        if let Part::Ended(verdict) =
            self.part(attack, &Ground { session, workspace }, "plant", told).await?
        {
            return Ok(verdict);
        }
        let started = marked(&mark);
        if started.is_empty() {
            return Ok(Verdict::NoVerdict("the twin started no process".to_owned()));
        }
        // As a user closes it: the worker gets the time to finish.
        self.stage.client.close_session(twin, CloseQuery::default()).await?;
        let until = Instant::now() + TWIN_END_WAIT;
        for pid in started {
            processes::wait_gone(pid, until.saturating_duration_since(Instant::now()));
        }
        Ok(match marked(&mark).len() {
            0 => Verdict::Refused("all processes of the twin have ended".to_owned()),
            left => Verdict::Through(format!(
                "{left} of the twin's processes live {TWIN_END_WAIT:?} after its end"
            )),
        })
    }

    /// Part `plant`, then `git status` by the user, while the session runs and after its end. The
    /// stage sees what git ran.
    pub(super) async fn with_git(&mut self, attack: &Attack) -> anyhow::Result<Played> {
        let ground = self.ground_of(attack).await?;
        let sessions = vec![ground.session.id.clone()];
        let verdict = match self.first_part(attack, &ground).await? {
            Part::Ended(verdict) => verdict,
            Part::Planted => {
                self.git_status(&ground.workspace)?;
                self.close(&sessions).await;
                let said = self.git_status(&ground.workspace)?;
                Verdict::Refused(verdict::short(&format!("git runs nothing of it: {said}")))
            }
        };
        Ok(Played { verdict, sessions, ground: None })
    }

    /// What git says. A directory that is no repository is no error here.
    fn git_status(&self, workspace: &Path) -> anyhow::Result<String> {
        let mut command = git(workspace);
        let output = command.arg("status").env("HOME", &self.stage.home).output();
        let output = output.context("cannot run git")?;
        let said = if output.status.success() { output.stdout } else { output.stderr };
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Part `plant`, then a client that works with the session's files, then part `look`.
    pub(super) async fn with_files(&mut self, attack: &Attack) -> anyhow::Result<Played> {
        let ground = self.ground_of(attack).await?;
        let sessions = vec![ground.session.id.clone()];
        if let Part::Ended(verdict) = self.first_part(attack, &ground).await? {
            return Ok(Played { verdict, sessions, ground: None });
        }
        let client = &self.stage.client;
        let mut read = None;
        for round in 0..FILE_ROUNDS {
            let session = &ground.session.id;
            let made = format!("swap/made-{round}");
            let _ = client.put_file(session, &made, "x", &Expect::default()).await;
            let bytes = client.read_file(session, "swap/id_rsa").await.unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            if text.contains(&self.stage.secret) {
                read = Some("the node read a hidden file".to_owned());
            }
            let _ = client.delete_file(session, "swap/authorized_keys", &Expect::default()).await;
        }
        let verdict = self.last_part(attack, &ground, Told::new()).await?;
        let verdict = read.map_or(verdict, Verdict::Through);
        Ok(Played { verdict, sessions, ground: None })
    }

    /// A program outside: whether a session starts all the same.
    pub(super) async fn play_outside(
        &mut self,
        attack: &Attack,
        user: OutsideUser,
    ) -> anyhow::Result<Played> {
        let workspace = self.stage.workspace(WorkspaceKind::Bare)?;
        let path = self.stage.install(attack, &workspace)?;
        let session = self.stage.client.session(self.victim_id()).await?;
        let ground = Ground { session, workspace: workspace.clone() };
        let told =
            vec![("part", "outside".into()), ("other", json!(self.stage.others_directory()?))];
        let places = self.places(&ground, told);
        fs::write(workspace.join("attack/stage.json"), places.to_string())?;
        let mut outsider = Outsider::start(&workspace.join(path), &workspace, user)?;
        let word = match outsider.word() {
            Ok(word) => word,
            Err(error) => format!("through: {error:#}"),
        };
        let (verdict, sessions) = match self.session_starts().await {
            Ok(session) => {
                let said = verdict::of_line(&word);
                (said.unwrap_or_else(|| Verdict::Refused("a session starts".to_owned())), session)
            }
            Err(error) => {
                let why = verdict::short(&format!("no session starts: {error:#}"));
                (Verdict::Through(why), None)
            }
        };
        drop(outsider);
        if self.stage.node_lives() {
            self.stage.restore()?;
        }
        Ok(Played { verdict, sessions: sessions.into_iter().collect(), ground: None })
    }

    /// Starts a session as anybody would, and runs something in it.
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
    pub(super) async fn typed(&mut self, attack: &Attack) -> anyhow::Result<Played> {
        let workspace = self.stage.workspace(WorkspaceKind::Bare)?;
        let path = workspace.join(self.stage.install(attack, &workspace)?);
        let dirs = self.stage.node.dirs();
        let output = Command::new(self.stage.node.program())
            .arg("run")
            .arg(&path)
            .args(["--isolation", self.level.as_str(), "--deadline", TYPED_WAIT_S])
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
            None if output.status.success() => Verdict::NoVerdict(verdict::short(&text)),
            None => Verdict::Refused(verdict::short(&complaint)),
        };
        Ok(Played { verdict, sessions: Vec::new(), ground: None })
    }

    async fn first_part(&self, attack: &Attack, ground: &Ground) -> anyhow::Result<Part> {
        match self.not_claimed(attack, &ground.session) {
            Some(why) => Ok(Part::Ended(Verdict::NotClaimed(why))),
            None => self.part(attack, ground, "plant", Told::new()).await,
        }
    }

    async fn last_part(
        &self,
        attack: &Attack,
        ground: &Ground,
        told: Told,
    ) -> anyhow::Result<Verdict> {
        Ok(match self.part(attack, ground, "look", told).await? {
            Part::Ended(verdict) => verdict,
            Part::Planted => Verdict::NoVerdict("its last part says nothing".to_owned()),
        })
    }
}

/// Why the node keeps no zygote that preloads a module. Without one nothing is loaded that an attack
/// could have changed.
fn no_preloading_zygote(list: &EnvironmentList) -> Option<String> {
    let preloading = list.environments.iter().find(|one| !one.preload.is_empty())?;
    let why = preloading.zygote.error.as_deref().unwrap_or("workers are started without");
    let ready = preloading.zygote.state == ZygoteState::Ready;
    (!ready).then(|| verdict::short(&format!("the node keeps no zygote: {why}")))
}

/// The processes that have `mark` as an argument. Looks at no process's name: a name need not be text.
fn marked(mark: &str) -> Vec<u32> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| processes::arguments(*pid).iter().any(|one| one == mark)).collect()
}

/// The first entry of this kind that a fork's answer names as able to reach the twin. A node that
/// knows no such list names nothing.
fn named(forked: &ForkedSession, what: &str) -> Option<String> {
    let answer = serde_json::to_value(forked).ok()?;
    let entries = answer.get("can_reach")?.as_array()?;
    let entry = entries.iter().find(|entry| entry["what"] == what)?;
    Some(format!("{what} {}", entry["name"].as_str().unwrap_or_default()))
}
