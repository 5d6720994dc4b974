//! Limits of the whole node: memory and work for all sessions and clients together. A request over a
//! limit is refused as `overloaded`; the client may retry it. Limits of one session are in
//! `protocol::limits`.
//!
//! A turn pays a few atomic operations. The reply of a turn never waits here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use windlass_protocol::ErrorCode;

use crate::failure::Failure;

/// Maximum number of bytes of code and input that no keeper has received yet, of all sessions.
const INPUT_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Maximum number of bytes that were read from journals for responses and that clients have not read.
const ANSWER_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Maximum number of concurrent journal reads for followers, and of followers that wait for one.
const FOLLOWER_READS_MAX: usize = 4;
const FOLLOWER_READS_WAITING_MAX: usize = 16_384;

/// Maximum number of other concurrent journal reads, and of requests that wait for one.
const PAGE_READS_MAX: usize = 4;
const PAGE_READS_WAITING_MAX: usize = 1024;

/// Maximum number of concurrent and of waiting searches. A search reads all output of a session.
const SEARCHES_MAX: usize = 2;
const SEARCHES_WAITING_MAX: usize = 64;

/// All limits of one node.
#[derive(Debug)]
pub(crate) struct Bounds {
    /// Bytes of code and input on the way to keepers.
    pub input: Arc<Budget>,
    /// Bytes of responses that clients have not read.
    pub answers: Arc<Budget>,
    /// Long-lived connections: followers, tool hosts, replies that wait.
    pub long_connections: Arc<Budget>,
    pub follower_reads: ReadLane,
    pub page_reads: ReadLane,
    pub searches: ReadLane,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            input: Budget::new("bytes of code and input that wait for sessions", INPUT_BYTES_MAX),
            answers: Budget::new("bytes of answers that clients have not read", ANSWER_BYTES_MAX),
            // `http::serve` sets the limit.
            long_connections: Budget::new("followers and other clients that wait", 0),
            follower_reads: ReadLane::new(
                "followers whose reads wait",
                FOLLOWER_READS_MAX,
                FOLLOWER_READS_WAITING_MAX,
            ),
            page_reads: ReadLane::new(
                "reads of journals that wait",
                PAGE_READS_MAX,
                PAGE_READS_WAITING_MAX,
            ),
            searches: ReadLane::new("searches that wait", SEARCHES_MAX, SEARCHES_WAITING_MAX),
        }
    }
}

/// A limited amount of a resource, for the whole node.
#[derive(Debug)]
pub(crate) struct Budget {
    what: &'static str,
    limit: AtomicUsize,
    taken: AtomicUsize,
}

/// A claimed part of a budget; dropping it returns the part.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<Budget>,
    amount: usize,
}

impl Budget {
    fn new(what: &'static str, limit: usize) -> Arc<Self> {
        Arc::new(Self { what, limit: AtomicUsize::new(limit), taken: AtomicUsize::new(0) })
    }

    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub fn claim(self: &Arc<Self>, amount: usize) -> Result<BudgetShare, Failure> {
        let mut share = BudgetShare { budget: self.clone(), amount: 0 };
        share.grow(amount)?;
        Ok(share)
    }

    /// Counts these bytes in the budget until the last `Bytes` that shares them is dropped.
    pub fn counted(self: &Arc<Self>, bytes: Bytes) -> Result<Bytes, Failure> {
        Ok(self.claim(bytes.len())?.with(bytes))
    }

    fn add(&self, amount: usize) -> Result<(), Failure> {
        let limit = self.limit.load(Ordering::Relaxed);
        let before = self.taken.fetch_add(amount, Ordering::Relaxed);
        if before.saturating_add(amount) <= limit {
            return Ok(());
        }
        self.taken.fetch_sub(amount, Ordering::Relaxed);
        let message = format!("the node has {before} {}, and its limit is {limit}", self.what);
        Err(Failure::new(ErrorCode::Overloaded, message))
    }
}

impl BudgetShare {
    /// Claims more. If the budget is exhausted, the former claim stays.
    pub fn grow(&mut self, amount: usize) -> Result<(), Failure> {
        self.budget.add(amount)?;
        self.amount += amount;
        Ok(())
    }

    /// Ties the share to bytes: dropping the last part of the bytes returns it.
    fn with(self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() { bytes } else { Bytes::from_owner(Counted { bytes, _share: self }) }
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

struct Counted {
    bytes: Bytes,
    _share: BudgetShare,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Runs blocking work on other threads, with a limit of concurrent and of waiting work. Waiting work takes
/// no thread.
#[derive(Debug)]
pub(crate) struct ReadLane {
    at_once: Arc<Semaphore>,
    waiting: Arc<Budget>,
}

impl ReadLane {
    fn new(what: &'static str, at_once: usize, waiting_max: usize) -> Self {
        let waiting = Budget::new(what, waiting_max);
        Self { at_once: Arc::new(Semaphore::new(at_once)), waiting }
    }

    /// Runs `work` on the blocking pool when a slot is free.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.enter().await?.run(work).await
    }

    /// Waits for a slot.
    pub async fn enter(&self) -> Result<ReadTurn, Failure> {
        if let Ok(permit) = self.at_once.clone().try_acquire_owned() {
            return Ok(ReadTurn { permit });
        }
        let _waits = self.waiting.claim(1)?;
        let permit = self.at_once.clone().acquire_owned().await.map_err(failed)?;
        Ok(ReadTurn { permit })
    }
}

/// A slot of a lane, for one piece of work.
#[derive(Debug)]
pub(crate) struct ReadTurn {
    permit: OwnedSemaphorePermit,
}

impl ReadTurn {
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            // The work holds the slot to its end, even if the caller gave up.
            drop(self.permit);
            done
        });
        done.await.map_err(failed)
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    tracing::error!(%error, "cannot run the work of a request");
    Failure::new(ErrorCode::Internal, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_claim_over_the_budget_is_refused_until_a_share_is_returned() {
        let budget = Budget::new("bytes", 100);
        let mut first = budget.claim(60).unwrap();
        let refused = budget.claim(41).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Overloaded);
        assert!(refused.message.contains("60 bytes"), "{}", refused.message);
        assert!(first.grow(41).is_err());
        let second = budget.claim(40).unwrap();
        drop(first);
        let third = budget.claim(60).unwrap();
        drop((second, third));
        assert_eq!(budget.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn counted_bytes_are_returned_with_their_last_part() {
        let budget = Budget::new("bytes", 10);
        let mut bytes = budget.counted(Bytes::from_static(b"0123456789")).unwrap();
        let head = bytes.split_to(3);
        drop(bytes);
        assert!(budget.claim(1).is_err(), "a part is still there");
        assert_eq!(head, &b"012"[..]);
        drop(head);
        assert!(budget.claim(10).is_ok());
    }

    #[tokio::test]
    async fn a_lane_limits_concurrent_and_waiting_work() {
        let lane = Arc::new(ReadLane::new("reads", 1, 1));
        let (go, gate) = mpsc::channel::<()>();
        let wait = Duration::from_secs(10);
        let turn = lane.enter().await.unwrap();
        let busy = tokio::spawn(turn.run(move || gate.recv_timeout(wait)));
        let waits = tokio::spawn({
            let lane = lane.clone();
            async move { lane.run(|| 7).await }
        });
        tokio::task::yield_now().await;
        let refused = lane.run(|| 8).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Overloaded);
        go.send(()).unwrap();
        busy.await.unwrap().unwrap().unwrap();
        assert_eq!(waits.await.unwrap().unwrap(), 7);
        assert_eq!(lane.run(|| 9).await.unwrap(), 9);
    }
}
