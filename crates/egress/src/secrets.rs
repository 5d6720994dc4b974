//! Secrets at the edge of a session: the values stay in the node, and the proxy puts them into requests that a rule
//! of the policy matches. The session's code has placeholders only.
//!
//! - [`value`] is a secret's value and the forms in which a response may contain it;
//! - [`screening`] changes or refuses a request's head, [`bodies`] checks request bodies and redacts responses by
//!   [`redaction`];
//! - [`authority`] is the node's certificate authority, [`termination`] ends TLS with its certificates.

pub(crate) mod authority;
pub(crate) mod bodies;
pub(crate) mod redaction;
pub(crate) mod screening;
pub(crate) mod termination;
pub(crate) mod value;

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;
use windlass_protocol::policy::{SecretName, SecretRule, SecretRuleSet, SecretScheme};

use crate::rules::RefusalReason;
pub use authority::{Authority, AuthorityError};
pub use value::{BadSecretValue, SecretValue};

/// Maximum number of values of one session that were sent to a host. More are refused.
const SENT_MAX: usize = 1024;

/// Finds the value of a secret. The proxy asks for each request, so that a new value is used at once.
pub trait SecretSource: std::fmt::Debug + Send + Sync {
    fn value(&self, name: &SecretName) -> Option<Arc<SecretValue>>;

    /// Called the first time that a value of this secret is sent to a host.
    fn sent(&self, _name: &SecretName, _host: &str, _port: u16) {}
}

/// The secrets of a family of sessions: where the proxy may send them, and the source of their values and certificates.
#[derive(Debug)]
pub struct SessionSecrets {
    state: Mutex<SecretState>,
    /// Locked while the rules change, so that changes are stored in the order in which they take effect.
    changing: Mutex<()>,
    /// Counts the changes of rules and the new values that were sent.
    changes: watch::Sender<u64>,
    source: Arc<dyn SecretSource>,
    /// Absent if it cannot be opened. Then TLS to the hosts of rules is refused.
    authority: Option<Arc<Authority>>,
}

#[derive(Debug)]
struct SecretState {
    rules: Arc<SecretRuleSet>,
    /// Which values each host has been sent. A host may know a value that was replaced or removed since.
    sent: Vec<SentValue>,
}

#[derive(Debug)]
struct SentValue {
    host: String,
    port: u16,
    value: Arc<SecretValue>,
}

impl SentValue {
    fn is_of(&self, host: &str, port: u16) -> bool {
        self.port == port && self.host == host
    }
}

impl SessionSecrets {
    pub fn new(
        rules: SecretRuleSet,
        source: Arc<dyn SecretSource>,
        authority: Option<Arc<Authority>>,
    ) -> Self {
        let state = Mutex::new(SecretState { rules: Arc::new(rules), sent: Vec::new() });
        Self {
            state,
            changing: Mutex::default(),
            changes: watch::Sender::new(0),
            source,
            authority,
        }
    }

    fn lock(&self) -> MutexGuard<'_, SecretState> {
        self.state.lock().expect("no holder of this lock can panic")
    }

    /// The rules that hold now.
    pub fn rules(&self) -> Arc<SecretRuleSet> {
        self.lock().rules.clone()
    }

    /// Replaces the rules, after `store` has stored them. Requests that begin later follow the new rules, also on open
    /// connections. Blocks as `store` does.
    pub fn change_rules<E>(
        &self,
        rules: Vec<SecretRule>,
        store: impl FnOnce(&SecretRuleSet) -> Result<(), E>,
    ) -> Result<(), E> {
        let _changing = self.changing.lock().expect("no holder of this lock can panic");
        let changed = self.rules().replaced_by(rules);
        store(&changed)?;
        self.lock().rules = Arc::new(changed);
        self.changes.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Returns when the host may know a secret. Connections to it whose bytes the proxy does not read must end then.
    pub(crate) async fn until_guarded(&self, host: &str, port: u16) {
        let mut changes = self.changes.subscribe();
        while !self.guards(host, port) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The number of changes so far. The values of a response may have changed if it has.
    pub(crate) fn changes(&self) -> u64 {
        *self.changes.borrow()
    }

    pub(crate) fn authority(&self) -> Option<&Arc<Authority>> {
        self.authority.as_ref()
    }

    /// Whether a host may know a secret: a rule sends one there, or has sent one. The proxy reads all that such a host
    /// sends, by whatever scheme.
    pub(crate) fn guards(&self, host: &str, port: u16) -> bool {
        let state = self.lock();
        let SecretRuleSet { rules, past } = &*state.rules;
        let is_there = |rule: &SecretRule| rule.to.port == port && rule.to.host == host;
        rules.iter().chain(past).any(is_there)
            || state.sent.iter().any(|sent| sent.is_of(host, port))
    }

    /// The rules for one request, as they are when the request begins.
    pub(crate) fn for_request(&self) -> RequestSecrets<'_> {
        RequestSecrets { session: self, rules: self.rules() }
    }
}

/// The secrets as they are when a request begins.
#[derive(Debug)]
pub(crate) struct RequestSecrets<'s> {
    session: &'s SessionSecrets,
    rules: Arc<SecretRuleSet>,
}

impl RequestSecrets<'_> {
    /// The value that a rule sends to an origin. From now on, responses of the origin are searched for it.
    fn value_for(
        &self,
        rule: &SecretRule,
        origin: &Origin<'_>,
    ) -> Result<Arc<SecretValue>, RefusalReason> {
        let value = self.session.source.value(&rule.name).ok_or(RefusalReason::SecretMissing)?;
        let mut state = self.session.lock();
        let is_known = |sent: &SentValue| {
            sent.is_of(origin.host, origin.port) && Arc::ptr_eq(&sent.value, &value)
        };
        if !state.sent.iter().any(is_known) {
            if state.sent.len() >= SENT_MAX {
                return Err(RefusalReason::SecretValues);
            }
            let (host, port) = (origin.host.to_owned(), origin.port);
            state.sent.push(SentValue { host, port, value: value.clone() });
            drop(state);
            self.session.source.sent(&rule.name, origin.host, origin.port);
            self.session.changes.send_modify(|count| *count += 1);
        }
        Ok(value)
    }

    /// The values that responses of an origin may contain.
    pub fn values_of(&self, origin: &Origin<'_>) -> Vec<Arc<SecretValue>> {
        let SecretRuleSet { rules, past } = &*self.rules;
        let is_there =
            |rule: &&SecretRule| rule.to.port == origin.port && rule.to.host == origin.host;
        let named = rules.iter().chain(past).filter(is_there);
        let mut values: Vec<_> =
            named.filter_map(|rule| self.session.source.value(&rule.name)).collect();
        let state = self.session.lock();
        let sent = state.sent.iter().filter(|sent| sent.is_of(origin.host, origin.port));
        values.extend(sent.map(|sent| sent.value.clone()));
        values.sort_by_key(|value| Arc::as_ptr(value).addr());
        values.dedup_by(|one, other| Arc::ptr_eq(one, other));
        values
    }
}

/// Where a request goes. The host is in the form of `normal_host`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin<'o> {
    pub scheme: SecretScheme,
    pub host: &'o str,
    pub port: u16,
}
