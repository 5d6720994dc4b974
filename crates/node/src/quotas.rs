//! Quotas of tenants: what the sessions of a tenant may hold together on this node. A session holds its limits, so the
//! sum of the limits stays within the quota whatever the sessions use. Decides only; sessions enforce their limits.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use windlass_protocol::policy::{HostRule, Limits};
use windlass_protocol::{ErrorCode, SessionId, TenantName};

use crate::failure::Failure;

/// The name of the table that holds for tenants without a table.
pub const OTHER_TENANTS: &str = "default";

/// What the sessions of one tenant may hold together. Absent: no quota.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantQuota {
    pub sessions: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// 100 is one core.
    pub cpu_percent: Option<u64>,
    pub processes: Option<u64>,
    pub disk_bytes: Option<u64>,
    /// The hosts that policies of the tenant's clients may name.
    pub hosts: Vec<HostRule>,
}

/// The quotas of all tenants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantQuotas {
    pub tables: BTreeMap<String, TenantQuota>,
    /// Why the tables cannot be used. Then no session of a tenant is created.
    pub error: Option<String>,
}

static NO_QUOTA: TenantQuota = TenantQuota {
    sessions: None,
    memory_bytes: None,
    cpu_percent: None,
    processes: None,
    disk_bytes: None,
    hosts: Vec::new(),
};

impl TenantQuotas {
    /// The quota of a tenant.
    pub(crate) fn of(&self, tenant: &TenantName) -> Result<&TenantQuota, Failure> {
        if let Some(why) = &self.error {
            let message = format!("the quotas of this node's tenants cannot be read: {why}");
            return Err(Failure::of_node(ErrorCode::QuotaExceeded, message));
        }
        let table = self.tables.get(tenant.as_str());
        Ok(table.or_else(|| self.tables.get(OTHER_TENANTS)).unwrap_or(&NO_QUOTA))
    }
}

/// A resource that sessions hold by their limits.
struct QuotaResource {
    name: &'static str,
    quota: fn(&TenantQuota) -> Option<u64>,
    limit: fn(&Limits) -> Option<u64>,
    set: fn(&mut Limits, u64),
}

const RESOURCES: [QuotaResource; 4] = [
    QuotaResource {
        name: "memory_bytes",
        quota: |quota| quota.memory_bytes,
        limit: |limits| limits.memory_bytes,
        set: |limits, value| limits.memory_bytes = Some(value),
    },
    QuotaResource {
        name: "cpu_percent",
        quota: |quota| quota.cpu_percent,
        limit: |limits| limits.cpu_percent.map(u64::from),
        set: |limits, value| limits.cpu_percent = Some(at_most_u32(value)),
    },
    QuotaResource {
        name: "processes",
        quota: |quota| quota.processes,
        limit: |limits| limits.processes.map(u64::from),
        set: |limits, value| limits.processes = Some(at_most_u32(value)),
    },
    QuotaResource {
        name: "disk_bytes",
        quota: |quota| quota.disk_bytes,
        limit: |limits| limits.disk_bytes,
        set: |limits, value| limits.disk_bytes = Some(value),
    },
];

fn at_most_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

impl TenantQuota {
    /// Whether a policy may name this host: a rule of the quota covers all that the rule allows.
    pub(crate) fn allows(&self, rule: &HostRule) -> bool {
        self.hosts.iter().any(|quota| {
            let is_below = || {
                let rest = rule.host.strip_suffix(&quota.host);
                rest.is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            };
            let is_same = quota.host == rule.host && quota.any_below == rule.any_below;
            let covers_port = quota.port.is_none() || quota.port == rule.port;
            (is_same || (quota.any_below && is_below()))
                && covers_port
                && quota.address == rule.address
        })
    }

    /// The limits of one more session. `held` is the limits of the tenant's other sessions, and `named` the limits that
    /// the client has named. A limit that it has not named becomes what is left of the quota, if less is left.
    fn fit(
        &self,
        tenant: &TenantName,
        held: &[Limits],
        named: &Limits,
        mut limits: Limits,
    ) -> Result<Limits, Failure> {
        let sessions = held.len() as u64;
        if let Some(quota) = self.sessions.filter(|quota| sessions >= *quota) {
            return Err(exceeded(tenant, "sessions", [quota, sessions, 1]));
        }
        for resource in &RESOURCES {
            let Some(quota) = (resource.quota)(self) else { continue };
            // A session without a limit may use the whole quota.
            let shares = held.iter().map(|limits| (resource.limit)(limits).unwrap_or(quota));
            let used = shares.fold(0, u64::saturating_add);
            let left = quota.saturating_sub(used);
            let wanted = (resource.limit)(&limits);
            if wanted.is_some_and(|wanted| wanted <= left) {
                continue;
            }
            if left == 0 || (resource.limit)(named).is_some() {
                let needs = wanted.unwrap_or(1);
                return Err(exceeded(tenant, resource.name, [quota, used, needs]));
            }
            (resource.set)(&mut limits, left);
        }
        Ok(limits)
    }
}

