//! Limits of the whole node: memory and work for all sessions and clients together. A request over a
//! limit is refused as `overloaded`; the client may retry it. Limits of one session are in
//! `protocol::limits`. Each tenant can use a part of each limit ([`NodeBounds`]).
//!
//! A turn pays a few atomic operations. The reply of a turn never waits here.

mod by_tenant;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use windlass_protocol::ErrorCode;

pub(crate) use self::by_tenant::{NodeBounds, can_take_one_more};
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

/// Maximum number of concurrent and of waiting requests that read the fleet's copy of a lost session.
const LOST_READS_MAX: usize = 8;
const LOST_READS_WAITING_MAX: usize = 256;

/// Maximum number of concurrent and of waiting uploads.
const UPLOADS_MAX: usize = 64;
const UPLOADS_WAITING_MAX: usize = 16_384;

/// Maximum number of concurrent watches. The kernel limits the inotify instances of a user.
const WATCHES_MAX: usize = 64;

/// Maximum number of tool hosts, and of bytes that they declare. The table of tools has the same limits.
const TOOL_HOSTS_MAX: usize = 4096;
const DECLARED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// All limits of one node, or of a part of its clients.
#[derive(Debug)]
pub(crate) struct Bounds {
    /// Bytes of code and input on the way to keepers.
    pub input: Arc<Budget>,
    /// Bytes of responses that clients have not read.
    pub answers: Arc<Budget>,
    /// Requests that are being answered. Claimed for tenants only: the connection slots bound those of all clients.
    pub requests: Arc<Budget>,
    /// Long-lived connections: followers, tool hosts, replies that wait.
    pub long_connections: Arc<Budget>,
    pub follower_reads: ReadLane,
    pub page_reads: ReadLane,
    pub searches: ReadLane,
    pub uploads: ReadLane,
    /// Watches of files.
    pub watches: Arc<Budget>,
    pub tool_hosts: Arc<Budget>,
    /// Bytes of the tools that hosts declare.
    pub declarations: Arc<Budget>,
    /// Reads of the fleet's copies of lost sessions.
    pub lost_reads: ReadLane,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            input: Budget::new("bytes of code and input that wait for sessions", INPUT_BYTES_MAX),
            answers: Budget::new("bytes of answers that clients have not read", ANSWER_BYTES_MAX),
            // `http::serve` sets these two limits.
            requests: Budget::new("requests that are being answered", 0),
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
            uploads: ReadLane::new("uploads that wait", UPLOADS_MAX, UPLOADS_WAITING_MAX),
            watches: Budget::new("watches of files", WATCHES_MAX),
            tool_hosts: Budget::new("tool hosts", TOOL_HOSTS_MAX),
            declarations: Budget::new("bytes of declared tools", DECLARED_BYTES_MAX),
            lost_reads: ReadLane::new(
                "reads of lost sessions that wait",
                LOST_READS_MAX,
                LOST_READS_WAITING_MAX,
            ),
        }
    }
}

impl Bounds {
    /// Limits of so many quarters of the node's limits. What is claimed here counts in these limits too.
    fn part(&self, quarters: usize) -> Self {
        Self {
            input: Budget::part(&self.input, quarters),
            answers: Budget::part(&self.answers, quarters),
            requests: Budget::part(&self.requests, quarters),
            long_connections: Budget::part(&self.long_connections, quarters),
            follower_reads: self.follower_reads.part(quarters),
            page_reads: self.page_reads.part(quarters),
            searches: self.searches.part(quarters),
            uploads: self.uploads.part(quarters),
            watches: Budget::part(&self.watches, quarters),
            tool_hosts: Budget::part(&self.tool_hosts, quarters),
            declarations: Budget::part(&self.declarations, quarters),
            lost_reads: self.lost_reads.part(quarters),
        }
    }

