//! The store that all nodes share, on NATS JetStream. It reads records from the leader of their stream, and writes a
//! record only if its revision is the expected one. No other module knows NATS.
//!
//! The names of streams and subjects are in `streams`, next to the check of a stream's settings.

mod servers;
mod streams;
mod watch;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::context::{PublishError, PublishErrorKind, traits::Publisher as _};
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use futures_util::TryStreamExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_lifecycle::fleet::{CopyHead, Current, WriteAnswer};
use windlass_protocol::enrolment::without_password;
use windlass_protocol::fleet::{
    BootNonce, FLEET_RECORDS, LeaseRecord, MemberRecord, RemovalRecord, SessionEntry, WriteStamp,
};
use windlass_protocol::{NodeName, Revision, Seq, SessionId};

use servers::StoreServers;

pub use servers::ServerUrlError;
pub use streams::SetupError;
pub use watch::{RecordWatch, WatchedRecord};

/// How to reach the store.
#[derive(Clone)]
pub struct StoreSettings {
    /// URLs such as `nats://127.0.0.1:4222` or `tls://nats.example.org`. A URL may carry a user and a password, which all
    /// servers get.
    pub servers: Vec<String>,
    pub credentials: Credentials,
    /// The certificate authority of the servers, if it is not one of the machine's.
    pub ca: Option<PathBuf>,
    /// Number of copies that the servers keep of each record: 3, or 1 for a store that may be lost.
    pub replicas: usize,
    /// How long the store keeps copies of events.
    pub copies_kept: Duration,
}

impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSettings")
            .field("servers", &shown(&self.servers))
            .field("ca", &self.ca)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

/// The URLs without passwords.
fn shown(servers: &[String]) -> String {
    let urls: Vec<String> = servers.iter().map(|url| without_password(url)).collect();
    urls.join(", ")
}

/// What this machine shows the servers besides the user and the password of their URLs.
#[derive(Debug, Clone)]
pub enum Credentials {
    None,
    /// A certificate and its key.
    Certificate {
        certificate: PathBuf,
        key: PathBuf,
    },
}

/// How long a request to the store may take.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// How often the connection is tested. A dead server is noticed after two tests.
const PING_INTERVAL: Duration = Duration::from_secs(3);

/// Maximum number of writes without an answer.
const UNANSWERED_WRITES_MAX: usize = 4_096;

/// The server's code for: another write to the same subject is on its way.
const WRITE_IN_PROCESS: u64 = 10_164;

/// How often a write that meets another one on its way is sent.
const IN_PROCESS_TRIES_MAX: usize = 16;

/// The field of a batch that names the last event in it.
const LAST_EVENT: &str = "Windlass-Last";
const INCARNATION: &str = "Windlass-Incarnation";
const STAMP_BOOT: &str = "Windlass-Boot";
const STAMP_WRITE: &str = "Windlass-Write";

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Servers(#[from] ServerUrlError),
    #[error("no connection with a server of the fleet's store at {servers}: {cause}")]
    Unreachable { servers: String, cause: async_nats::ConnectError },
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum FleetStoreError {
    /// The store has no leader, or cannot be reached. Another try may succeed.
    #[error("the fleet's store does not answer: {0}")]
    Unavailable(String),
    /// A record that this release cannot read.
    #[error("the record {subject} of the fleet's store cannot be read: {problem}")]
    Unreadable { subject: String, problem: String },
}

/// A batch of a session's events, as the copy has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedBatch {
    pub head: CopyHead,
    /// The events, in the form in which they were given.
    pub events: Bytes,
}

/// A connection to the store.
#[derive(Debug, Clone)]
pub struct FleetStore {
    client: Client,
    context: Context,
    leases: Stream<()>,
    directory: Stream<()>,
}

impl FleetStore {
    /// Connects, creates the streams that are missing, and checks the settings of those that are there.
    pub async fn connect(settings: &StoreSettings) -> Result<Self, ConnectError> {
        let servers = StoreServers::parse(&settings.servers)?;
        let mut options = async_nats::ConnectOptions::new()
            .name("windlass")
            .ping_interval(PING_INTERVAL)
            .connection_timeout(ANSWER_WAIT)
            .request_timeout(Some(ANSWER_WAIT));
        options = match &settings.credentials {
            Credentials::None => options,
            Credentials::Certificate { certificate, key } => {
                options.add_client_certificate(certificate.clone(), key.clone())
            }
        };
        if let Some(ca) = &settings.ca {
            options = options.add_root_certificates(ca.clone());
        }
        let options = servers.apply(options);
        let client = options.connect(servers.addresses).await.map_err(|cause| {
            ConnectError::Unreachable { servers: shown(&settings.servers), cause }
        })?;
        let context = jetstream::ContextBuilder::new()
            .timeout(ANSWER_WAIT)
            .max_ack_inflight(UNANSWERED_WRITES_MAX)
            .backpressure_on_inflight(true)
            .build(client.clone());
        streams::set_up(&context, settings).await?;
        let leases = stream(&context, streams::LEASES).await?;
        let directory = stream(&context, streams::DIRECTORY).await?;
        Ok(Self { client, context, leases, directory })
    }

