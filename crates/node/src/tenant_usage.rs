//! What the turns and the ended sessions of each tenant have used since the node started.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use windlass_protocol::event::Usage;
use windlass_protocol::{SessionId, TenantName};

/// Maximum number of tenants whose metrics have their name. The metrics of later ones are added up as [`OTHER`].
const LABELS_MAX: usize = 64;

/// Maximum number of tenants that are counted. The turns of later ones are in the metrics only.
const TENANTS_MAX: usize = 4096;

/// The label of tenants without one of their own. No tenant has this name.
const OTHER: &str = "(other)";

/// The turns of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct TurnTotals {
    pub turns: u64,
    pub cpu_ms: f64,
    pub output_bytes: u64,
    /// CPU time of all processes of the sessions that have ended. Absent: nothing has counted it.
    pub ended_cpu: Option<Duration>,
    is_labelled: bool,
}

/// The cgroups of a live session, and whether its end is counted.
#[derive(Debug)]
pub(crate) struct MeasuredCgroups {
    /// None if the machine has no usable cgroups.
    pub dirs: Vec<PathBuf>,
    /// The CPU time is in the totals. Changes only while the totals are locked.
    is_counted: AtomicBool,
}

impl MeasuredCgroups {
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        Self { dirs, is_counted: AtomicBool::new(false) }
    }

    /// Whether the kernel counts what the session uses, and the totals do not have it yet.
    pub fn can_be_measured(&self) -> bool {
        !self.dirs.is_empty() && !self.is_counted()
    }

    /// Whether the CPU time of the session is in the totals.
    pub fn is_counted(&self) -> bool {
        self.is_counted.load(Ordering::Relaxed)
    }
}

/// The totals by tenant; without a tenant by `None`.
pub(crate) type TenantTotals = BTreeMap<Option<TenantName>, TurnTotals>;

/// Counts turns and ended sessions, by tenant.
#[derive(Debug, Default)]
pub(crate) struct TenantMeter(Mutex<TenantTotals>);

impl TenantMeter {
    /// Counts an ended turn. Returns the label of the metrics of the session's tenant, if it has one.
    pub fn count(&self, session: &SessionId, usage: &Usage) -> Option<String> {
        let tenant = session.tenant();
        if let Some(totals) = totals_of(&mut self.lock(), tenant.clone()) {
            totals.turns += 1;
            totals.cpu_ms += usage.cpu_ms;
            totals.output_bytes = totals.output_bytes.saturating_add(usage.output_bytes);
            if totals.is_labelled {
                return tenant.map(String::from);
            }
        }
        tenant.map(|_| OTHER.to_owned())
    }

    /// Counts the CPU time of a session that has ended. From then on its cgroups count no more.
    pub fn count_ended(&self, session: &SessionId, cpu: Duration, cgroups: &MeasuredCgroups) {
        let mut all = self.lock();
        cgroups.is_counted.store(true, Ordering::Relaxed);
        if let Some(totals) = totals_of(&mut all, session.tenant()) {
            let before = totals.ended_cpu.unwrap_or_default();
            totals.ended_cpu = Some(before.saturating_add(cpu));
        }
    }

    /// The label of a tenant in metrics.
    pub fn label(&self, tenant: &TenantName) -> String {
        match totals_of(&mut self.lock(), Some(tenant.clone())) {
            Some(totals) if totals.is_labelled => tenant.to_string(),
            Some(_) | None => OTHER.to_owned(),
        }
    }

    pub fn totals(&self) -> TenantTotals {
        self.lock().clone()
    }

    /// The totals, and what `look` finds at the same moment: no end of a session is counted between the two.
    pub fn totals_and<T>(&self, look: impl FnOnce() -> T) -> (TenantTotals, T) {
        let all = self.lock();
        (all.clone(), look())
    }

    fn lock(&self) -> MutexGuard<'_, TenantTotals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The totals of a tenant. `None` if too many tenants are counted already.
fn totals_of(all: &mut TenantTotals, tenant: Option<TenantName>) -> Option<&mut TurnTotals> {
    let known = all.len();
    if known >= TENANTS_MAX && !all.contains_key(&tenant) {
        return None;
    }
    let new = || TurnTotals { is_labelled: known < LABELS_MAX, ..TurnTotals::default() };
    Some(all.entry(tenant).or_insert_with(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(cpu_ms: f64, output_bytes: u64) -> Usage {
        Usage { wall_ms: 1.0, cpu_ms, peak_rss_bytes: 0, output_bytes }
    }

    #[test]
    fn turns_are_counted_for_the_tenant_of_their_session() {
        let meter = TenantMeter::default();
        let count = |session: &str, cpu_ms, bytes| {
            meter.count(&SessionId::parse(session).unwrap(), &usage(cpu_ms, bytes))
        };
        assert_eq!(count("a", 1.0, 10), None);
        assert_eq!(count("a@acme", 2.0, 20).as_deref(), Some("acme"));
        assert_eq!(count("b@acme", 3.0, 30).as_deref(), Some("acme"));
        let totals = meter.totals();
        let of = |tenant: Option<&str>| {
            let totals = &totals[&tenant.map(|name| TenantName::parse(name).unwrap())];
            (totals.turns, totals.cpu_ms, totals.output_bytes)
        };
        assert_eq!(of(None), (1, 1.0, 10));
        assert_eq!(of(Some("acme")), (2, 5.0, 50));
    }

    #[test]
    fn the_cpu_time_of_ended_sessions_adds_up() {
        let meter = TenantMeter::default();
        let ended = |session: &str, ms| {
            let (cgroups, cpu) = (MeasuredCgroups::new(Vec::new()), Duration::from_millis(ms));
            assert!(!cgroups.is_counted());
            meter.count_ended(&SessionId::parse(session).unwrap(), cpu, &cgroups);
            assert!(meter.totals_and(|| cgroups.is_counted()).1);
        };
        ended("a@acme", 2);
        ended("b@acme", 3);
        ended("a", 1);
        let acme = TenantName::parse("acme").unwrap();
        assert_eq!(meter.label(&acme), "acme");
        assert_eq!(meter.totals()[&Some(acme)].ended_cpu, Some(Duration::from_millis(5)));
        assert_eq!(meter.totals()[&None::<TenantName>].ended_cpu, Some(Duration::from_millis(1)));
    }

    #[test]
    fn the_labels_of_metrics_are_bounded() {
        let meter = TenantMeter::default();
        let mut labels = std::collections::BTreeSet::new();
        for number in 0..200 {
            let session = SessionId::parse(format!("s@t{number}")).unwrap();
            labels.extend(meter.count(&session, &usage(0.0, 0)));
        }
        assert_eq!(labels.len(), LABELS_MAX + 1);
        assert!(labels.contains(OTHER));
        assert_eq!(meter.label(&TenantName::parse("one-more").unwrap()), OTHER);
        assert_eq!(meter.totals().len(), 201);
    }
}
