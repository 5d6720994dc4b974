//! Connection slots: how many connections the node serves, and which connection is evicted when all slots
//! are taken and another client connects. Owns the slot count and the progress of each connection; never
//! touches a socket.
//!
//! The order of eviction:
//! 1. a connection between two requests or with an incomplete head, the longest idle first; and a connection that never
//!    had an authorised request, as soon as its client does not read a response;
//! 2. a connection whose request body is incomplete: the one that has sent nothing for longest;
//! 3. a connection whose client has not read its response for some seconds.
//!
//! No other connection with a request in flight is evicted. A request costs a few atomic stores here: the
//! order is computed only when a connection must be evicted.
//!
//! Long-lived connections (followers, tool hosts, replies that wait) get at most three quarters of the slots,
//! so that short requests always find a slot. A tenant is known only when a request has arrived: requests of tenants
//! that are being answered are counted then (`crate::bounds`), and one tenant gets at most half of the slots for them.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

/// Maximum number of connections, whatever the descriptor limit.
const CONNECTIONS_MAX: u64 = 16_384;

/// Connections may take half of the node's descriptors. The other half is for sessions, which take a few
/// each, for the journal and for processes that are being started.
const DESCRIPTORS_SHARE: u64 = 2;

/// How many quarters of the slots long-lived connections may take.
const LONG_QUARTERS: usize = 3;

/// A client that has not read its response for this long may be evicted.
const UNREAD_MS: u64 = 5000;

/// How often a connection that waits for a slot retries. Nothing signals that a client stopped reading.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// All connection slots of one node.
pub(super) struct ConnectionSlots {
    slots_max: usize,
    table: Mutex<SlotTable>,
    /// Notified when a slot becomes free.
    freed: Notify,
    demand: Arc<SlotDemand>,
}

#[derive(Default)]
struct SlotTable {
    taken: usize,
    /// Connections by a moment at or before the one since which the connection is idle.
    by_moment: BTreeMap<u64, Arc<ConnectionProgress>>,
}

/// State that all connections share: a logical clock, and whether a slot is wanted.
struct SlotDemand {
    started: Instant,
    /// A logical clock; it is cheaper than the system's clock and gives the same order.
    moment: AtomicU64,
    /// A connection waits for a slot and none was idle: the next connection that becomes idle is evicted.
    wanted: AtomicBool,
}

/// The slot of one connection; dropping it frees the slot.
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    progress: Arc<ConnectionProgress>,
}

/// The progress of one connection.
pub(super) struct ConnectionProgress {
    demand: Arc<SlotDemand>,
    /// [`IN_FLIGHT`], [`ANSWERED`], or the moment since which the client sends nothing.
    state: AtomicU64,
    /// The body of the request is incomplete.
    in_body: AtomicBool,
    /// A part of the next request's head has arrived.
    head_begun: AtomicBool,
    /// The connection's key in `SlotTable::by_moment`; changed only under the table's lock.
    key: AtomicU64,
    /// The connection should close. A request that arrives meanwhile clears this again.
    evicted: AtomicBool,
    waker: AtomicWaker,
    /// A piece of a response is not written yet.
    piece_unwritten: AtomicBool,
    /// Wakes the body that has the next piece.
    piece_waker: AtomicWaker,
    /// The connection was upgraded and is not evicted any more.
    upgraded: AtomicBool,
    /// When the client stopped reading the response; [`READS`] while it reads.
    unread_since_ms: AtomicU64,
    /// A request of the connection was authorised. Until then its client may be anyone.
    admitted: AtomicBool,
}

/// The client reads what is written, or there is nothing to write.
const READS: u64 = 0;

/// A request is being answered.
const IN_FLIGHT: u64 = 0;

/// The response is complete, but not written completely.
const ANSWERED: u64 = 1;

const FIRST_MOMENT: u64 = 2;

impl ConnectionSlots {
    /// As many slots as the node's limit of descriptors allows.
    pub fn within(descriptors: u64) -> Arc<Self> {
        let slots_max = (descriptors / DESCRIPTORS_SHARE).clamp(1, CONNECTIONS_MAX);
        Self::new(usize::try_from(slots_max).unwrap_or(usize::MAX))
    }

    fn new(slots_max: usize) -> Arc<Self> {
        Self::since(Instant::now(), slots_max)
    }

    fn since(started: Instant, slots_max: usize) -> Arc<Self> {
        let demand = Arc::new(SlotDemand {
            started,
            moment: AtomicU64::new(FIRST_MOMENT),
            wanted: AtomicBool::new(false),
        });
        Arc::new(Self { slots_max, table: Mutex::default(), freed: Notify::new(), demand })
    }

    /// Maximum number of connections.
    pub fn count_max(&self) -> usize {
        self.slots_max
    }

    /// Maximum number of long-lived connections.
    pub fn long_lived_max(&self) -> usize {
        (self.slots_max * LONG_QUARTERS / 4).max(1)
    }

