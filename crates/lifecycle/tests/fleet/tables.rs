//! Single decisions of the fleet's machines, as tables.

use std::collections::BTreeMap;

use windlass_lifecycle::fleet::{
    ClockMs, ConditionalWrite, CopyHead, CopyRequest, Current, EntryRepair, EventCopy, FenceCause,
    LeaseHolder, LeaseKeeper, LeaseRequest, LeaseStanding, LeaseTiming, LocalSession, NameClaim,
    SessionFate, WriteAnswer, WriteEnd, WriteStep, entries,
};
use windlass_protocol::fleet::{
    BootNonce, EntryState, FLEET_RECORDS, InstallationId, LeaseRecord, MemberRecord, SessionEntry,
    WriteStamp,
};
use windlass_protocol::{Generation, NodeName, Revision, Seq, SessionId};

const TIMING: LeaseTiming = LeaseTiming {
    ttl_ms: 30_000,
    renew_ms: 5_000,
    retry_ms: 500,
    close_ms: 22_000,
    lost_after_ms: 300_000,
};

fn node(name: &str) -> NodeName {
    NodeName::parse(name).expect("a name")
}

fn session(name: &str) -> SessionId {
    SessionId::parse(name).expect("a name")
}

fn stamp(boot: u64, write: u64) -> WriteStamp {
    WriteStamp { boot: BootNonce(boot), write }
}

fn keeper(resumed: Option<(Generation, ClockMs)>) -> LeaseKeeper {
    let holder = LeaseHolder {
        node: node("a"),
        installation: InstallationId(7),
        boot: BootNonce(1),
        address: "a:1".to_owned(),
    };
    LeaseKeeper::new(TIMING, holder, resumed)
}

fn absent<R>() -> Current<R> {
    Current { record: None, revision: Revision(0) }
}

fn member(installation: u64, generation: u64, lost: bool) -> MemberRecord {
    MemberRecord {
        version: FLEET_RECORDS,
        node: node("a"),
        installation: InstallationId(installation),
        stamp: stamp(9, 9),
        generation: Generation(generation),
        lost,
    }
}

fn found<R>(record: R) -> Current<R> {
    Current { record: Some(record), revision: Revision(5) }
}

/// The state of a session that has ended, and whose entry had the revision of [`found`].
const ENDED: EntryState = EntryState::Ended { incarnation: Some(Revision(5)) };

fn entry(owner: &str, generation: u64, state: EntryState) -> SessionEntry {
    SessionEntry {
        version: FLEET_RECORDS,
        session: session("s"),
        owner: node(owner),
        generation: Generation(generation),
        stamp: stamp(9, 9),
        state,
    }
}

/// A node that has joined at 1,000 ms.
fn joined() -> LeaseKeeper {
    let mut keeper = keeper(None);
    let at = ClockMs(1_000);
    assert_eq!(keeper.next_request(at), Some(LeaseRequest::ReadMember));
    keeper.member_read(at, absent());
    assert_eq!(keeper.next_request(at), Some(LeaseRequest::ReadLease));
    keeper.lease_read(at, absent());
    assert!(matches!(keeper.next_request(at), Some(LeaseRequest::WriteLease { .. })));
    keeper.written(at, WriteAnswer::Stored(Revision(1)));
    // The lease alone does not count.
    assert_eq!(keeper.standing(at), LeaseStanding::Joining);
    assert!(matches!(keeper.next_request(at), Some(LeaseRequest::WriteMember { .. })));
    keeper.written(at, WriteAnswer::Stored(Revision(2)));
    assert_eq!(keeper.generation(), Some(Generation(1)));
    keeper
}

#[test]
fn a_node_that_cannot_renew_closes_and_is_fenced_by_its_clock_alone() {
    let keeper = joined();
    for (after_ms, standing) in [
        (0, LeaseStanding::Serving),
        (21_999, LeaseStanding::Serving),
        (22_000, LeaseStanding::Closed),
        (308_499, LeaseStanding::Closed),
        (308_500, LeaseStanding::Fenced),
        (u64::MAX, LeaseStanding::Fenced),
    ] {
        assert_eq!(keeper.standing(ClockMs(1_000).after(after_ms)), standing, "{after_ms}");
    }
}

#[test]
fn an_answer_that_comes_after_the_fence_changes_nothing() {
    let mut keeper = joined();
    assert!(matches!(keeper.next_request(ClockMs(6_000)), Some(LeaseRequest::WriteLease { .. })));
    let late = ClockMs(400_000);
    keeper.written(late, WriteAnswer::Stored(Revision(3)));
    assert_eq!(keeper.standing(late), LeaseStanding::Fenced);
    assert_eq!(keeper.fence_cause(), Some(FenceCause::Expired));
    assert_eq!(keeper.next_request(late), None);
}