/// A smaller disk limit does not make files smaller than this: the limit of their size holds in `/tmp` too.
const FILE_BYTES_MIN: u64 = 64 << 20;

/// Limits the size of a file by the disk limit. The keeper measures the workspace from time to time, and one call can
/// allocate a whole file.
fn with_small_files(limits: Limits) -> Limits {
    let Some(disk_bytes) = limits.disk_bytes else { return limits };
    let most = disk_bytes.max(FILE_BYTES_MIN);
    Limits { file_bytes: Some(limits.file_bytes.map_or(most, |bytes| bytes.min(most))), ..limits }
}

fn exceeded(tenant: &TenantName, what: &str, [quota, used, needed]: [u64; 3]) -> Failure {
    let message = format!(
        "tenant {tenant} has a quota of {quota} for {what} on this node: its sessions hold {used}, and this one needs {needed}"
    );
    Failure::new(ErrorCode::QuotaExceeded, message)
}

/// What the live sessions of tenants hold.
#[derive(Debug, Default)]
pub(crate) struct TenantLedger(Mutex<HashMap<SessionId, Limits>>);

impl TenantLedger {
    /// Claims the limits of a new session, or fits them into the quota of its tenant. The claim lasts until
    /// [`Self::release`].
    pub fn claim(
        &self,
        quotas: &TenantQuotas,
        id: &SessionId,
        named: &Limits,
        limits: Limits,
    ) -> Result<Limits, Failure> {
        let Some(tenant) = id.tenant() else { return Ok(limits) };
        let quota = quotas.of(&tenant)?;
        let mut claims = self.lock();
        let others = claims.iter().filter(|(of, _)| *of != id && of.is_of(Some(&tenant)));
        let held: Vec<Limits> = others.map(|(_, limits)| *limits).collect();
        let fitted = with_small_files(quota.fit(&tenant, &held, named, limits)?);
        claims.insert(id.clone(), fitted);
        Ok(fitted)
    }

    /// Notes a session that is live, also if the quota has become smaller meanwhile.
    pub fn note(&self, id: &SessionId, limits: Limits) {
        self.lock().insert(id.clone(), limits);
    }

