//! Names of streams and subjects, the settings of the streams, and their check.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use windlass_protocol::{NodeName, SessionId};

use super::StoreSettings;

pub(super) const LEASES: &str = "KV_lease";
pub(super) const DIRECTORY: &str = "DIR";

pub(super) const ALL_LEASES: &str = "$KV.lease.>";
pub(super) const ALL_MEMBERS: &str = "d.m.>";
pub(super) const ALL_REMOVALS: &str = "d.r.>";

pub(super) const BATCH_ID: &str = "Nats-Batch-Id";
pub(super) const BATCH_SEQUENCE: &str = "Nats-Batch-Sequence";
pub(super) const BATCH_COMMIT: &str = "Nats-Batch-Commit";

/// After so many seconds the index forgets a session that has ended.
pub(super) const INDEX_REMOVAL_S: &str = "1";

/// Number of streams with copies of events.
const COPY_STREAMS: u32 = 4;

/// Consumers that one stream may have: each node follows the leases.
const CONSUMERS_MAX: i32 = 5_000;

/// How long a marker says that a lease has expired.
const MARKER_TTL: Duration = Duration::from_secs(60);

/// The store cannot be used as it is.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("the stream {stream} of the fleet's store cannot be set up: {problem}")]
    Failed { stream: String, problem: String },
    #[error(
        "the stream {stream} of the fleet's store has {setting} {found}, the fleet needs {needed}; change it with \
         `nats stream edit {stream}`, or remove the stream if it has no data that you need"
    )]
    Wrong { stream: String, setting: &'static str, found: String, needed: String },
}

impl SetupError {
    pub(super) fn failed(stream: &str, problem: &dyn std::fmt::Display) -> Self {
        Self::Failed { stream: stream.to_owned(), problem: problem.to_string() }
    }
}

pub(super) fn lease(node: &NodeName) -> String {
    format!("$KV.lease.{node}")
}

pub(super) fn member(node: &NodeName) -> String {
    format!("d.m.{node}")
}

pub(super) fn removal(node: &NodeName) -> String {
    format!("d.r.{node}")
}

pub(super) fn session(session: &SessionId) -> String {
    format!("d.s.{session}")
}

pub(super) fn session_of(node: &NodeName, session: &SessionId) -> String {
    format!("d.n.{node}.{session}")
}

pub(super) fn sessions_of(node: &NodeName) -> String {
    format!("d.n.{node}.>")
}

pub(super) fn copy(session: &SessionId) -> String {
    format!("e.{}.{session}", part_of(session))
}

/// The stream that has the copy of a session.
pub(super) fn copies_of(session: &SessionId) -> String {
    copies(part_of(session))
}

fn copies(part: u32) -> String {
    format!("EV{part}")
}

/// FNV-1a gives the same part in every release.
fn part_of(session: &SessionId) -> u32 {
    let hash = session
        .as_str()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash % COPY_STREAMS
}

/// Whether the message says that its record is gone.
pub(super) fn is_marker(headers: &HeaderMap) -> bool {
    headers.get("Nats-Marker-Reason").is_some() || headers.get("KV-Operation").is_some()
}

/// Creates the streams that are missing, and checks those that are there.
pub(super) async fn set_up(context: &Context, settings: &StoreSettings) -> Result<(), SetupError> {
    for wanted in configs(settings) {
        let name = wanted.name.clone();
        let found = match context.create_stream(wanted.clone()).await {
            Ok(stream) => stream.cached_info().config.clone(),
            // It is there with other settings, or another node has just created it.
            Err(error) if matches!(error.kind(), CreateStreamErrorKind::JetStream(_)) => {
                let stream = context.get_stream(&name).await;
                let Ok(stream) = stream else { return Err(SetupError::failed(&name, &error)) };
                stream.cached_info().config.clone()
            }
            Err(error) => return Err(SetupError::failed(&name, &error)),
        };
        check(&wanted, &found)?;
    }
    Ok(())
}

/// The settings that the fleet's promises rest on. Others are the operator's choice.
fn check(wanted: &Config, found: &Config) -> Result<(), SetupError> {
    let wrong = |setting, found: String, needed: String| SetupError::Wrong {
        stream: wanted.name.clone(),
        setting,
        found,
        needed,
    };
    let flags = [
        ("allow_msg_ttl", found.allow_message_ttl, wanted.allow_message_ttl),
        ("allow_atomic", found.allow_atomic_publish, wanted.allow_atomic_publish),
    ];
    for (setting, is, needed) in flags {
        if needed && !is {
            return Err(wrong(setting, is.to_string(), needed.to_string()));
        }
    }
    if found.storage != wanted.storage {
        return Err(wrong("storage", format!("{:?}", found.storage), "File".to_owned()));
    }
    if found.num_replicas < wanted.num_replicas {
        let needed = format!("at least {}", wanted.num_replicas);
        return Err(wrong("num_replicas", found.num_replicas.to_string(), needed));
    }
    if found.max_messages_per_subject != wanted.max_messages_per_subject {
        let (is, needed) = (found.max_messages_per_subject, wanted.max_messages_per_subject);
        return Err(wrong("max_msgs_per_subject", is.to_string(), needed.to_string()));
    }
    if wanted.subject_delete_marker_ttl.is_some() && found.subject_delete_marker_ttl.is_none() {
        return Err(wrong("subject_delete_marker_ttl", "none".to_owned(), "60s".to_owned()));
    }
    // A limit that drops records would lose sessions without a word.
    let limits = [
        ("max_msgs", found.max_messages, wanted.max_messages),
        ("max_bytes", found.max_bytes, wanted.max_bytes),
    ];
    for (setting, is, needed) in limits {
        if is > 0 && wanted.max_messages_per_subject == 1 {
            return Err(wrong(setting, is.to_string(), needed.to_string()));
        }
    }
    if found.subjects != wanted.subjects {
        return Err(wrong("subjects", found.subjects.join(", "), wanted.subjects.join(", ")));
    }
    Ok(())
}

fn configs(settings: &StoreSettings) -> Vec<Config> {
    let records = Config {
        storage: StorageType::File,
        num_replicas: settings.replicas,
        max_messages_per_subject: 1,
        max_messages: -1,
        max_bytes: -1,
        max_consumers: CONSUMERS_MAX,
        discard: DiscardPolicy::New,
        allow_message_ttl: true,
        ..Config::default()
    };
    let leases = Config {
        name: LEASES.to_owned(),
        subjects: vec![ALL_LEASES.to_owned()],
        subject_delete_marker_ttl: Some(MARKER_TTL),
        allow_rollup: true,
        deny_delete: true,
        ..records.clone()
    };
    let directory = Config {
        name: DIRECTORY.to_owned(),
        subjects: vec!["d.>".to_owned()],
        allow_atomic_publish: true,
        allow_direct: true,
        ..records.clone()
    };
    let copies = (0..COPY_STREAMS).map(|part| Config {
        name: copies(part),
        subjects: vec![format!("e.{part}.>")],
        max_messages_per_subject: -1,
        max_age: settings.copies_kept,
        discard: DiscardPolicy::Old,
        allow_message_ttl: false,
        ..records.clone()
    });
    [leases, directory].into_iter().chain(copies).collect()
}
