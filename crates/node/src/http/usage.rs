//! What tenants use on this node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use windlass_procs::cgroup::CgroupUsage;
use windlass_protocol::TenantName;
use windlass_protocol::api::{ApiError, MeasuredUsage, TenantUsage, UsageList, UsageQuery};
use windlass_protocol::policy::Limits;

use super::App;
use super::body::Asked;
use super::reply::Answer;
use super::tenant::RequestTenant;
use crate::failure::Failure;
use crate::session::SessionHandle;
use crate::tenant_usage::{MeasuredCgroups, TenantTotals};

/// By tenant; without a tenant by `None`.
type ByTenant<T> = BTreeMap<Option<TenantName>, T>;

/// What each tenant uses on this node: its live sessions, and its turns since the node started.
#[utoipa::path(get, path = "/v1/usage", params(UsageQuery),
    responses((status = 200, body = UsageList), (status = "default", body = ApiError)))]
pub(super) async fn usage(
    State(app): State<App>,
    RequestTenant(tenant): RequestTenant,
    Asked(query): Asked<UsageQuery>,
) -> Answer<Json<UsageList>> {
    let wanted: Vec<TenantName> = [tenant, query.tenant].into_iter().flatten().collect();
    let is_wanted =
        |of: Option<&TenantName>| wanted.iter().all(|tenant| of.is_some_and(|of| of == tenant));
    let mut handles = app.sessions.handles();
    handles.retain(|handle| is_wanted(handle.id.tenant().as_ref()));
    // A session that ends meanwhile is in the totals or among the measured ones, never in both.
    let (totals, cgroups) = app.serving.usage.totals_and(|| cgroups_of(&handles));
    let measured = measure(cgroups).await?;
    let mut tenants = of_all(&handles, &measured, &totals);
    tenants.retain(|usage| is_wanted(usage.tenant.as_ref()));
    Ok(Json(UsageList { since_ms: app.identity.started_at_ms, tenants }))
}

/// The tenant of a session, and its cgroups.
type CgroupsOfSession = (Option<TenantName>, Arc<MeasuredCgroups>);

/// The cgroups of the sessions that are not counted as ended.
fn cgroups_of(handles: &[SessionHandle]) -> Vec<CgroupsOfSession> {
    let live = handles.iter().filter(|handle| handle.cgroups.can_be_measured());
    live.map(|handle| (handle.id.tenant(), handle.cgroups.clone())).collect()
}

/// What the processes of sessions use, added up by key.
pub(super) async fn measure<K: Ord + Send + 'static>(
    cgroups: Vec<(K, Arc<MeasuredCgroups>)>,
) -> Result<BTreeMap<K, MeasuredUsage>, Failure> {
    if cgroups.is_empty() {
        return Ok(BTreeMap::new());
    }
    // Two files of each session: thousands of sessions would block the thread that serves turns.
    let measured = tokio::task::spawn_blocking(move || {
        let mut all = BTreeMap::<K, MeasuredUsage>::new();
        for (key, cgroups) in cgroups {
            let CgroupUsage { memory_bytes, cpu_time } = CgroupUsage::of(&cgroups.dirs);
            if memory_bytes.is_none() && cpu_time.is_none() {
                continue;
            }
            let sum = all.entry(key).or_default();
            sum.sessions += 1;
            sum.memory_bytes = add(sum.memory_bytes, memory_bytes, u64::saturating_add);
            sum.cpu_ms = add(sum.cpu_ms, cpu_time.map(in_ms), |one, other| one + other);
        }
        all
    });
    measured.await.map_err(|error| Failure::internal(&error.to_string()))
}

fn of_all(
    handles: &[SessionHandle],
    measured: &ByTenant<MeasuredUsage>,
    totals: &TenantTotals,
) -> Vec<TenantUsage> {
    let mut all: ByTenant<TenantUsage> = BTreeMap::new();
    for handle in handles {
        let limits = handle.info().policy.map(|policy| policy.limits);
        let usage = all.entry(handle.id.tenant()).or_default();
        usage.sessions += 1;
        usage.held = sum(usage.held, limits.unwrap_or_default());
    }
    for (tenant, measured) in measured {
        all.entry(tenant.clone()).or_default().measured = *measured;
    }
    for (tenant, totals) in totals {
        let usage = all.entry(tenant.clone()).or_default();
        usage.turns = totals.turns;
        usage.cpu_ms = totals.cpu_ms;
        usage.output_bytes = totals.output_bytes;
        let ended_ms = totals.ended_cpu.map(in_ms);
        usage.measured.cpu_ms = add(usage.measured.cpu_ms, ended_ms, |one, other| one + other);
    }
    all.into_iter().map(|(tenant, usage)| TenantUsage { tenant, ..usage }).collect()
}

/// The limits that a quota counts, together. Absent only if both have no limit.
fn sum(one: Limits, other: Limits) -> Limits {
    Limits {
        memory_bytes: add(one.memory_bytes, other.memory_bytes, u64::saturating_add),
        cpu_percent: add(one.cpu_percent, other.cpu_percent, u32::saturating_add),
        processes: add(one.processes, other.processes, u32::saturating_add),
        disk_bytes: add(one.disk_bytes, other.disk_bytes, u64::saturating_add),
        ..Limits::default()
    }
}

fn in_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The sum. Absent only if both are.
fn add<T>(one: Option<T>, other: Option<T>, plus: fn(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(plus(one, other)),
        (one, other) => one.or(other),
    }
}
