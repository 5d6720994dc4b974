//! Leases and judgements, and the entries of sessions, over real expiries and kills of servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_fleet::directory::{ClaimedName, FleetDirectory, NameClaimError};
use windlass_fleet::membership::{Membership, MembershipSettings};
use windlass_fleet::{FleetClock, FleetStore};
use windlass_lifecycle::fleet::{
    ClockMs, FenceCause, LeaseHolder, LeaseStanding, LeaseTiming, LocalSession, PeerStatus,
    SessionFate, entries,
};
use windlass_protocol::fleet::{BootNonce, InstallationId};
use windlass_protocol::{Generation, NodeName, SessionId};

use crate::engine::{self, until};
use crate::three_servers;

/// Short, so that expiries can be waited for.
const QUICK: LeaseTiming = LeaseTiming {
    ttl_ms: 3_000,
    renew_ms: 500,
    retry_ms: 100,
    close_ms: 2_000,
    lost_after_ms: 9_000,
};

fn holder(name: &str, boot: u64) -> LeaseHolder {
    let node = NodeName::parse(name).expect("a name");
    let installation = InstallationId(u64::from(name.as_bytes()[0]));
    LeaseHolder { node, installation, boot: BootNonce(boot), address: format!("{name}:1") }
}

fn member(
    store: &FleetStore,
    name: &str,
    boot: u64,
    timing: LeaseTiming,
    resumed: Option<(Generation, ClockMs)>,
) -> Arc<Membership> {
    let settings = MembershipSettings { timing, holder: holder(name, boot), resumed };
    Arc::new(Membership::start(store.clone(), settings))
}

async fn serving(member: &Membership) {
    until("the node serves", async || member.standing() == LeaseStanding::Serving).await;
}

/// Claims a name as soon as the node has renewed its lease. A machine that is busy for a moment delays the renewal.
async fn claim(directory: &FleetDirectory, name: &str) -> Result<ClaimedName, NameClaimError> {
    let mut answer = Err(NameClaimError::NotServing);
    until("the node claims names", async || {
        answer = directory.claim(&session(name)).await;
        !matches!(answer, Err(NameClaimError::NotServing))
    })
    .await;
    answer
}

fn status(member: &Membership, name: &str) -> Option<PeerStatus> {
    let peers = member.peers();
    peers.into_iter().find(|peer| peer.node.as_str() == name).map(|peer| peer.status)
}

fn session(name: &str) -> SessionId {
    SessionId::parse(name).expect("a name")
}

#[tokio::test]
async fn a_node_that_dies_is_unreachable_then_lost_and_begins_anew() {
    let engine = three_servers!();
    let store = engine.store().await;
    let a = member(&store, "a", 1, QUICK, None);
    let b = member(&store, "b", 2, QUICK, None);
    let c = member(&store, "c", 3, QUICK, None);
    for one in [&a, &b, &c] {
        serving(one).await;
    }
    let of_a = FleetDirectory::new(store.clone(), a.clone());
    let of_b = FleetDirectory::new(store.clone(), b.clone());
    let incarnation = claim(&of_a, "s").await.expect("a free name").incarnation;
    let taken = claim(&of_b, "s").await.expect_err("the name is taken");
    assert!(matches!(taken, NameClaimError::Taken { ref owner, .. } if owner.as_str() == "a"));
    for one in [&b, &c] {
        until("a is known", async || status(one, "a") == Some(PeerStatus::Alive)).await;
    }
    let resumed = a.states().borrow().renewed_at.zip(a.generation()).map(|(at, of)| (of, at));
    drop(of_a);
    drop(a);
    until("a is unreachable", async || status(&b, "a") == Some(PeerStatus::Unreachable)).await;
    let lost = Some(PeerStatus::Lost(Generation(1)));
    for one in [&b, &c] {
        until("a is lost", async || status(one, "a") == lost).await;
    }
    let found = engine::answered(async || of_b.find(&session("s")).await).await.expect("an entry");
    assert_eq!((found.fate, found.revision), (SessionFate::Lost, incarnation));
    // The name is free again. A session that is not made leaves the lost one as it was.
    let claimed = claim(&of_b, "s").await.expect("a free name");
    of_b.give_back(&session("s"), claimed).await.expect("an answer");
    let found = of_b.find(&session("s")).await.expect("an answer").expect("an entry");
    assert_eq!((found.fate, found.entry.owner.as_str()), (SessionFate::Lost, "a"));
    assert_eq!(entries::lost_incarnation(&found.entry, found.revision), incarnation);
    assert_eq!(store.sessions_of(&found.entry.owner).await.expect("an answer"), [session("s")]);
    let next = claim(&of_b, "s").await.expect("a free name").incarnation;
    assert!(next > incarnation);

    // The next start of a finds out that its sessions are lost, also if its clock would let it go on.
    let (generation, _) = resumed.expect("a served");
    let just_now = Some((generation, FleetClock.now()));
    let late = member(&store, "a", 4, QUICK, just_now);
    until("a is fenced", async || late.standing() == LeaseStanding::Fenced).await;
    assert_eq!(late.states().borrow().fence_cause, Some(FenceCause::DeclaredLost));
    drop(late);
    let anew = member(&store, "a", 5, QUICK, None);
    serving(&anew).await;
    assert_eq!(anew.generation(), Some(Generation(2)));
    until("a is back", async || status(&b, "a") == Some(PeerStatus::Alive)).await;
}

