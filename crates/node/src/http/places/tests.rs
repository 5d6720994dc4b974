//! Who leaves when all places are taken.

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
fn where_nobody_is_idle_the_longest_silent_of_those_that_send_a_body_leaves() {
    let places = Places::new(3);
    let [a, b, c] = [0; 3].map(|_| places.try_take().unwrap());
    for seat in [&a, &b] {
        seat.marks.request_begins();
        seat.marks.body_begins();
    }
    c.marks.request_begins();
    a.marks.has_read();
    assert!(!a.marks.awaits_head(), "what comes now is the body");
    assert!(places.try_take().is_none());
    assert_eq!([&a, &b, &c].map(told), [false, true, false]);
    // A body that is whole is answered, whoever waits.
    a.marks.body_ends();
    drop(b);
    let d = places.try_take().unwrap();
    d.marks.request_begins();
    assert!(places.try_take().is_none());
    assert_eq!([&a, &c, &d].map(told), [false; 3]);
    answer(&d);
    assert!(told(&d), "the next to be done leaves");
    drop([a, c, d]);
    assert!(places.lock().by_moment.is_empty());
}

#[test]
fn an_idle_connection_leaves_before_one_that_sends_a_body() {
    let places = Places::new(2);
    let [a, b] = [0; 2].map(|_| places.try_take().unwrap());
    a.marks.request_begins();
    a.marks.body_begins();
    answer(&b);
    assert!(places.try_take().is_none());
    assert_eq!([&a, &b].map(told), [false, true]);
}

#[test]
fn one_whose_answer_is_not_read_for_long_leaves_after_those_that_send() {
    let a_minute_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    let places = Places::since(a_minute_ago, 3);
    let [a, b, c] = [0; 3].map(|_| places.try_take().unwrap());
    for seat in [&a, &b, &c] {
        seat.marks.request_begins();
    }
    a.marks.write_was_tried(WriteTry::NoRoom);
    b.marks.unread_since_ms.store(1, Ordering::Relaxed);
    c.marks.body_begins();
    assert!(places.try_take().is_none());
    assert_eq!([&a, &b, &c].map(told), [false, false, true]);
    drop(c);
    let d = places.try_take().unwrap();
    d.marks.request_begins();
    assert!(places.try_take().is_none());
    assert_eq!([&a, &b, &d].map(told), [false, true, false]);
    b.marks.write_was_tried(WriteTry::Wrote);
    assert!(!told(&b), "its client reads again");
}

#[test]
fn the_next_piece_is_made_when_the_last_one_is_written() {
    let places = Places::new(1);
    let seat = places.try_take().unwrap();
    let waker = futures_util::task::noop_waker();
    let written = || seat.marks.poll_piece_written(&Context::from_waker(&waker)).is_ready();
    assert!(written(), "nothing is on its way");
    seat.marks.piece_begins();
    assert!(!written());
    seat.marks.has_written();
    assert!(written());
}

#[test]
fn one_whose_request_comes_just_then_is_served_and_another_leaves() {
    let places = Places::new(2);
    let [a, b] = [0; 2].map(|_| places.try_take().unwrap());
    assert!(places.try_take().is_none());
    assert_eq!([&a, &b].map(told), [true, false]);
    a.request_begins();
    assert_eq!([&a, &b].map(told), [false, true]);
    a.marks.answer_made();
    a.marks.has_written();
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
        let places = Places::within(descriptors);
        assert_eq!(places.most, most);
        assert!(most == 1 || places.for_long() < most, "some are kept for short requests");
    }
}
