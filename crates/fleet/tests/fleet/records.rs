//! Records: conditional writes, expiry, the index by node, and the check of streams.

use std::time::Duration;

use windlass_fleet::store::{ConnectError, FleetStoreError, SetupError, WatchedRecord};
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

/// How long a lease is valid: long enough for a slow machine to find the next record.
const LEASE_TTL: Duration = Duration::from_secs(5);

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

/// Writes the record. A busy machine may delay an answer until it is unknown, which a look decides.
async fn written<R: PartialEq>(
    record: &R,
    mut write: impl AsyncFnMut() -> WriteAnswer,
    mut read: impl AsyncFnMut() -> Result<Current<R>, FleetStoreError>,
) -> Revision {
    loop {
        match write().await {
            WriteAnswer::Stored(revision) => return revision,
            WriteAnswer::Unknown => {
                let found = answered(&mut read).await;
                if found.record.as_ref() == Some(record) {
                    return found.revision;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn member_written(store: &FleetStore, record: &MemberRecord, at: Revision) -> Revision {
    let write = async || store.write_member(record, at).await;
    written(record, write, async || store.read_member(&record.node).await).await
}

async fn entry_written(store: &FleetStore, record: &SessionEntry, at: Revision) -> Revision {
    let write = async || store.write_entry(record, at).await;
    written(record, write, async || store.read_entry(&record.session).await).await
}

async fn lease_written(store: &FleetStore, record: &LeaseRecord, at: Revision) -> Revision {
    let write = async || store.write_lease(record, at, LEASE_TTL).await;
    written(record, write, async || store.read_lease(&node("a")).await).await
}

/// Repeats a write at a revision that is not the current one, until the store says that it conflicts.
async fn conflicts(mut write: impl AsyncFnMut() -> WriteAnswer) {
    loop {
        match write().await {
            WriteAnswer::Conflict => return,
            WriteAnswer::Unknown => {}
            other => panic!("{other:?}"),
        }
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
    let revision = member_written(&store, &member, Revision(0)).await;
    conflicts(async || store.write_member(&member, Revision(0)).await).await;
    let lost = MemberRecord { lost: true, ..member.clone() };
    let next = member_written(&store, &lost, revision).await;
    conflicts(async || store.write_member(&member, revision).await).await;
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
        revisions.push(entry_written(&store, &live, Revision(0)).await);
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
    conflicts(async || store.write_entry(&again, Revision(5)).await).await;
    assert_eq!(sessions(&store).await, "s1 s2 s3");
    let ended = entry("s2", 10, EntryState::Ended { incarnation: Some(revisions[1]) });
    entry_written(&store, &ended, revisions[1]).await;
    until("the index forgets s2", async || sessions(&store).await == "s1 s3").await;
    let found = answered(async || store.read_entry(&ended.session).await).await;
    assert_eq!(found.record, Some(ended));
}

#[tokio::test]
async fn a_lease_expires_and_can_be_taken_again() {
    let engine = three_servers!();
    let store = engine.store().await;
    let first = lease_written(&store, &lease(1), Revision(0)).await;
    let second = lease_written(&store, &lease(2), first).await;
    let mut watch = answered(async || store.watch_leases(None).await).await;
    let there = WatchedRecord::There { name: "a".to_owned(), record: lease(2) };
    assert_eq!(watch.next().await.expect("a record"), there);
    assert_eq!(watch.next().await.expect("the end of the start"), WatchedRecord::Complete);
    let gone = WatchedRecord::Gone { name: "a".to_owned() };
    assert_eq!(watch.next().await.expect("an expiry"), gone);
    let absent = answered(async || store.read_lease(&node("a")).await).await;
    assert_eq!(absent.record, None);
    // A renewal that comes too late is refused.
    conflicts(async || store.write_lease(&lease(3), second, LEASE_TTL).await).await;
    lease_written(&store, &lease(4), absent.revision).await;
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
    entry_written(&store, &entry("s", 1, EntryState::Live), Revision(0)).await;
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
