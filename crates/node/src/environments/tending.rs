//! The task that tends environments while the node runs: it starts zygotes that are wanted, removes
//! those that are idle or have ended, and refills the pools.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use windlass_protocol::confinement::Isolation;

use super::pool::{Binding, Model, Waiting};
use super::zygote::{Zygote, ZygoteError};
use super::{Claims, Environment, Stage, State, nameless};
use crate::config::StartBy;
use crate::context::Context;
use crate::session::confine::usual;
use crate::session::places;

/// How often it is looked whether something is out of use, where nothing else says so.
const ROUND: Duration = Duration::from_secs(30);

/// A zygote for which nobody has asked for so long is put away, with the workers that wait.
const IDLE: Duration = Duration::from_secs(15 * 60);

/// How long one that failed is not tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Workers of one environment that are made to wait at the same time.
const COMING_MAX: usize = 2;

/// How long after a claim others are made to wait: what a session needs to answer comes first. Where one
/// claim follows another, not longer than the second after the first.
const REFILL_PAUSE: Duration = Duration::from_millis(30);
const REFILL_PAUSE_MAX: Duration = Duration::from_millis(200);

/// Memory that must be free on the machine for another worker to wait.
const FREE_KIB_MIN: u64 = 512 * 1024;

/// Looks after the environments of a node.
pub(crate) async fn tend(context: Arc<Context>) {
    let all = &context.environments;
    if all.start == StartBy::Exec {
        return;
    }
    let swept = context.clone();
    let _ = tokio::task::spawn_blocking(move || places::sweep(&swept)).await;
    // The machine is found out by trying, which takes a moment.
    let asked = context.clone();
    let _ = tokio::task::spawn_blocking(move || asked.machine().level(Isolation::Full)).await;
    loop {
        for place in 0..all.list.len() {
            look_after(&context, place).await;
        }
        all.changed.send_replace(());
        // A notice that comes first is kept: nothing is missed, and the time only bounds the wait.
        let failed = |one: &Environment| {
            let state = one.lock();
            matches!(state.zygote, Stage::Failed { .. }) || state.pool_failed.is_some()
        };
        let wait = if all.list.iter().any(failed) { RETRY } else { ROUND };
        let pauses = all.list.iter().filter_map(|one| pause_left(&one.lock()));
        let wait = pauses.chain([wait]).min().unwrap_or(wait);
        let _ = tokio::time::timeout(wait, all.wanted.notified()).await;
    }
}

async fn look_after(context: &Arc<Context>, place: usize) {
    let environment = &context.environments.list[place];
    if environment.lock().program.is_none() {
        find_program(context, environment).await;
    }
    find_model(context, environment).await;
    let mut state = environment.lock();
    if state.program.is_none() || !state.keep_if_trusted(&context.trust) {
        return;
    }
    let in_use = state.used.is_some_and(|used| used.elapsed() < IDLE);
    match &state.zygote {
        Stage::None if in_use => {
            state.zygote = Stage::Starting;
            tokio::spawn(start(context.clone(), place));
        }
        Stage::Failed { since, .. } if since.elapsed() >= RETRY && in_use => {
            state.zygote = Stage::Starting;
            tokio::spawn(start(context.clone(), place));
        }
        Stage::Ready(_) if !in_use => {
            state.put_away();
            state.used = None;
        }
        Stage::Ready(zygote) => {
            let zygote = zygote.clone();
            state.waiting.retain(Waiting::is_alive);
            let size = context.environments.pool_size(environment);
            let missing = size.saturating_sub(state.waiting.len() + state.coming);
            if state.waiting.len() >= size {
                state.claims = None;
            }
            let room = COMING_MAX.saturating_sub(state.coming);
            let failed = state.pool_failed.is_some_and(|since| since.elapsed() < RETRY);
            let pause = pause_left(&state).is_some();
            if missing == 0 || room == 0 || failed || pause || free_kib() < FREE_KIB_MIN {
                return;
            }
            let Some(model) = state.model.clone() else { return };
            for _ in 0..missing.min(room) {
                let bound = state.waiting.iter().filter(|one| one.is_bound()).count();
                // Half of them stay open: sessions with a workspace of their client's need those.
                let bindable = state.unbindable.is_none_or(|since| since.elapsed() >= RETRY);
                let bind = bindable && bound + state.binding < size / 2;
                state.coming += 1;
                state.binding += usize::from(bind);
                let (zygote, model) = (zygote.clone(), model.clone());
                tokio::spawn(have_one_wait(context.clone(), place, zygote, model, bind));
            }
        }
        Stage::None | Stage::Starting | Stage::Failed { .. } => {}
    }
}

