//! The cost of the directory and of copies, beside the bare engine doing the same writes in the same run.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::Result;
use async_nats::jetstream;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::Config;
use bytes::Bytes;
use windlass_fleet::FleetStore;
use windlass_fleet::copies::{BATCH_BYTES_MAX, CopiedEvents, CopyProgress, SessionCopy};
use windlass_fleet::directory::FleetDirectory;
use windlass_protocol::fleet::{BootNonce, WriteStamp};
use windlass_protocol::{Revision, Seq, SessionId};
use windlass_testkit::nats::SERVERS;

use super::servers::{self, ms, percentile};
use crate::RunVerdict;

/// A claim may cost so much more than a bare conditional write.
const CLAIM_FACTOR_MAX: f64 = 1.3;

/// Copies reach at least this part of the bare rate.
const COPY_FACTOR_MIN: f64 = 0.75;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of names to claim
    #[arg(long, default_value_t = 2_000)]
    claims: usize,
    /// Number of sessions that copy at the same time
    #[arg(long, default_value_t = 32)]
    sessions: usize,
    /// Number of batches of 64 KiB that each session copies in a round
    #[arg(long, default_value_t = 16)]
    batches: usize,
    /// Number of rounds of copies
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

pub(super) async fn run(args: &Args) -> Result<RunVerdict> {
    let servers = servers::start()?;
    let store = servers::store(&servers).await?;
    let client = async_nats::connect(servers.urls()).await?;
    let bare = jetstream::new(client);
    bare.create_stream(Config {
        name: "BARE".to_owned(),
        subjects: vec!["bare.>".to_owned()],
        num_replicas: SERVERS,
        max_messages_per_subject: 1,
        ..Config::default()
    })
    .await?;
    bare.create_stream(Config {
        name: "BAREEV".to_owned(),
        subjects: vec!["bareev.>".to_owned()],
        num_replicas: SERVERS,
        ..Config::default()
    })
    .await?;
    let claims = claims(args, &store, &bare).await?;
    let copies = copies(args, &store, &bare).await?;
    Ok(if claims && copies { RunVerdict::Good } else { RunVerdict::Bad })
}

/// One claim and one bare write by turns. Returns whether the median is within its bound.
async fn claims(args: &Args, store: &FleetStore, bare: &jetstream::Context) -> Result<bool> {
    let member = servers::member(store, "cost").await?;
    let directory = FleetDirectory::new(store.clone(), member);
    let (mut claimed, mut written) = (Vec::new(), Vec::new());
    // A record of about the size of an entry.
    let record = Bytes::from(vec![b'x'; 180]);
    for number in 0..args.claims {
        let name = SessionId::parse(format!("claim{number}"))?;
        let begun = Instant::now();
        directory.claim(&name).await?;
        claimed.push(begun.elapsed());
        let message =
            PublishMessage::build().payload(record.clone()).expected_last_subject_sequence(0);
        let begun = Instant::now();
        bare.send_publish(format!("bare.{number}"), message).await?.await?;
        written.push(begun.elapsed());
    }
    let factor = ms(percentile(&mut claimed, 0.5)) / ms(percentile(&mut written, 0.5));
    println!("{} claims of names, and as many bare conditional writes, by turns", args.claims);
    for (what, times) in [("claim", &mut claimed), ("bare write", &mut written)] {
        let (p50, p95) = (ms(percentile(times, 0.5)), ms(percentile(times, 0.95)));
        println!("  {what:12} p50 {p50:6.3} ms   p95 {p95:6.3} ms");
    }
    println!("  factor       {factor:.2} of at most {CLAIM_FACTOR_MAX}");
    Ok(factor <= CLAIM_FACTOR_MAX)
}

/// Bytes that are ready.
struct Ready {
    events: Bytes,
    batches: u64,
}

impl CopiedEvents for Ready {
    type Error = Infallible;

    async fn events(&mut self, after: Seq, _: usize) -> Result<Option<(Bytes, Seq)>, Infallible> {
        Ok((after.0 < self.batches).then(|| (self.events.clone(), after.next())))
    }
}

/// Rounds of copies and of bare writes by turns. Returns whether the median rate is within its bound.
async fn copies(args: &Args, store: &FleetStore, bare: &jetstream::Context) -> Result<bool> {
    let events = Bytes::from(vec![b'e'; BATCH_BYTES_MAX]);
    let (mut copied, mut written) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        let begun = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..args.sessions {
            let name = SessionId::parse(format!("copy{round}-{number}"))?;
            let batches = args.batches as u64;
            let mut source = Ready { events: events.clone(), batches };
            let mut copy = SessionCopy::new(store.clone(), name, Revision(1), Seq(batches));
            tasks.spawn(async move {
                let mut write = 0;
                loop {
                    write += 1;
                    let stamp = WriteStamp { boot: BootNonce(1), write };
                    if copy.step(stamp, &mut source).await? == CopyProgress::Complete {
                        return anyhow::Ok(());
                    }
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        copied.push(begun.elapsed());
        let begun = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..args.sessions {
            let (bare, events, batches) = (bare.clone(), events.clone(), args.batches);
            tasks.spawn(async move {
                let mut last = 0;
                for _ in 0..batches {
                    let message = PublishMessage::build()
                        .payload(events.clone())
                        .expected_last_subject_sequence(last);
                    let subject = format!("bareev.{round}.{number}");
                    last = loop {
                        let sent = bare.send_publish(subject.clone(), message.clone()).await?;
                        match sent.await {
                            Ok(stored) => break stored.sequence,
                            // Another write to the subject is on its way: the one before this.
                            Err(error) if error.to_string().contains("10164") => {}
                            Err(error) => return Err(error.into()),
                        }
                    };
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        written.push(begun.elapsed());
    }
    let bytes = (args.sessions * args.batches * BATCH_BYTES_MAX) as f64;
    let rate = |span: Duration| bytes / 1e6 / span.as_secs_f64();
    let (copied, written) = (percentile(&mut copied, 0.5), percentile(&mut written, 0.5));
    let factor = rate(copied) / rate(written);
    println!(
        "{} rounds: {} sessions copy {} batches of 64 KiB each, and as many bare conditional writes",
        args.rounds, args.sessions, args.batches
    );
    println!("  copies       {:6.1} MB/s", rate(copied));
    println!("  bare writes  {:6.1} MB/s", rate(written));
    println!("  factor       {factor:.2} of at least {COPY_FACTOR_MIN}");
    Ok(factor >= COPY_FACTOR_MIN)
}
