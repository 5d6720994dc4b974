//! The task that tends environments while the node runs. It starts zygotes that sessions use, ends idle
//! ones, and makes and ends pooled workers as the pools decide.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use windlass_protocol::SessionId;
use windlass_protocol::api::CreateSession;
use windlass_protocol::confinement::Isolation;
use windlass_protocol::environments::EnvironmentEntry;

use super::Provision;
use super::environment::{Environment, ZygoteStage};
use super::pool::{FreeMemory, WorkerNo};
use super::pool_base::PoolBase;
use super::pooled::PooledWorker;
use super::zygote::{Zygote, ZygoteError};
use crate::config::StartBy;

/// How often the task checks for idle zygotes, if nothing else wakes it.
const ROUND: Duration = Duration::from_secs(30);

/// A zygote that no session has used for this long is ended, with its pooled workers.
const IDLE: Duration = Duration::from_secs(15 * 60);

/// How long to wait before a failed zygote is started again.
const RETRY: Duration = Duration::from_secs(10);

/// Memory that the machine must have available for another pooled worker.
const FREE_KIB_MIN: u64 = 512 * 1024;

/// Tends the environments of a node.
pub(crate) async fn tend(provision: Arc<Provision>) {
    let all = &provision.environments;
    if all.start == StartBy::Exec {
        return;
    }
    // The machine's abilities are found by trying them, which takes a moment.
    let asked = provision.clone();
    let _ =
        tokio::task::spawn_blocking(move || asked.planner.machine().level(Isolation::Full)).await;
    loop {
        let memory = memory();
        for index in 0..all.list.len() {
            tend_environment(&provision, index, memory).await;
        }
        all.changed.send_replace(());
        let wait = all.list.iter().map(until_next_check).min().unwrap_or(ROUND);
        // `Notify` keeps a notification that comes before the wait, so none is missed.
        let _ = tokio::time::timeout(wait, all.wanted.notified()).await;
    }
}

fn until_next_check(environment: &Environment) -> Duration {
    let state = environment.lock();
    let round = if matches!(state.zygote, ZygoteStage::Failed { .. }) { RETRY } else { ROUND };
    state.until_tick().map_or(round, |wait| wait.min(round))
}

async fn tend_environment(provision: &Arc<Provision>, index: usize, memory: FreeMemory) {
    let environment = &provision.environments.list[index];
    if environment.lock().program.is_none() {
        find_program(provision, environment).await;
    }
    if environment.lacks_base() {
        find_base(provision, environment).await;
    }
    let (zygote, to_make, to_end) = {
        let mut state = environment.lock();
        if state.program.is_none() {
            return;
        }
        state.keep_if_trusted(&provision.trust);
        let in_use = state.used.is_some_and(|used| used.elapsed() < IDLE);
        match &state.zygote {
            ZygoteStage::None if in_use => start(&mut state.zygote, provision, index),
            ZygoteStage::Failed { since, .. } if since.elapsed() >= RETRY && in_use => {
                start(&mut state.zygote, provision, index);
            }
            ZygoteStage::Ready(_) if !in_use => {
                state.end_zygote();
                state.used = None;
            }
            ZygoteStage::Ready(_) => {
                state.memory = memory;
                state.tick();
            }
            ZygoteStage::None | ZygoteStage::Starting | ZygoteStage::Failed { .. } => {}
        }
        let zygote = match &state.zygote {
            ZygoteStage::Ready(zygote) => Some(zygote.clone()),
            ZygoteStage::None | ZygoteStage::Starting | ZygoteStage::Failed { .. } => None,
        };
        let (to_make, to_end) = state.take_work();
        (zygote, to_make, to_end)
    };
    for (number, base) in to_make {
        match &zygote {
            Some(zygote) => {
                tokio::spawn(make(provision.clone(), index, number, zygote.clone(), base));
            }
            None => environment.lock().made(number, None),
        }
    }
    if !to_end.is_empty() {
        let makers = provision.makers.clone();
        // Ending may block, and nothing waits for it.
        drop(tokio::task::spawn_blocking(move || {
            to_end.into_iter().for_each(|worker| worker.end(&makers));
        }));
    }
}

/// Finds the interpreter that an entry names. May run a program for this.
async fn find_program(provision: &Arc<Provision>, environment: &Environment) {
    let (workers, entry) = (provision.workers.clone(), environment.entry.clone());
    let found = tokio::task::spawn_blocking(move || {
        workers.launcher(&entry.worker)?.named_interpreter(&entry.interpreter)
    })
    .await;
    let mut state = environment.lock();
    match found {
        Ok(Ok(program)) => state.program = Some(program),
        // No session has asked for this interpreter, so nothing is missing.
        Ok(Err(_)) if state.used.is_none() => {}
        Ok(Err(failure)) => {
            state.zygote = ZygoteStage::Failed { why: failure.message, since: Instant::now() };
        }
        Err(error) => tracing::warn!(%error, "cannot look for an interpreter"),
    }
}