#[tokio::test]
async fn a_restarted_node_has_its_sessions_again() {
    let engine = three_servers!();
    let store = engine.store().await;
    let a = member(&store, "a", 1, QUICK, None);
    serving(&a).await;
    let directory = FleetDirectory::new(store.clone(), a.clone());
    for name in ["kept", "ended", "stray"] {
        claim(&directory, name).await.expect("a free name");
    }
    let state = *a.states().borrow();
    drop(directory);
    drop(a);
    let resumed = state.generation.zip(state.renewed_at);
    let again = member(&store, "a", 2, QUICK, resumed);
    serving(&again).await;
    assert_eq!(again.generation(), Some(Generation(1)));
    // One session lives, one ended while the node was down, one was never made, and one is not this node's.
    let directory = FleetDirectory::new(store.clone(), again.clone());
    let local = BTreeMap::from([
        (session("kept"), LocalSession::Live),
        (session("ended"), LocalSession::Ended),
        (session("foreign"), LocalSession::Live),
    ]);
    let known: Vec<SessionId> = local.keys().cloned().collect();
    let to_end = directory.compare(|| local, &known).await.expect("an answer");
    assert_eq!(to_end, [session("foreign")]);
    for (name, fate) in
        [("kept", SessionFate::Live), ("ended", SessionFate::Ended), ("stray", SessionFate::Ended)]
    {
        let found = directory.find(&session(name)).await.expect("an answer").expect("an entry");
        assert_eq!(found.fate, fate, "{name}");
    }
}

#[tokio::test]
async fn a_killed_leader_and_a_lost_quorum_lose_no_entry_and_no_lease() {
    let mut engine = three_servers!();
    let store = engine.store().await;
    let a = member(&store, "a", 1, LeaseTiming::default(), None);
    serving(&a).await;
    let directory = FleetDirectory::new(store.clone(), a.clone());
    let mut claimed = Vec::new();
    let mut refused = 0;
    for number in 0..120_u32 {
        match number {
            30 => {
                let leader = engine.leader(&store).await;
                engine.kill(leader);
            }
            60 => (0..3).for_each(|number| {
                engine.kill(number);
                engine.run(number);
            }),
            _ => {}
        }
        let name = session(&format!("s{number}"));
        match directory.claim(&name).await {
            Ok(claim) => claimed.push((name, claim.incarnation)),
            Err(NameClaimError::NotServing) => {
                refused += 1;
                // The lease is renewed some time after the store answers again.
                serving(&a).await;
            }
            Err(NameClaimError::Unanswered | NameClaimError::Store(_)) => {
                refused += 1;
                // Servers without a leader refuse at once: all names would be refused before there is one.
                if refused % 5 == 0 {
                    engine::answered(async || store.read_entry(&name).await).await;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    println!("{} claimed, {refused} refused", claimed.len());
    assert!(claimed.len() > 60);
    until("the store answers", async || directory.find(&claimed[0].0).await.is_ok()).await;
    for (name, incarnation) in claimed {
        let found = engine::answered(async || store.read_entry(&name).await).await;
        assert_eq!(found.revision, incarnation, "{name}");
    }
    serving(&a).await;
    assert_eq!(a.generation(), Some(Generation(1)));
}

#[tokio::test]
async fn without_the_store_a_node_closes_and_is_fenced_by_its_clock() {
    let mut engine = three_servers!();
    let store = engine.store().await;
    let a = member(&store, "a", 1, QUICK, None);
    serving(&a).await;
    let directory = FleetDirectory::new(store.clone(), a.clone());
    (0..3).for_each(|number| engine.kill(number));
    until("the node is closed", async || a.standing() == LeaseStanding::Closed).await;
    // What needs the store fails at once, and can be tried again.
    let refused = directory.claim(&session("s")).await.expect_err("the node is closed");
    assert!(matches!(refused, NameClaimError::NotServing), "{refused:?}");
    until("the node is fenced", async || a.standing() == LeaseStanding::Fenced).await;
    until("its task has seen it", async || {
        a.states().borrow().fence_cause == Some(FenceCause::Expired)
    })
    .await;
    (0..3).for_each(|number| engine.run(number));
    // A fenced node never serves again: it ends its sessions, and begins a new generation.
    let anew = member(&store, "a", 2, QUICK, None);
    serving(&anew).await;
    assert_eq!((a.standing(), anew.generation()), (LeaseStanding::Fenced, Some(Generation(2))));
}

#[tokio::test]
async fn a_stopped_server_that_leads_delays_a_lease_and_loses_none() {
    let engine = three_servers!();
    let store = engine.store().await;
    let timing = LeaseTiming { renew_ms: 500, ..LeaseTiming::default() };
    let members = [member(&store, "a", 1, timing, None), member(&store, "b", 2, timing, None)];
    for one in &members {
        serving(one).await;
    }
    let leader = engine.leader(&store).await;
    engine.stop(leader);
    let before = members.each_ref().map(|one| one.states().borrow().renewed_at);
    until("both renew at another leader", async || {
        let now = members.each_ref().map(|one| one.states().borrow().renewed_at);
        now.iter().zip(&before).all(|(now, before)| now > before)
    })
    .await;
    engine.resume(leader);
    for one in &members {
        assert_eq!(one.standing(), LeaseStanding::Serving);
        assert_eq!(one.generation(), Some(Generation(1)));
    }
}
