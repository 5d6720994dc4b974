//! Checks the node, its directories and the free disk space, and runs a real session on request. Starts a
//! node only for that session.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use windlass_client::{ClientError, Dirs};
use windlass_confine::SurveyInput;
use windlass_protocol::Outcome;
use windlass_protocol::api::{CreateSession, NodeStatus, Session, SubmitTurn};

use super::report::{CheckItem, SessionTest};
use crate::counted::counted;
use crate::{node_access, size, storage_notes};

/// Warn if less disk space than this is free.
const FREE_BYTES_MIN: u64 = 1 << 30;

/// Timeout for the first turn of the real session.
const SESSION_WAIT_MS: u64 = 30_000;

/// Idle timeout of the real session, in case the doctor is killed before it closes the session.
const SESSION_IDLE_S: u64 = 60;

pub async fn look() -> Vec<CheckItem> {
    let mut items = match node_access::connect_if_running().await {
        Ok(None) => {
            vec![CheckItem::lacking("node", "not running; commands that need the node start it")]
        }
        Ok(Some(client)) => match client.node_status().await {
            Ok(status) => running(&status),
            Err(error) => vec![CheckItem::bad("node", error.to_string(), error.remedy())],
        },
        Err(error) => {
            let help = error.downcast_ref::<ClientError>().map(ClientError::remedy);
            vec![CheckItem::bad("node", format!("{error:#}"), help.unwrap_or_default())]
        }
    };
    match Dirs::from_env() {
        Ok(dirs) => {
            items.push(directory("runtime", &dirs.runtime));
            items.push(directory("state", &dirs.state));
        }
        Err(error) => items.push(CheckItem::bad("directories", error.to_string(), error.remedy())),
    }
    items
}

/// Items for a running node and for problems of its disk.
fn running(status: &NodeStatus) -> Vec<CheckItem> {
    let node = CheckItem::good(
        "node",
        format!(
            "running, pid {}, version {}, {}, listens at {}",
            status.pid,
            status.version,
            counted(status.sessions, "session", "sessions"),
            status.listen.as_deref().unwrap_or("its socket only")
        ),
    );
    let lacking = |note| {
        CheckItem::lacking("storage", note).with_help("free disk space in the state directory")
    };
    let notes = status.storage.iter().flat_map(storage_notes::notes).map(lacking);
    [node].into_iter().chain(notes).collect()
}

/// A directory of the node. Only the user of the node may read it.
fn directory(name: &str, path: &Path) -> CheckItem {
    let shown = path.display();
    match path.metadata() {
        Ok(meta) if meta.mode() & 0o077 == 0 => {
            CheckItem::good(name, format!("{shown}, mode {:o}", meta.mode() & 0o7777))
        }
        Ok(meta) => CheckItem::lacking(
            name,
            format!("{shown} is accessible to other users (mode {:o})", meta.mode() & 0o7777),
        )
        .with_help(format!("run: chmod 700 {shown}")),
        Err(error) => {
            let help = "make the directory readable for your user";
            CheckItem::bad(name, format!("{shown}: {error}"), help)
        }
    }
}

/// The free disk space for the journal and for the workspace.
pub fn disk(site: &SurveyInput) -> Vec<CheckItem> {
    let state = site.hidden.first().map(|path| ("journal", path));
    let places = state.into_iter().chain([("workspace", &site.workspace)]);
    places
        .map(|(name, path)| match rustix::fs::statvfs(path) {
            Ok(facts) => {
                let free = facts.f_bavail.saturating_mul(facts.f_frsize);
                let says = format!("{} free at {}", size::short(free), path.display());
                match free >= FREE_BYTES_MIN {
                    true => CheckItem::good(name, says),
                    false => CheckItem::lacking(name, says)
                        .with_help("free disk space: turns fail while the disk is full"),
                }
            }
            Err(errno) => {
                let help = format!("check that {} exists", path.display());
                CheckItem::bad(name, errno.to_string(), help)
            }
        })
        .collect()
}

/// Runs a session with the default policy, from the request to its end.
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
    let client = node_access::connect_or_start().await?;
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
