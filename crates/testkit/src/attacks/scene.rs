//! The sessions of one level and network setting: a victim with a secret, and the sessions that attacks run
//! in. Judges an attack by its output and by what it changed outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use windlass_client::protocol::api::{CloseQuery, Session, SessionState, SubmitTurn, Turn};
use windlass_client::protocol::confinement::{ControlReport, ControlState, Isolation};
use windlass_client::protocol::event::EndReason;
use windlass_client::protocol::policy::{Limits, PolicyRequest};
use windlass_client::protocol::{Outcome, SessionId};

use super::network::NetworkSetting;
use super::program::{Attack, Judged, Play, SessionKind, WorkspaceKind};
use super::runner::{ATTACK_S, AttackWorker};
use super::stage::AttackStage;
use super::verdict::{self, AttackVerdict, Trying};
use super::watch::FileSnapshot;
use super::workspaces::{
    IN_HOMES, IN_PROJECTS, early_sockets, hidden_paths, path_entry, preloading_python,
    restore_project, trusted,
};
use crate::{TestNode, processes};

/// Deadline of the turn. The runner in the worker times out first.
const TURN: Duration = Duration::from_secs(ATTACK_S + 10);

/// Directories where a victim without a sandbox leaves files. The scene removes them.
const WORD_PLACES: &[&str] = &["/dev/shm", "/tmp", "/var/tmp", "/run/lock"];

/// The sessions of one level and network setting.
#[derive(Debug)]
pub struct AttackScene<'a> {
    pub(super) stage: &'a mut AttackStage,
    pub(super) level: Isolation,
    network: NetworkSetting,
    /// The policy of the sessions that attacks run in, without the level and the limits.
    policy: PolicyRequest,
    victim: Session,
    victim_word: String,
    /// The session for attacks that need no separate one. Created again when it was lost.
    shared: Option<AttackSession>,
    seen: FileSnapshot,
}

/// A session to attack from.
#[derive(Debug)]
pub(super) struct AttackSession {
    pub session: Session,
    pub workspace: PathBuf,
}

/// The settings of a session to attack from.
#[derive(Debug)]
pub(super) struct SessionSetup {
    pub limits: Limits,
    pub kind: WorkspaceKind,
    pub workspace: PathBuf,
    pub interpreter: Interpreter,
}

/// Which interpreter a session runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interpreter {
    /// The interpreter of the tests, by its path.
    Named,
    /// The interpreter that the node finds for the workspace.
    Found,
    /// The interpreter whose zygote preloads a module.
    Preloading,
    /// The interpreter that the node finds for another kind of worker.
    OfKind(AttackWorker),
}

/// The result of one part of an attack.
#[derive(Debug)]
pub(super) enum PartResult {
    /// The next part can run.
    Planted,
    Ended(AttackVerdict),
}

/// The result of an attack, and the sessions that it leaves.
#[derive(Debug)]
pub(super) struct PlayResult {
    pub verdict: AttackVerdict,
    pub sessions: Vec<SessionId>,
    /// The session that the next attack may reuse.
    pub attacker: Option<AttackSession>,
}

