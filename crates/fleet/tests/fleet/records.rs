//! Records: conditional writes, expiry, the index by node, and the check of streams.

use std::time::Duration;

use windlass_fleet::store::{ConnectError, SetupError, WatchedRecord};
use windlass_fleet::{FleetStore, StoreSettings};
use windlass_lifecycle::fleet::{Current, WriteAnswer};
use windlass_protocol::fleet::{
    BootNonce, EntryState, FLEET_RECORDS, InstallationId, LeaseRecord, MemberRecord, SessionEntry,
    WriteStamp,
};
use windlass_protocol::{Generation, NodeName, Revision, SessionId};

use crate::engine::{Engine, answered, until};
use crate::three_servers;
use windlass_testkit::TestCertificates;

fn stamp(write: u64) -> WriteStamp {
    WriteStamp { boot: BootNonce(u64::MAX), write }
}

fn node(name: &str) -> NodeName {
    NodeName::parse(name).expect("a name")
}

fn lease(write: u64) -> LeaseRecord {
    LeaseRecord {
        version: FLEET_RECORDS,
        node: node("a"),
        installation: InstallationId(7),
        stamp: stamp(write),
        address: "a:1".to_owned(),
    }
}

fn entry(session: &str, write: u64, state: EntryState) -> SessionEntry {
    SessionEntry {
        version: FLEET_RECORDS,
        session: SessionId::parse(session).expect("a name"),
        owner: node("a"),
        generation: Generation(1),
        stamp: stamp(write),
        state,
    }
}