    /// Takes a slot for one connection. If all slots are taken, evicts a connection and waits.
    pub async fn take(self: &Arc<Self>) -> ConnectionSlot {
        loop {
            if let Some(slot) = self.try_take() {
                return slot;
            }
            // The next round finds out whether a slot is free or the time has passed.
            let _ = tokio::time::timeout(RETRY_INTERVAL, self.freed.notified()).await;
        }
    }

    /// Evicts a connection, now or when its request is done, and waits until a slot is free.
    pub async fn free_one(&self) {
        self.evict_one(&mut self.lock());
        self.freed.notified().await;
    }

    /// Waits until a slot is free.
    pub async fn wait_for_free(&self) {
        self.freed.notified().await;
    }

    fn try_take(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let mut table = self.lock();
        if table.taken >= self.slots_max {
            self.evict_one(&mut table);
            return None;
        }
        table.taken += 1;
        let now = self.demand.now();
        let progress = Arc::new(ConnectionProgress {
            demand: self.demand.clone(),
            state: AtomicU64::new(now),
            in_body: AtomicBool::new(false),
            head_begun: AtomicBool::new(false),
            key: AtomicU64::new(now),
            evicted: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            piece_unwritten: AtomicBool::new(false),
            piece_waker: AtomicWaker::new(),
            upgraded: AtomicBool::new(false),
            unread_since_ms: AtomicU64::new(READS),
            admitted: AtomicBool::new(false),
        });
        table.by_moment.insert(now, progress.clone());
        Some(ConnectionSlot { slots: self.clone(), progress })
    }

