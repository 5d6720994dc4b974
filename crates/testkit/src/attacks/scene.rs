//! The sessions of one level and network setting: a victim with a secret, and the ones that attacks run in. Judges an attack by
//! what it says and by what it changed outside.

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
use super::program::{Attack, Judged, Language, Play, SessionKind, WorkspaceKind};
use super::stage::Stage;
use super::verdict::{self, ENDED, Trying, Verdict};
use super::watch::Seen;
use super::workspaces::{
    IN_HOMES, IN_PROJECTS, early_sockets, hidden_paths, path_entry, preloading_python,
    restore_project, trusted,
};
use crate::{TestNode, processes};

/// How long one attack may take.
const ATTACK_S: u64 = 20;

/// How long its turn may take: the runner in the worker gives up first.
const TURN: Duration = Duration::from_secs(ATTACK_S + 10);

/// Where a victim without a sandbox leaves its words; taken away with the scene.
const WORD_PLACES: &[&str] = &["/dev/shm", "/tmp", "/var/tmp", "/run/lock"];

/// The sessions of one level and network setting.
#[derive(Debug)]
pub struct Scene<'a> {
    pub(super) stage: &'a mut Stage,
    pub(super) level: Isolation,
    network: NetworkSetting,
    /// What the sessions that attacks run in ask for, the level and their limits besides.
    policy: PolicyRequest,
    victim: Session,
    victim_word: String,
    /// Where attacks run that need no session of their own; made anew when it was lost.
    shared: Option<Ground>,
    seen: Seen,
}

/// A session to attack from.
#[derive(Debug)]
pub(super) struct Ground {
    pub session: Session,
    pub workspace: PathBuf,
}

/// What a session to attack from is like.
#[derive(Debug)]
pub(super) struct Wanted {
    pub limits: Limits,
    pub kind: WorkspaceKind,
    pub workspace: PathBuf,
    pub interpreter: Interpreter,
}

/// Which interpreter a session runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interpreter {
    /// The tests' own.
    Named,
    /// What the node finds for the workspace.
    Found,
    /// The one whose zygote preloads a module.
    Preloading,
}

/// What one part of an attack came to.
#[derive(Debug)]
pub(super) enum Part {
    /// The next part can be played.
    Planted,
    Ended(Verdict),
}

/// What was played, and the sessions that it leaves.
#[derive(Debug)]
pub(super) struct Played {
    pub verdict: Verdict,
    pub sessions: Vec<SessionId>,
    /// The session that may serve the next attack.
    pub ground: Option<Ground>,
}