fn stored(answer: WriteAnswer) -> Revision {
    match answer {
        WriteAnswer::Stored(revision) => revision,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_record_is_written_only_at_its_revision() {
    let engine = three_servers!();
    let store = engine.store().await;
    let member = MemberRecord {
        version: FLEET_RECORDS,
        node: node("a"),
        installation: InstallationId(u64::MAX),
        stamp: stamp(1),
        generation: Generation(1),
        lost: false,
    };
    let absent = answered(async || store.read_member(&member.node).await).await;
    assert_eq!(absent, Current { record: None, revision: Revision(0) });
    let revision = stored(store.write_member(&member, Revision(0)).await);
    assert_eq!(store.write_member(&member, Revision(0)).await, WriteAnswer::Conflict);
    let lost = MemberRecord { lost: true, ..member.clone() };
    let next = stored(store.write_member(&lost, revision).await);
    assert_eq!(store.write_member(&member, revision).await, WriteAnswer::Conflict);
    let found = answered(async || store.read_member(&member.node).await).await;
    assert_eq!(found, Current { record: Some(lost), revision: next });
}

#[tokio::test]
async fn an_entry_and_the_index_of_its_node_change_together() {
    let engine = three_servers!();
    let store = engine.store().await;
    let mut revisions = Vec::new();
    for (number, name) in ["s1", "s2", "s3"].into_iter().enumerate() {
        let live = entry(name, number as u64, EntryState::Live);
        revisions.push(stored(store.write_entry(&live, Revision(0)).await));
    }
    let sessions = async |store: &FleetStore| {
        let found = answered(async || store.sessions_of(&node("a")).await).await;
        let mut names: Vec<String> = found.into_iter().map(String::from).collect();
        names.sort();
        names.join(" ")
    };
    assert_eq!(sessions(&store).await, "s1 s2 s3");
    // A write that loses leaves the index alone.
    let again = entry("s4", 9, EntryState::Live);
    assert_eq!(store.write_entry(&again, Revision(5)).await, WriteAnswer::Conflict);
    assert_eq!(sessions(&store).await, "s1 s2 s3");
    let ended = entry("s2", 10, EntryState::Ended { incarnation: Some(revisions[1]) });
    stored(store.write_entry(&ended, revisions[1]).await);
    until("the index forgets s2", async || sessions(&store).await == "s1 s3").await;
    let found = answered(async || store.read_entry(&ended.session).await).await;
    assert_eq!(found.record, Some(ended));
}

#[tokio::test]
async fn a_lease_expires_and_can_be_taken_again() {
    let engine = three_servers!();
    let store = engine.store().await;
    // Long enough for a slow machine to find the second record.
    let ttl = Duration::from_secs(5);
    let first = stored(store.write_lease(&lease(1), Revision(0), ttl).await);
    let second = stored(store.write_lease(&lease(2), first, ttl).await);
    let mut watch = answered(async || store.watch_leases(None).await).await;
    let there = WatchedRecord::There { name: "a".to_owned(), record: lease(2) };
    assert_eq!(watch.next().await.expect("a record"), there);
    assert_eq!(watch.next().await.expect("the end of the start"), WatchedRecord::Complete);
    let gone = WatchedRecord::Gone { name: "a".to_owned() };
    assert_eq!(watch.next().await.expect("an expiry"), gone);
    let absent = answered(async || store.read_lease(&node("a")).await).await;
    assert_eq!(absent.record, None);
    // A renewal that comes too late is refused.
    assert_eq!(store.write_lease(&lease(3), second, ttl).await, WriteAnswer::Conflict);
    stored(store.write_lease(&lease(4), absent.revision, ttl).await);
}

#[tokio::test]
async fn streams_with_other_settings_are_refused_with_the_remedy() {
    let engine = three_servers!();
    let one = StoreSettings { replicas: 1, ..engine.settings() };
    until("the servers are ready", async || FleetStore::connect(&one).await.is_ok()).await;
    // The streams have one replica now, and three are wanted.
    let mut refusal = None;
    until("the streams are refused", async || {
        match FleetStore::connect(&engine.settings()).await {
            Err(error @ ConnectError::Setup(SetupError::Wrong { .. })) => {
                refusal = Some(error.to_string());
            }
            // The servers did not answer in time.
            Err(_) => {}
            Ok(store) => panic!("{store:?}"),
        }
        refusal.is_some()
    })
    .await;
    let text = refusal.expect("a refusal");
    assert!(text.contains("num_replicas 1") && text.contains("at least 3"), "{text}");
    assert!(text.contains("nats stream edit"), "{text}");
    let nowhere = StoreSettings { servers: vec!["nats://127.0.0.1:9".to_owned()], ..one };
    let error = FleetStore::connect(&nowhere).await.expect_err("nobody listens there");
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn servers_that_want_a_password_or_a_certificate_get_it() {
    let place = tempfile::tempdir().expect("a directory");
    let files = TestCertificates::make(place.path(), &["127.0.0.1"]).expect("certificates");
    let TestCertificates { authority, certificate, key } = files;
    let Some(mut engine) = Engine::start_with(&format!(
        "authorization {{ user: fleet, password: \"ri@ght\" }}\n\
         tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {authority:?} }}",
    ))
    .await
    else {
        return;
    };
    let servers = engine.settings().servers;
    let urls = |prefix: &str| -> Vec<String> {
        servers.iter().map(|url| url.replace("nats://", prefix)).collect()
    };
    let right = StoreSettings {
        servers: urls("tls://fleet:ri%40ght@"),
        ca: Some(authority),
        ..engine.settings()
    };
    let store = engine.store_with(&right).await;
    stored(store.write_entry(&entry("s", 1, EntryState::Live), Revision(0)).await);
    for wrong in [
        StoreSettings { servers: urls("tls://fleet:wrong@"), ..right.clone() },
        StoreSettings { servers: urls("tls://"), ..right.clone() },
        // An authority that did not sign the servers' certificate.
        StoreSettings { ca: None, ..right.clone() },
    ] {
        let refused = FleetStore::connect(&wrong).await.expect_err("it is refused");
        assert!(matches!(refused, ConnectError::Unreachable { .. }), "{refused:?}");
        let shown = format!("{refused} {refused:?} {wrong:?}");
        assert!(!shown.contains("wrong") && !shown.contains("ght@"), "{shown}");
    }
    let mut mixed = urls("tls://fleet:ri%40ght@");
    mixed[1] = mixed[1].replace("fleet:", "other:");
    let refused = FleetStore::connect(&StoreSettings { servers: mixed, ..right.clone() }).await;
    assert!(matches!(refused, Err(ConnectError::Servers(_))), "{refused:?}");

    // Whichever server the connection is with, it goes on with another one, which wants the password too.
    for number in 0..servers.len() {
        engine.kill(number);
        let found = answered(async || store.read_entry(&id("s")).await).await;
        assert!(found.record.is_some(), "{found:?}");
        engine.run(number);
    }
}

fn id(session: &str) -> SessionId {
    SessionId::parse(session).expect("a name")
}