/// Looks for the interpreter that an entry names. It may run a program to find out.
async fn find_program(context: &Arc<Context>, environment: &Environment) {
    let (asked, named) = (context.clone(), environment.entry.interpreter.clone());
    let found = tokio::task::spawn_blocking(move || asked.workers.named_interpreter(&named)).await;
    let mut state = environment.lock();
    match found {
        Ok(Ok(program)) => state.program = Some(program),
        Ok(Err(failure)) => {
            state.zygote = Stage::Failed { why: failure.message, since: Instant::now() };
        }
        Err(error) => tracing::warn!(%error, "an interpreter could not be looked for"),
    }
}

/// Finds out what a session of this environment is like whose client asks for nothing special.
async fn find_model(context: &Arc<Context>, environment: &Environment) {
    let program = {
        let state = environment.lock();
        match (&state.model, context.environments.pool_size(environment)) {
            (None, 1..) => state.program.clone(),
            _ => None,
        }
    };
    let Some(program) = program else { return };
    let asked = context.clone();
    let found = tokio::task::spawn_blocking(move || usual_model(&asked, &program)).await;
    let mut state = environment.lock();
    if let Ok(Some(model)) = found
        && state.model.is_none()
    {
        state.model = Some(model);
    }
}

fn usual_model(context: &Context, program: &Path) -> Option<Model> {
    let usual = usual(context, program)?;
    Some(Model::of(&usual.outline(&usual.own())))
}

/// How long the pool is still not refilled after a claim.
fn pause_left(state: &State) -> Option<Duration> {
    let Claims { first, last } = state.claims?;
    let left = REFILL_PAUSE.checked_sub(last.elapsed())?;
    let most = REFILL_PAUSE_MAX.checked_sub(first.elapsed())?;
    Some(left.min(most)).filter(|left| !left.is_zero())
}

async fn start(context: Arc<Context>, place: usize) {
    let environment = &context.environments.list[place];
    let program = environment.lock().program.clone().unwrap_or_default();
    let preload = environment.entry.preload.clone();
    let number = context.environments.next_number();
    let started = {
        let context = context.clone();
        tokio::task::spawn_blocking(move || {
            let recipe = context.workers.zygote(&program, &preload);
            let recipe = recipe.map_err(|failure| ZygoteError::Untrusted(failure.message))?;
            Zygote::start(&context, recipe, number)
        })
        .await
    };
    let interpreter = &environment.entry.interpreter;
    let stage = match started {
        Ok(Ok(zygote)) => {
            tracing::info!(interpreter, "a zygote is ready");
            let zygote = Arc::new(zygote);
            if let Ok(end) = zygote.end() {
                tokio::spawn(watch(context.clone(), place, end, number));
            }
            Stage::Ready(zygote)
        }
        Ok(Err(error)) => {
            tracing::warn!(interpreter, %error, "there is no zygote");
            Stage::Failed { why: error.to_string(), since: Instant::now() }
        }
        Err(error) => Stage::Failed { why: error.to_string(), since: Instant::now() },
    };
    environment.lock().zygote = stage;
    context.environments.wanted.notify_one();
}

/// Waits for a zygote's end, and clears it away.
async fn watch(
    context: Arc<Context>,
    place: usize,
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
    let mut state = context.environments.list[place].lock();
    if state.is_of(number) {
        tracing::warn!(number, "a zygote has ended");
        state.put_away();
        if since.elapsed() < RETRY {
            let why = "it ended soon after it was ready".to_owned();
            state.zygote = Stage::Failed { why, since: Instant::now() };
        }
        context.environments.wanted.notify_one();
    }
}

async fn have_one_wait(
    context: Arc<Context>,
    place: usize,
    zygote: Arc<Zygote>,
    model: Model,
    bind: bool,
) {
    let environment = &context.environments.list[place];
    let number = context.environments.next_number();
    let program = environment.lock().program.clone().filter(|_| bind);
    let binding = program.map(|program| Binding { program, number });
    let made = match nameless(context.epoch, number) {
        Some(id) => Waiting::make(&context, id, zygote.clone(), model.clone(), binding).await,
        None => return,
    };
    let mut state = environment.lock();
    state.coming -= 1;
    state.binding -= usize::from(bind);
    // The next ones are left open for a while.
    if bind && !made.as_ref().is_ok_and(Waiting::is_bound) {
        state.unbindable = Some(Instant::now());
    }
    match made {
        Ok(waiting) => {
            state.pool_failed = None;
            if state.is_of(zygote.number()) && state.model.as_ref() == Some(&model) {
                state.waiting.push(waiting);
            }
        }
        Err(error) => {
            tracing::warn!(%error, bind, "no worker waits");
            state.pool_failed = Some(Instant::now()).filter(|_| !bind);
        }
    }
    drop(state);
    context.environments.wanted.notify_one();
}

/// What the machine has free; all it could want where it does not say.
fn free_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(u64::MAX)
}
