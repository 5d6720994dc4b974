//! The pool: workers that are forked before a session asks, each with its keeper, its namespaces
//! and its cgroups. No session's code has run in a pooled worker, and no used worker is put back.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::RecvFlags;
use tokio::io::AsyncReadExt;
use windlass_journal::Spare;
use windlass_protocol::confinement::Isolation;
use windlass_protocol::frame::Decoder;
use windlass_protocol::link::{Bound, FromKeeper, Prepare, ToKeeper};
use windlass_protocol::policy::Limits;
use windlass_protocol::{SessionId, parts};
use windlass_sandbox::Shape;
use windlass_sandbox::plan::ahead::Ahead;

use super::{Outline, Zygote};
use crate::context::Context;
use crate::keepers::{self, Starting};
use crate::passing;
use crate::session::cgroups::SessionCgroups;
use crate::session::confine::{Planned, Usual, usual_in};
use crate::session::places::Place;

/// How long a keeper may take to have its worker waiting.
const PREPARED_WAIT: Duration = Duration::from_secs(20);

/// Where it can be any session's, the limits come with the session; until then only our own code runs.
const UNLIMITED: Limits =
    Limits { memory_bytes: None, cpu_percent: None, processes: None, ..Limits::DEFAULT };

/// What is known of a session before it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Model {
    pub shape: Shape,
    /// The view that it will most likely have, but for its own directories.
    pub ahead: Option<Arc<Ahead>>,
}

impl Model {
    /// Of sessions like this one, but for its own directories.
    pub fn of(&Outline { plan, around, own }: &Outline<'_>) -> Self {
        // As the plan names them: without links.
        let own: Vec<PathBuf> = own.iter().filter_map(|own| own.canonicalize().ok()).collect();
        Self { shape: Shape::of(plan), ahead: Ahead::of(plan, &own, around).map(Arc::new) }
    }

    pub fn suits(&self, &Outline { plan, around, .. }: &Outline<'_>) -> bool {
        let view_suits = self.ahead.as_ref().is_none_or(|ahead| ahead.suits(plan, around));
        self.shape == Shape::of(plan) && view_suits
    }
}

/// A worker that waits. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Waiting(Claimed);

/// What a worker that waits was confined for, before anybody asked for it.
#[derive(Debug)]
pub(crate) struct Meant {
    pub place: Place,
    /// Where its journal will be, until it is there.
    spare: Option<Spare>,
    planned: Arc<Planned>,
    env: Vec<(String, String)>,
    limits: Limits,
}

/// A worker for a session. It ends when this is dropped, unless it is [`Self::used`].
#[derive(Debug)]
pub(crate) struct Claimed {
    /// Absent where it can still be any session's.
    pub meant: Option<Meant>,
    /// Where its keeper listens.
    pub socket: PathBuf,
    pub cgroups: Vec<PathBuf>,
    /// By which its process is known until it has answered a node.
    id: SessionId,
    starting: Arc<Starting>,
    groups: Arc<SessionCgroups>,
    /// The keeper ends when this closes before a node has attached, which it may do here.
    line: UnixStream,
    used: bool,
}

/// Why no worker waits.
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
    #[error("it was not waiting after {PREPARED_WAIT:?}")]
    TooSlow,
}

impl Waiting {
    /// Has a keeper started, with a worker for a session like this that waits.
    pub async fn make(
        context: &Arc<Context>,
        id: SessionId,
        zygote: Arc<Zygote>,
        model: Model,
        binding: Option<Binding>,
    ) -> Result<Self, PoolError> {
        let begun = {
            let (context, id) = (context.clone(), id.clone());
            // It touches the disk and starts a process: not on the thread that serves turns.
            tokio::task::spawn_blocking(move || {
                let meant = binding.and_then(|binding| binding.meant(&context, &model));
                begin(&context, &id, &zygote, &model, meant)
            })
            .await
        };
        let begun = begun.map_err(|error| PoolError::Reach(io::Error::other(error)))?;
        let made = match begun {
            Ok(claimed) => hear_prepared(claimed).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(claimed) => Ok(Self(claimed)),
            Err(error) => {
                context.starting.end(&id);
                Err(error)
            }
        }
    }

    /// Whether it is confined already.
    pub fn is_bound(&self) -> bool {
        self.0.is_bound()
    }

    pub fn offer(&self) -> Option<Offer> {
        let Meant { place, planned, env, .. } = self.0.meant.as_ref()?;
        let (workspace, room) = (place.workspace.clone(), place.room.clone());
        Some(Offer { workspace, room, planned: planned.clone(), env: env.clone() })
    }

    pub fn is_for(&self, offer: &Offer) -> bool {
        self.0.meant.as_ref().is_some_and(|meant| meant.place.workspace == offer.workspace)
    }

    /// The worker, for good; none if it has ended meanwhile.
    pub fn claim(self) -> Option<Claimed> {
        self.is_alive().then_some(self.0)
    }

