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

use std::sync::{Arc, Mutex};

use windlass_protocol::policy::{SecretName, SecretRule, SecretScheme};

pub use authority::{Authority, AuthorityError};
pub use value::{BadSecretValue, SecretValue};

/// Finds the value of a secret. The proxy asks for each request, so that a new value is used at once.
pub trait SecretSource: std::fmt::Debug + Send + Sync {
    fn value(&self, name: &SecretName) -> Option<Arc<SecretValue>>;
}

/// The secrets of one session: where they may go, and where their values and certificates come from.
#[derive(Debug)]
pub struct SessionSecrets {
    rules: Mutex<Arc<[SecretRule]>>,
    source: Arc<dyn SecretSource>,
    authority: Arc<Authority>,
}

impl SessionSecrets {
    pub fn new(
        rules: Vec<SecretRule>,
        source: Arc<dyn SecretSource>,
        authority: Arc<Authority>,
    ) -> Self {
        Self { rules: Mutex::new(rules.into()), source, authority }
    }

    /// The rules that hold now. A request keeps the rules with which it began.
    pub fn rules(&self) -> Arc<[SecretRule]> {
        self.rules.lock().expect("no holder of this lock can panic").clone()
    }

    /// Replaces the rules. Requests that begin later follow the new rules, also on open connections.
    pub fn set_rules(&self, rules: Vec<SecretRule>) {
        *self.rules.lock().expect("no holder of this lock can panic") = rules.into();
    }

    pub(crate) fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// Whether a rule sends a secret to this origin.
    pub(crate) fn names(&self, origin: &Origin<'_>) -> bool {
        self.rules().iter().any(|rule| origin.is_of(rule))
    }

    /// The values that responses of this origin may contain.
    pub(crate) fn values_for(&self, origin: &Origin<'_>) -> Vec<Arc<SecretValue>> {
        let rules = self.rules();
        let mut names: Vec<_> =
            rules.iter().filter(|rule| origin.is_of(rule)).map(|rule| &rule.name).collect();
        names.sort();
        names.dedup();
        names.into_iter().filter_map(|name| self.source.value(name)).collect()
    }
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin<'o> {
    pub scheme: SecretScheme,
    pub host: &'o str,
    pub port: u16,
}

impl Origin<'_> {
    fn is_of(&self, rule: &SecretRule) -> bool {
        rule.to.is_at(self.scheme, self.host, self.port)
    }
}
