//! Which sessions this node has: those that live, and ids that are taken while a session is made or what
//! it left is removed. Knows when the node was last used.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::Notify;
use windlass_protocol::SessionId;

use crate::session::SessionHandle;

#[derive(Debug)]
pub(crate) struct Directory {
    sessions: Mutex<HashMap<SessionId, Slot>>,
    /// Told when a session that was being made is there, or is not to be.
    made: Notify,
    /// Told when the last session goes, or anything is asked.
    pub idle: Notify,
    last_use_ms: AtomicU64,
    /// A session was left to its keeper, for another node.
    released: AtomicBool,
    born: Instant,
}

/// What is known of one id.
#[derive(Debug)]
enum Slot {
    /// Being made: the id is taken and nobody else learns it yet.
    Reserved,
    Live(SessionHandle),
    /// The session is over, and its files are being removed. No session of this id is made meanwhile.
    Clearing,
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            sessions: Mutex::default(),
            made: Notify::new(),
            idle: Notify::new(),
            last_use_ms: AtomicU64::new(0),
            released: AtomicBool::new(false),
            born: Instant::now(),
        }
    }
}

impl Directory {
    /// The session, if it lives in this node.
    pub fn find(&self, id: &SessionId) -> Option<SessionHandle> {
        match self.lock().get(id) {
            Some(Slot::Live(handle)) => Some(handle.clone()),
            Some(Slot::Reserved | Slot::Clearing) | None => None,
        }
    }

    /// Whether the session lives or is being made. The journal knows it before it lives: what is
    /// there and not known here has ended.
    pub fn knows(&self, id: &SessionId) -> bool {
        matches!(self.lock().get(id), Some(Slot::Reserved | Slot::Live(_)))
    }

    pub fn handles(&self) -> Vec<SessionHandle> {
        let sessions = self.lock();
        let live = sessions.values().filter_map(|slot| match slot {
            Slot::Live(handle) => Some(handle.clone()),
            Slot::Reserved | Slot::Clearing => None,
        });
        live.collect()
    }

    /// The first rooms of all families.
    pub fn rooms(&self) -> Vec<PathBuf> {
        self.handles().into_iter().filter_map(|handle| handle.room).collect()
    }

    pub fn count(&self) -> usize {
        self.lock().values().filter(|slot| !matches!(slot, Slot::Clearing)).count()
    }

    /// Takes an id, if it is free. One that is being made is waited for: of a session that exists,
    /// whoever asks next learns where it is.
    pub async fn reserve(&self, id: &SessionId) -> bool {
        loop {
            let made = self.made.notified();
            match self.lock().entry(id.clone()) {
                Entry::Vacant(free) => {
                    free.insert(Slot::Reserved);
                    return true;
                }
                Entry::Occupied(taken) if matches!(taken.get(), Slot::Live(_)) => return false,
                Entry::Occupied(_) => {}
            }
            made.await;
        }
    }

    /// The session lives; how many there are.
    pub fn admit(&self, handle: SessionHandle) -> usize {
        let mut sessions = self.lock();
        sessions.insert(handle.id.clone(), Slot::Live(handle));
        self.made.notify_waiters();
        sessions.len()
    }

    /// The session is over, or was not made; how many are left.
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

    /// A session was left to its keeper, for another node.
    pub fn note_released(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    pub fn has_released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    /// Takes an id that nobody has, while what its session left is removed; whoever asks for it waits.
    pub fn claim(&self, id: &SessionId) -> bool {
        match self.lock().entry(id.clone()) {
            Entry::Vacant(free) => {
                free.insert(Slot::Clearing);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Gives a claimed id back.
    pub fn unclaim(&self, id: &SessionId) {
        self.lock().remove(id);
        self.made.notify_waiters();
        self.idle.notify_one();
    }

    /// Somebody used the node just now.
    pub fn used(&self) {
        self.last_use_ms.store(self.age_ms(), Ordering::Relaxed);
    }

    /// Milliseconds since somebody used the node.
    pub fn unused_ms(&self) -> u64 {
        self.age_ms().saturating_sub(self.last_use_ms.load(Ordering::Relaxed))
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Slot>> {
        self.sessions.lock().expect("no holder of this lock can panic")
    }
}
