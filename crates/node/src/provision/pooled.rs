//! A pooled worker: a worker that is forked before a session asks for it, with its keeper, its namespaces
//! and its cgroups. No session's code has run in a pooled worker, and no used worker goes back to the pool.

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

/// How long a keeper may take to prepare its pooled worker.
const PREPARED_WAIT: Duration = Duration::from_secs(20);

/// A pooled worker has no limits: it runs only Windlass's own code. A claim sets the session's limits.
const UNLIMITED: Limits =
    Limits { memory_bytes: None, cpu_percent: None, processes: None, ..Limits::DEFAULT };

/// See the module documentation. It must be ended by [`Self::end`], unless a session claims it.
#[derive(Debug)]
pub(super) struct PooledWorker {
    /// The keeper's name until a session claims the worker.
    id: SessionId,
    socket: PathBuf,
    cgroups: Vec<PathBuf>,
    /// The connection to the keeper. The node attaches on it when a session claims the worker. If it closes
    /// before that, the keeper ends.
    line: UnixStream,
}

/// What a session gets when it claims a pooled worker.
#[derive(Debug)]
pub(super) struct ClaimedWorker {
    pub socket: PathBuf,
    pub cgroups: Vec<PathBuf>,
    /// The connection that the keeper waits on.
    pub line: OwnedFd,
}

/// The parts of the node that start keepers and make cgroups.
#[derive(Debug, Clone)]
pub(super) struct Makers {
    pub keepers: Arc<Keepers>,
    pub cgroups: Arc<SessionCgroups>,
}

/// Why a pooled worker cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum PoolError {
    #[error("cannot make its cgroups: {0}")]
    Cgroups(io::Error),
    #[error(transparent)]
    Keeper(#[from] keepers::KeeperStartError),
    #[error("cannot reach its keeper: {0}")]
    Reach(io::Error),
    #[error("its keeper has ended")]
    Ended,
    #[error("it was not ready after {PREPARED_WAIT:?}")]
    TooSlow,
}

impl PooledWorker {
    /// Starts a keeper that forks a worker for sessions with this base.
    pub async fn make(
        makers: Makers,
        id: SessionId,
        zygote: Arc<Zygote>,
        base: Arc<PoolBase>,
    ) -> Result<Self, PoolError> {
        let lost = |error: tokio::task::JoinError| PoolError::Reach(io::Error::other(error));
        let begun = {
            let makers = makers.clone();
            // This writes to the disk and starts a process, so it must not block the thread that serves
            // turns.
            tokio::task::spawn_blocking(move || begin(&makers, id, &zygote, &base))
        };
        let worker = begun.await.map_err(lost)??;
        match wait_prepared(&worker.line).await {
            Ok(()) => Ok(worker),
            Err(error) => {
                let _ = tokio::task::spawn_blocking(move || worker.end(&makers)).await;
                Err(error)
            }
        }
    }

    /// Whether the keeper lives. It sends nothing while its worker is in the pool, so anything that can be
    /// read means that it has ended.
    pub fn is_alive(&self) -> bool {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(&self.line, &mut byte[..], flags), Err(rustix::io::Errno::AGAIN))
    }

    /// Makes the worker a session's: renames the keeper's socket to the session's name, and sets the
    /// session's limits on the cgroups.
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
        makers.keepers.processes.rename(&self.id, session);
        Ok(ClaimedWorker { socket, cgroups: self.cgroups, line: self.line.into() })
    }

    /// Ends the worker and its keeper. May block for a moment until the keeper's process is gone.
    pub fn end(self, makers: &Makers) {
        // The keeper ends by itself when its connection closes, unless it was stopped (SIGSTOP).
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
    match send_prepare(&socket, zygote, base, &cgroups) {
        Ok(line) => Ok(PooledWorker { id, socket, cgroups, line }),
        Err(error) => {
            makers.keepers.end_unanswered(&id, &socket);
            makers.cgroups.remove(&cgroups);
            Err(PoolError::Reach(error))
        }
    }
}

/// Sends a keeper the command to prepare a worker.
fn send_prepare(
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

async fn wait_prepared(line: &UnixStream) -> Result<(), PoolError> {
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