    /// What is claimed of each limit, for the metrics.
    pub fn levels(&self) -> [BoundLevel; 12] {
        [
            self.input.level("input_bytes"),
            self.answers.level("answer_bytes"),
            self.requests.level("tenant_requests"),
            self.long_connections.level("long_connections"),
            self.follower_reads.waiting.level("waiting_follower_reads"),
            self.page_reads.waiting.level("waiting_page_reads"),
            self.searches.waiting.level("waiting_searches"),
            self.uploads.waiting.level("waiting_uploads"),
            self.lost_reads.waiting.level("waiting_lost_reads"),
            self.watches.level("watches"),
            self.tool_hosts.level("tool_hosts"),
            self.declarations.level("tool_declaration_bytes"),
        ]
    }

    /// Whether anything of a budget is claimed, or anything waits.
    fn are_in_use(&self) -> bool {
        let budgets = [
            &self.input,
            &self.answers,
            &self.requests,
            &self.long_connections,
            &self.watches,
            &self.tool_hosts,
            &self.declarations,
        ];
        let lanes = [
            &self.follower_reads,
            &self.page_reads,
            &self.searches,
            &self.uploads,
            &self.lost_reads,
        ];
        budgets.into_iter().any(|budget| budget.is_in_use())
            || lanes.into_iter().any(ReadLane::is_in_use)
    }
}

/// What is claimed of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BoundLevel {
    /// The label in the metrics.
    pub name: &'static str,
    pub used: usize,
    pub limit: usize,
}

/// So many quarters of a limit, and at least 1.
fn quarters_of(limit: usize, quarters: usize) -> usize {
    (limit / 4 * quarters + limit % 4 * quarters / 4).max(1)
}

/// A limited amount of a resource, for the whole node or for a part of its clients.
#[derive(Debug)]
pub(crate) struct Budget {
    what: &'static str,
    size: BudgetSize,
    taken: AtomicUsize,
}

#[derive(Debug)]
enum BudgetSize {
    /// The limit of the node.
    Whole(AtomicUsize),
    /// So many quarters of the limit of the node. A claim counts in the larger budget too.
    Part { of: Arc<Budget>, quarters: usize },
}

/// A claimed part of a budget; dropping it returns the part.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<Budget>,
    amount: usize,
}

impl Budget {
    fn new(what: &'static str, limit: usize) -> Arc<Self> {
        let size = BudgetSize::Whole(AtomicUsize::new(limit));
        Arc::new(Self { what, size, taken: AtomicUsize::new(0) })
    }

    fn part(of: &Arc<Self>, quarters: usize) -> Arc<Self> {
        let size = BudgetSize::Part { of: of.clone(), quarters };
        Arc::new(Self { what: of.what, size, taken: AtomicUsize::new(0) })
    }

    /// Sets the limit of the node.
    fn set_limit(&self, limit: usize) {
        match &self.size {
            BudgetSize::Whole(current) => current.store(limit, Ordering::Relaxed),
            BudgetSize::Part { of, .. } => of.set_limit(limit),
        }
    }

    fn node_limit(&self) -> usize {
        match &self.size {
            BudgetSize::Whole(limit) => limit.load(Ordering::Relaxed),
            BudgetSize::Part { of, .. } => of.node_limit(),
        }
    }

    fn limit(&self) -> usize {
        match &self.size {
            BudgetSize::Whole(limit) => limit.load(Ordering::Relaxed),
            BudgetSize::Part { of, quarters } => quarters_of(of.node_limit(), *quarters),
        }
    }

    fn is_in_use(&self) -> bool {
        self.taken.load(Ordering::Relaxed) > 0
    }

    fn level(&self, name: &'static str) -> BoundLevel {
        BoundLevel { name, used: self.taken.load(Ordering::Relaxed), limit: self.limit() }
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
        let limit = self.limit();
        let before = self.taken.fetch_add(amount, Ordering::Relaxed);
        let added = if before.saturating_add(amount) <= limit {
            match &self.size {
                BudgetSize::Whole(_) => Ok(()),
                BudgetSize::Part { of, .. } => of.add(amount),
            }
        } else {
            let who = match &self.size {
                BudgetSize::Whole(_) => "the node has",
                BudgetSize::Part { .. } => "a tenant, or all tenants together, have",
            };
            let message = format!("{who} {before} {}, and its limit is {limit}", self.what);
            Err(Failure::of_node(ErrorCode::Overloaded, message))
        };
        if added.is_err() {
            self.taken.fetch_sub(amount, Ordering::Relaxed);
        }
        added
    }