#[test]
fn what_the_store_says_of_a_node_that_comes_back() {
    let foreign_lease = LeaseRecord {
        version: FLEET_RECORDS,
        node: node("a"),
        installation: InstallationId(8),
        stamp: stamp(2, 1),
        address: "b:1".to_owned(),
    };
    for (record, lease, generation, cause) in [
        (member(7, 3, false), None, Some(3), None),
        (member(7, 3, true), None, Some(3), Some(FenceCause::DeclaredLost)),
        (member(7, 4, false), None, Some(3), Some(FenceCause::DeclaredLost)),
        (member(8, 3, false), None, Some(3), Some(FenceCause::DeclaredLost)),
        (member(7, 3, false), Some(foreign_lease.clone()), Some(3), Some(FenceCause::Replaced)),
        // Without sessions the node waits instead, and begins the next generation of a lost one.
        (member(7, 3, true), None, None, None),
        (member(8, 3, false), None, None, None),
        (member(8, 3, true), Some(foreign_lease), None, None),
    ] {
        let mut keeper =
            keeper(generation.map(|generation| (Generation(generation), ClockMs(1_000))));
        let at = ClockMs(2_000);
        keeper.next_request(at);
        keeper.member_read(at, found(record.clone()));
        if keeper.next_request(at) == Some(LeaseRequest::ReadLease) {
            keeper.lease_read(at, Current { record: lease.clone(), revision: Revision(4) });
        }
        assert_eq!(keeper.fence_cause(), cause, "{record:?} {lease:?}");
    }
}

#[test]
fn a_lease_of_an_earlier_start_is_taken_over_only_with_its_generation() {
    let lease = LeaseRecord {
        version: FLEET_RECORDS,
        node: node("a"),
        installation: InstallationId(7),
        stamp: stamp(2, 1),
        address: "a:1".to_owned(),
    };
    for (generation, is_taken) in [(Some(3), true), (None, false)] {
        let mut keeper =
            keeper(generation.map(|generation| (Generation(generation), ClockMs(1_000))));
        let at = ClockMs(2_000);
        keeper.next_request(at);
        keeper.member_read(at, found(member(7, 3, false)));
        assert_eq!(keeper.next_request(at), Some(LeaseRequest::ReadLease));
        keeper.lease_read(at, found(lease.clone()));
        let next = keeper.next_request(at);
        let writes = matches!(next, Some(LeaseRequest::WriteLease { .. }));
        assert_eq!((writes, keeper.fence_cause()), (is_taken, None), "{generation:?} {next:?}");
        // The lease has expired: nobody holds it.
        let later = ClockMs(40_000);
        while let Some(request) = keeper.next_request(later).filter(|_| !is_taken) {
            match request {
                LeaseRequest::ReadMember => keeper.member_read(later, found(member(7, 3, false))),
                LeaseRequest::ReadLease => keeper.lease_read(later, absent()),
                LeaseRequest::WriteLease { .. } => return,
                LeaseRequest::WriteMember { .. } => panic!("the lease comes first"),
            }
        }
        assert!(is_taken, "the node never takes the lease");
    }
}

#[test]
fn a_write_without_an_answer_ends_with_what_is_stored() {
    let own = entry("a", 1, EntryState::Live);
    let other = SessionEntry { stamp: stamp(8, 8), ..own.clone() };
    for (read, end) in [
        (Some(found(own.clone())), WriteStep::Done(WriteEnd::Stored(Revision(5)))),
        (Some(found(other.clone())), WriteStep::Done(WriteEnd::Conflict(found(other)))),
        (Some(absent()), WriteStep::Write { record: own.clone(), expected: Revision(0) }),
        (None, WriteStep::Read),
    ] {
        let (mut write, _) = ConditionalWrite::start(own.clone(), Revision(0));
        assert_eq!(write.unanswered(), WriteStep::Read);
        let step = match read {
            Some(current) => write.read(current),
            None => write.unanswered(),
        };
        assert_eq!(step, end);
    }
}

#[test]
fn a_name_is_free_once_its_session_has_ended_or_is_lost() {
    for (state, owner, fate) in [
        (EntryState::Live, None, SessionFate::Live),
        (EntryState::Live, Some(member(7, 2, false)), SessionFate::Live),
        (EntryState::Live, Some(member(7, 2, true)), SessionFate::Lost),
        (EntryState::Live, Some(member(7, 3, false)), SessionFate::Lost),
        (ENDED, Some(member(7, 2, false)), SessionFate::Ended),
        (EntryState::Lost { copied: Seq(4), incarnation: None }, None, SessionFate::Lost),
    ] {
        let entry = entry("a", 2, state);
        assert_eq!(SessionFate::of(&entry, owner.as_ref()), fate);
        let claim = NameClaim::on(&found(entry), owner.as_ref());
        let taken = NameClaim::Taken { owner: node("a") };
        let free = NameClaim::Free { expected: Revision(5) };
        assert_eq!(claim, if fate == SessionFate::Live { taken } else { free });
    }
}