/// Computes the base of sessions with the default policy, and fills the pool for it.
async fn find_base(provision: &Arc<Provision>, environment: &Environment) {
    let Some(program) = environment.lock().program.clone() else { return };
    let worker = Some(environment.entry.worker.clone());
    let asked = provision.clone();
    let found = tokio::task::spawn_blocking(move || {
        let interpreter = Some(program.to_str()?.to_owned());
        let wanted = CreateSession { worker, interpreter, ..CreateSession::default() };
        let recipe = asked.workers.recipe(&wanted, &asked.config.workspaces_dir()).ok()?;
        asked.planner.default_base(&recipe)
    });
    if let Ok(Some(base)) = found.await {
        environment.lock().expect(base);
    }
}

fn start(stage: &mut ZygoteStage, provision: &Arc<Provision>, index: usize) {
    *stage = ZygoteStage::Starting;
    tokio::spawn(start_zygote(provision.clone(), index));
}

async fn start_zygote(provision: Arc<Provision>, index: usize) {
    let environment = &provision.environments.list[index];
    let program = environment.lock().program.clone().unwrap_or_default();
    let EnvironmentEntry { worker, preload, .. } = environment.entry.clone();
    let number = provision.environments.next_number();
    let started = {
        let provision = provision.clone();
        tokio::task::spawn_blocking(move || {
            let launcher = provision.workers.launcher(&worker);
            let recipe = launcher.and_then(|launcher| launcher.zygote(&program, &preload));
            let recipe = recipe.map_err(|failure| ZygoteError::Untrusted(failure.message))?;
            Zygote::start(&provision.makers.keepers, &provision.trust, recipe, number)
        })
        .await
    };
    let interpreter = &environment.entry.interpreter;
    let stage = match started {
        Ok(Ok(zygote)) => {
            tracing::info!(interpreter, "a zygote is ready");
            let zygote = Arc::new(zygote);
            if let Ok(end) = zygote.end() {
                tokio::spawn(watch(provision.clone(), index, end, number));
            }
            ZygoteStage::Ready(zygote)
        }
        Ok(Err(error)) => {
            tracing::warn!(interpreter, %error, "cannot start a zygote");
            ZygoteStage::Failed { why: error.to_string(), since: Instant::now() }
        }
        Err(error) => ZygoteStage::Failed { why: error.to_string(), since: Instant::now() },
    };
    environment.lock().zygote = stage;
    provision.environments.wanted.notify_one();
}

/// Waits for a zygote's end, and updates its environment.
async fn watch(
    provision: Arc<Provision>,
    index: usize,
    end: std::os::unix::net::UnixStream,
    number: u64,
) {
    let _ = end.set_nonblocking(true);
    let since = Instant::now();
    let Ok(end) = UnixStream::from_std(end) else {
        return;
    };
    if end.readable().await.is_err() {
        return;
    }
    let mut state = provision.environments.list[index].lock();
    if state.has_zygote(number) {
        tracing::warn!(number, "a zygote has ended");
        state.end_zygote();
        if since.elapsed() < RETRY {
            let why = "the zygote ended soon after it was ready".to_owned();
            state.zygote = ZygoteStage::Failed { why, since: Instant::now() };
        }
        provision.environments.wanted.notify_one();
    }
}

/// Makes a pooled worker.
async fn make(
    provision: Arc<Provision>,
    index: usize,
    number: WorkerNo,
    zygote: Arc<Zygote>,
    base: Arc<PoolBase>,
) {
    // The keeper has no session yet, so it gets a name that is unique in this node.
    let name = provision.environments.next_number();
    let made = match SessionId::parse(format!("waiting-{}-{name}", provision.epoch.0)) {
        Ok(id) => PooledWorker::make(provision.makers.clone(), id, zygote, base)
            .await
            .inspect_err(|error| tracing::warn!(%error, "cannot make a pooled worker"))
            .ok(),
        Err(_) => None,
    };
    provision.environments.list[index].lock().made(number, made);
    provision.environments.wanted.notify_one();
}

/// More bytes than `/proc/meminfo` has.
const MEMINFO_BYTES: usize = 4096;

/// Whether the machine has memory for another pooled worker.
fn memory() -> FreeMemory {
    // The kernel reports no size for this file: without room, reading would begin with a few bytes.
    let mut text = String::with_capacity(MEMINFO_BYTES);
    let read = File::open("/proc/meminfo").and_then(|mut file| file.read_to_string(&mut text));
    if read.is_err() {
        text.clear();
    }
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let free = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    // If the kernel does not report it, assume that there is enough.
    if free.is_none_or(|free| free >= FREE_KIB_MIN) {
        FreeMemory::Enough
    } else {
        FreeMemory::Short
    }
}