    fn give_back(&self, amount: usize) {
        self.taken.fetch_sub(amount, Ordering::Relaxed);
        if let BudgetSize::Part { of, .. } = &self.size {
            of.give_back(amount);
        }
    }
}

impl BudgetShare {
    /// Claims more. If the budget is exhausted, the former claim stays.
    pub fn grow(&mut self, amount: usize) -> Result<(), Failure> {
        self.budget.add(amount)?;
        self.amount += amount;
        Ok(())
    }

    /// Claims what is missing to this amount, or returns what is more.
    pub fn resize(&mut self, amount: usize) -> Result<(), Failure> {
        if amount > self.amount {
            return self.grow(amount - self.amount);
        }
        self.budget.give_back(self.amount - amount);
        self.amount = amount;
        Ok(())
    }

    /// Ties the share to bytes: dropping the last part of the bytes returns it.
    fn with(self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() { bytes } else { Bytes::from_owner(Counted { bytes, _share: self }) }
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.give_back(self.amount);
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
    /// The node's maximum of concurrent work.
    at_once_max: usize,
    /// The slots of a part of the clients first, those of the node last. Work holds one of each.
    at_once: Vec<Arc<Semaphore>>,
    waiting: Arc<Budget>,
}

impl ReadLane {
    fn new(what: &'static str, at_once: usize, waiting_max: usize) -> Self {
        let waiting = Budget::new(what, waiting_max);
        Self { at_once_max: at_once, at_once: vec![Arc::new(Semaphore::new(at_once))], waiting }
    }

    /// A lane with so many quarters of the node's slots. Its work takes slots of this lane too.
    fn part(&self, quarters: usize) -> Self {
        let own = Arc::new(Semaphore::new(quarters_of(self.at_once_max, quarters)));
        Self {
            at_once_max: self.at_once_max,
            at_once: std::iter::once(own).chain(self.at_once.iter().cloned()).collect(),
            waiting: Budget::part(&self.waiting, quarters),
        }
    }

    /// Whether work waits. Work that runs holds its slots in any case.
    fn is_in_use(&self) -> bool {
        self.waiting.is_in_use()
    }

    #[cfg(test)]
    fn has_free_slot(&self) -> bool {
        self.at_once.iter().all(|slots| slots.available_permits() > 0)
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
        let mut permits = Vec::with_capacity(self.at_once.len());
        while let Some(slots) = self.at_once.get(permits.len())
            && let Ok(permit) = slots.clone().try_acquire_owned()
        {
            permits.push(permit);
        }
        if permits.len() < self.at_once.len() {
            let _waits = self.waiting.claim(1)?;
            // All work takes its slots in the same order, so no work waits for work that waits for it.
            while let Some(slots) = self.at_once.get(permits.len()) {
                permits.push(slots.clone().acquire_owned().await.map_err(failed)?);
            }
        }
        Ok(ReadTurn { permits })
    }
}

/// A slot of a lane, for one piece of work.
#[derive(Debug)]
pub(crate) struct ReadTurn {
    permits: Vec<OwnedSemaphorePermit>,
}

impl ReadTurn {
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            // The work holds the slot to its end, even if the caller gave up.
            drop(self.permits);
            done
        });
        done.await.map_err(failed)
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    tracing::error!(%error, "cannot run the work of a request");
    Failure::of_node(ErrorCode::Internal, error.to_string())
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
        let mut share = budget.claim(10).unwrap();
        for (amount, is_granted, taken) in [(70, true, 70), (101, false, 70), (5, true, 5)] {
            assert_eq!(share.resize(amount).is_ok(), is_granted, "{amount}");
            assert_eq!(budget.taken.load(Ordering::Relaxed), taken, "{amount}");
        }
        drop(share);
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