/// More that one part of an attack is told.
pub(super) type Told = Vec<(&'static str, serde_json::Value)>;

impl<'a> Scene<'a> {
    pub(super) async fn new(
        stage: &'a mut Stage,
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

    /// Runs one attack, and looks at what it did.
    pub async fn play(&mut self, attack: &Attack) -> anyhow::Result<Verdict> {
        if self.level != Isolation::None && !attack.networks.contains(&self.network) {
            return Ok(Verdict::NotClaimed(format!("the network is {}", self.network)));
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
        // One attack that cannot be played must not keep the others from being played.
        let Played { verdict, sessions, ground } = played.unwrap_or_else(|error| Played {
            verdict: Verdict::NoVerdict(verdict::short(&format!("{error:#}"))),
            sessions: Vec::new(),
            ground: None,
        });
        let verdict = self.judge(attack, verdict)?;
        if !self.stage.node_lives() {
            self.stage.revive().await?;
        } else if matches!(verdict, Verdict::Through(_)) {
            self.stage.restore()?;
        }
        if let (Verdict::Through(_), Some(ground)) = (&verdict, &ground) {
            self.stage.go_on()?;
            restore_project(&ground.workspace)?;
        }
        let kept = match verdict {
            Verdict::Refused(_) => true,
            // What it got is taken away again outside; a sandbox may not stand that.
            Verdict::Through(_) => self.level == Isolation::None,
            Verdict::NoVerdict(_) | Verdict::NotClaimed(_) => false,
        };
        let mut over = sessions;
        match ground {
            Some(ground) if kept => self.shared = Some(ground),
            Some(ground) => over.push(ground.session.id),
            None => {}
        }
        self.close(&over).await;
        self.seen = self.stage.watched(self.victim.workspace.as_ref());
        Ok(verdict)
    }

    /// What the stage saw of an attack that said `verdict` of itself.
    fn judge(&mut self, attack: &Attack, verdict: Verdict) -> anyhow::Result<Verdict> {
        if !self.stage.node_lives() {
            return Ok(Verdict::Through(format!("the node has ended; it said {verdict}")));
        }
        // What a program outside changes in the home is no session's doing.
        let by_session = !matches!(attack.play, Play::Outside { .. });
        if let Some(outside) = self.outside()?.filter(|_| by_session) {
            return Ok(Verdict::Through(format!(
                "seen from outside: {outside}; it said {verdict}"
            )));
        }
        Ok(match verdict {
            Verdict::Through(what) if attack.judged == Judged::Outside => {
                Verdict::Refused(format!("nothing of it outside: {what}"))
            }
            other => other,
        })
    }

    async fn once(&mut self, attack: &Attack) -> anyhow::Result<Played> {
        let own = attack.session == SessionKind::Own || attack.workspace != WorkspaceKind::Project;
        let ground = match self.shared.take() {
            Some(ground) if !own => ground,
            kept => {
                self.shared = kept;
                match self.ground_of(attack).await {
                    Ok(ground) => ground,
                    // No session in the home is one way to keep the home as it is.
                    Err(error) if attack.workspace == WorkspaceKind::Home => {
                        let verdict = Verdict::Refused(verdict::short(&format!("{error:#}")));
                        return Ok(Played { verdict, sessions: Vec::new(), ground: None });
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let verdict = match self.not_claimed(attack, &ground.session) {
            Some(why) => Verdict::NotClaimed(why),
            None => match self.part(attack, &ground, "whole", Told::new()).await? {
                Part::Ended(verdict) => verdict,
                Part::Planted => Verdict::NoVerdict("it has one part only".to_owned()),
            },
        };
        Ok(match own {
            true => Played { verdict, sessions: vec![ground.session.id], ground: None },
            false => Played { verdict, sessions: Vec::new(), ground: Some(ground) },
        })
    }

    /// Closes sessions at once; one that has ended already is closed.
    pub(super) async fn close(&self, sessions: &[SessionId]) {
        for session in sessions {
            let close = CloseQuery { grace_ms: Some(0) };
            self.stage.client.close_session(session, close).await.ok();
        }
    }

    pub(super) fn victim_id(&self) -> &SessionId {
        &self.victim.id
    }

    /// Whether the victim has come to no harm: the same worker, with its memory.
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
        ground: &Ground,
        part: &'static str,
        mut told: Told,
    ) -> anyhow::Result<Part> {
        let path = self.stage.install(attack, &ground.workspace)?;
        told.push(("part", part.into()));
        let places = self.places(ground, told);
        fs::write(ground.workspace.join("attack/stage.json"), places.to_string())?;
        let turn = run(self.stage, &ground.session.id, runner(attack, &path)).await;
        if attack.judged == Judged::ByItsEnd
            && let Some(verdict) = self.end_of(&ground.session.id).await
        {
            return Ok(Part::Ended(verdict));
        }
        let trying = match attack.limits.is_empty() {
            true => Trying::SomethingElse,
            false => Trying::ALimit,
        };
        Ok(match turn {
            Ok(turn) if verdict::is_planted(&turn) => Part::Planted,
            Ok(turn) => Part::Ended(Verdict::of(&turn, trying)),
            Err(error) => Part::Ended(Verdict::NoVerdict(format!("{error:#}"))),
        })
    }

    /// What the end of a session says of the code that ended it.
    async fn end_of(&self, session: &SessionId) -> Option<Verdict> {
        let ended = self.stage.client.session(session).await.ok()?.ended?;
        Some(match ended.reason {
            EndReason::KeeperLost => Verdict::Through("its keeper is lost".to_owned()),
            reason => Verdict::Refused(format!("the session ended: {reason:?}")),
        })
    }

    /// A session of its own for an attack.
    pub(super) async fn ground_of(&mut self, attack: &Attack) -> anyhow::Result<Ground> {
        let (limits, kind, interpreter) = (attack.limits, attack.workspace, Interpreter::Named);
        let workspace = self.stage.workspace(kind)?;
        self.ground(Wanted { limits, kind, workspace, interpreter }).await
    }

    pub(super) async fn ground(&mut self, wanted: Wanted) -> anyhow::Result<Ground> {
        self.stage.go_back();
        self.stage.host.end_services_but(&wanted.workspace)?;
        for place in [&self.stage.home, &self.stage.home.join("project")] {
            let _ = fs::remove_file(place.join("late.sock"));
        }
        if self.level != Isolation::Landlock && wanted.workspace != self.stage.home {
            // Where no socket can be made at all, one in the workspace is no way out; but what is
            // hidden there would close the workspace itself.
            for name in early_sockets(wanted.kind) {
                self.stage.host.listen(&wanted.workspace.join(name))?;
            }
        }
        let ground = self.start(wanted).await?;
        self.stage.go_on()?;
        for place in [&self.stage.home, &self.stage.home.join("project"), &ground.workspace] {
            self.stage.host.listen(&place.join("late.sock"))?;
        }
        self.seen = self.stage.watched(self.victim.workspace.as_ref());
        Ok(ground)
    }

    /// A session to attack from, and nothing changed around it: what the node did meanwhile is seen.
    pub(super) async fn start(&self, wanted: Wanted) -> anyhow::Result<Ground> {
        let Wanted { limits, kind, workspace, interpreter } = wanted;
        let isolation = Some(self.level);
        let mut policy = PolicyRequest { isolation, limits, ..self.policy.clone() };
        policy.hidden.extend(hidden_paths(kind, &workspace));
        let session = create(self.stage, policy, Some(&workspace), interpreter).await?;
        let turn = run(self.stage, &session.id, "None".to_owned()).await?;
        let said = turn.error.map(|error| error.message).unwrap_or_default();
        anyhow::ensure!(turn.outcome == Some(Outcome::Ok), "no session to attack from: {said}");
        let session = self.stage.client.session(&session.id).await?;
        Ok(Ground { session, workspace })
    }

    /// Why the session does not claim to refuse this, in its own words.
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

    /// What changed outside, or who reached the host, since this was last asked.
    pub(super) fn outside(&mut self) -> anyhow::Result<Option<String>> {
        let now = self.stage.watched(self.victim.workspace.as_ref());
        let contacts = self.stage.host.contacts()?;
        Ok(self.seen.difference(&now).or_else(|| contacts.into_iter().next()))
    }

    /// What an attack is told: where everything is that it wants.
    pub(super) fn places(&self, ground: &Ground, told: Told) -> serde_json::Value {
        let stage = &*self.stage;
        let dirs = stage.node.dirs();
        let keeper = ground.session.keeper_pid.unwrap_or_default();
        let victim_keeper = self.victim.keeper_pid.unwrap_or_default();
        let (own, victim_worker) = (worker_below(keeper), worker_below(victim_keeper));
        // Without a wall nothing may leave the machine.
        let open = self.level == Isolation::None || self.network == NetworkSetting::Open;
        let metadata = if open { "127.0.0.1" } else { "169.254.169.254" };
        let mut places = json!({
            "level": self.level.as_str(),
            "network": self.network.as_str(),
            "session": ground.session.id,
            "family": dirs.state.join("families").join(ground.session.id.as_str()),
            "path_entry": path_entry(stage.place()),
            "trusted": trusted(),
            "trusted_in_projects": IN_PROJECTS,
            "trusted_in_homes": IN_HOMES,
            "workspace": ground.workspace,
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
        // The number by which the attacker could know a process, where its namespace has one for it.
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
        for (name, value) in told {
            places[name] = value;
        }
        places
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        for place in WORD_PLACES {
            let _ = fs::remove_file(PathBuf::from(place).join(&self.victim_word));
        }
    }
}

/// A session in `workspace`, or in a fresh one that the node makes for it.
pub(super) async fn create(
    stage: &Stage,
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
        Interpreter::Preloading => wanted.interpreter = Some(preloading_python(stage.place())),
    }
    wanted.workspace = workspace.map(|path| path.to_string_lossy().into_owned());
    let created = stage.client.create_session(&wanted).await;
    Ok(created.with_context(|| format!("no session of the level {level}"))?.session)
}

pub(super) async fn run(stage: &Stage, session: &SessionId, code: String) -> anyhow::Result<Turn> {
    let deadline_ms = Some(u64::try_from(TURN.as_millis())?);
    let turn = SubmitTurn { code, deadline_ms, ..SubmitTurn::default() };
    let ran = tokio::time::timeout(2 * TURN, stage.client.run_turn(session, turn)).await;
    Ok(ran.context("the turn does not end")??)
}

/// The worker's process below a keeper: the deepest that runs the worker's program.
fn worker_below(keeper: u32) -> u32 {
    let below = processes::below(keeper);
    let is_worker = |pid: &&u32| {
        processes::arguments(**pid).iter().any(|argument| argument.contains("windlass_worker"))
    };
    below.iter().rfind(is_worker).copied().unwrap_or_default()
}

/// What the victim does: hold a secret in its memory, its workspace and wherever others could look.
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

/// Runs the program in the session's worker, and says how it ended.
fn runner(attack: &Attack, path: &str) -> String {
    if attack.language == Language::PythonInWorker {
        return format!(
            r#"
import os, sys
sys.path.insert(0, os.path.abspath("attack"))
try:
    exec(compile(open("{path}").read(), "{path}", "exec"), {{"__name__": "__main__"}})
except SystemExit:
    pass
finally:
    del sys.path[0]
    sys.modules.pop("attack", None)
print("{ENDED}0")
"#
        );
    }
    let program = match attack.language {
        Language::C => format!("[{path:?}]"),
        _ => format!("[sys.executable, {path:?}]"),
    };
    // Descriptors are not closed: what a subprocess could inherit, it does.
    format!(
        r#"
import subprocess, sys
try:
    ran = subprocess.run({program}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, close_fds=False, timeout={ATTACK_S})
    print(ran.stdout.decode(errors="replace"))
    print("{ENDED}" + str(ran.returncode))
except subprocess.TimeoutExpired as late:
    print((late.stdout or b"").decode(errors="replace"))
    print("{ENDED}after {ATTACK_S} s")
"#
    )
}
