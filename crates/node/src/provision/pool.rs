//! The pool's decisions: which pooled workers to make, give and end. A pure machine: it starts no process
//! and reads no clock. The environment performs its effects.
//!
//! A key is the fingerprint of the base that a pooled worker was built for. Sessions with different
//! policies have different keys, so the pool holds workers of several keys at once:
//!
//! - At most [`KEYS_MAX`] keys have workers, `size` each.
//! - While fewer keys have workers, a new key gets workers from its first claim on.
//! - When all are in use, a key replaces the least recently used one, but only if that one was not claimed
//!   between the key's last two claims. So sessions that alternate over too many policies do not end each
//!   other's workers.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of keys with workers.
pub(super) const KEYS_MAX: usize = 4;

/// Maximum number of known keys, with or without workers.
pub(super) const KEYS_KNOWN_MAX: usize = 2 * KEYS_MAX;

/// Maximum number of workers that are being made at the same time.
pub(super) const MAKING_MAX: usize = 2;

/// The pause between a claim and the refill, so that the session that claimed runs first. In a series of
/// claims the refill starts at the latest [`REFILL_PAUSE_MAX`] after the first claim.
pub(super) const REFILL_PAUSE: Duration = Duration::from_millis(30);
pub(super) const REFILL_PAUSE_MAX: Duration = Duration::from_millis(200);

/// A rush is a series of at least [`RUSH_CLAIMS`] claims that are on average at most [`RUSH_GAP`] apart.
/// The machine is then busy with sessions, and a pooled worker costs more in total than a fork for its
/// session. So the refill starts after the rush, or when the rush has lasted for [`RUSH_PAUSE_MAX`].
pub(super) const RUSH_PAUSE_MAX: Duration = Duration::from_secs(1);
pub(super) const RUSH_CLAIMS: u32 = 8;
pub(super) const RUSH_GAP: Duration = Duration::from_millis(12);

/// The pause after a worker of a key could not be made, before another one of that key is made.
pub(super) const RETRY: Duration = Duration::from_secs(10);

/// A key that was not claimed for this long loses its workers, unless it is the last key with workers.
pub(super) const KEY_IDLE: Duration = Duration::from_secs(5 * 60);

/// The fingerprint of the base that a pooled worker was built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PoolKey(pub u64);

/// The number of a pooled worker.
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
    /// A worker of [`PoolEffect::Make`] is ready.
    Made(WorkerNo),
    /// A worker of [`PoolEffect::Make`] could not be made.
    MakeFailed(WorkerNo),
    /// A pooled worker has ended by itself.
    Ended(WorkerNo),
    /// The base of this key is out of date.
    Stale(PoolKey),
    /// The zygote has ended, or is about to be ended.
    ZygoteGone,
    /// Time has passed.
    Tick,
}

