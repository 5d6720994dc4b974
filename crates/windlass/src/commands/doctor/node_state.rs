//! The node as it is, its directories, and the room around them; a real session, if one is asked
//! for. Starts a node only for that.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use windlass_client::{ClientError, Dirs};
use windlass_confine::Site;
use windlass_protocol::Outcome;
use windlass_protocol::api::{CreateSession, NodeStatus, Session, SubmitTurn};

use super::report::{Item, SessionTest};
use crate::{node_access, size, storage_notes};

/// Less room than this is worth a word.
const ROOM_BYTES: u64 = 1 << 30;

/// How long the real session's first answer may take.
const SESSION_WAIT_MS: u64 = 30_000;

/// When that session ends if the doctor was killed before it could end it.
const SESSION_IDLE_S: u64 = 60;

pub async fn look() -> Vec<Item> {
    let mut items = match node_access::present().await {
        Ok(None) => vec![Item::lacking("node", "not running; commands that need it start it")],
        Ok(Some(client)) => match client.node_status().await {
            Ok(status) => running(&status),
            Err(error) => vec![Item::bad("node", error.to_string(), error.remedy())],
        },
        Err(error) => {
            let help = error.downcast_ref::<ClientError>().map(ClientError::remedy);
            vec![Item::bad("node", format!("{error:#}"), help.unwrap_or_default())]
        }
    };
    match Dirs::from_env() {
        Ok(dirs) => {
            items.push(directory("runtime", &dirs.runtime));
            items.push(directory("state", &dirs.state));
        }
        Err(error) => items.push(Item::bad("directories", error.to_string(), error.remedy())),
    }
    items
}

/// A node that answers, and what its disk lacks.
fn running(status: &NodeStatus) -> Vec<Item> {
    let node = Item::good(
        "node",
        format!(
            "running, pid {}, version {}, {} sessions, listens at {}",
            status.pid,
            status.version,
            status.sessions,
            status.listen.as_deref().unwrap_or("its socket only")
        ),
    );
    let lacking =
        |note| Item::lacking("storage", note).with_help("make room at the state directory");
    let notes = status.storage.iter().flat_map(storage_notes::notes).map(lacking);
    [node].into_iter().chain(notes).collect()
}

/// A directory of the node's: only its user may look into it.
fn directory(name: &str, path: &Path) -> Item {
    let shown = path.display();
    match path.metadata() {
        Ok(meta) if meta.mode() & 0o077 == 0 => {
            Item::good(name, format!("{shown}, mode {:o}", meta.mode() & 0o7777))
        }
        Ok(meta) => Item::lacking(
            name,
            format!("{shown} can be read by others (mode {:o})", meta.mode() & 0o7777),
        )
        .with_help(format!("run: chmod 700 {shown}")),
        Err(error) => Item::bad(name, format!("{shown}: {error}"), "make it readable to you"),
    }
}

/// The room that the journal and the workspace have.
pub fn disk(site: &Site) -> Vec<Item> {
    let state = site.hidden.first().map(|path| ("journal", path));
    let places = state.into_iter().chain([("workspace", &site.workspace)]);
    places
        .map(|(name, path)| match rustix::fs::statvfs(path) {
            Ok(facts) => {
                let free = facts.f_bavail.saturating_mul(facts.f_frsize);
                let says = format!("{} free at {}", size::short(free), path.display());
                match free >= ROOM_BYTES {
                    true => Item::good(name, says),
                    false => Item::lacking(name, says)
                        .with_help("make room: a full disk fails turns until there is some"),
                }
            }
            Err(errno) => Item::bad(name, errno.to_string(), "see that the directory is there"),
        })
        .collect()
}

/// A session with the default policy, from its request to its end.
pub async fn session_test() -> SessionTest {
    let started = Instant::now();
    let ran = one_session().await;
    let took_ms = started.elapsed().as_secs_f64() * 1000.0;
    let (session, error) = match ran {
        Ok(session) => (Some(session), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let confinement = session.and_then(|session| session.confinement);
    SessionTest {
        isolation: confinement.as_ref().map(|confinement| confinement.isolation),
        took_ms,
        controls: confinement.map(|confinement| confinement.controls).unwrap_or_default(),
        error,
    }
}

async fn one_session() -> anyhow::Result<Session> {
    let client = node_access::started().await?;
    let turn = SubmitTurn { code: "1+1".into(), wait_ms: SESSION_WAIT_MS, ..SubmitTurn::default() };
    let create = CreateSession {
        turn: Some(turn),
        idle_s: Some(SESSION_IDLE_S),
        deadline_ms: Some(SESSION_WAIT_MS),
        ..CreateSession::default()
    };
    let created = client.create_session(&create).await?;
    let session = client.session(&created.session.id).await;
    node_access::close(&client, &created.session.id).await?;
    let turn = created.turn.context("the session had no first turn")?;
    ensure!(turn.outcome == Some(Outcome::Ok), "the first turn ended as {:?}", turn.outcome);
    ensure!(turn.output.text == "2\n", "the first turn answered {:?}", turn.output.text);
    Ok(session?)
}
