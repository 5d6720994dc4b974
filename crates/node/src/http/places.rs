//! The places of connections: how many there are, and who leaves when all are taken and one more
//! client comes. Owns the count and what each connection is at; never touches a socket.
//!
//! A connection between two requests, or one that has not sent a whole head yet, may be told to
//! leave, the longest idle first. When there is none, a connection whose request's body is not whole
//! is told to leave: the one that has sent nothing for longest. Then one whose client has not read its
//! answer for seconds. No other connection with a request in flight ever is. What a request costs here
//! is a few stores: the order is made when somebody has to leave, not before.
//!
//! Clients that keep a connection for long (followers, tool hosts, replies that wait) get three
//! quarters of the places, so that a request that is answered at once always finds one.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

/// Connections served at once, however many descriptors there are.
const CONNECTIONS_MAX: u64 = 16_384;

/// The share of the node's descriptors that connections may take: a half. The other is for
/// sessions, which take a handful each, the journal and processes being started.
const DESCRIPTORS_SHARE: u64 = 2;

/// How many of four places clients that keep a connection for long may have.
const LONG_QUARTERS: usize = 3;

/// How long a client may not read its answer before its connection may have to leave.
const UNREAD_MS: u64 = 5000;

/// How often a connection that waits for a place looks for one. A client that stops reading announces nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// All places of one node.
pub(super) struct Places {
    most: usize,
    seats: Mutex<Seats>,
    /// Told when a place becomes free.
    freed: Notify,
    pressure: Arc<Pressure>,
}

#[derive(Default)]
struct Seats {
    taken: usize,
    /// By a moment that is not after the one since when the connection is idle.
    by_moment: BTreeMap<u64, Arc<Marks>>,
}

/// What all connections share.
struct Pressure {
    born: Instant,
    /// Counts moments; a clock would cost more and say no more.
    moment: AtomicU64,
    /// Somebody waits for a place and nobody was idle: the next to become so leaves.
    wanted: AtomicBool,
}

/// One connection's place; free again when dropped.
pub(super) struct Seat {
    places: Arc<Places>,
    marks: Arc<Marks>,
}

/// What one connection is at.
pub(super) struct Marks {
    pressure: Arc<Pressure>,
    /// What the connection does: [`IN_FLIGHT`], [`ANSWERED`], or since which moment it sends nothing.
    state: AtomicU64,
    /// The body of the request is not whole.
    in_body: AtomicBool,
    /// Some of the next request's head has come.
    head_begun: AtomicBool,
    /// Its key in the order; changed only under the lock.
    key: AtomicU64,
    leave: AtomicBool,
    waker: AtomicWaker,
    /// A piece of an answer is not written yet.
    piece_unwritten: AtomicBool,
    /// Who has the next piece.
    piece_waker: AtomicWaker,
    /// It became something else: nobody waits for it to leave.
    stays: AtomicBool,
    /// Since when the client takes no byte of what is to be written; [`READS`] while it does.
    unread_since_ms: AtomicU64,
}

/// The client reads what is written, or nothing is.
const READS: u64 = 0;

/// A request came whole enough to be answered.
const IN_FLIGHT: u64 = 0;

/// All of the answer is made, not all of it written.
const ANSWERED: u64 = 1;

const FIRST_MOMENT: u64 = 2;

impl Places {
    /// As many places as a node with so many descriptors can give.
    pub fn within(descriptors: u64) -> Arc<Self> {
        let most = (descriptors / DESCRIPTORS_SHARE).clamp(1, CONNECTIONS_MAX);
        Self::new(usize::try_from(most).unwrap_or(usize::MAX))
    }

    fn new(most: usize) -> Arc<Self> {
        Self::since(Instant::now(), most)
    }

    fn since(born: Instant, most: usize) -> Arc<Self> {
        let pressure = Arc::new(Pressure {
            born,
            moment: AtomicU64::new(FIRST_MOMENT),
            wanted: AtomicBool::new(false),
        });
        Arc::new(Self { most, seats: Mutex::default(), freed: Notify::new(), pressure })
    }

    /// How many connections clients may keep for long.
    pub fn for_long(&self) -> usize {
        (self.most * LONG_QUARTERS / 4).max(1)
    }

