//! Which sessions this node has: the live ones, and ids that are taken while a session is made or while its files
//! are removed. `fleet::routes` knows the sessions of other nodes. The directory also knows when the node was last used.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::Notify;
use windlass_protocol::SessionId;

use crate::session::SessionHandle;

#[derive(Debug)]
pub(crate) struct SessionDirectory {
    sessions: Mutex<HashMap<SessionId, Slot>>,
    /// Notified when a session was created or its creation failed, and when an id is free again.
    made: Notify,
    /// Notified when the last session has ended, when an id is free again, and when a tool host detaches.
    pub idle: Notify,
    last_use_ms: AtomicU64,
    /// Number of requests that are being answered.
    serving: AtomicUsize,
    /// A session was released to its keeper, for another node.
    released: AtomicBool,
    born: Instant,
}

/// Maximum number of live children of a session.
const CHILDREN_MAX: usize = 8;

/// Why an id cannot be reserved.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReserveError {
    /// A live session has the id.
    IdTaken,
    /// The session is for a child of a session that is not live.
    ParentGone,
    /// The parent has as many children as a session may have.
    TooManyChildren(usize),
}

/// The state of one id.
#[derive(Debug)]
enum Slot {
    /// The session is being created: the id is taken, but the session cannot be found yet.
    Reserved {
        parent: Option<SessionId>,
    },
    Live(SessionHandle),
    /// The session has ended and its files are being removed. No session of this id is created meanwhile.
    Clearing,
}

impl Slot {
    fn parent(&self) -> Option<&SessionId> {
        match self {
            Self::Reserved { parent } => parent.as_ref(),
            Self::Live(handle) => handle.parent.as_ref(),
            Self::Clearing => None,
        }
    }
}

impl Default for SessionDirectory {
    fn default() -> Self {
        Self {
            sessions: Mutex::default(),
            made: Notify::new(),
            idle: Notify::new(),
            last_use_ms: AtomicU64::new(0),
            serving: AtomicUsize::new(0),
            released: AtomicBool::new(false),
            born: Instant::now(),
        }
    }
}

impl SessionDirectory {
    /// The session, if it lives in this node.
    pub fn find(&self, id: &SessionId) -> Option<SessionHandle> {
        match self.lock().get(id) {
            Some(Slot::Live(handle)) => Some(handle.clone()),
            Some(Slot::Reserved { .. } | Slot::Clearing) | None => None,
        }
    }

    /// Whether the session is live or is being created. The journal has a session before it is live, so a
    /// session that is in the journal and not known here has ended.
    pub fn knows(&self, id: &SessionId) -> bool {
        matches!(self.lock().get(id), Some(Slot::Reserved { .. } | Slot::Live(_)))
    }

    pub fn handles(&self) -> Vec<SessionHandle> {
        let sessions = self.lock();
        let live = sessions.values().filter_map(|slot| match slot {
            Slot::Live(handle) => Some(handle.clone()),
            Slot::Reserved { .. } | Slot::Clearing => None,
        });
        live.collect()
    }

    /// The first rooms of all families (`session_dirs` defines a room).
    pub fn rooms(&self) -> Vec<PathBuf> {
        self.handles().into_iter().filter_map(|handle| handle.room).collect()
    }

    /// All names in use: with true the live sessions, with false those that are being made or removed.
    pub fn ids(&self) -> Vec<(SessionId, bool)> {
        let sessions = self.lock();
        let is_live = |slot: &Slot| matches!(slot, Slot::Live(_));
        sessions.iter().map(|(id, slot)| (id.clone(), is_live(slot))).collect()
    }

    pub fn count(&self) -> usize {
        self.lock().values().filter(|slot| !matches!(slot, Slot::Clearing)).count()
    }

    /// Reserves an id, for a child if there is a parent. If a session of this id is being created or removed, waits
    /// for the result.
    pub async fn reserve(
        &self,
        id: &SessionId,
        parent: Option<&SessionId>,
    ) -> Result<(), ReserveError> {
        loop {
            let made = self.made.notified();
            if self.try_reserve(id, parent)? {
                return Ok(());
            }
            made.await;
        }
    }

    /// Returns false if the id is neither free nor live.
    fn try_reserve(
        &self,
        id: &SessionId,
        parent: Option<&SessionId>,
    ) -> Result<bool, ReserveError> {
        let mut sessions = self.lock();
        match sessions.get(id) {
            Some(Slot::Live(_)) => return Err(ReserveError::IdTaken),
            Some(Slot::Reserved { .. } | Slot::Clearing) => return Ok(false),
            None => {}
        }
        if let Some(parent) = parent {
            // A session that has ended stays listed until its end is written.
            match sessions.get(parent) {
                Some(Slot::Live(handle)) if !handle.has_ended() => {}
                _ => return Err(ReserveError::ParentGone),
            }
            let children = sessions.values().filter(|slot| slot.parent() == Some(parent)).count();
            if children >= CHILDREN_MAX {
                return Err(ReserveError::TooManyChildren(CHILDREN_MAX));
            }
        }
        sessions.insert(id.clone(), Slot::Reserved { parent: parent.cloned() });
        Ok(true)
    }

    /// Makes the session live. Returns the number of sessions.
    pub fn admit(&self, handle: SessionHandle) -> usize {
        let mut sessions = self.lock();
        sessions.insert(handle.id.clone(), Slot::Live(handle));
        self.made.notify_waiters();
        sessions.len()
    }

    /// The live children of a session.
    pub fn children_of(&self, parent: &SessionId) -> Vec<SessionHandle> {
        let is_child = |handle: &SessionHandle| handle.parent.as_ref() == Some(parent);
        self.handles().into_iter().filter(is_child).collect()
    }

    /// Removes a session that has ended or could not be created. Returns the number of remaining sessions.
    pub fn remove(&self, id: &SessionId) -> usize {
        let mut sessions = self.lock();
        sessions.remove(id);
        self.made.notify_waiters();
        if sessions.is_empty() {
            self.used();
            self.idle.notify_one();
        }
        sessions.len()
    }

    /// Notes that a session was released to its keeper, for another node.
    pub fn note_released(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    pub fn has_released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    /// Claims a free id while the files of its session are removed. A creation of a session with this id
    /// waits.
    pub fn claim(&self, id: &SessionId) -> bool {
        match self.lock().entry(id.clone()) {
            Entry::Vacant(free) => {
                free.insert(Slot::Clearing);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Releases a claimed id.
    pub fn unclaim(&self, id: &SessionId) {
        self.lock().remove(id);
        self.made.notify_waiters();
        self.idle.notify_one();
    }

    /// Notes that the node is used now.
    pub fn used(&self) {
        self.last_use_ms.store(self.age_ms(), Ordering::Relaxed);
    }

    /// Counts a request as being answered until the returned value is dropped.
    pub fn serve(&self) -> ServedRequest<'_> {
        self.serving.fetch_add(1, Ordering::Relaxed);
        ServedRequest(self)
    }

    /// Milliseconds since the node was last used.
    pub fn unused_ms(&self) -> u64 {
        if self.serving.load(Ordering::Acquire) > 0 {
            return 0;
        }
        self.age_ms().saturating_sub(self.last_use_ms.load(Ordering::Relaxed))
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Slot>> {
        self.sessions.lock().expect("no holder of this lock can panic")
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct ServedRequest<'a>(&'a SessionDirectory);

impl Drop for ServedRequest<'_> {
    fn drop(&mut self) {
        // The time first: whoever reads that no request is being answered reads the time of this one.
        self.0.used();
        self.0.serving.fetch_sub(1, Ordering::Release);
    }
}
