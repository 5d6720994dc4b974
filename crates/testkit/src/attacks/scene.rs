//! One level's sessions: a victim with a secret, and the ones that attacks run in. Judges an attack by
//! what it says and by what it changed outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use windlass_client::protocol::api::{CloseQuery, Session, SessionState, SubmitTurn, Turn};
use windlass_client::protocol::confinement::{ControlState, Isolation};
use windlass_client::protocol::policy::{Limits, PolicyRequest};
use windlass_client::protocol::{Outcome, SessionId};

use super::program::{Attack, Judged, Language, SessionKind};
use super::stage::{Stage, restore_workspace};
use super::verdict::{ENDED, Trying, Verdict};
use super::watch::Seen;
use crate::{TestNode, processes};

/// How long one attack may take.
const ATTACK_S: u64 = 20;

/// How long its turn may take: the runner in the worker gives up first.
const TURN: Duration = Duration::from_secs(ATTACK_S + 10);

/// Where a victim without a sandbox leaves its words; taken away with the scene.
const WORD_PLACES: &[&str] = &["/dev/shm", "/tmp", "/var/tmp", "/run/lock"];

/// The sessions of one level.
#[derive(Debug)]
pub struct Scene<'a> {
    stage: &'a mut Stage,
    level: Isolation,
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
struct Ground {
    session: Session,
    workspace: PathBuf,
}

impl<'a> Scene<'a> {
    pub(super) async fn new(
        stage: &'a mut Stage,
        level: Isolation,
        policy: PolicyRequest,
    ) -> anyhow::Result<Self> {
        let usual = PolicyRequest { isolation: Some(level), ..PolicyRequest::default() };
        let victim = create(stage, usual, None).await?;
        let victim_word = format!("windlass-word-{}-{level}", std::process::id());
        let turn = run(stage, &victim.id, victim_code(&stage.secret, &victim_word)).await?;
        anyhow::ensure!(turn.outcome == Some(Outcome::Ok), "the victim fails: {turn:?}");
        let victim = stage.client.session(&victim.id).await?;
        let seen = stage.watched(victim.workspace.as_ref());
        stage.host.contacts()?;
        Ok(Self { stage, level, policy, victim, victim_word, shared: None, seen })
    }

    /// Runs one attack, and looks at what it did.
    pub async fn play(&mut self, attack: &Attack) -> anyhow::Result<Verdict> {
        let ground = match (attack.session, self.shared.take()) {
            (SessionKind::Shared, Some(ground)) => ground,
            (SessionKind::Shared, None) => self.ground(Limits::default()).await?,
            (SessionKind::Own, kept) => {
                self.shared = kept;
                self.ground(attack.limits).await?
            }
        };
        let mut verdict = match self.not_claimed(attack, &ground) {
            Some(why) => Verdict::NotClaimed(why),
            None => self.attempt(attack, &ground).await?,
        };
        if let Some(outside) = self.outside()? {
            verdict = Verdict::Through(format!("seen from outside: {outside}; it said {verdict}"));
        } else if attack.judged == Judged::Outside
            && let Verdict::Through(what) = &verdict
        {
            verdict = Verdict::Refused(format!("nothing of it outside: {what}"));
        }
        if matches!(verdict, Verdict::Through(_)) {
            self.stage.restore()?;
            self.stage.go_on()?;
            restore_workspace(&ground.workspace)?;
        }
        self.seen = self.stage.watched(self.victim.workspace.as_ref());
        let kept = match verdict {
            Verdict::Refused(_) => true,
            // What it got is taken away again outside; a sandbox may not stand that.
            Verdict::Through(_) => self.level == Isolation::None,
            Verdict::NoVerdict(_) | Verdict::NotClaimed(_) => false,
        };
        match attack.session {
            SessionKind::Shared if kept => self.shared = Some(ground),
            _ => {
                let close = CloseQuery { grace_ms: Some(0) };
                self.stage.client.close_session(&ground.session.id, close).await.ok();
            }
        }
        Ok(verdict)
    }

    /// Whether the victim has come to no harm: the same worker, with its memory.
    pub async fn victim_is_whole(&self) -> anyhow::Result<bool> {
        let turn = run(self.stage, &self.victim.id, "print(secret)".to_owned()).await?;
        let now = self.stage.client.session(&self.victim.id).await?;
        Ok(turn.output.text.trim() == self.stage.secret
            && now.state == SessionState::Idle
            && now.restarts == self.victim.restarts)
    }

