//! Which connection is evicted when all slots are taken.

use super::*;

fn evicted(slot: &ConnectionSlot) -> bool {
    let waker = futures_util::task::noop_waker();
    slot.progress.poll_evicted(&Context::from_waker(&waker)).is_ready()
}

fn answer(slot: &ConnectionSlot) {
    slot.progress.request_begins();
    slot.progress.answer_made();
    slot.progress.has_written();
}

#[test]
fn the_longest_idle_is_evicted_and_never_one_with_a_request() {
    let slots = ConnectionSlots::new(3);
    let [a, b, c] = [0; 3].map(|_| slots.try_take().unwrap());
    answer(&b);
    c.progress.request_begins();
    answer(&a);
    // `b` is idle for longest, whatever the order of the connections.
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &b, &c].map(evicted), [false, true, false]);
    drop(b);
    let d = slots.try_take().unwrap();
    answer(&d);
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &c, &d].map(evicted), [true, false, false]);
}

#[test]
fn if_all_are_busy_the_first_to_finish_is_evicted_when_its_response_is_written() {
    let slots = ConnectionSlots::new(2);
    let [a, b] = [0; 2].map(|_| slots.try_take().unwrap());
    a.progress.request_begins();
    b.progress.request_begins();
    assert!(slots.try_take().is_none());
    b.progress.answer_made();
    assert!(!evicted(&b), "its answer is not written yet");
    b.progress.has_written();
    assert_eq!([&a, &b].map(evicted), [false, true]);
    answer(&a);
    assert!(!evicted(&a), "one slot was wanted, not two");
}

#[test]
fn if_none_is_idle_the_longest_silent_sender_of_a_body_is_evicted() {
    let slots = ConnectionSlots::new(3);
    let [a, b, c] = [0; 3].map(|_| slots.try_take().unwrap());
    for slot in [&a, &b] {
        slot.progress.request_begins();
        slot.progress.body_begins();
    }
    c.progress.request_begins();
    a.progress.has_read();
    assert!(!a.progress.awaits_head(), "what comes now is the body");
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &b, &c].map(evicted), [false, true, false]);
    // A request with a complete body is answered, even if another connection waits.
    a.progress.body_ends();
    drop(b);
    let d = slots.try_take().unwrap();
    d.progress.request_begins();
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &c, &d].map(evicted), [false; 3]);
    answer(&d);
    assert!(evicted(&d), "the next to finish is evicted");
    drop([a, c, d]);
    assert!(slots.lock().by_moment.is_empty());
}

#[test]
fn an_idle_connection_is_evicted_before_one_that_sends_a_body() {
    let slots = ConnectionSlots::new(2);
    let [a, b] = [0; 2].map(|_| slots.try_take().unwrap());
    a.progress.request_begins();
    a.progress.body_begins();
    answer(&b);
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &b].map(evicted), [false, true]);
}

#[test]
fn a_client_that_does_not_read_is_evicted_after_those_that_send() {
    let a_minute_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    let slots = ConnectionSlots::since(a_minute_ago, 3);
    let [a, b, c] = [0; 3].map(|_| slots.try_take().unwrap());
    for slot in [&a, &b, &c] {
        slot.progress.request_begins();
        slot.progress.admit();
    }
    a.progress.note_write(WriteOutcome::Blocked);
    b.progress.unread_since_ms.store(1, Ordering::Relaxed);
    c.progress.body_begins();
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &b, &c].map(evicted), [false, false, true]);
    drop(c);
    let d = slots.try_take().unwrap();
    d.progress.request_begins();
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &b, &d].map(evicted), [false, true, false]);
    b.progress.note_write(WriteOutcome::Wrote);
    assert!(!evicted(&b), "its client reads again");
}