    /// A place for one connection. When all are taken somebody leaves for it, or it waits.
    pub async fn take(self: &Arc<Self>) -> Seat {
        loop {
            if let Some(seat) = self.try_take() {
                return seat;
            }
            // Whether one is free or the time has passed: the next round finds out.
            let _ = tokio::time::timeout(LOOK_AGAIN, self.freed.notified()).await;
        }
    }

    /// Makes somebody leave, now or when its request is done, and waits until somebody has.
    pub async fn make_room(&self) {
        self.tell_one_to_leave(&mut self.lock());
        self.freed.notified().await;
    }

    /// Waits until somebody has left by itself.
    pub async fn wait_for_room(&self) {
        self.freed.notified().await;
    }

    fn try_take(self: &Arc<Self>) -> Option<Seat> {
        let mut seats = self.lock();
        if seats.taken >= self.most {
            self.tell_one_to_leave(&mut seats);
            return None;
        }
        seats.taken += 1;
        let now = self.pressure.now();
        let marks = Arc::new(Marks {
            pressure: self.pressure.clone(),
            state: AtomicU64::new(now),
            in_body: AtomicBool::new(false),
            head_begun: AtomicBool::new(false),
            key: AtomicU64::new(now),
            leave: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            piece_unwritten: AtomicBool::new(false),
            piece_waker: AtomicWaker::new(),
            stays: AtomicBool::new(false),
            unread_since_ms: AtomicU64::new(READS),
        });
        seats.by_moment.insert(now, marks.clone());
        Some(Seat { places: self.clone(), marks })
    }

    /// Keys are never after the moment they stand for, so the first whose key is exact has been
    /// idle for longest. Each other one looked at gets a later key; two rounds find one or none.
    fn tell_one_to_leave(&self, seats: &mut Seats) {
        // Since when, and who: the longest silent of those that send, and of those that do not read.
        let mut sender: Option<(u64, Arc<Marks>)> = None;
        let mut reader: Option<(u64, Arc<Marks>)> = None;
        let keep_longest = |kept: &mut Option<(u64, Arc<Marks>)>, since, marks: &Arc<Marks>| {
            if kept.as_ref().is_none_or(|(longest, _)| since < *longest) {
                *kept = Some((since, marks.clone()));
            }
        };
        for _ in 0..2 * seats.by_moment.len() {
            let Some((key, marks)) = seats.by_moment.pop_first() else { break };
            let later = match marks.activity() {
                Activity::Idle { since } if since == key => {
                    marks.tell_to_leave();
                    // Its next request may come before it has left: then it can be told again.
                    seats.by_moment.insert(key, marks);
                    return;
                }
                Activity::Idle { since } => since,
                Activity::Serving => self.pressure.now(),
                Activity::SendingBody { since } => {
                    keep_longest(&mut sender, since, &marks);
                    self.pressure.now()
                }
                Activity::NotReading { since_ms } => {
                    keep_longest(&mut reader, since_ms, &marks);
                    self.pressure.now()
                }
            };
            marks.key.store(later, Ordering::Relaxed);
            seats.by_moment.insert(later, marks);
        }
        match sender.or(reader) {
            Some((_, marks)) => marks.tell_to_leave(),
            None => self.pressure.wanted.store(true, Ordering::Release),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// A request's head is here: the connection stays until it is answered, which may take long. If it
    /// was told to leave, another leaves instead.
    pub fn request_begins(&self) {
        self.marks.request_begins();
        if self.marks.leave.load(Ordering::Acquire) {
            self.marks.leave.store(false, Ordering::Release);
            self.places.tell_one_to_leave(&mut self.places.lock());
        }
    }

    /// The request in flight makes the connection something else, which stays until it ends. If it
    /// was told to leave when the request came, another leaves instead.
    pub fn stays(&self) {
        self.marks.stays.store(true, Ordering::Relaxed);
        if self.marks.leave.load(Ordering::Acquire) {
            self.places.tell_one_to_leave(&mut self.places.lock());
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.places.lock();
        seats.by_moment.remove(&self.marks.key.load(Ordering::Relaxed));
        seats.taken -= 1;
        drop(seats);
        self.places.freed.notify_one();
    }
}

/// How writing to a client went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteTry {
    Wrote,
    /// The client has not read what was written before.
    NoRoom,
}

/// What a connection is at, for whoever looks for one that may leave.
enum Activity {
    Idle { since: u64 },
    SendingBody { since: u64 },
    NotReading { since_ms: u64 },
    Serving,
}

impl Pressure {
    fn now(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::Relaxed)
    }

    /// The time in milliseconds, from 1.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }
}

impl Marks {
    fn request_begins(&self) {
        self.head_begun.store(false, Ordering::Relaxed);
        self.state.store(IN_FLIGHT, Ordering::Release);
    }