    pub async fn read_lease(
        &self,
        node: &NodeName,
    ) -> Result<Current<LeaseRecord>, FleetStoreError> {
        last(&self.leases, &streams::lease(node)).await
    }

    /// The store removes the lease `ttl` after it was written. It counts in whole seconds.
    pub async fn write_lease(
        &self,
        record: &LeaseRecord,
        expected: Revision,
        ttl: Duration,
    ) -> WriteAnswer {
        let message = conditional(record, expected).ttl(ttl);
        self.publish(streams::lease(&record.node), message).await
    }

    pub async fn read_member(
        &self,
        node: &NodeName,
    ) -> Result<Current<MemberRecord>, FleetStoreError> {
        last(&self.directory, &streams::member(node)).await
    }

    pub async fn write_member(&self, record: &MemberRecord, expected: Revision) -> WriteAnswer {
        self.publish(streams::member(&record.node), conditional(record, expected)).await
    }

    pub async fn read_entry(
        &self,
        session: &SessionId,
    ) -> Result<Current<SessionEntry>, FleetStoreError> {
        last(&self.directory, &streams::session(session)).await
    }

    /// Writes a session's entry, and with it the index by node: both or neither.
    pub async fn write_entry(&self, record: &SessionEntry, expected: Revision) -> WriteAnswer {
        let batch = format!("{:x}-{}", record.stamp.boot.0, record.stamp.write);
        let of_node = streams::session_of(&record.owner, &record.session);
        let mut first = HeaderMap::new();
        first.insert(streams::BATCH_ID, batch.as_str());
        first.insert(streams::BATCH_SEQUENCE, "1");
        if matches!(record.state, windlass_protocol::fleet::EntryState::Ended { .. }) {
            // The index forgets a session that has ended.
            first.insert(async_nats::header::NATS_MESSAGE_TTL, streams::INDEX_REMOVAL_S);
        }
        let sent = self.client.publish_with_headers(of_node, first, Bytes::new()).await;
        if sent.is_err() {
            return WriteAnswer::Unknown;
        }
        let second = conditional(record, expected)
            .header(streams::BATCH_ID, batch.as_str())
            .header(streams::BATCH_SEQUENCE, "2")
            .header(streams::BATCH_COMMIT, "1");
        // A batch is sent as a whole or not at all: the caller tries again.
        self.publish_once(&streams::session(&record.session), second)
            .await
            .unwrap_or(WriteAnswer::Unknown)
    }

    /// The sessions of a node, by the index. Some of them may just have ended.
    pub async fn sessions_of(&self, node: &NodeName) -> Result<Vec<SessionId>, FleetStoreError> {
        let subjects = self.subjects(&streams::sessions_of(node)).await?;
        let names = subjects.iter().filter_map(|subject| subject.rsplit('.').next());
        Ok(names.filter_map(|name| SessionId::parse(name).ok()).collect())
    }

    /// Writes that a node was removed from the fleet, unless the store has it already. The store forgets it after `ttl`,
    /// which counts in whole seconds.
    pub async fn write_removal(&self, record: &RemovalRecord, ttl: Duration) -> WriteAnswer {
        let message = conditional(record, Revision(0)).ttl(ttl);
        self.publish(streams::removal(&record.node), message).await
    }

    /// The nodes that were removed from the fleet, and whose certificates may still be valid.
    pub async fn removed_nodes(&self) -> Result<Vec<NodeName>, FleetStoreError> {
        let subjects = self.subjects(streams::ALL_REMOVALS).await?;
        let names = subjects.iter().filter_map(|subject| subject.rsplit('.').next());
        Ok(names.filter_map(|name| NodeName::parse(name).ok()).collect())
    }