    /// A keeper says nothing while its worker waits; what can be read is its end.
    pub fn is_alive(&self) -> bool {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(
            rustix::net::recv(&self.0.line, &mut byte[..], flags),
            Err(rustix::io::Errno::AGAIN)
        )
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if !self.used {
            // Its worker ends with it. It would go by itself when its line closes, unless somebody
            // has stopped it.
            self.starting.end(&self.id);
            keepers::remove_socket(&self.socket);
            self.groups.remove(&self.cgroups);
        }
    }
}

impl Claimed {
    /// Gives the keeper and its socket the names by which a session's will be looked for.
    pub fn rename(&mut self, session: &SessionId, socket: &Path) -> io::Result<()> {
        std::fs::rename(&self.socket, socket)?;
        socket.clone_into(&mut self.socket);
        self.starting.rename(&self.id, session);
        session.clone_into(&mut self.id);
        Ok(())
    }

    /// Whether it is confined already, and its keeper has the plan.
    pub fn is_bound(&self) -> bool {
        self.meant.is_some()
    }

    /// The directory that was made for its session's journal.
    pub fn take_spare(&mut self) -> Option<Spare> {
        self.meant.as_mut()?.spare.take()
    }

    /// The line to its keeper, on which a node may attach.
    pub fn line(&self) -> io::Result<OwnedFd> {
        self.line.as_fd().try_clone_to_owned()
    }

    /// The keeper has a node now.
    pub fn used(mut self) {
        self.used = true;
        if let Some(meant) = &mut self.meant {
            meant.place.taken();
        }
    }
}

/// What a session must be like to have a worker that is confined already.
#[derive(Debug)]
pub(crate) struct Offer {
    pub workspace: PathBuf,
    pub room: PathBuf,
    pub planned: Arc<Planned>,
    pub env: Vec<(String, String)>,
}

/// A session that is to have a worker before it is asked for.
#[derive(Debug)]
pub(super) struct Binding {
    pub program: PathBuf,
    pub number: u64,
}

impl Binding {
    /// What a worker is confined for that will be such a session's. Nothing where it would not be like
    /// the others who wait.
    fn meant(&self, context: &Context, model: &Model) -> Option<Meant> {
        let place = Place::make(&context.config, context.epoch, self.number).ok()?;
        let own = [place.workspace.clone(), place.room.clone()];
        let usual = usual_in(context, &self.program, own)?;
        let is_full = usual.planned.plan.isolation == Isolation::Full;
        if !is_full || !model.suits(&usual.outline(&usual.own())) {
            return None;
        }
        let Usual { planned, env, limits, .. } = usual;
        let spare = context.journal.spare().ok()?;
        Some(Meant { place, spare: Some(spare), planned, env, limits })
    }
}

fn begin(
    context: &Context,
    id: &SessionId,
    zygote: &Zygote,
    model: &Model,
    meant: Option<Meant>,
) -> Result<Claimed, PoolError> {
    let groups = context.cgroups.clone();
    let limits = meant.as_ref().map_or(UNLIMITED, |meant| meant.limits);
    let cgroups = groups.make(id, &limits).map_err(PoolError::Cgroups)?;
    let begun = keepers::start(context, id).map_err(PoolError::from).and_then(|socket| {
        let line = UnixStream::connect(&socket).map_err(PoolError::Reach)?;
        Ok((socket, line))
    });
    let (socket, mut line) = begun.inspect_err(|_| groups.remove(&cgroups))?;
    let shape = serde_json::to_value(model.shape).unwrap_or_default();
    let plan = model.ahead.as_ref().and_then(|ahead| serde_json::to_string(&ahead.plan).ok());
    let bound = meant.as_ref().map(|Meant { place, planned, env, .. }| Bound {
        plan: planned.text.clone(),
        env: env.clone(),
        cwd: place.workspace.clone(),
    });
    let prepare = Prepare { shape, plan, bound, cgroups: cgroups.clone() };
    let mut bytes = Vec::new();
    let told = parts::encode(&mut bytes, &ToKeeper::Prepare(Box::new(prepare)))
        .map_err(io::Error::other)
        .and_then(|()| zygote.connect())
        .and_then(|zygote| passing::send(&line, &bytes, zygote.as_fd()))
        .and_then(|sent| line.write_all(&bytes[sent..]))
        .and_then(|()| line.set_nonblocking(true));
    let (id, starting) = (id.clone(), context.starting.clone());
    let claimed = Claimed { meant, socket, cgroups, id, starting, groups, line, used: false };
    told.map(|()| claimed).map_err(PoolError::Reach)
}

async fn hear_prepared(claimed: Claimed) -> Result<Claimed, PoolError> {
    let heard = match claimed.line.try_clone().and_then(tokio::net::UnixStream::from_std) {
        Ok(line) => tokio::time::timeout(PREPARED_WAIT, read_prepared(line))
            .await
            .unwrap_or(Err(PoolError::TooSlow)),
        Err(error) => Err(PoolError::Reach(error)),
    };
    heard.map(|()| claimed)
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