    /// Evicts one connection. A key is never later than the moment since which its connection is idle, so the
    /// first connection whose key is exact has been idle for longest. Every other connection gets a later
    /// key. Two rounds find the connection, or there is none.
    fn evict_one(&self, table: &mut SlotTable) {
        // The connection that has been silent for longest while it sends a body, and the one that has not
        // read for longest.
        let mut sender: Option<(u64, Arc<ConnectionProgress>)> = None;
        let mut reader: Option<(u64, Arc<ConnectionProgress>)> = None;
        let keep_longest = |kept: &mut Option<(u64, Arc<ConnectionProgress>)>,
                            since,
                            progress: &Arc<ConnectionProgress>| {
            if kept.as_ref().is_none_or(|(longest, _)| since < *longest) {
                *kept = Some((since, progress.clone()));
            }
        };
        for _ in 0..2 * table.by_moment.len() {
            let Some((key, progress)) = table.by_moment.pop_first() else { break };
            let later = match progress.activity() {
                Activity::Idle { since } if since == key => {
                    progress.evict();
                    // Its next request may arrive before it closes. Then it can be evicted again later.
                    table.by_moment.insert(key, progress);
                    return;
                }
                Activity::NotAdmitted => {
                    progress.evict();
                    table.by_moment.insert(key, progress);
                    return;
                }
                Activity::Idle { since } => since,
                Activity::Serving => self.demand.now(),
                Activity::SendingBody { since } => {
                    keep_longest(&mut sender, since, &progress);
                    self.demand.now()
                }
                Activity::NotReading { since_ms } => {
                    keep_longest(&mut reader, since_ms, &progress);
                    self.demand.now()
                }
            };
            progress.key.store(later, Ordering::Relaxed);
            table.by_moment.insert(later, progress);
        }
        match sender.or(reader) {
            Some((_, progress)) => progress.evict(),
            None => self.demand.wanted.store(true, Ordering::Release),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionSlot {
    pub fn progress(&self) -> &ConnectionProgress {
        &self.progress
    }

    /// A request's head has arrived: the connection stays until it is answered, which may take long. If it
    /// was evicted, another connection is evicted instead.
    pub fn request_begins(&self) {
        self.progress.request_begins();
        if self.progress.evicted.load(Ordering::Acquire) {
            self.progress.evicted.store(false, Ordering::Release);
            self.slots.evict_one(&mut self.slots.lock());
        }
    }

    /// The request upgrades the connection, which then stays until it ends. If it was evicted when the
    /// request arrived, another connection is evicted instead.
    pub fn upgraded(&self) {
        self.progress.upgraded.store(true, Ordering::Relaxed);
        if self.progress.evicted.load(Ordering::Acquire) {
            self.slots.evict_one(&mut self.slots.lock());
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.slots.lock();
        table.by_moment.remove(&self.progress.key.load(Ordering::Relaxed));
        table.taken -= 1;
        drop(table);
        self.slots.freed.notify_one();
    }
}

/// The outcome of a write to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Wrote,
    /// The socket's buffer is full: the client has not read what was written before.
    Blocked,
}

/// The activity of a connection, for the choice of the connection to evict.
enum Activity {
    Idle {
        since: u64,
    },
    SendingBody {
        since: u64,
    },
    NotReading {
        since_ms: u64,
    },
    /// Its client does not read the response, and has sent no authorised request.
    NotAdmitted,
    Serving,
}

impl SlotDemand {
    fn now(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::Relaxed)
    }

    /// Milliseconds since the start, from 1 on.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }
}

impl ConnectionProgress {
    fn request_begins(&self) {
        self.head_begun.store(false, Ordering::Relaxed);
        self.state.store(IN_FLIGHT, Ordering::Release);
    }

    /// A request of the connection was authorised.
    pub fn admit(&self) {
        self.admitted.store(true, Ordering::Relaxed);
    }

    /// The request's body is incomplete: until it is complete the connection may be evicted.
    pub fn body_begins(&self) {
        self.in_body.store(true, Ordering::Relaxed);
        self.state.store(self.demand.now(), Ordering::Release);
    }

    /// The request's body is complete, or nobody reads more of it.
    pub fn body_ends(&self) {
        if self.in_body.swap(false, Ordering::Relaxed) {
            self.state.store(IN_FLIGHT, Ordering::Release);
        }
    }

    /// A piece of a response is about to be written.
    pub fn piece_begins(&self) {
        self.piece_unwritten.store(true, Ordering::Release);
    }

    /// Ready when all pieces so far are written, so that the next piece can be made.
    pub fn poll_piece_written(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.piece_unwritten.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        self.piece_waker.register(cx.waker());
        match self.piece_unwritten.load(Ordering::Acquire) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }

    /// The response is complete.
    pub fn answer_made(&self) {
        self.state.store(ANSWERED, Ordering::Release);
    }

    /// Bytes were read from the client.
    pub fn has_read(&self) {
        if self.state.load(Ordering::Relaxed) <= ANSWERED {
            return;
        }
        if self.in_body.load(Ordering::Relaxed) {
            self.state.store(self.demand.now(), Ordering::Release);
        } else {
            self.head_begun.store(true, Ordering::Relaxed);
        }
    }

    /// Everything has been written to the client.
    pub fn has_written(&self) {
        if self.piece_unwritten.load(Ordering::Relaxed) {
            self.piece_unwritten.store(false, Ordering::Release);
            self.piece_waker.wake();
        }
        if self.state.load(Ordering::Relaxed) != ANSWERED {
            return;
        }
        self.state.store(self.demand.now(), Ordering::Release);
        if self.evicted.load(Ordering::Acquire) {
            // Evicted while this request arrived.
            self.waker.wake();
        } else {
            self.leave_if_wanted();
        }
    }

    /// The connection can be evicted from now on: it is, if another connection waits for its slot.
    fn leave_if_wanted(&self) {
        if self.demand.wanted.load(Ordering::Acquire) {
            self.demand.wanted.store(false, Ordering::Release);
            self.evict();
        }
    }

    /// A write was tried: bytes were written, or the socket's buffer was full.
    pub fn note_write(&self, tried: WriteOutcome) {
        if self.upgraded.load(Ordering::Relaxed) {
            return;
        }
        let since = self.unread_since_ms.load(Ordering::Relaxed);
        match tried {
            WriteOutcome::Wrote if since != READS => {
                self.unread_since_ms.store(READS, Ordering::Relaxed)
            }
            WriteOutcome::Blocked if since == READS => {
                self.unread_since_ms.store(self.demand.now_ms(), Ordering::Relaxed);
                if !self.admitted.load(Ordering::Relaxed) {
                    self.leave_if_wanted();
                }
            }
            WriteOutcome::Wrote | WriteOutcome::Blocked => {}
        }
    }

    /// Whether a part of a head has arrived, but not the whole head.
    pub fn awaits_head(&self) -> bool {
        self.head_begun.load(Ordering::Relaxed)
    }

    /// Ready when the connection should close: it was evicted, and does not serve a request at the moment.
    pub fn poll_evicted(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        let evicted = self.evicted.load(Ordering::Acquire);
        let serves = matches!(self.activity(), Activity::Serving);
        if evicted && !serves { Poll::Ready(()) } else { Poll::Pending }
    }

    fn activity(&self) -> Activity {
        match self.state.load(Ordering::Acquire) {
            IN_FLIGHT | ANSWERED => match self.unread_since_ms.load(Ordering::Relaxed) {
                READS => Activity::Serving,
                _ if !self.admitted.load(Ordering::Relaxed) => Activity::NotAdmitted,
                since_ms if self.demand.now_ms() < since_ms.saturating_add(UNREAD_MS) => {
                    Activity::Serving
                }
                since_ms => Activity::NotReading { since_ms },
            },
            since if self.in_body.load(Ordering::Relaxed) => Activity::SendingBody { since },
            since => Activity::Idle { since },
        }
    }

    fn evict(&self) {
        self.evicted.store(true, Ordering::Release);
        self.waker.wake();
    }
}