#[test]
fn a_creation_that_fails_leaves_the_former_session_with_its_incarnation() {
    let lost = |copied, incarnation| EntryState::Lost { copied: Seq(copied), incarnation };
    for (state, owner, expected) in [
        (ENDED, None, Some(ENDED)),
        (
            EntryState::Ended { incarnation: None },
            None,
            Some(EntryState::Ended { incarnation: None }),
        ),
        (EntryState::Live, Some(member(7, 2, true)), Some(lost(0, Some(Revision(5))))),
        (lost(4, None), None, Some(lost(4, Some(Revision(5))))),
        (lost(4, Some(Revision(3))), None, Some(lost(4, Some(Revision(3))))),
        (EntryState::Live, Some(member(7, 2, false)), None),
    ] {
        let former = entries::former(&found(entry("a", 2, state)), owner.as_ref());
        assert_eq!(former.as_ref().map(|former| former.state), expected, "{state:?}");
        if let Some(former) = former
            .filter(|_| SessionFate::of(&entry("a", 2, state), owner.as_ref()) == SessionFate::Lost)
        {
            // Another revision changes nothing.
            let incarnation = entries::lost_incarnation(&former, Revision(9));
            let before = entries::lost_incarnation(&entry("a", 2, state), Revision(5));
            assert_eq!(incarnation, before, "{state:?}");
        }
    }
    assert_eq!(entries::former(&absent(), None), None);
}

#[test]
fn a_node_and_the_directory_agree_after_repairs() {
    let live = entry("a", 2, EntryState::Live);
    let ended = EntryRepair::WriteEnd {
        entry: SessionEntry { state: ENDED, ..live.clone() },
        expected: Revision(5),
    };
    let end = EntryRepair::EndSession { session: session("s") };
    for (local, entry, repair) in [
        (Some(LocalSession::Live), Some(live.clone()), None),
        (Some(LocalSession::New), Some(live.clone()), None),
        (Some(LocalSession::New), None, None),
        (Some(LocalSession::Ended), Some(live.clone()), Some(ended.clone())),
        (None, Some(live.clone()), Some(ended)),
        (None, Some(entry("a", 1, EntryState::Live)), None),
        (Some(LocalSession::Live), Some(entry("b", 2, EntryState::Live)), Some(end.clone())),
        (Some(LocalSession::Live), Some(entry("a", 2, ENDED)), Some(end.clone())),
        (Some(LocalSession::Live), None, Some(end)),
        (Some(LocalSession::Ended), None, None),
    ] {
        let local = local.map(|state| (session("s"), state)).into_iter().collect();
        let entries: BTreeMap<_, _> =
            entry.map(|entry| (session("s"), found(entry))).into_iter().collect();
        let repairs = entries::repairs(&node("a"), Generation(2), &local, &entries);
        assert_eq!(repairs, Vec::from_iter(repair), "{local:?} {entries:?}");
    }
}

#[test]
fn the_copy_goes_on_where_the_store_says_it_ends() {
    let head = |incarnation, last| CopyHead {
        stamp: stamp(1, 1),
        incarnation: Revision(incarnation),
        last: Seq(last),
    };
    for (stored, next) in [
        (None, Some(CopyRequest::SendBatch { after: Seq(0), expected: Revision(0) })),
        (Some(head(3, 4)), Some(CopyRequest::SendBatch { after: Seq(4), expected: Revision(5) })),
        // An earlier session of this name.
        (Some(head(2, 9)), Some(CopyRequest::SendBatch { after: Seq(0), expected: Revision(5) })),
        // A later session of this name, and all events.
        (Some(head(4, 1)), None),
        (Some(head(3, 6)), None),
    ] {
        let mut copy = EventCopy::new(Revision(3), Seq(6));
        assert_eq!(copy.next_request(), Some(CopyRequest::ReadHead));
        copy.head_read(stored.map_or_else(absent, found));
        assert_eq!(copy.next_request(), next, "{stored:?}");
    }
    // A batch without an answer is looked for.
    let mut copy = EventCopy::new(Revision(3), Seq(6));
    copy.next_request();
    copy.head_read(absent());
    copy.next_request();
    copy.sending(Seq(6));
    copy.unanswered();
    assert_eq!((copy.next_request(), copy.copied()), (Some(CopyRequest::ReadHead), Seq(0)));
    copy.head_read(found(head(3, 6)));
    assert_eq!((copy.next_request(), copy.copied(), copy.behind()), (None, Seq(6), 0));
}
