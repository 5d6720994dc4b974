//! Three servers of the store, and waiting for them.

use std::time::{Duration, Instant};

use windlass_fleet::store::{Credentials, StoreSettings};
use windlass_fleet::{FleetStore, FleetStoreError};
use windlass_testkit::nats::{NatsServers, SERVERS};

/// How long a cluster may take until it has a leader.
const READY_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Engine(NatsServers);

impl Engine {
    /// Starts the servers. `None` if there is no program: the test is skipped.
    pub async fn start() -> Option<Self> {
        Self::start_with("").await
    }

    /// Starts the servers with more lines in their configuration.
    pub async fn start_with(more: &str) -> Option<Self> {
        let servers = NatsServers::start_with(more).expect("the servers start");
        if servers.is_none() {
            windlass_testkit::skip("there is no nats-server");
        }
        servers.map(Self)
    }

    pub fn kill(&mut self, number: usize) {
        self.0.kill(number).expect("it is this test's");
    }

    pub fn run(&mut self, number: usize) {
        self.0.run(number).expect("it starts again");
    }

    /// SIGSTOP: the server keeps its connections and answers nothing.
    pub fn stop(&self, number: usize) {
        self.signal(number, "-STOP");
    }

    pub fn resume(&self, number: usize) {
        self.signal(number, "-CONT");
    }

    fn signal(&self, number: usize, signal: &str) {
        let pid = self.0.pid(number).expect("the server runs").to_string();
        let sent = std::process::Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    pub fn settings(&self) -> StoreSettings {
        StoreSettings {
            servers: self.0.urls(),
            credentials: Credentials::None,
            ca: None,
            replicas: SERVERS,
            copies_kept: Duration::from_secs(3_600),
        }
    }

    /// A connection to the store, once the servers have found each other.
    pub async fn store(&self) -> FleetStore {
        self.store_with(&self.settings()).await
    }

    pub async fn store_with(&self, settings: &StoreSettings) -> FleetStore {
        let begun = Instant::now();
        loop {
            match FleetStore::connect(settings).await {
                Ok(store) => return store,
                Err(error) if begun.elapsed() > READY_WAIT => panic!("{error}: {error:?}"),
                // Until there is a leader, streams cannot be set up.
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// The server that leads the directory.
    pub async fn leader(&self, store: &FleetStore) -> usize {
        let begun = Instant::now();
        loop {
            let leader = store.leader_of_directory().await.unwrap_or_default();
            if let Some(number) = leader.and_then(|name| name.strip_prefix('s')?.parse().ok()) {
                return number;
            }
            assert!(begun.elapsed() < READY_WAIT, "no leader");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Tries until the store answers.
pub async fn answered<T>(mut ask: impl AsyncFnMut() -> Result<T, FleetStoreError>) -> T {
    let begun = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) if begun.elapsed() > READY_WAIT => panic!("{error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < READY_WAIT, "not done within {READY_WAIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