/// More entries of `stage.json` for one part of an attack.
pub(super) type StageFacts = Vec<(&'static str, serde_json::Value)>;

impl<'a> AttackScene<'a> {
    pub(super) async fn new(
        stage: &'a mut AttackStage,
        (level, network): (Isolation, NetworkSetting),
        policy: PolicyRequest,
    ) -> anyhow::Result<Self> {
        let usual = PolicyRequest { isolation: Some(level), ..PolicyRequest::default() };
        let victim = create(stage, usual, None, Interpreter::Named).await?;
        let victim_word = format!("windlass-word-{}-{level}-{network}", std::process::id());
        let turn = run(stage, &victim.id, victim_code(&stage.secret, &victim_word)).await?;
        anyhow::ensure!(turn.outcome == Some(Outcome::Ok), "the victim fails: {turn:?}");
        let victim = stage.client.session(&victim.id).await?;
        let seen = stage.watched(victim.workspace.as_ref());
        stage.host.contacts()?;
        Ok(Self { stage, level, network, policy, victim, victim_word, shared: None, seen })
    }

    /// Runs one attack and judges its effects.
    pub async fn play(&mut self, attack: &Attack) -> anyhow::Result<AttackVerdict> {
        if self.level != Isolation::None && !attack.networks.contains(&self.network) {
            return Ok(AttackVerdict::NotClaimed(format!("the network is {}", self.network)));
        }
        let played = match attack.play {
            Play::Once => self.once(attack).await,
            Play::Again { first, second } => self.again(attack, first, second).await,
            Play::Fork { look } => self.with_fork(attack, look).await,
            Play::Files => self.with_files(attack).await,
            Play::Outside { user } => self.play_outside(attack, user).await,
            Play::Typed => self.typed(attack).await,
            Play::Git => self.with_git(attack).await,
            Play::EndTwin => self.end_twin(attack).await,
        };
        // An attack that cannot run must not stop the other attacks.
        let PlayResult { verdict, sessions, attacker } =
            played.unwrap_or_else(|error| PlayResult {
                verdict: AttackVerdict::NoVerdict(verdict::short(&format!("{error:#}"))),
                sessions: Vec::new(),
                attacker: None,
            });
        let verdict = self.judge(attack, verdict)?;
        if !self.stage.node_lives() {
            self.stage.revive().await?;
        } else if matches!(verdict, AttackVerdict::Through(_)) {
            self.stage.restore()?;
        }
        if let (AttackVerdict::Through(_), Some(attacker)) = (&verdict, &attacker) {
            self.stage.make_later_changes()?;
            restore_project(&attacker.workspace)?;
        }
        let kept = match verdict {
            AttackVerdict::Refused(_) => true,
            // The restore changes files below the session; a sandboxed session may not survive that.
            AttackVerdict::Through(_) => self.level == Isolation::None,
            AttackVerdict::NoVerdict(_) | AttackVerdict::NotClaimed(_) => false,
        };
        let mut over = sessions;
        match attacker {
            Some(attacker) if kept => self.shared = Some(attacker),
            Some(attacker) => over.push(attacker.session.id),
            None => {}
        }
        self.close(&over).await;
        self.seen = self.stage.watched(self.victim.workspace.as_ref());
        Ok(verdict)
    }

    /// Corrects the attack's own `verdict` by what the stage observed.
    fn judge(&mut self, attack: &Attack, verdict: AttackVerdict) -> anyhow::Result<AttackVerdict> {
        if !self.stage.node_lives() {
            return Ok(AttackVerdict::Through(format!(
                "the node died; the attack reported {verdict}"
            )));
        }
        // Changes in the home by an outside program do not count: no session made them.
        let by_session = !matches!(attack.play, Play::Outside { .. });
        if let Some(outside) = self.outside()?.filter(|_| by_session) {
            return Ok(AttackVerdict::Through(format!(
                "seen from outside: {outside}; the attack reported {verdict}"
            )));
        }
        Ok(match verdict {
            AttackVerdict::Through(what) if attack.judged == Judged::Outside => {
                AttackVerdict::Refused(format!("no effect outside: {what}"))
            }
            other => other,
        })
    }

    async fn once(&mut self, attack: &Attack) -> anyhow::Result<PlayResult> {
        let own = attack.session == SessionKind::Own || attack.workspace != WorkspaceKind::Project;
        let attacker = match self.shared.take() {
            Some(attacker) if !own => attacker,
            kept => {
                self.shared = kept;
                match self.attacker_for(attack).await {
                    Ok(attacker) => attacker,
                    // Refusing a session in the home also protects the home.
                    Err(error) if attack.workspace == WorkspaceKind::Home => {
                        let verdict = AttackVerdict::Refused(verdict::short(&format!("{error:#}")));
                        return Ok(PlayResult { verdict, sessions: Vec::new(), attacker: None });
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let verdict = match self.not_claimed(attack, &attacker.session) {
            Some(why) => AttackVerdict::NotClaimed(why),
            None => match self.part(attack, &attacker, "whole", StageFacts::new()).await? {
                PartResult::Ended(verdict) => verdict,
                PartResult::Planted => AttackVerdict::NoVerdict("it has only one part".to_owned()),
            },
        };
        Ok(match own {
            true => PlayResult { verdict, sessions: vec![attacker.session.id], attacker: None },
            false => PlayResult { verdict, sessions: Vec::new(), attacker: Some(attacker) },
        })
    }

    /// Closes sessions at once. Ignores sessions that have already ended.
    pub(super) async fn close(&self, sessions: &[SessionId]) {
        for session in sessions {
            let close = CloseQuery { grace_ms: Some(0) };
            self.stage.client.close_session(session, close).await.ok();
        }
    }

    pub(super) fn victim_id(&self) -> &SessionId {
        &self.victim.id
    }

    /// Whether the victim is unharmed: the same worker with its variables.
    pub async fn victim_is_whole(&self) -> anyhow::Result<bool> {
        let turn = run(self.stage, &self.victim.id, "print(secret)".to_owned()).await?;
        let now = self.stage.client.session(&self.victim.id).await?;
        Ok(turn.output.text.trim() == self.stage.secret
            && now.state == SessionState::Idle
            && now.restarts == self.victim.restarts)
    }

    /// Runs one part of an attack.
    pub(super) async fn part(
        &self,
        attack: &Attack,
        attacker: &AttackSession,
        part: &'static str,
        mut facts: StageFacts,
    ) -> anyhow::Result<PartResult> {
        let path = self.stage.install(attack, &attacker.workspace)?;
        facts.push(("part", part.into()));
        let places = self.places(attacker, facts);
        fs::write(attacker.workspace.join("attack/stage.json"), places.to_string())?;
        let code = self.stage.worker.code(attack, &path);
        let turn = run(self.stage, &attacker.session.id, code).await;
        if attack.judged == Judged::ByItsEnd
            && let Some(verdict) = self.end_of(&attacker.session.id).await
        {
            return Ok(PartResult::Ended(verdict));
        }
        let trying = match attack.limits.is_empty() {
            true => Trying::SomethingElse,
            false => Trying::ALimit,
        };
        Ok(match turn {
            Ok(turn) if verdict::is_planted(&turn) => PartResult::Planted,
            Ok(turn) => PartResult::Ended(AttackVerdict::of(&turn, trying)),
            Err(error) => PartResult::Ended(AttackVerdict::NoVerdict(format!("{error:#}"))),
        })
    }

    /// The verdict for an attack whose session ended.
    async fn end_of(&self, session: &SessionId) -> Option<AttackVerdict> {
        let ended = self.stage.client.session(session).await.ok()?.ended?;
        Some(match ended.reason {
            EndReason::KeeperLost => AttackVerdict::Through("its keeper is lost".to_owned()),
            reason => AttackVerdict::Refused(format!("the session ended: {reason:?}")),
        })
    }

    /// A new session for one attack.
    pub(super) async fn attacker_for(&mut self, attack: &Attack) -> anyhow::Result<AttackSession> {
        let (limits, kind) = (attack.limits, attack.workspace);
        let interpreter = match self.stage.worker {
            AttackWorker::Python => Interpreter::Named,
            other => Interpreter::OfKind(other),
        };
        let workspace = self.stage.workspace(kind)?;
        self.attacker(SessionSetup { limits, kind, workspace, interpreter }).await
    }

    pub(super) async fn attacker(&mut self, wanted: SessionSetup) -> anyhow::Result<AttackSession> {
        self.stage.undo_later_changes();
        self.stage.host.end_services_but(&wanted.workspace)?;
        for place in [&self.stage.home, &self.stage.home.join("project")] {
            let _ = fs::remove_file(place.join("late.sock"));
        }
        if self.level != Isolation::Landlock && wanted.workspace != self.stage.home {
            // At level landlock sessions cannot create sockets, so a socket in the workspace is no target;
            // and hiding it would make the workspace unusable.
            for name in early_sockets(wanted.kind) {
                self.stage.host.listen(&wanted.workspace.join(name))?;
            }
        }
        let attacker = self.start(wanted).await?;
        self.stage.make_later_changes()?;
        for place in [&self.stage.home, &self.stage.home.join("project"), &attacker.workspace] {
            self.stage.host.listen(&place.join("late.sock"))?;
        }
        self.seen = self.stage.watched(self.victim.workspace.as_ref());
        Ok(attacker)
    }

    /// Starts a session to attack from without changing the stage, so that changes by the node are observed.
    pub(super) async fn start(&self, wanted: SessionSetup) -> anyhow::Result<AttackSession> {
        let SessionSetup { limits, kind, workspace, interpreter } = wanted;
        let isolation = Some(self.level);
        let mut policy = PolicyRequest { isolation, limits, ..self.policy.clone() };
        policy.hidden.extend(hidden_paths(kind, &workspace));
        let session = create(self.stage, policy, Some(&workspace), interpreter).await?;
        let turn = run(self.stage, &session.id, self.stage.worker.nothing().to_owned()).await?;
        let said = turn.error.map(|error| error.message).unwrap_or_default();
        anyhow::ensure!(
            turn.outcome == Some(Outcome::Ok),
            "cannot start a session to attack from: {said}"
        );
        let session = self.stage.client.session(&session.id).await?;
        Ok(AttackSession { session, workspace })
    }

    /// Why the session does not claim to refuse this attack, from its control report.
    pub(super) fn not_claimed(&self, attack: &Attack, session: &Session) -> Option<String> {
        if self.level == Isolation::None {
            return None;
        }
        let confinement = session.confinement.as_ref()?;
        let control = attack.control?;
        let named = |report: &&ControlReport| report.control.as_str() == control;
        let report = confinement.controls.iter().find(named)?;
        (report.state == ControlState::NotEnforced)
            .then(|| format!("{control} is not enforced: {}", report.mechanism))
    }

    /// The first change outside or contact with the host since the last call.
    pub(super) fn outside(&mut self) -> anyhow::Result<Option<String>> {
        let now = self.stage.watched(self.victim.workspace.as_ref());
        let contacts = self.stage.host.contacts()?;
        Ok(self.seen.difference(&now).or_else(|| contacts.into_iter().next()))
    }

    /// The content of `stage.json`: the paths, pids and addresses of all targets.
    pub(super) fn places(&self, attacker: &AttackSession, facts: StageFacts) -> serde_json::Value {
        let stage = &*self.stage;
        let dirs = stage.node.dirs();
        let keeper = attacker.session.keeper_pid.unwrap_or_default();
        let victim_keeper = self.victim.keeper_pid.unwrap_or_default();
        let (own, victim_worker) = (worker_below(keeper), worker_below(victim_keeper));
        // Without network isolation, the attack gets a local address, so that no packet leaves the machine.
        let open = self.level == Isolation::None || self.network == NetworkSetting::Open;
        let metadata = if open { "127.0.0.1" } else { "169.254.169.254" };
        let mut places = json!({
            "level": self.level.as_str(),
            "worker": stage.worker.as_str(),
            "network": self.network.as_str(),
            "session": attacker.session.id,
            "family": dirs.state.join("families").join(attacker.session.id.as_str()),
            "path_entry": path_entry(stage.place()),
            "trusted": trusted(),
            "trusted_in_projects": IN_PROJECTS,
            "trusted_in_homes": IN_HOMES,
            "workspace": attacker.workspace,
            "home": stage.home,
            "project": stage.home.join("project"),
            "base": stage.node.base(),
            "place": stage.place(),
            "state": dirs.state,
            "runtime": dirs.runtime,
            "node_socket": dirs.socket(),
            "program": stage.node.program(),
            "victim_session": self.victim.id,
            "victim_workspace": self.victim.workspace,
            "victim_word": self.victim_word,
            "metadata_host": metadata,
            "host_pid": stage.host.number("host_pid"),
            "node_pid": stage.node.pid(),
            "keeper_pid": keeper,
            "victim_keeper_pid": victim_keeper,
            "victim_worker_pid": victim_worker,
        });
        // The pid of each process as seen from the attacker's pid namespace, if it has one there.
        let numbers = [
            ("host_number", stage.host.number("host_pid")),
            ("node_number", stage.node.pid()),
            ("keeper_number", keeper),
            ("victim_keeper_number", victim_keeper),
            ("victim_worker_number", victim_worker),
        ];
        for (name, pid) in numbers {
            places[name] = processes::number_seen_by(own, pid).unwrap_or(pid).into();
        }
        for (name, value) in &stage.host.places {
            places[name] = value.clone();
        }
        for (name, value) in facts {
            places[name] = value;
        }
        places
    }
}

impl Drop for AttackScene<'_> {
    fn drop(&mut self) {
        for place in WORD_PLACES {
            let _ = fs::remove_file(PathBuf::from(place).join(&self.victim_word));
        }
    }
}

/// Creates a session in `workspace`, or in a directory that the node creates.
pub(super) async fn create(
    stage: &AttackStage,
    policy: PolicyRequest,
    workspace: Option<&Path>,
    interpreter: Interpreter,
) -> anyhow::Result<Session> {
    let level = policy.isolation.unwrap_or(Isolation::Full);
    let mut wanted = TestNode::create();
    wanted.policy = Some(policy);
    match interpreter {
        Interpreter::Named => {}
        Interpreter::Found => wanted.interpreter = None,
        Interpreter::OfKind(worker) => {
            wanted.interpreter = None;
            wanted.worker = Some(worker.as_str().to_owned());
        }
        Interpreter::Preloading => wanted.interpreter = Some(preloading_python(stage.place())),
    }
    wanted.workspace = workspace.map(|path| path.to_string_lossy().into_owned());
    let created = stage.client.create_session(&wanted).await;
    Ok(created.with_context(|| format!("no session of the level {level}"))?.session)
}

pub(super) async fn run(
    stage: &AttackStage,
    session: &SessionId,
    code: String,
) -> anyhow::Result<Turn> {
    let deadline_ms = Some(u64::try_from(TURN.as_millis())?);
    let turn = SubmitTurn { code, deadline_ms, ..SubmitTurn::default() };
    let ran = tokio::time::timeout(2 * TURN, stage.client.run_turn(session, turn)).await;
    Ok(ran.context("the turn did not end in time")??)
}

/// Parts of the workers' command lines.
const WORKER_PROGRAMS: [&str; 3] = ["windlass_worker", "windlass-worker", "node/main.js"];

/// The pid of the worker below a keeper: the deepest process that runs the worker program.
fn worker_below(keeper: u32) -> u32 {
    let below = processes::descendants(keeper);
    let is_worker = |pid: &&u32| {
        let arguments = processes::arguments(**pid);
        arguments.iter().any(|argument| WORKER_PROGRAMS.iter().any(|name| argument.contains(name)))
    };
    below.iter().rfind(is_worker).copied().unwrap_or_default()
}

/// Code of the victim: it holds a secret in memory, in its workspace and in shared places.
fn victim_code(secret: &str, word: &str) -> String {
    let places = format!("{WORD_PLACES:?}");
    format!(
        r#"
import os, socket, threading
secret = "{secret}"
with open("secret.txt", "w") as file:
    file.write(secret)
for place in {places}:
    try:
        with open(os.path.join(place, "{word}"), "w") as file:
            file.write(secret)
    except OSError:
        pass

def serve(listener):
    while True:
        peer, _ = listener.accept()
        peer.sendall(secret.encode())
        peer.close()

try:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0{word}")
    listener.listen(8)
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
except OSError:
    pass
"#
    )
}
