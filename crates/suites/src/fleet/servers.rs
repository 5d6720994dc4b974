//! The servers of a measurement, and the node that it plays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use windlass_fleet::membership::{Membership, MembershipSettings};
use windlass_fleet::store::{Credentials, StoreSettings};
use windlass_fleet::{FleetClock, FleetStore};
use windlass_lifecycle::fleet::{ClockMs, LeaseHolder, LeaseStanding, LeaseTiming};
use windlass_protocol::NodeName;
use windlass_protocol::fleet::{BootNonce, InstallationId};
use windlass_testkit::nats::{NatsServers, SERVERS};

/// How long the servers may take until they answer.
const READY_WAIT: Duration = Duration::from_secs(120);

pub(super) fn start() -> Result<NatsServers> {
    NatsServers::start()?.context("no nats-server: set WINDLASS_TEST_NATS, or put it on the PATH")
}

pub(super) async fn store(servers: &NatsServers) -> Result<FleetStore> {
    let settings = StoreSettings {
        servers: servers.urls(),
        credentials: Credentials::None,
        ca: None,
        replicas: SERVERS,
        copies_kept: Duration::from_secs(3_600),
    };
    let begun = Instant::now();
    loop {
        match FleetStore::connect(&settings).await {
            Ok(store) => return Ok(store),
            Err(error) if begun.elapsed() > READY_WAIT => bail!(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

pub(super) fn holder(name: &str, number: u64) -> Result<LeaseHolder> {
    Ok(LeaseHolder {
        node: NodeName::parse(name)?,
        installation: InstallationId(number),
        boot: BootNonce(number << 32 | u64::from(std::process::id())),
        address: "127.0.0.1:1".to_owned(),
    })
}

/// A node that has joined.
pub(super) async fn member(store: &FleetStore, name: &str) -> Result<Arc<Membership>> {
    let timing = LeaseTiming::default();
    let settings = MembershipSettings { timing, holder: holder(name, 1)?, resumed: None };
    let member = Arc::new(Membership::start(store.clone(), settings));
    let begun = FleetClock.now();
    while member.standing() != LeaseStanding::Serving {
        if waited(begun) > READY_WAIT {
            bail!("the node {name} did not join");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(member)
}

fn waited(begun: ClockMs) -> Duration {
    Duration::from_millis(FleetClock.now().since(begun))
}

/// The value below which this part of the values lies.
pub(super) fn percentile(values: &mut [Duration], part: f64) -> Duration {
    values.sort_unstable();
    let at = (values.len() as f64 * part) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or_default()
}

pub(super) fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