    /// The subjects of the directory's records that match a filter, from the leader.
    async fn subjects(&self, filter: &str) -> Result<Vec<String>, FleetStoreError> {
        let subjects = self.directory.info_with_subjects(filter).await.map_err(unavailable)?;
        let found: Vec<(String, usize)> = subjects.try_collect().await.map_err(unavailable)?;
        Ok(found.into_iter().map(|(subject, _)| subject).collect())
    }

    /// Follows the leases of some nodes, or of all nodes. The watch gives hints: an item can be late or missing.
    pub async fn watch_leases(
        &self,
        nodes: Option<&[NodeName]>,
    ) -> Result<RecordWatch<LeaseRecord>, FleetStoreError> {
        let filters = match nodes {
            Some(nodes) => nodes.iter().map(streams::lease).collect(),
            None => vec![streams::ALL_LEASES.to_owned()],
        };
        RecordWatch::start(&self.leases, filters).await
    }

    /// Follows all member records. The watch gives hints: an item can be late or missing.
    pub async fn watch_members(&self) -> Result<RecordWatch<MemberRecord>, FleetStoreError> {
        RecordWatch::start(&self.directory, vec![streams::ALL_MEMBERS.to_owned()]).await
    }

    /// How far the copy of a session's events goes.
    pub async fn read_copy_head(
        &self,
        session: &SessionId,
    ) -> Result<Current<CopyHead>, FleetStoreError> {
        let subject = streams::copy(session);
        let copies = stream_of_copies(&self.context, session).await?;
        match copies.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => {
                let record = Some(copy_head(&subject, &message.headers)?);
                Ok(Current { record, revision: Revision(message.sequence) })
            }
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
                Ok(Current { record: None, revision: Revision(0) })
            }
            Err(error) => Err(unavailable(error)),
        }
    }

    /// Writes a batch of events behind the last one of the session.
    pub async fn write_copy(
        &self,
        session: &SessionId,
        batch: CopiedBatch,
        expected: Revision,
    ) -> WriteAnswer {
        let CopyHead { stamp, incarnation, last } = batch.head;
        let message = PublishMessage::build()
            .payload(batch.events)
            .expected_last_subject_sequence(expected.0)
            .header(LAST_EVENT, last.0.to_string().as_str())
            .header(INCARNATION, incarnation.0.to_string().as_str())
            .header(STAMP_BOOT, stamp.boot.0.to_string().as_str())
            .header(STAMP_WRITE, stamp.write.to_string().as_str());
        self.publish(streams::copy(session), message).await
    }

    /// The next batch of a session's copy behind a revision, from the leader. `None` at the end of the copy.
    pub async fn read_copy(
        &self,
        session: &SessionId,
        after: Revision,
    ) -> Result<Option<(CopiedBatch, Revision)>, FleetStoreError> {
        let subject = streams::copy(session);
        let copies = stream_of_copies(&self.context, session).await?;
        let next = copies
            .raw_message_builder()
            .sequence(after.0 + 1)
            .next_by_subject(subject.clone())
            .send()
            .await;
        match next {
            Ok(message) => {
                let head = copy_head(&subject, &message.headers)?;
                let batch = CopiedBatch { head, events: message.payload };
                Ok(Some((batch, Revision(message.sequence))))
            }
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(unavailable(error)),
        }
    }

    /// The name of the server that leads the directory now.
    pub async fn leader_of_directory(&self) -> Result<Option<String>, FleetStoreError> {
        let info = self.directory.get_info().await.map_err(unavailable)?;
        Ok(info.cluster.and_then(|cluster| cluster.leader))
    }

    /// Sends a write. A write that meets another one on its way is sent again: it was not done.
    async fn publish(&self, subject: String, message: PublishMessage) -> WriteAnswer {
        for _ in 0..IN_PROCESS_TRIES_MAX {
            match self.publish_once(&subject, message.clone()).await {
                Ok(answer) => return answer,
                Err(InProcess) => tokio::task::yield_now().await,
            }
        }
        WriteAnswer::Unknown
    }

    async fn publish_once(
        &self,
        subject: &str,
        message: PublishMessage,
    ) -> Result<WriteAnswer, InProcess> {
        let message = message.outbound_message(subject.to_owned());
        let acknowledged = match self.context.publish_message(message).await {
            Ok(acknowledged) => acknowledged.await,
            Err(error) => Err(error),
        };
        let error = match acknowledged {
            Ok(acknowledged) => {
                return Ok(WriteAnswer::Stored(Revision(acknowledged.sequence)));
            }
            Err(error) => error,
        };
        match (error.kind(), code_of(&error)) {
            (_, Some(WRITE_IN_PROCESS)) => Err(InProcess),
            (PublishErrorKind::WrongLastSequence, _) => Ok(WriteAnswer::Conflict),
            _ => {
                tracing::debug!(%error, "a write to the fleet's store has no answer");
                Ok(WriteAnswer::Unknown)
            }
        }
    }
}

