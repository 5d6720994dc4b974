//! The pool's decisions: which pooled workers to make, give and end. A pure machine: it never starts a
//! process, and reads no clock. Its owner performs the effects.
//!
//! A key is the fingerprint of what a pooled worker was built for. Sessions with different policies have
//! different keys, so the pool holds workers of several keys at once:
//!
//! - At most [`KEYS_MAX`] keys have workers, `size` each.
//! - While fewer keys have workers, a new key gets workers from its first claim on.
//! - After that, a key replaces the least recently used one only if that one was not claimed between the
//!   key's last two claims. Sessions that alternate over too many policies so do not end each other's
//!   workers.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

/// Keys that have workers at once.
pub(super) const KEYS_MAX: usize = 4;

/// Keys that are known at once, with workers or without.
pub(super) const KEYS_KNOWN_MAX: usize = 2 * KEYS_MAX;

/// Workers that are made at the same time.
pub(super) const MAKING_MAX: usize = 2;

/// The pool is refilled so long after a claim: the session that claimed comes first. In a row of claims,
/// the pool is refilled at the latest so long after the first of them.
pub(super) const REFILL_PAUSE: Duration = Duration::from_millis(30);
pub(super) const REFILL_PAUSE_MAX: Duration = Duration::from_millis(200);

/// A row of at least so many claims that are on average no further apart is a rush: the machine is busy
/// with sessions, and a pooled worker costs more in all than a fork for its session. The pool is then
/// refilled after the rush, or when the rush has lasted so long.
pub(super) const RUSH_PAUSE_MAX: Duration = Duration::from_secs(1);
pub(super) const RUSH_CLAIMS: u32 = 8;
pub(super) const RUSH_GAP: Duration = Duration::from_millis(12);

/// After a worker of a key could not be made, no other of that key is made for so long.
pub(super) const RETRY: Duration = Duration::from_secs(10);

/// A key that was not claimed for so long loses its workers, unless it is the last that has any.
pub(super) const KEY_IDLE: Duration = Duration::from_secs(5 * 60);

/// The fingerprint of what a pooled worker was built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PoolKey(pub u64);

/// One pooled worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WorkerNo(pub u64);

/// Time since the node started.
pub(super) type Now = Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolEvent {
    /// Sessions with this key are expected.
    Expected(PoolKey),
    /// A session with this key asks for a worker.
    Claimed(PoolKey),
    /// A worker that was to be made is ready.
    Made(WorkerNo),
    /// A worker that was to be made could not be.
    MakeFailed(WorkerNo),
    /// A pooled worker has ended by itself.
    Ended(WorkerNo),
    /// What workers of this key were built for is no longer as it was.
    Stale(PoolKey),
    /// The zygote has ended, or goes.
    ZygoteGone,
    /// Time has passed.
    Tick,
}

/// What the machine has free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FreeMemory {
    Enough,
    /// No worker is made, and the least recently used key loses its workers with each tick.
    Short,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolEffect {
    /// The session that asks gets this worker.
    Give(WorkerNo),
    /// A worker is to be made. The answer is [`Event::Made`] or [`Event::MakeFailed`].
    Make(PoolKey, WorkerNo),
    /// A worker is to be ended.
    End(WorkerNo),
    /// The pool forgets this key.
    Forget(PoolKey),
}

/// See the module's first lines.
#[derive(Debug)]
pub(super) struct WorkerPool {
    /// Workers of one key.
    size: usize,
    keys: Vec<KeySlot>,
    /// Claims since the pool was last full.
    row: Option<ClaimSeries>,
    /// Workers that are being made for keys that the pool has forgotten meanwhile.
    abandoned: Vec<WorkerNo>,
    next: u64,
}

/// A row of claims.
#[derive(Debug, Clone, Copy)]
struct ClaimSeries {
    first: Now,
    last: Now,
    claims: u32,
}

impl ClaimSeries {
    /// Until when the pool is not refilled.
    fn paused_until(&self) -> Now {
        let after_last = self.last + REFILL_PAUSE;
        let gaps = self.claims.saturating_sub(1).max(1);
        let is_rush = self.claims >= RUSH_CLAIMS && (self.last - self.first) / gaps <= RUSH_GAP;
        let longest = if is_rush { RUSH_PAUSE_MAX } else { REFILL_PAUSE_MAX };
        after_last.min(self.first + longest)
    }
}