#[test]
fn a_client_without_rights_that_does_not_read_is_evicted_at_once() {
    let slots = ConnectionSlots::new(3);
    let [a, b, c] = [0; 3].map(|_| slots.try_take().unwrap());
    for slot in [&a, &b, &c] {
        slot.progress.request_begins();
    }
    a.progress.admit();
    a.progress.note_write(WriteOutcome::Blocked);
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &b, &c].map(evicted), [false; 3], "their clients may still read");
    // The slot is wanted now.
    b.progress.note_write(WriteOutcome::Blocked);
    assert_eq!([&a, &b, &c].map(evicted), [false, true, false]);
    drop(b);
    let d = slots.try_take().unwrap();
    answer(&d);
    c.progress.answer_made();
    c.progress.note_write(WriteOutcome::Blocked);
    assert!(!evicted(&c), "no slot is wanted");
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &c, &d].map(evicted), [false, true, false]);
    drop([a, c, d]);
    assert!(slots.lock().by_moment.is_empty());
}

#[test]
fn the_next_piece_is_made_when_the_last_one_is_written() {
    let slots = ConnectionSlots::new(1);
    let slot = slots.try_take().unwrap();
    let waker = futures_util::task::noop_waker();
    let written = || slot.progress.poll_piece_written(&Context::from_waker(&waker)).is_ready();
    assert!(written(), "nothing is on its way");
    slot.progress.piece_begins();
    assert!(!written());
    slot.progress.has_written();
    assert!(written());
}

#[test]
fn a_request_that_arrives_after_the_eviction_is_served_and_another_is_evicted() {
    let slots = ConnectionSlots::new(2);
    let [a, b] = [0; 2].map(|_| slots.try_take().unwrap());
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &b].map(evicted), [true, false]);
    a.request_begins();
    assert_eq!([&a, &b].map(evicted), [false, true]);
    a.progress.answer_made();
    a.progress.has_written();
    assert!(!evicted(&a), "one slot was wanted, not two");
}

#[test]
fn an_upgraded_connection_stays_and_another_is_evicted_instead() {
    let slots = ConnectionSlots::new(2);
    let [a, b] = [0; 2].map(|_| slots.try_take().unwrap());
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &b].map(evicted), [true, false]);
    // Its request arrived before it closed.
    a.progress.request_begins();
    a.upgraded();
    a.progress.has_written();
    assert_eq!([&a, &b].map(evicted), [false, true]);
    drop(b);
    let c = slots.try_take().unwrap();
    answer(&c);
    assert!(slots.try_take().is_none());
    assert_eq!([&a, &c].map(evicted), [false, true], "never the upgraded one");
    drop([a, c]);
    assert!(slots.lock().by_moment.is_empty());
}

#[test]
fn a_slot_is_free_when_its_connection_is_gone() {
    let slots = ConnectionSlots::new(1);
    for _ in 0..3 {
        let slot = slots.try_take().unwrap();
        assert!(slots.try_take().is_none());
        drop(slot);
    }
    assert_eq!(slots.lock().taken, 0);
    assert!(slots.lock().by_moment.is_empty());
}

#[test]
fn an_incomplete_head_is_noticed_until_it_is_complete() {
    let slots = ConnectionSlots::new(1);
    let slot = slots.try_take().unwrap();
    assert!(!slot.progress.awaits_head());
    slot.progress.has_read();
    assert!(slot.progress.awaits_head());
    slot.progress.request_begins();
    slot.progress.has_read();
    assert!(!slot.progress.awaits_head(), "what comes now is the body");
}

#[test]
fn slots_fit_under_the_limit_of_descriptors() {
    for (descriptors, slots_max) in
        [(0, 1), (256, 128), (1024, 512), (20_000, 10_000), (1 << 30, 16_384)]
    {
        let slots = ConnectionSlots::within(descriptors);
        assert_eq!(slots.slots_max, slots_max);
        assert!(
            slots_max == 1 || slots.long_lived_max() < slots_max,
            "some are kept for short requests"
        );
    }
}
