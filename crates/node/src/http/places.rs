//! The places of connections: how many there are, and who leaves when all are taken and one more
//! client comes. Owns the count and what each connection is at; never touches a socket.
//!
//! A connection between two requests, or one that has not sent a whole head yet, may be told to
//! leave, the longest idle first. One with a request in flight never is. What a request costs here
//! is a few stores: the order is made when somebody has to leave, not before.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

/// Connections served at once, however many descriptors there are.
const CONNECTIONS_MAX: u64 = 16_384;

/// The share of the node's descriptors that connections may take: a half. The other is for
/// sessions, which take a handful each, the journal and processes being started.
const DESCRIPTORS_SHARE: u64 = 2;

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
#[derive(Default)]
struct Pressure {
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
    /// [`IN_FLIGHT`], [`ANSWERED`], or the moment since when it is idle.
    state: AtomicU64,
    /// Some of the next request's head has come.
    head_begun: AtomicBool,
    /// Its key in the order; changed only under the lock.
    key: AtomicU64,
    leave: AtomicBool,
    waker: AtomicWaker,
}

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
        let pressure = Arc::new(Pressure::default());
        pressure.moment.store(FIRST_MOMENT, Ordering::Relaxed);
        Arc::new(Self { most, seats: Mutex::default(), freed: Notify::new(), pressure })
    }

    /// A place for one connection. When all are taken somebody leaves for it, or it waits.
    pub async fn take(self: &Arc<Self>) -> Seat {
        loop {
            if let Some(seat) = self.try_take() {
                return seat;
            }
            self.freed.notified().await;
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
            head_begun: AtomicBool::new(false),
            key: AtomicU64::new(now),
            leave: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        seats.by_moment.insert(now, marks.clone());
        Some(Seat { places: self.clone(), marks })
    }

    /// Keys are never after the moment they stand for, so the first whose key is exact has been
    /// idle for longest. Each other one looked at gets a later key; two rounds find one or none.
    fn tell_one_to_leave(&self, seats: &mut Seats) {
        for _ in 0..2 * seats.by_moment.len() {
            let Some((key, marks)) = seats.by_moment.pop_first() else { break };
            let later = match marks.state.load(Ordering::Acquire) {
                idle if idle == key => return marks.tell_to_leave(),
                IN_FLIGHT | ANSWERED => self.pressure.now(),
                idle => idle,
            };
            marks.key.store(later, Ordering::Relaxed);
            seats.by_moment.insert(later, marks);
        }
        self.pressure.wanted.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The request in flight makes the connection something else, which stays until it ends. If it
    /// was told to leave when the request came, another leaves instead.
    pub fn stays(&self) {
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

impl Pressure {
    fn now(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::Relaxed)
    }
}

impl Marks {
    /// A request's head is here: the connection stays until it is answered.
    pub fn request_begins(&self) {
        self.head_begun.store(false, Ordering::Relaxed);
        self.state.store(IN_FLIGHT, Ordering::Release);
    }

    /// The answer is made.
    pub fn answer_made(&self) {
        self.state.store(ANSWERED, Ordering::Release);
    }

    /// Bytes came.
    pub fn has_read(&self) {
        if self.state.load(Ordering::Relaxed) > ANSWERED {
            self.head_begun.store(true, Ordering::Relaxed);
        }
    }

    /// Everything there was to write is written.
    pub fn has_written(&self) {
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

    /// Whether a head has begun to come and is not whole.
    pub fn awaits_head(&self) -> bool {
        self.head_begun.load(Ordering::Relaxed)
    }

    /// Ready when the connection is to leave. It is idle then, unless a request came meanwhile.
    pub fn poll_leave(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        let told = self.leave.load(Ordering::Acquire);
        if told && self.state.load(Ordering::Acquire) > ANSWERED {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn tell_to_leave(&self) {
        self.leave.store(true, Ordering::Release);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(seat: &Seat) -> bool {
        let waker = futures_util::task::noop_waker();
        seat.marks.poll_leave(&Context::from_waker(&waker)).is_ready()
    }

    fn answer(seat: &Seat) {
        seat.marks.request_begins();
        seat.marks.answer_made();
        seat.marks.has_written();
    }

    #[test]
    fn the_longest_idle_leaves_and_never_one_with_a_request() {
        let places = Places::new(3);
        let [a, b, c] = [0; 3].map(|_| places.try_take().unwrap());
        answer(&b);
        c.marks.request_begins();
        answer(&a);
        // Idle for longest is b, whatever the order in which they came.
        assert!(places.try_take().is_none());
        assert_eq!([&a, &b, &c].map(told), [false, true, false]);
        drop(b);
        let d = places.try_take().unwrap();
        answer(&d);
        assert!(places.try_take().is_none());
        assert_eq!([&a, &c, &d].map(told), [true, false, false]);
    }

    #[test]
    fn where_all_are_busy_the_first_to_be_done_leaves_once_its_answer_is_written() {
        let places = Places::new(2);
        let [a, b] = [0; 2].map(|_| places.try_take().unwrap());
        a.marks.request_begins();
        b.marks.request_begins();
        assert!(places.try_take().is_none());
        b.marks.answer_made();
        assert!(!told(&b), "its answer is not written yet");
        b.marks.has_written();
        assert_eq!([&a, &b].map(told), [false, true]);
        answer(&a);
        assert!(!told(&a), "one place was wanted, not two");
    }

    #[test]
    fn one_that_became_something_else_stays_and_another_leaves_for_it() {
        let places = Places::new(2);
        let [a, b] = [0; 2].map(|_| places.try_take().unwrap());
        assert!(places.try_take().is_none());
        assert_eq!([&a, &b].map(told), [true, false]);
        // Its request came before it could leave.
        a.marks.request_begins();
        a.stays();
        a.marks.has_written();
        assert_eq!([&a, &b].map(told), [false, true]);
        drop(b);
        let c = places.try_take().unwrap();
        answer(&c);
        assert!(places.try_take().is_none());
        assert_eq!([&a, &c].map(told), [false, true], "never the one that stays");
        drop([a, c]);
        assert!(places.lock().by_moment.is_empty());
    }

    #[test]
    fn a_place_is_free_when_its_connection_is_gone() {
        let places = Places::new(1);
        for _ in 0..3 {
            let seat = places.try_take().unwrap();
            assert!(places.try_take().is_none());
            drop(seat);
        }
        assert_eq!(places.lock().taken, 0);
        assert!(places.lock().by_moment.is_empty());
    }

    #[test]
    fn a_head_that_begins_is_known_until_it_is_whole() {
        let places = Places::new(1);
        let seat = places.try_take().unwrap();
        assert!(!seat.marks.awaits_head());
        seat.marks.has_read();
        assert!(seat.marks.awaits_head());
        seat.marks.request_begins();
        seat.marks.has_read();
        assert!(!seat.marks.awaits_head(), "what comes now is the body");
    }

    #[test]
    fn places_fit_under_the_limit_of_descriptors() {
        for (descriptors, most) in
            [(0, 1), (256, 128), (1024, 512), (20_000, 10_000), (1 << 30, 16_384)]
        {
            assert_eq!(Places::within(descriptors).most, most);
        }
    }
}