#[derive(Debug)]
struct KeySlot {
    key: PoolKey,
    /// Whether the key has workers.
    filled: bool,
    ready: VecDeque<WorkerNo>,
    making: Vec<WorkerNo>,
    claimed_at: Now,
    /// When a worker could not be made, until one could.
    failed_at: Option<Now>,
}

impl KeySlot {
    /// Workers that are to be made now.
    fn missing(&self, size: usize, now: Now) -> usize {
        let is_paused = self.failed_at.is_some_and(|at| at + RETRY > now);
        let has = self.ready.len() + self.making.len();
        if self.filled && !is_paused { size.saturating_sub(has) } else { 0 }
    }

    fn is_full(&self, size: usize) -> bool {
        !self.filled || self.ready.len() >= size
    }
}

impl WorkerPool {
    pub fn new(size: usize) -> Self {
        let (keys, abandoned) = (Vec::new(), Vec::new());
        Self { size, keys, row: None, abandoned, next: 1 }
    }

    /// Decides what follows from an event.
    pub fn step(&mut self, event: PoolEvent, now: Now, memory: FreeMemory) -> Vec<PoolEffect> {
        let mut effects = Vec::new();
        match event {
            PoolEvent::Expected(key) => {
                let filled = self.filled();
                self.slot_of(key, now, &mut effects).filled |= filled < KEYS_MAX;
            }
            PoolEvent::Claimed(key) => self.claim(key, now, &mut effects),
            PoolEvent::Made(worker) => match self.made(worker) {
                Some(slot) => {
                    slot.failed_at = None;
                    slot.ready.push_back(worker);
                }
                None => effects.push(PoolEffect::End(worker)),
            },
            PoolEvent::MakeFailed(worker) => {
                if let Some(slot) = self.made(worker) {
                    slot.failed_at = Some(now);
                }
            }
            PoolEvent::Ended(worker) => {
                self.keys.iter_mut().for_each(|slot| slot.ready.retain(|one| *one != worker));
            }
            PoolEvent::Stale(key) => self.forget(|slot| slot.key == key, &mut effects),
            PoolEvent::ZygoteGone => self.forget(|_| true, &mut effects),
            PoolEvent::Tick => self.forget_idle(now, memory, &mut effects),
        }
        if memory == FreeMemory::Enough {
            self.refill(now, &mut effects);
        }
        effects
    }

    /// When something is to be decided that no event tells of.
    pub fn next_tick(&self, now: Now) -> Option<Now> {
        if self.is_full() {
            return None;
        }
        let retries = self.keys.iter().filter_map(|slot| Some(slot.failed_at? + RETRY));
        retries.chain(self.paused_until(now)).filter(|at| *at > now).min()
    }

    /// Workers that are ready, and how many there should be.
    pub fn counts(&self) -> (usize, usize) {
        let ready = self.keys.iter().map(|slot| slot.ready.len()).sum();
        (ready, self.filled().max(1) * self.size)
    }

    /// Whether no worker is to come before something happens.
    pub fn is_settled(&self) -> bool {
        let size = self.size;
        self.keys.iter().all(|slot| slot.is_full(size) || slot.failed_at.is_some())
    }

    /// Keys that have workers.
    fn filled(&self) -> usize {
        self.keys.iter().filter(|slot| slot.filled).count()
    }

    fn is_full(&self) -> bool {
        self.keys.iter().all(|slot| slot.is_full(self.size))
    }

    fn claim(&mut self, key: PoolKey, now: Now, effects: &mut Vec<PoolEffect>) {
        let row = self.row.get_or_insert(ClaimSeries { first: now, last: now, claims: 0 });
        *row = ClaimSeries { last: now, claims: row.claims.saturating_add(1), ..*row };
        let filled = self.filled();
        let oldest = self.least_recently_used(|slot| slot.filled && slot.key != key);
        let is_known = self.keys.iter().any(|slot| slot.key == key);
        let slot = self.slot_of(key, now, effects);
        let before = std::mem::replace(&mut slot.claimed_at, now);
        if let Some(worker) = slot.ready.pop_front() {
            effects.push(PoolEffect::Give(worker));
        }
        if slot.filled {
            return;
        }
        if filled < KEYS_MAX {
            slot.filled = true;
        } else if let Some((oldest, claimed_at)) = oldest
            && is_known
            && claimed_at < before
        {
            slot.filled = true;
            self.forget(|slot| slot.key == oldest, effects);
        }
    }