/// Whether the machine has memory for more workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FreeMemory {
    Enough,
    /// No worker is made, and with each tick the least recently used key loses its workers.
    Short,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolEffect {
    /// Give this worker to the session that claims.
    Give(WorkerNo),
    /// Make a worker. The answer is [`PoolEvent::Made`] or [`PoolEvent::MakeFailed`].
    Make(PoolKey, WorkerNo),
    /// End this worker.
    End(WorkerNo),
    /// The pool has forgotten this key: drop its base.
    Forget(PoolKey),
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct WorkerPool {
    /// Workers per key.
    size: usize,
    keys: Vec<KeySlot>,
    /// The claims since the pool was last full.
    series: Option<ClaimSeries>,
    /// Workers that are still being made, for keys that the pool has forgotten.
    abandoned: Vec<WorkerNo>,
    next: u64,
}

/// A series of claims.
#[derive(Debug, Clone, Copy)]
struct ClaimSeries {
    first: Now,
    last: Now,
    claims: u32,
}

impl ClaimSeries {
    /// The refill starts at this time.
    fn paused_until(&self) -> Now {
        let after_last = self.last + REFILL_PAUSE;
        let gaps = self.claims.saturating_sub(1).max(1);
        let is_rush = self.claims >= RUSH_CLAIMS && (self.last - self.first) / gaps <= RUSH_GAP;
        let longest = if is_rush { RUSH_PAUSE_MAX } else { REFILL_PAUSE_MAX };
        after_last.min(self.first + longest)
    }
}

/// One key with its workers.
#[derive(Debug)]
struct KeySlot {
    key: PoolKey,
    /// Whether the key has workers, or gets them. Other keys are only remembered.
    filled: bool,
    ready: VecDeque<WorkerNo>,
    making: Vec<WorkerNo>,
    claimed_at: Now,
    /// When making a worker failed. Cleared when one is made.
    failed_at: Option<Now>,
}

impl KeySlot {
    /// Number of workers to make now.
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
        Self { size, keys, series: None, abandoned, next: 1 }
    }

    /// Takes one event and returns the effects.
    pub fn step(&mut self, event: PoolEvent, now: Now, memory: FreeMemory) -> Vec<PoolEffect> {
        let mut effects = Vec::new();
        match event {
            PoolEvent::Expected(key) => {
                let filled = self.filled();
                self.slot_of(key, now, &mut effects).filled |= filled < KEYS_MAX;
            }
            PoolEvent::Claimed(key) => self.claim(key, now, &mut effects),
            PoolEvent::Made(worker) => match self.done_making(worker) {
                Some(slot) => {
                    slot.failed_at = None;
                    slot.ready.push_back(worker);
                }
                None => effects.push(PoolEffect::End(worker)),
            },
            PoolEvent::MakeFailed(worker) => {
                if let Some(slot) = self.done_making(worker) {
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

    /// When the next [`PoolEvent::Tick`] is due, if one is.
    pub fn next_tick(&self, now: Now) -> Option<Now> {
        if self.is_full() {
            return None;
        }
        let retries = self.keys.iter().filter_map(|slot| Some(slot.failed_at? + RETRY));
        retries.chain(self.paused_until(now)).filter(|at| *at > now).min()
    }

    /// The number of ready workers, and the number that the pool aims for.
    pub fn counts(&self) -> (usize, usize) {
        let ready = self.keys.iter().map(|slot| slot.ready.len()).sum();
        (ready, self.filled().max(1) * self.size)
    }

    /// Whether every key is full, or waits after a failure.
    pub fn is_settled(&self) -> bool {
        let size = self.size;
        self.keys.iter().all(|slot| slot.is_full(size) || slot.failed_at.is_some())
    }

    /// Number of keys with workers.
    fn filled(&self) -> usize {
        self.keys.iter().filter(|slot| slot.filled).count()
    }

    fn is_full(&self) -> bool {
        self.keys.iter().all(|slot| slot.is_full(self.size))
    }

    fn claim(&mut self, key: PoolKey, now: Now, effects: &mut Vec<PoolEffect>) {
        let series = self.series.get_or_insert(ClaimSeries { first: now, last: now, claims: 0 });
        *series = ClaimSeries { last: now, claims: series.claims.saturating_add(1), ..*series };
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

    /// The slot of a key. A new key gets a new slot. If too many keys are known, the least recently used
    /// one without workers is forgotten.
    fn slot_of(&mut self, key: PoolKey, now: Now, effects: &mut Vec<PoolEffect>) -> &mut KeySlot {
        if let Some(index) = self.keys.iter().position(|slot| slot.key == key) {
            return &mut self.keys[index];
        }
        if self.keys.len() >= KEYS_KNOWN_MAX
            && let Some((oldest, _)) = self.least_recently_used(|slot| !slot.filled)
        {
            self.forget(|slot| slot.key == oldest, effects);
        }
        let index = self.keys.len();
        let ready = VecDeque::new();
        self.keys.push(KeySlot {
            key,
            filled: false,
            ready,
            making: Vec::new(),
            claimed_at: now,
            failed_at: None,
        });
        &mut self.keys[index]
    }

    fn least_recently_used(&self, among: impl Fn(&KeySlot) -> bool) -> Option<(PoolKey, Now)> {
        let slots = self.keys.iter().filter(|slot| among(slot));
        slots.min_by_key(|slot| slot.claimed_at).map(|slot| (slot.key, slot.claimed_at))
    }

    /// A worker is no longer being made. Returns its slot, if the pool still knows the key.
    fn done_making(&mut self, worker: WorkerNo) -> Option<&mut KeySlot> {
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
            self.series = None;
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
            // The key that lacks most workers comes first; among equals, the most recently claimed one.
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
        Some(self.series?.paused_until()).filter(|until| *until > now)
    }
}
