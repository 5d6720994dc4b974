//! The parts of the node's bounds that tenants can use: one tenant cannot use up what others need, and all tenants
//! together leave a part to clients without a tenant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use windlass_protocol::{SessionId, TenantName};

use super::{BoundLevel, Bounds, quarters_of};

/// How many quarters of a bound all tenants together can use, and each tenant.
const ALL_TENANTS_QUARTERS: usize = 3;
const EACH_TENANT_QUARTERS: usize = 2;

/// Whether a tenant that holds `own` can take one more of a limited number of things. All tenants hold `of_tenants`.
pub(crate) fn can_take_one_more(limit: usize, own: usize, of_tenants: usize) -> bool {
    own < quarters_of(limit, EACH_TENANT_QUARTERS)
        && of_tenants < quarters_of(limit, ALL_TENANTS_QUARTERS)
}

/// With the bounds of more tenants than this, those that hold nothing are dropped.
const TENANTS_MAX: usize = 1024;

/// The bounds of the node, and those of tenants within them.
#[derive(Debug)]
pub(crate) struct NodeBounds {
    node: Arc<Bounds>,
    all_tenants: Bounds,
    of_tenants: Mutex<HashMap<TenantName, Arc<Bounds>>>,
}

impl Default for NodeBounds {
    fn default() -> Self {
        let node = Arc::new(Bounds::default());
        let all_tenants = node.part(ALL_TENANTS_QUARTERS);
        Self { node, all_tenants, of_tenants: Mutex::default() }
    }
}

impl NodeBounds {
    /// The bounds of a client. Without a tenant they are those of the whole node.
    pub fn of(&self, tenant: Option<&TenantName>) -> Arc<Bounds> {
        let Some(tenant) = tenant else { return self.node.clone() };
        let mut all = self.of_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(tenant) {
            return known.clone();
        }
        if all.len() >= TENANTS_MAX {
            all.retain(|_, bounds| Arc::strong_count(bounds) > 1 || bounds.are_in_use());
        }
        let bounds = Arc::new(self.all_tenants.part(EACH_TENANT_QUARTERS));
        all.insert(tenant.clone(), bounds.clone());
        bounds
    }

    /// The bounds of a request about a session: it counts for the tenant of the session, whoever sends it.
    pub fn of_session(&self, session: &SessionId) -> Arc<Bounds> {
        self.of(session.tenant().as_ref())
    }

    /// What all clients together have claimed of each limit.
    pub fn levels(&self) -> impl Iterator<Item = BoundLevel> + use<> {
        self.node.levels().into_iter()
    }

    /// Sets the number of connections of the whole node, of which tenants have parts for their requests.
    pub fn set_requests(&self, limit: usize) {
        self.node.requests.set_limit(limit);
    }

    /// Sets the maximum number of long-lived connections of the whole node.
    pub fn set_long_connections(&self, limit: usize) {
        self.node.long_connections.set_limit(limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::BudgetShare;

    fn tenant(name: &str) -> Option<TenantName> {
        (!name.is_empty()).then(|| TenantName::parse(name).unwrap())
    }

    #[test]
    fn no_tenant_can_use_up_what_others_need() {
        // Who claims how much in turn, and whether each claim is granted. The whole node has 100. The empty name is a
        // client without a tenant.
        for (claims, expected) in [
            (vec![("acme", 50), ("acme", 1), ("other", 25), ("", 25)], "yes no yes yes"),
            (vec![("acme", 51), ("acme", 50)], "no yes"),
            (vec![("acme", 50), ("other", 26), ("third", 25), ("third", 1)], "yes no yes no"),
            (vec![("acme", 40), ("other", 40), ("", 60), ("", 1)], "yes no yes no"),
            (vec![("", 90), ("acme", 20), ("acme", 10), ("", 1)], "yes no yes no"),
            (vec![("", 100), ("acme", 1)], "yes no"),
        ] {
            let bounds = NodeBounds::default();
            bounds.set_long_connections(100);
            let mut shares: Vec<BudgetShare> = Vec::new();
            let mut found = Vec::new();
            for (name, amount) in &claims {
                let claimed = bounds.of(tenant(name).as_ref()).long_connections.claim(*amount);
                found.push(if claimed.is_ok() { "yes" } else { "no" });
                shares.extend(claimed);
            }
            assert_eq!(found.join(" "), expected, "{claims:?}");
            // What is returned is free at each level.
            drop(shares);
            for (name, most) in [("acme", 50), ("other", 50), ("", 100)] {
                let claimed = bounds.of(tenant(name).as_ref()).long_connections.claim(most);
                assert!(claimed.is_ok(), "{name} {claims:?}");
            }
        }
    }

    #[test]
    fn requests_of_tenants_leave_connections_to_others() {
        let bounds = NodeBounds::default();
        bounds.set_requests(8);
        let claim = |name: &str, count| bounds.of(tenant(name).as_ref()).requests.claim(count);
        let of_acme = claim("acme", 4);
        assert!(of_acme.is_ok() && claim("acme", 1).is_err());
        assert!(claim("other", 3).is_err());
        let of_other = claim("other", 2);
        assert!(of_other.is_ok() && claim("third", 1).is_err());
        drop((of_acme, of_other));
        assert!(claim("third", 4).is_ok());
    }

    #[test]
    fn a_request_about_a_session_counts_for_its_tenant() {
        let bounds = NodeBounds::default();
        let of_session = |id: &str| bounds.of_session(&SessionId::parse(id).unwrap());
        let acme = bounds.of(tenant("acme").as_ref());
        assert!(Arc::ptr_eq(&of_session("a@acme"), &acme));
        assert!(!Arc::ptr_eq(&of_session("a@other"), &acme));
        assert!(Arc::ptr_eq(&of_session("a"), &bounds.of(None)));
    }

    #[test]
    fn only_bounds_that_are_in_use_are_kept_for_long() {
        let bounds = NodeBounds::default();
        let acme = bounds.of(tenant("acme").as_ref());
        let share = acme.input.claim(1).unwrap();
        drop(acme);
        for number in 0..3 * TENANTS_MAX {
            bounds.of(tenant(&format!("t{number}")).as_ref());
        }
        assert!(bounds.of_tenants.lock().unwrap().len() <= TENANTS_MAX);
        let acme = bounds.of(tenant("acme").as_ref());
        assert!(acme.are_in_use());
        drop(share);
        assert!(!acme.are_in_use());
    }

    #[tokio::test]
    async fn the_reads_of_a_tenant_leave_slots_to_others() {
        let bounds = NodeBounds::default();
        let of = |name: &str| bounds.of(tenant(name).as_ref());
        let (acme, other, owner) = (of("acme"), of("other"), of(""));
        let turns =
            [acme.page_reads.enter().await.unwrap(), acme.page_reads.enter().await.unwrap()];
        assert!(!acme.page_reads.has_free_slot());
        let third = other.page_reads.enter().await.unwrap();
        assert!(!other.page_reads.has_free_slot() && owner.page_reads.has_free_slot());
        drop((turns, third));
        assert!(acme.page_reads.has_free_slot() && other.page_reads.has_free_slot());
    }
}
