//! A directory with many sessions, and many nodes that renew.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use windlass_fleet::{FleetClock, FleetStore};
use windlass_lifecycle::fleet::{
    LeaseKeeper, LeaseRequest, LeaseStanding, LeaseTiming, WriteAnswer,
};
use windlass_protocol::fleet::{BootNonce, EntryState, FLEET_RECORDS, SessionEntry, WriteStamp};
use windlass_protocol::{Generation, NodeName, Revision, SessionId};
use windlass_testkit::nats::{NatsServers, SERVERS};

use super::servers::{self, ms, percentile};
use crate::{RunVerdict, machine};

/// Writes that are on their way at the same time.
const WRITES_AT_ONCE: usize = 256;

/// Number of sessions that are looked up.
const LOOKUPS: usize = 2_000;

/// Sessions of one node.
const SESSIONS_OF_NODE: usize = 1_000;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of sessions in the directory
    #[arg(long, default_value_t = 1_000_000)]
    sessions: usize,
    /// Number of nodes that renew
    #[arg(long, default_value_t = 1_000)]
    nodes: usize,
    /// How long the nodes renew, in seconds
    #[arg(long, default_value_t = 30)]
    seconds: u64,
}

pub(super) async fn run(args: &Args) -> Result<RunVerdict> {
    let mut servers = servers::start()?;
    let store = servers::store(&servers).await?;
    fill(args, &store, &servers).await?;
    look_up(args, &store).await?;
    let kept = renew(args, &store).await?;
    restart(&mut servers, &store).await?;
    Ok(if kept { RunVerdict::Good } else { RunVerdict::Bad })
}

fn name(number: usize) -> Result<SessionId> {
    Ok(SessionId::parse(format!("s{number:08}"))?)
}

fn owner(number: usize) -> Result<NodeName> {
    Ok(NodeName::parse(format!("n{}", number / SESSIONS_OF_NODE))?)
}

async fn fill(args: &Args, store: &FleetStore, servers: &NatsServers) -> Result<()> {
    let before = memory(servers)?;
    let begun = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..WRITES_AT_ONCE {
        let (store, next, sessions) = (store.clone(), next.clone(), args.sessions);
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= sessions {
                    return anyhow::Ok(());
                }
                let entry = SessionEntry {
                    version: FLEET_RECORDS,
                    session: name(number)?,
                    owner: owner(number)?,
                    generation: Generation(1),
                    stamp: WriteStamp { boot: BootNonce(7), write: number as u64 },
                    state: EntryState::Live,
                };
                let mut tries = 0;
                while !matches!(
                    store.write_entry(&entry, Revision(0)).await,
                    WriteAnswer::Stored(_) | WriteAnswer::Conflict
                ) {
                    tries += 1;
                    if tries > 20 {
                        bail!("the store does not answer");
                    }
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let took = begun.elapsed();
    let rate = args.sessions as f64 / took.as_secs_f64();
    println!(
        "{} sessions in the directory: {:.1} s, {rate:.0} a second",
        args.sessions,
        took.as_secs_f64()
    );
    let after = memory(servers)?;
    let memory = after
        .iter()
        .zip(&before)
        .map(|(after, before)| format!("{after:.0} MiB (empty {before:.0})"));
    println!("  memory of the servers: {}", memory.collect::<Vec<_>>().join(", "));
    println!("  files: {:.0} MiB in all", servers.file_bytes()? as f64 / 1048576.0);
    Ok(())
}

fn memory(servers: &NatsServers) -> Result<Vec<f64>> {
    servers.pids().into_iter().map(machine::pss_mib).collect()
}

async fn look_up(args: &Args, store: &FleetStore) -> Result<()> {
    let mut times = Vec::new();
    // A step that meets sessions of all nodes.
    let step = (args.sessions / LOOKUPS).max(1);
    for number in (0..args.sessions).step_by(step) {
        let session = name(number)?;
        let begun = Instant::now();
        let found = store.read_entry(&session).await?;
        times.push(begun.elapsed());
        found.record.context("an entry is missing")?;
    }
    let (p50, p95) = (ms(percentile(&mut times, 0.5)), ms(percentile(&mut times, 0.95)));
    println!("  {} lookups at the leader: p50 {p50:.3} ms, p95 {p95:.3} ms", times.len());
    let begun = Instant::now();
    let sessions = store.sessions_of(&owner(0)?).await?;
    println!("  the {} sessions of a node: {:.1} ms", sessions.len(), ms(begun.elapsed()));
    Ok(())
}

/// Nodes that do nothing but renew. Returns whether all kept their leases.
async fn renew(args: &Args, store: &FleetStore) -> Result<bool> {
    let clock = FleetClock;
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..args.nodes {
        let store = store.clone();
        let holder = servers::holder(&format!("n{number}"), number as u64 + 1)?;
        tasks.spawn(async move {
            let node = holder.node.clone();
            let timing = LeaseTiming::default();
            let mut lease = LeaseKeeper::new(timing, holder, None);
            let mut times = Vec::new();
            while Instant::now() < end {
                let Some(request) = lease.next_request(clock.now()) else {
                    let wake = lease.wake_at().map_or(100, |at| at.since(clock.now()));
                    tokio::time::sleep(Duration::from_millis(wake.max(1))).await;
                    continue;
                };
                let begun = Instant::now();
                match request {
                    LeaseRequest::ReadLease => match store.read_lease(&node).await {
                        Ok(current) => lease.lease_read(clock.now(), current),
                        Err(_) => lease.unanswered(clock.now()),
                    },
                    LeaseRequest::ReadMember => match store.read_member(&node).await {
                        Ok(current) => lease.member_read(clock.now(), current),
                        Err(_) => lease.unanswered(clock.now()),
                    },
                    LeaseRequest::WriteLease { record, expected } => {
                        let ttl = Duration::from_millis(timing.ttl_ms);
                        let answer = store.write_lease(&record, expected, ttl).await;
                        lease.written(clock.now(), answer);
                        times.push(begun.elapsed());
                    }
                    LeaseRequest::WriteMember { record, expected } => {
                        let answer = store.write_member(&record, expected).await;
                        lease.written(clock.now(), answer);
                    }
                }
            }
            (lease.standing(clock.now()) == LeaseStanding::Serving, times)
        });
    }
    let (mut serving, mut times) = (0, Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (serves, renewals) = done?;
        serving += usize::from(serves);
        times.extend(renewals);
    }
    let (p50, p95) = (ms(percentile(&mut times, 0.5)), ms(percentile(&mut times, 0.95)));
    println!(
        "{} nodes renew for {} s: {} renewals, p50 {p50:.2} ms, p95 {p95:.2} ms; {serving} serve at the end",
        args.nodes,
        args.seconds,
        times.len()
    );
    Ok(serving == args.nodes)
}

/// All servers are killed and started again.
async fn restart(servers: &mut NatsServers, store: &FleetStore) -> Result<()> {
    for number in 0..SERVERS {
        servers.kill(number)?;
    }
    let begun = Instant::now();
    for number in 0..SERVERS {
        servers.run(number)?;
    }
    let session = name(0)?;
    while store.read_entry(&session).await.is_err() {
        if begun.elapsed() > Duration::from_secs(180) {
            bail!("the servers do not answer after their restart");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!(
        "all servers killed and started again: a lookup after {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}