/// Another write to the same subject is on its way.
struct InProcess;

/// The code of the server's error, if the server refused the write.
fn code_of(error: &PublishError) -> Option<u64> {
    let refused = std::error::Error::source(error)?.downcast_ref::<jetstream::Error>()?;
    Some(refused.error_code().0)
}

async fn stream(context: &Context, name: &str) -> Result<Stream<()>, SetupError> {
    context.get_stream_no_info(name).await.map_err(|error| SetupError::failed(name, &error))
}

async fn stream_of_copies(
    context: &Context,
    session: &SessionId,
) -> Result<Stream<()>, FleetStoreError> {
    context.get_stream_no_info(streams::copies_of(session)).await.map_err(unavailable)
}

/// A record that is written only if the one before it has this revision.
fn conditional<R: Serialize>(record: &R, expected: Revision) -> PublishMessage {
    // Records hold texts and numbers only.
    let payload = serde_json::to_vec(record).expect("a record can be written as JSON");
    PublishMessage::build().payload(payload.into()).expected_last_subject_sequence(expected.0)
}

/// The record of a subject, from the leader of the stream.
async fn last<R: DeserializeOwned>(
    stream: &Stream<()>,
    subject: &str,
) -> Result<Current<R>, FleetStoreError> {
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) => {
            Ok(Current { record: record_in(&message)?, revision: Revision(message.sequence) })
        }
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
            Ok(Current { record: None, revision: Revision(0) })
        }
        Err(error) => Err(unavailable(error)),
    }
}

/// The record of a message. A marker says that the record is gone.
fn record_in<R: DeserializeOwned>(message: &StreamMessage) -> Result<Option<R>, FleetStoreError> {
    if streams::is_marker(&message.headers) {
        return Ok(None);
    }
    read(&message.subject, &message.payload).map(Some)
}

/// The field that all records have.
#[derive(Deserialize)]
struct FleetRecordVersion {
    version: u32,
}

fn read<R: DeserializeOwned>(subject: &str, payload: &[u8]) -> Result<R, FleetStoreError> {
    let unreadable =
        |problem: String| FleetStoreError::Unreadable { subject: subject.to_owned(), problem };
    let found: FleetRecordVersion =
        serde_json::from_slice(payload).map_err(|error| unreadable(error.to_string()))?;
    if found.version > FLEET_RECORDS {
        let version = found.version;
        let problem = format!("it has version {version}, and this release reads {FLEET_RECORDS}");
        return Err(unreadable(problem));
    }
    serde_json::from_slice(payload).map_err(|error| unreadable(error.to_string()))
}

fn copy_head(subject: &str, headers: &HeaderMap) -> Result<CopyHead, FleetStoreError> {
    let number = |name: &str| {
        let value = headers.get(name).and_then(|value| value.as_str().parse::<u64>().ok());
        value.ok_or_else(|| FleetStoreError::Unreadable {
            subject: subject.to_owned(),
            problem: format!("the header {name} is no number"),
        })
    };
    Ok(CopyHead {
        stamp: WriteStamp { boot: BootNonce(number(STAMP_BOOT)?), write: number(STAMP_WRITE)? },
        incarnation: Revision(number(INCARNATION)?),
        last: Seq(number(LAST_EVENT)?),
    })
}

fn unavailable(error: impl std::fmt::Display) -> FleetStoreError {
    FleetStoreError::Unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_a_newer_release_is_not_read() {
        let record = |version: u32| {
            serde_json::json!({
                "version": version, "node": "n1", "installation": 7,
                "stamp": { "boot": 1, "write": 2 }, "address": "n1:1"
            })
        };
        let read =
            |version| read::<LeaseRecord>("$KV.lease.n1", record(version).to_string().as_bytes());
        assert_eq!(read(FLEET_RECORDS).unwrap().address, "n1:1");
        let error = read(FLEET_RECORDS + 1).unwrap_err();
        assert!(matches!(error, FleetStoreError::Unreadable { .. }), "{error}");
        assert!(error.to_string().contains("has version 2"), "{error}");
    }
}