    /// The slot of a key. Where there is none, it is made; the least recently used key that has no
    /// workers is forgotten for it.
    fn slot_of(&mut self, key: PoolKey, now: Now, effects: &mut Vec<PoolEffect>) -> &mut KeySlot {
        if let Some(place) = self.keys.iter().position(|slot| slot.key == key) {
            return &mut self.keys[place];
        }
        if self.keys.len() >= KEYS_KNOWN_MAX
            && let Some((oldest, _)) = self.least_recently_used(|slot| !slot.filled)
        {
            self.forget(|slot| slot.key == oldest, effects);
        }
        let place = self.keys.len();
        let ready = VecDeque::new();
        self.keys.push(KeySlot {
            key,
            filled: false,
            ready,
            making: Vec::new(),
            claimed_at: now,
            failed_at: None,
        });
        &mut self.keys[place]
    }

    fn least_recently_used(&self, among: impl Fn(&KeySlot) -> bool) -> Option<(PoolKey, Now)> {
        let slots = self.keys.iter().filter(|slot| among(slot));
        slots.min_by_key(|slot| slot.claimed_at).map(|slot| (slot.key, slot.claimed_at))
    }

    /// A worker is no longer being made; the slot that it is for, if the pool still knows its key.
    fn made(&mut self, worker: WorkerNo) -> Option<&mut KeySlot> {
        self.abandoned.retain(|one| *one != worker);
        let slot = self.keys.iter_mut().find(|slot| slot.making.contains(&worker))?;
        slot.making.retain(|one| *one != worker);
        Some(slot)
    }

    fn forget(&mut self, which: impl Fn(&KeySlot) -> bool, effects: &mut Vec<PoolEffect>) {
        for slot in self.keys.extract_if(.., |slot| which(slot)) {
            effects.extend(slot.ready.iter().map(|worker| PoolEffect::End(*worker)));
            effects.push(PoolEffect::Forget(slot.key));
            self.abandoned.extend(slot.making);
        }
    }

    fn forget_idle(&mut self, now: Now, memory: FreeMemory, effects: &mut Vec<PoolEffect>) {
        let newest = self.keys.iter().filter(|slot| slot.filled).map(|slot| slot.claimed_at).max();
        let is_idle = |slot: &KeySlot| {
            slot.claimed_at + KEY_IDLE <= now && (!slot.filled || Some(slot.claimed_at) < newest)
        };
        self.forget(is_idle, effects);
        if memory == FreeMemory::Short
            && let Some((oldest, _)) = self.least_recently_used(|slot| slot.filled)
        {
            self.forget(|slot| slot.key == oldest, effects);
        }
    }

    fn refill(&mut self, now: Now, effects: &mut Vec<PoolEffect>) {
        if self.is_full() {
            self.row = None;
            return;
        }
        if self.paused_until(now).is_some() {
            return;
        }
        loop {
            let making: usize = self.keys.iter().map(|slot| slot.making.len()).sum();
            if making + self.abandoned.len() >= MAKING_MAX {
                return;
            }
            // The key with the fewest workers comes first; of those, the most recently claimed one.
            let size = self.size;
            let next = self
                .keys
                .iter_mut()
                .filter(|slot| slot.missing(size, now) > 0)
                .max_by_key(|slot| (slot.missing(size, now), slot.claimed_at));
            let Some(slot) = next else { return };
            let worker = WorkerNo(self.next);
            self.next += 1;
            slot.making.push(worker);
            effects.push(PoolEffect::Make(slot.key, worker));
        }
    }

    fn paused_until(&self, now: Now) -> Option<Now> {
        Some(self.row?.paused_until()).filter(|until| *until > now)
    }
}