    pub fn release(&self, id: &SessionId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Limits>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> SessionId {
        SessionId::parse(text).unwrap()
    }

    fn memory(bytes: Option<u64>) -> Limits {
        Limits { memory_bytes: bytes, ..Limits::default() }
    }

    fn quotas(name: &str, quota: TenantQuota) -> TenantQuotas {
        TenantQuotas { tables: BTreeMap::from([(name.to_owned(), quota)]), error: None }
    }

    #[test]
    fn the_limits_of_all_sessions_stay_within_the_quota() {
        let quota = TenantQuota { memory_bytes: Some(100), ..TenantQuota::default() };
        // What sessions hold, the limit, whether the client named it, and the limit that the session gets.
        for (held, limit, is_named, expected) in [
            (vec![], Some(40), true, Some(40)),
            (vec![], Some(400), true, None),
            (vec![], Some(400), false, Some(100)),
            (vec![], None, false, Some(100)),
            (vec![Some(60)], Some(40), true, Some(40)),
            (vec![Some(60)], Some(41), true, None),
            (vec![Some(60)], Some(41), false, Some(40)),
            (vec![Some(60), Some(40)], Some(1), false, None),
            (vec![Some(60), Some(90)], None, false, None),
            (vec![None], Some(1), false, None),
            (vec![Some(u64::MAX), Some(u64::MAX)], Some(1), true, None),
        ] {
            let all: Vec<Limits> = held.iter().map(|limit| memory(*limit)).collect();
            let named = if is_named { memory(limit) } else { Limits::default() };
            let tenant = TenantName::parse("acme").unwrap();
            let fitted = quota.fit(&tenant, &all, &named, memory(limit));
            let found = fitted.as_ref().ok().and_then(|limits| limits.memory_bytes);
            assert_eq!(found, expected, "{held:?} {limit:?} {is_named}");
            let code = fitted.err().map(|failure| failure.code);
            assert_eq!(code.is_some(), expected.is_none());
            assert!(code.is_none_or(|code| code == ErrorCode::QuotaExceeded));
        }
    }

    #[test]
    fn a_tenant_exhausts_only_its_own_quota() {
        let quota = TenantQuota { sessions: Some(1), ..TenantQuota::default() };
        let (quotas, ledger) = (quotas(OTHER_TENANTS, quota), TenantLedger::default());
        let claim = |name: &str| {
            let none = Limits::default();
            ledger.claim(&quotas, &id(name), &none, none).map_err(|failure| failure.code)
        };
        assert!(claim("a@acme").is_ok());
        assert_eq!(claim("b@acme"), Err(ErrorCode::QuotaExceeded));
        assert!(claim("b@other").is_ok() && claim("b").is_ok() && claim("c").is_ok());
        // The same session claims once.
        assert!(claim("a@acme").is_ok());
        ledger.release(&id("a@acme"));
        assert!(claim("b@acme").is_ok());
        ledger.note(&id("c@third"), Limits::default());
        assert_eq!(claim("d@third"), Err(ErrorCode::QuotaExceeded));
    }

    #[test]
    fn a_file_of_a_tenant_is_not_larger_than_its_disk_limit() {
        let (quotas, ledger) = (TenantQuotas::default(), TenantLedger::default());
        let gib = |count: u64| Some(count << 30);
        for (id_text, file_bytes, disk_bytes, expected) in [
            ("s", gib(60), gib(1), gib(60)),
            ("s@acme", gib(60), gib(1), gib(1)),
            ("s@acme", None, gib(1), gib(1)),
            ("s@acme", gib(1), gib(60), gib(1)),
            ("s@acme", gib(60), Some(0), Some(FILE_BYTES_MIN)),
            ("s@acme", gib(60), None, gib(60)),
        ] {
            let limits = Limits { file_bytes, disk_bytes, ..Limits::default() };
            let claimed = ledger.claim(&quotas, &id(id_text), &limits, limits).unwrap();
            assert_eq!(claimed.file_bytes, expected, "{id_text} {file_bytes:?} {disk_bytes:?}");
        }
    }

    #[test]
    fn quotas_that_cannot_be_read_let_no_session_of_a_tenant_be_created() {
        let quotas = TenantQuotas { error: Some("bad".to_owned()), ..TenantQuotas::default() };
        let (ledger, none) = (TenantLedger::default(), Limits::default());
        assert!(ledger.claim(&quotas, &id("a"), &none, none).is_ok());
        let failure = ledger.claim(&quotas, &id("a@acme"), &none, none).unwrap_err();
        assert_eq!(failure.code, ErrorCode::QuotaExceeded);
    }

    #[test]
    fn the_table_of_a_tenant_wins_over_the_default() {
        let table = |sessions| TenantQuota { sessions, ..TenantQuota::default() };
        let mut all = quotas("acme", table(Some(2)));
        let sessions = |all: &TenantQuotas, name: &str| {
            all.of(&TenantName::parse(name).unwrap()).unwrap().sessions
        };
        assert_eq!((sessions(&all, "acme"), sessions(&all, "other")), (Some(2), None));
        all.tables.insert(OTHER_TENANTS.to_owned(), table(Some(1)));
        assert_eq!((sessions(&all, "acme"), sessions(&all, "other")), (Some(2), Some(1)));
    }

    #[test]
    fn a_policy_names_only_hosts_of_the_quota() {
        let rule = |text: &str| HostRule::parse(text).unwrap();
        let hosts = ["pypi.org:443", "*.example.org", "db.corp=10.0.0.5"].map(rule).to_vec();
        let quota = TenantQuota { hosts, ..TenantQuota::default() };
        for (text, expected) in [
            ("pypi.org:443", true),
            ("pypi.org", false),
            ("pypi.org:80", false),
            ("a.pypi.org:443", false),
            ("a.example.org", true),
            ("a.b.example.org:8443", true),
            ("*.a.example.org", true),
            ("*.example.org", true),
            ("example.org", false),
            ("*.org", false),
            ("badexample.org", false),
            ("a.example.org=127.0.0.1", false),
            ("db.corp=10.0.0.5", true),
            ("db.corp", false),
            ("db.corp=10.0.0.6", false),
            ("localhost:8080", false),
        ] {
            assert_eq!(quota.allows(&rule(text)), expected, "{text}");
        }
        assert!(!NO_QUOTA.allows(&rule("pypi.org")));
    }
}
