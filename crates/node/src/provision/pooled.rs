//! A pooled worker: a worker that is forked before a session asks, with its keeper, its namespaces and its
//! cgroups. No session's code has run in a pooled worker, and no used worker is put back.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::RecvFlags;
use tokio::io::AsyncReadExt;
use windlass_protocol::frame::Decoder;
use windlass_protocol::link::{FromKeeper, Prepare, ToKeeper};
use windlass_protocol::policy::Limits;
use windlass_protocol::{SessionId, parts};

use super::Zygote;
use super::pool_base::PoolBase;
use crate::cgroups::SessionCgroups;
use crate::keepers::{self, Keepers};
use crate::passing;

/// How long a keeper may take to fork its pooled worker.
const PREPARED_WAIT: Duration = Duration::from_secs(20);

/// The limits come with the session. Until then only our own code runs.
const UNLIMITED: Limits =
    Limits { memory_bytes: None, cpu_percent: None, processes: None, ..Limits::DEFAULT };

/// See the module's first lines. It must be ended by [`Self::end`], unless a session gets it.
#[derive(Debug)]
pub(super) struct PooledWorker {
    /// The name of its keeper until a session has it.
    id: SessionId,
    socket: PathBuf,
    cgroups: Vec<PathBuf>,
    /// The keeper ends when this closes before a node has attached, which it may do here.
    line: UnixStream,
}

/// What a session gets of a pooled worker.
#[derive(Debug)]
pub(super) struct ClaimedWorker {
    pub socket: PathBuf,
    pub cgroups: Vec<PathBuf>,
    /// The connection that the keeper waits on.
    pub line: OwnedFd,
}

/// What pooled workers are made with.
#[derive(Debug, Clone)]
pub(super) struct Makers {
    pub keepers: Arc<Keepers>,
    pub cgroups: Arc<SessionCgroups>,
}

/// Why there is no pooled worker.
#[derive(Debug, thiserror::Error)]
pub(super) enum PoolError {
    #[error("its cgroups cannot be made: {0}")]
    Cgroups(io::Error),
    #[error(transparent)]
    Keeper(#[from] keepers::StartError),
    #[error("its keeper cannot be reached: {0}")]
    Reach(io::Error),
    #[error("its keeper has ended")]
    Ended,
    #[error("it was not ready after {PREPARED_WAIT:?}")]
    TooSlow,
}

impl PooledWorker {
    /// Has a keeper started that forks a worker for sessions with this base.
    pub async fn make(
        makers: Makers,
        id: SessionId,
        zygote: Arc<Zygote>,
        base: Arc<PoolBase>,
    ) -> Result<Self, PoolError> {
        let lost = |error: tokio::task::JoinError| PoolError::Reach(io::Error::other(error));
        let begun = {
            let makers = makers.clone();
            // It touches the disk and starts a process: not on the thread that serves turns.
            tokio::task::spawn_blocking(move || begin(&makers, id, &zygote, &base))
        };
        let worker = begun.await.map_err(lost)??;
        match hear_prepared(&worker.line).await {
            Ok(()) => Ok(worker),
            Err(error) => {
                let _ = tokio::task::spawn_blocking(move || worker.end(&makers)).await;
                Err(error)
            }
        }
    }

    /// A keeper says nothing while its worker is in the pool; what can be read is its end.
    pub fn is_alive(&self) -> bool {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(&self.line, &mut byte[..], flags), Err(rustix::io::Errno::AGAIN))
    }

    /// Makes the worker a session's: its keeper is found under the session's name, and its cgroups have
    /// the session's limits.
    pub fn become_session(
        self,
        makers: &Makers,
        session: &SessionId,
        limits: &Limits,
    ) -> io::Result<ClaimedWorker> {
        let socket = makers.keepers.socket_of(session);
        let renamed = std::fs::rename(&self.socket, &socket)
            .and_then(|()| makers.cgroups.limit(&self.cgroups, limits));
        if let Err(error) = renamed {
            keepers::remove_socket(&socket);
            self.end(makers);
            return Err(error);
        }
        makers.keepers.starting.rename(&self.id, session);
        Ok(ClaimedWorker { socket, cgroups: self.cgroups, line: self.line.into() })
    }

    /// Ends the worker with its keeper. May wait a little for the keeper's process to be gone.
    pub fn end(self, makers: &Makers) {
        // The keeper would go by itself when its line closes, unless somebody has stopped it.
        makers.keepers.end_unanswered(&self.id, &self.socket);
        makers.cgroups.remove(&self.cgroups);
    }
}

fn begin(
    makers: &Makers,
    id: SessionId,
    zygote: &Zygote,
    base: &PoolBase,
) -> Result<PooledWorker, PoolError> {
    let cgroups = makers.cgroups.make(&id, &UNLIMITED).map_err(PoolError::Cgroups)?;
    let socket = makers.keepers.start(&id).inspect_err(|_| makers.cgroups.remove(&cgroups))?;
    match tell(&socket, zygote, base, &cgroups) {
        Ok(line) => Ok(PooledWorker { id, socket, cgroups, line }),
        Err(error) => {
            makers.keepers.end_unanswered(&id, &socket);
            makers.cgroups.remove(&cgroups);
            Err(PoolError::Reach(error))
        }
    }
}

/// Tells a keeper to fork a worker.
fn tell(
    socket: &PathBuf,
    zygote: &Zygote,
    base: &PoolBase,
    cgroups: &[PathBuf],
) -> io::Result<UnixStream> {
    let mut line = UnixStream::connect(socket)?;
    let plan = base.view.as_ref().map(|view| serde_json::to_string(&view.plan)).transpose()?;
    let shape = serde_json::to_value(base.shape)?;
    let prepare = Prepare { shape, plan, cgroups: cgroups.to_vec() };
    let mut bytes = Vec::new();
    parts::encode(&mut bytes, &ToKeeper::Prepare(Box::new(prepare))).map_err(io::Error::other)?;
    let sent = passing::send(&line, &bytes, zygote.connect()?.as_fd())?;
    line.write_all(&bytes[sent..])?;
    line.set_nonblocking(true)?;
    Ok(line)
}

async fn hear_prepared(line: &UnixStream) -> Result<(), PoolError> {
    let line = line.try_clone().and_then(tokio::net::UnixStream::from_std);
    let heard = read_prepared(line.map_err(PoolError::Reach)?);
    tokio::time::timeout(PREPARED_WAIT, heard).await.unwrap_or(Err(PoolError::TooSlow))
}

async fn read_prepared(mut line: tokio::net::UnixStream) -> Result<(), PoolError> {
    let mut decoder = Decoder::default();
    loop {
        match decoder.next_frame() {
            Ok(None) => {}
            Ok(Some(frame)) => {
                return match serde_json::from_slice(&frame.header) {
                    Ok(FromKeeper::Prepared { .. }) => Ok(()),
                    _ => Err(PoolError::Ended),
                };
            }
            Err(error) => return Err(PoolError::Reach(io::Error::other(error))),
        }
        match line.read_buf(decoder.buffer()).await {
            Ok(0) => return Err(PoolError::Ended),
            Ok(_) => {}
            Err(error) => return Err(PoolError::Reach(error)),
        }
    }
}