    async fn attempt(&self, attack: &Attack, ground: &Ground) -> anyhow::Result<Verdict> {
        let path = self.stage.install(attack, &ground.workspace)?;
        let places = self.places(ground);
        fs::write(ground.workspace.join("attack/stage.json"), places.to_string())?;
        let turn = run(self.stage, &ground.session.id, runner(attack, &path)).await;
        let trying = match attack.limits.is_empty() {
            true => Trying::SomethingElse,
            false => Trying::ALimit,
        };
        Ok(match turn {
            Ok(turn) => Verdict::of(&turn, trying),
            Err(error) => Verdict::NoVerdict(format!("{error:#}")),
        })
    }

    async fn ground(&mut self, limits: Limits) -> anyhow::Result<Ground> {
        let workspace = self.stage.workspace()?;
        self.stage.go_back();
        for place in [&self.stage.home, &self.stage.home.join("project")] {
            let _ = fs::remove_file(place.join("late.sock"));
        }
        if self.level != Isolation::Landlock {
            // Where no socket can be made at all, one in the workspace is no way out; but what is
            // hidden there would close the workspace itself.
            self.stage.host.listen(&workspace.join("early.sock"))?;
        }
        let isolation = Some(self.level);
        let policy = PolicyRequest { isolation, limits, ..self.policy.clone() };
        let session = create(self.stage, policy, Some(&workspace)).await?;
        let turn = run(self.stage, &session.id, "None".to_owned()).await?;
        anyhow::ensure!(turn.outcome == Some(Outcome::Ok), "no session to attack from: {turn:?}");
        let session = self.stage.client.session(&session.id).await?;
        self.stage.go_on()?;
        for place in [&self.stage.home, &self.stage.home.join("project"), &workspace] {
            self.stage.host.listen(&place.join("late.sock"))?;
        }
        self.seen = self.stage.watched(self.victim.workspace.as_ref());
        Ok(Ground { session, workspace })
    }

    /// Why the session does not claim to refuse this, in its own words.
    fn not_claimed(&self, attack: &Attack, ground: &Ground) -> Option<String> {
        if self.level == Isolation::None {
            return None;
        }
        let confinement = ground.session.confinement.as_ref()?;
        let control = attack.control?;
        let report = confinement.controls.iter().find(|report| report.control == control)?;
        (report.state == ControlState::NotEnforced)
            .then(|| format!("{control} is not enforced: {}", report.mechanism))
    }

    /// What changed outside, or who reached the host, since this was last asked.
    fn outside(&mut self) -> anyhow::Result<Option<String>> {
        let now = self.stage.watched(self.victim.workspace.as_ref());
        let contacts = self.stage.host.contacts()?;
        Ok(self.seen.difference(&now).or_else(|| contacts.into_iter().next()))
    }

    /// What an attack is told: where everything is that it wants.
    fn places(&self, ground: &Ground) -> serde_json::Value {
        let stage = &*self.stage;
        let dirs = stage.node.dirs();
        let keeper = ground.session.keeper_pid.unwrap_or_default();
        let victim_keeper = self.victim.keeper_pid.unwrap_or_default();
        let (own, victim_worker) = (worker_below(keeper), worker_below(victim_keeper));
        let metadata = match self.level {
            // Without a sandbox nothing may leave the machine.
            Isolation::None => "127.0.0.1",
            _ => "169.254.169.254",
        };
        let mut places = json!({
            "level": self.level.as_str(),
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
async fn create(
    stage: &Stage,
    policy: PolicyRequest,
    workspace: Option<&Path>,
) -> anyhow::Result<Session> {
    let level = policy.isolation.unwrap_or(Isolation::Full);
    let mut wanted = TestNode::create();
    wanted.policy = Some(policy);
    wanted.workspace = workspace.map(|path| path.to_string_lossy().into_owned());
    let created = stage.client.create_session(&wanted).await;
    Ok(created.with_context(|| format!("no session of the level {level}"))?.session)
}

async fn run(stage: &Stage, session: &SessionId, code: String) -> anyhow::Result<Turn> {
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
import sys
sys.path.insert(0, "attack")
try:
    exec(compile(open("{path}").read(), "{path}", "exec"), {{"__name__": "__main__"}})
except SystemExit:
    pass
finally:
    sys.path.remove("attack")
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
