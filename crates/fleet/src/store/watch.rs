//! Follows the records of one kind. First comes every record that there is, then every change. All of it is a hint.

use std::marker::PhantomData;
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::stream::Stream;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use time::OffsetDateTime;

use super::{FleetStoreError, read, streams, unavailable};

/// What a watch says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchedRecord<R> {
    /// The record is there.
    There { name: String, record: R },
    /// The record is gone: it has expired or was removed.
    Gone { name: String },
    /// Every record that was there at the start has been told.
    Complete,
}

/// See the module documentation.
pub struct RecordWatch<R> {
    messages: Ordered,
    /// Messages that are left of the start. `None` once all have been told.
    left: Option<u64>,
    /// How long ago the last record was written.
    age: Duration,
    record: PhantomData<R>,
}

impl<R> std::fmt::Debug for RecordWatch<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordWatch").field("left", &self.left).finish_non_exhaustive()
    }
}

impl<R: DeserializeOwned> RecordWatch<R> {
    /// Follows the subjects of these filters.
    pub(super) async fn start(
        stream: &Stream<()>,
        filters: Vec<String>,
    ) -> Result<Self, FleetStoreError> {
        let config = OrderedConfig {
            filter_subjects: filters,
            deliver_policy: DeliverPolicy::LastPerSubject,
            ..OrderedConfig::default()
        };
        let consumer = stream.create_consumer(config).await.map_err(unavailable)?;
        let left = Some(consumer.cached_info().num_pending);
        let messages = consumer.messages().await.map_err(unavailable)?;
        Ok(Self { messages, left, age: Duration::ZERO, record: PhantomData })
    }

    /// How long ago the record was written that was told last, by the clocks of the server and of this machine.
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Waits for what comes next. An error ends the watch.
    pub async fn next(&mut self) -> Result<WatchedRecord<R>, FleetStoreError> {
        if self.left == Some(0) {
            self.left = None;
            return Ok(WatchedRecord::Complete);
        }
        loop {
            let message = match self.messages.next().await {
                Some(Ok(message)) => message,
                Some(Err(error)) => return Err(unavailable(error)),
                None => return Err(FleetStoreError::Unavailable("the watch has ended".to_owned())),
            };
            if let Some(left) = &mut self.left {
                *left = left.saturating_sub(1);
            }
            let written = message.info().map(|info| info.published);
            self.age = written.map_or(Duration::ZERO, |at| age_at(at, OffsetDateTime::now_utc()));
            let name = message.subject.rsplit('.').next().unwrap_or_default().to_owned();
            if message.headers.as_ref().is_some_and(streams::is_marker) {
                return Ok(WatchedRecord::Gone { name });
            }
            match read(&message.subject, &message.payload) {
                Ok(record) => return Ok(WatchedRecord::There { name, record }),
                // A record of a newer release is left alone.
                Err(error) => tracing::warn!(%error, "a record of the fleet was passed over"),
            }
            if self.left == Some(0) {
                self.left = None;
                return Ok(WatchedRecord::Complete);
            }
        }
    }
}

/// Zero if the other clock is ahead.
fn age_at(written: OffsetDateTime, now: OffsetDateTime) -> Duration {
    Duration::try_from(now - written).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_never_younger_than_new() {
        let written = OffsetDateTime::UNIX_EPOCH;
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(age_at(written, written + day), day);
        assert_eq!(age_at(written + day, written), Duration::ZERO);
    }
}