    /// Some of the request's body is still to come: until then the connection may have to leave.
    pub fn body_begins(&self) {
        self.in_body.store(true, Ordering::Relaxed);
        self.state.store(self.pressure.now(), Ordering::Release);
    }

    /// All of the request's body is here, or as much as anybody will read.
    pub fn body_ends(&self) {
        if self.in_body.swap(false, Ordering::Relaxed) {
            self.state.store(IN_FLIGHT, Ordering::Release);
        }
    }

    /// A piece of an answer is on its way.
    pub fn piece_begins(&self) {
        self.piece_unwritten.store(true, Ordering::Release);
    }

    /// Ready when everything so far is written, so that the next piece can be made.
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

    /// The answer is made.
    pub fn answer_made(&self) {
        self.state.store(ANSWERED, Ordering::Release);
    }

    /// Bytes came.
    pub fn has_read(&self) {
        if self.state.load(Ordering::Relaxed) <= ANSWERED {
            return;
        }
        if self.in_body.load(Ordering::Relaxed) {
            self.state.store(self.pressure.now(), Ordering::Release);
        } else {
            self.head_begun.store(true, Ordering::Relaxed);
        }
    }

    /// Everything there was to write is written.
    pub fn has_written(&self) {
        if self.piece_unwritten.load(Ordering::Relaxed) {
            self.piece_unwritten.store(false, Ordering::Release);
            self.piece_waker.wake();
        }
        if self.state.load(Ordering::Relaxed) != ANSWERED {
            return;
        }
        self.state.store(self.pressure.now(), Ordering::Release);
        if self.leave.load(Ordering::Acquire) {
            // Told while this request came.
            self.waker.wake();
        } else if self.pressure.wanted.load(Ordering::Acquire) {
            self.pressure.wanted.store(false, Ordering::Release);
            self.tell_to_leave();
        }
    }

    /// Bytes were written, or there was no room for any.
    pub fn write_was_tried(&self, tried: WriteTry) {
        if self.stays.load(Ordering::Relaxed) {
            return;
        }
        let since = self.unread_since_ms.load(Ordering::Relaxed);
        match tried {
            WriteTry::Wrote if since != READS => {
                self.unread_since_ms.store(READS, Ordering::Relaxed)
            }
            WriteTry::NoRoom if since == READS => {
                self.unread_since_ms.store(self.pressure.now_ms(), Ordering::Relaxed);
            }
            WriteTry::Wrote | WriteTry::NoRoom => {}
        }
    }

    /// Whether a head has begun to come and is not whole.
    pub fn awaits_head(&self) -> bool {
        self.head_begun.load(Ordering::Relaxed)
    }

    /// Ready when the connection is to leave. It is idle then, its request is not whole or its answer
    /// not read, unless that has changed meanwhile.
    pub fn poll_leave(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        let told = self.leave.load(Ordering::Acquire);
        let serves = matches!(self.activity(), Activity::Serving);
        if told && !serves { Poll::Ready(()) } else { Poll::Pending }
    }

    fn activity(&self) -> Activity {
        match self.state.load(Ordering::Acquire) {
            IN_FLIGHT | ANSWERED => match self.unread_since_ms.load(Ordering::Relaxed) {
                READS => Activity::Serving,
                since_ms if self.pressure.now_ms() < since_ms.saturating_add(UNREAD_MS) => {
                    Activity::Serving
                }
                since_ms => Activity::NotReading { since_ms },
            },
            since if self.in_body.load(Ordering::Relaxed) => Activity::SendingBody { since },
            since => Activity::Idle { since },
        }
    }

    fn tell_to_leave(&self) {
        self.leave.store(true, Ordering::Release);
        self.waker.wake();
    }
}
