//! What is measured only when somebody scrapes the metrics: sessions by state, what their processes use, queues, pools
//! and the disk. Nothing here runs on the path of a turn, and nothing runs while nobody scrapes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use windlass_protocol::TenantName;

use super::App;
use super::usage::measure;
use crate::config::StartBy;
use crate::disk;
use crate::failure::Failure;
use crate::metrics::{KindLoad, kind_label};
use crate::session::SessionHandle;
use crate::tenant_usage::MeasuredCgroups;

/// The tenant of a session, and the label of its kind of worker.
type UsageKey = (Option<TenantName>, &'static str);

/// The metrics as text. Scrapes run one after the other.
pub(super) async fn scrape(app: &App) -> Result<String, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::internal(&error.to_string());
    let turn = app.serving.scrapes.next().await.map_err(|error| failed(&error))?;
    let app = app.clone();
    // A task of its own keeps the turn if the client goes away: its measurements go on too.
    let scraped = tokio::spawn(async move {
        let _turn = turn;
        sample(&app).await;
        // Not on the thread that serves turns.
        tokio::task::spawn_blocking(move || app.metrics.render()).await
    });
    let text = scraped.await.map_err(|error| failed(&error))?;
    text.map_err(|error| failed(&error))
}

/// Sets the metrics that are not counted as things happen.
async fn sample(app: &App) {
    let handles = app.sessions.handles();
    let mut kinds = count_sessions(app, &handles);
    sample_processes(app, &handles, &mut kinds).await;
    sample_pools(app);
    for level in app.serving.bounds.levels() {
        app.metrics.bound(&level);
    }
    if let Some(bytes) = app.free_disk_bytes() {
        app.metrics.disk_free(bytes);
    }
    app.metrics.audit(app.serving.audit.log.standing());
    if let Some(telemetry) = &app.serving.telemetry {
        let counts = telemetry.counts();
        app.metrics.spans(counts.exported(), counts.dropped());
    }
    disk::sample(app).await;
}

/// Counts sessions and what waits for them. Returns the kinds that the node has or has had.
fn count_sessions(app: &App, handles: &[SessionHandle]) -> BTreeMap<&'static str, KindLoad> {
    let mut kinds: BTreeMap<&'static str, KindLoad> =
        app.metrics.known_kinds().map(|kind| (kind, KindLoad::default())).collect();
    let (mut turns, mut requests) = (0, 0);
    for load in handles.iter().map(SessionHandle::load) {
        kinds.entry(load.kind).or_default().add_session(load.state);
        turns += load.waiting_turns;
        requests += load.waiting_requests;
    }
    for (&kind, load) in &kinds {
        app.metrics.kind_load(kind, load);
    }
    app.metrics.waiting(turns, requests);
    kinds
}

/// Measures what the processes of sessions use, by kind and by tenant.
async fn sample_processes(
    app: &App,
    handles: &[SessionHandle],
    kinds: &mut BTreeMap<&'static str, KindLoad>,
) {
    // Without a measurement, the metrics stay as they were.
    if !app.serving.scrapes.takes_measurement(Instant::now()) {
        return;
    }
    // A tenant whose last session has ended uses nothing.
    let known = app.serving.usage.totals().into_keys().flatten();
    let mut tenants: BTreeMap<String, u64> =
        known.map(|tenant| (app.serving.usage.label(&tenant), 0)).collect();
    let Ok(measured) = measure(cgroups_of(handles)).await else { return };
    for ((tenant, kind), usage) in measured {
        let bytes = usage.memory_bytes.unwrap_or(0);
        let load = kinds.entry(kind).or_default();
        load.memory_bytes = load.memory_bytes.saturating_add(bytes);
        load.cpu_seconds += usage.cpu_ms.unwrap_or(0.0) / 1e3;
        if let Some(tenant) = tenant {
            let sum = tenants.entry(app.serving.usage.label(&tenant)).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    for (&kind, load) in kinds.iter() {
        app.metrics.kind_usage(kind, load);
    }
    for (label, bytes) in tenants {
        app.metrics.tenant_memory(label, bytes);
    }
}

/// The cgroups of the sessions that are not counted as ended.
fn cgroups_of(handles: &[SessionHandle]) -> Vec<(UsageKey, Arc<MeasuredCgroups>)> {
    let live = handles.iter().filter(|handle| handle.cgroups.can_be_measured());
    live.map(|handle| ((handle.id.tenant(), handle.load().kind), handle.cgroups.clone())).collect()
}

fn sample_pools(app: &App) {
    if app.config.start != StartBy::Pool {
        return;
    }
    let entries = app.config.environments.entries.iter();
    let mut ready: BTreeMap<&'static str, u64> =
        entries.map(|entry| (kind_label(&entry.worker), 0)).collect();
    for workers in app.host.provision.ready_workers() {
        *ready.entry(kind_label(&workers.worker)).or_default() += workers.ready;
    }
    for (kind, count) in ready {
        app.metrics.pool_ready(kind, count);
    }
}
